"""Routes of terminals: what a session's terminal shows, keys for it, its size. The session's events tell when it
changes (`screen_update`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from midwatch.api.bodies import KeysBody, ScreenQuery, SizeBody
from midwatch.api.dependencies import PREFIX, DeskDep
from midwatch.api.reply import Json
from midwatch.api.sessions import Key
from midwatch.base.errors import AgentError, Conflict
from midwatch.domain.agent import Screenshot
from midwatch.wire.sessions import Pressed, ScreenInfo

router = APIRouter(prefix=PREFIX, tags=["terminals"])


@router.get("/sessions/{key:path}/screen", responses={200: {"model": ScreenInfo}})
async def screen(desk: DeskDep, key: Key, asked: Annotated[ScreenQuery, Query()]) -> Json:
    """What the terminal of a session shows, and what the agent in it does."""
    return _shown(await desk.terminals.screenshot(key, styled=asked.styled))


@router.post("/sessions/{key:path}/open", responses={200: {"model": ScreenInfo}})
async def open_terminal(desk: DeskDep, key: Key) -> Json:
    """Have the program of a session running before it is spoken to. Harmless when it is."""
    try:
        await desk.terminals.open(key)
    except AgentError as problem:
        raise Conflict(f"the terminal of session {key} could not be opened: {problem}") from None
    return _shown(await desk.terminals.screenshot(key))


@router.post("/sessions/{key:path}/keys", responses={200: {"model": Pressed}})
async def press(desk: DeskDep, key: Key, body: KeysBody) -> Json:
    """Type into the terminal, as it is, whatever goes on there."""
    data = body.keys.encode()
    await desk.terminals.send_keys(key, data)
    return Json({"typed": len(data)})


@router.post("/sessions/{key:path}/resize", responses={200: {"model": ScreenInfo}})
async def resize(desk: DeskDep, key: Key, body: SizeBody) -> Json:
    """Give the terminal another size."""
    await desk.terminals.resize(key, body.columns, body.rows)
    return _shown(await desk.terminals.screenshot(key))


def _shown(found: Screenshot) -> Json:
    return Json({**found._asdict(), "cursor": list(found.cursor)})

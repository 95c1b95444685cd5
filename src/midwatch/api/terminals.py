"""Routes of terminals: the screen of a session's terminal, its keys and its size.

The session's event `screen_update` reports a change of the screen.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import KeysBody, ScreenQuery, SizeBody
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.api.sessions import Key
from midwatch.base.errors import AgentError, Conflict
from midwatch.wire.sessions import KeysTyped, ScreenInfo

router = make_router("terminals")


@router.get("/sessions/{key:path}/screen", responses={200: {"model": ScreenInfo}})
@needs("read")
async def screen(desk: DeskDep, actor: Caller, key: Key, query: Annotated[ScreenQuery, Query()]) -> Json:
    """Return the screen of a session's terminal, and the status of its agent."""
    return Json((await desk.terminals.screenshot(key, styled=query.styled, actor=actor))._asdict())


@router.post("/sessions/{key:path}/open", responses={200: {"model": ScreenInfo}})
@needs("manage")
async def open_terminal(desk: DeskDep, actor: Caller, key: Key) -> Json:
    """Start the program of a session's agent before the first message. Does nothing if the program runs already."""
    try:
        await desk.terminals.open(key, actor=actor)
    except AgentError as problem:
        raise Conflict(f"the terminal of session {key} could not be opened: {problem}") from None
    return Json((await desk.terminals.screenshot(key))._asdict())


@router.post("/sessions/{key:path}/keys", responses={200: {"model": KeysTyped}})
@needs("manage")
async def press(desk: DeskDep, actor: Caller, key: Key, body: KeysBody) -> Json:
    """Type keys into a session's terminal, even while the agent works."""
    data = body.keys.encode()
    await desk.terminals.send_keys(key, data, actor=actor)
    return Json({"typed": len(data)})


@router.post("/sessions/{key:path}/resize", responses={200: {"model": ScreenInfo}})
@needs("manage")
async def resize(desk: DeskDep, actor: Caller, key: Key, body: SizeBody) -> Json:
    """Change the size of a session's terminal."""
    await desk.terminals.resize(key, body.columns, body.rows, actor=actor)
    return Json((await desk.terminals.screenshot(key))._asdict())

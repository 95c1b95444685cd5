"""Routes of sessions: conversations and their messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from midwatch.api.bodies import MessageQuery, SessionQuery
from midwatch.api.desk import Desk
from midwatch.api.reply import Json

router = APIRouter()


@router.get("/sessions")
async def list_sessions(desk: Desk, asked: Annotated[SessionQuery, Query()]) -> Json:
    """The most recently used sessions first."""
    return Json({"sessions": [session.snapshot() for session in await desk.sessions.list(asked.limit)]})


@router.get("/sessions/{key:path}/messages")
async def messages(desk: Desk, key: str, asked: Annotated[MessageQuery, Query()]) -> Json:
    """The conversation, in order. Keys may hold `:`, `|` and `/`."""
    found = await desk.sessions.messages(key, asked.after, asked.limit)
    if not found:
        await desk.sessions.get(key)  # an unknown session is an error, a silent one is not
    return Json({"messages": [message.snapshot() for message in found]})

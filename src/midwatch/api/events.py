"""Routes of events: the log as pages of JSON, or followed as server-sent events."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from midwatch.api.bodies import EventQuery
from midwatch.api.desk import Desk
from midwatch.api.reply import Json
from midwatch.api.sse import EventStream, Streams
from midwatch.errors import InvalidInput, StoreUnavailable
from midwatch.event import EventFilter

router = APIRouter()


@router.get("/events")
async def events(
    desk: Desk,
    request: Request,
    asked: Annotated[EventQuery, Query()],
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Events after `after`: followed for ever, or one page of the stored ones for `Accept: application/json`."""
    which = EventFilter(kinds=tuple(asked.kind), task_id=asked.task_id, session_key=asked.session_key)
    if "application/json" in accept:
        bounds = await desk.store.log_bounds()  # before the events, so that none up to last_seq is missed
        found = await desk.store.read_events(asked.after, which, asked.limit) if asked.limit else []
        return Json({"events": [event.snapshot() for event in found], **bounds._asdict()})
    streams = cast(Streams, request.app.state.streams)
    if streams.closing:
        raise StoreUnavailable("the server is stopping; connect again when it is back.")
    after = resume_point(last_event_id, asked.after)
    return EventStream(desk.bus.follow(after, which, live=asked.live), streams)


def resume_point(last_event_id: str | None, after: int) -> int:
    """Where to go on: after what the reader saw last, else where it asks to begin."""
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
        raise InvalidInput("Last-Event-ID is the seq of the last event seen.", field="Last-Event-ID")
    return int(last_event_id)

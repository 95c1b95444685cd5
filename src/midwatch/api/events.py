"""Routes of events: the log as pages of JSON, or followed as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from midwatch.api.bodies import EventQuery
from midwatch.api.dependencies import PREFIX, DeskDep, StillAllowed, Who
from midwatch.api.reply import Json
from midwatch.api.sse import Batches, EventStream, Shape, Streams
from midwatch.base.errors import InvalidInput, NotFound, Pruned, StoreUnavailable
from midwatch.desk.desk import Desk
from midwatch.domain.event import EventFilter, Page
from midwatch.domain.identity import Actor
from midwatch.domain.watch_state import State
from midwatch.wire.events import EventPage

router = APIRouter(prefix=PREFIX, tags=["events"])

LastEventId = Annotated[str | None, Header(description="The seq of the last event that was seen.")]


@router.get(
    "/events",
    responses={200: {"model": EventPage, "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    desk: DeskDep,
    request: Request,
    asked: Annotated[EventQuery, Query()],
    who: Who,
    still_allowed: StillAllowed,
    accept: Annotated[str, Header()] = "",
    last_event_id: LastEventId = None,
) -> Response:
    """Events: followed for ever, or one page of the stored ones for `Accept: application/json`."""
    which = EventFilter(
        kinds=tuple(asked.kind), task_id=asked.task_id, turn_id=asked.turn_id, session_key=asked.session_key,
        agent_id=asked.agent, actor=asked.actor,
    )  # fmt: skip
    if "application/json" in accept:
        return await page(desk, asked, which)
    streams: Streams = request.app.state.streams
    after = resume_point(last_event_id, asked.after)
    scoped = which.task_id is not None or which.session_key is not None
    if asked.state:
        return stream(streams, await watched(desk, which, after), Shape(True, scoped), who, still_allowed)
    followed: Batches = desk.bus.batches(after or 0, which, live=asked.live)
    return stream(streams, followed, Shape(False, scoped), who, still_allowed)


async def page(desk: Desk, asked: EventQuery, which: EventFilter) -> Json:
    """Some stored events. `more` says that there may be further ones."""
    bounds = await desk.store.log_bounds()  # before the events, so that none up to last_seq is missed
    after = asked.after or 0
    if asked.before is None and 0 < after < bounds.oldest_seq - 1 and which.task_id is None:
        raise Pruned(after, bounds.oldest_seq)
    found = Page()
    if asked.limit and asked.before is not None:
        found.extend(await desk.store.read_events_back(asked.before, which, asked.limit))
    elif asked.limit:
        found = await desk.store.read_events(after, which, asked.limit)
    more = found.cut or (0 < len(found) == asked.limit)
    return Json({"events": [event.snapshot() for event in found], **bounds._asdict(), "more": more})


async def watched(desk: Desk, which: EventFilter, after: int | None) -> Batches:
    """The state of what a filter asks for, and everything after it; NotFound when there is no such thing."""

    async def look() -> State:
        found: State | None
        if which.task_id is not None:
            found, noun, key = await desk.store.state_of_task(which.task_id), "task", which.task_id
        elif which.session_key is not None:
            found, noun, key = await desk.store.state_of_session(which.session_key), "session", which.session_key
        else:
            return await desk.store.state_of_desk()
        if found is None:
            raise NotFound(noun, key)
        return found

    found = [await look()]  # an error must be a reply, not the end of a stream

    async def again() -> State:
        return found.pop() if found else await look()

    return desk.bus.watch(which, again, after)


def stream(streams: Streams, batches: Batches, shape: Shape, who: Actor, still_allowed: StillAllowed) -> EventStream:
    """The reply, unless the server is about to stop or this actor follows too much already."""
    if streams.closing:
        raise StoreUnavailable("the server is stopping; connect again when it is back.")
    streams.check_room(who.name)
    return EventStream(batches, streams, shape, who.name, still_allowed)


def resume_point(last_event_id: str | None, after: int | None) -> int | None:
    """Where to go on: after what the reader saw last, else where it asks to begin."""
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
        raise InvalidInput("Last-Event-ID is the seq of the last event seen.", field="Last-Event-ID")
    return int(last_event_id)

"""Routes of events: read the log as pages of JSON, or follow the log as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Request
from starlette.responses import Response

from midwatch.api.bodies import EventQuery
from midwatch.api.dependencies import Caller, DeskDep, StillAllowed
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.api.sse import Batches, EventStream, Outlet, Shape, Streams
from midwatch.base.errors import InvalidInput
from midwatch.desk.desk import Desk
from midwatch.domain.event import EventFilter
from midwatch.domain.identity import AnyActor
from midwatch.domain.watch_state import State
from midwatch.wire.events import EventPage

router = make_router("events")

LastEventId = Annotated[str | None, Header(description="The seq of the last event that the client has received.")]


@router.get(
    "/events",
    responses={200: {"model": EventPage, "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
@needs("read")
async def events(
    desk: DeskDep,
    request: Request,
    query: Annotated[EventQuery, Query()],
    actor: Caller,
    still_allowed: StillAllowed,
    accept: Annotated[str, Header()] = "",
    last_event_id: LastEventId = None,
) -> Response:
    """Stream stored and new events without end. With `Accept: application/json`, return a page of stored events."""
    which = EventFilter(
        kinds=tuple(query.kind), task_id=query.task_id, turn_id=query.turn_id, session_key=query.session_key,
        agent_id=query.agent, actor=query.actor, tree=query.tree,
    )  # fmt: skip
    if "application/json" in accept:
        return Json(await desk.events.page(which, query.after or 0, query.before, query.limit, actor=actor))
    streams: Streams = request.app.state.streams
    after = resume_point(last_event_id, query.after)
    scoped = which.task_id is not None or which.session_key is not None
    outlet = Outlet(streams, Shape(query.state, scoped))
    if query.state:
        batches = await watch(desk, which, after, actor, outlet)
    else:
        await desk.events.check_reader(which, actor)
        batches = desk.bus.batches(after or 0, which, live=query.live, take=outlet.take)
    return EventStream(batches, streams, outlet.encode, actor, still_allowed, outlet=outlet)


async def watch(
    desk: Desk, which: EventFilter, after: int | None, actor: AnyActor = None, outlet: Outlet | None = None
) -> Batches:
    """Return a stream: the state of what `which` selects, then all later events.

    With `after`, the events after this seq come before the state. Raise NotFound for an unknown task or session.
    """
    await desk.events.check_reader(which, actor)
    first = [await desk.events.state(which)]  # before the stream starts, so that the client gets an error reply

    async def look() -> State:
        return first.pop() if first else await desk.events.state(which)

    return desk.bus.watch(which, look, after, outlet.take if outlet else None)


def resume_point(last_event_id: str | None, after: int | None) -> int | None:
    """Return the seq after which a stream continues: the header Last-Event-ID or, without it, the parameter `after`."""
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
        raise InvalidInput("Last-Event-ID must be the seq of the last received event.", field="Last-Event-ID")
    return int(last_event_id)

"""Routes of sessions: open a conversation, send messages, watch, interrupt, close. Paths have percent-encoded keys."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from midwatch.api.bodies import InterruptBody, MessageBody, MessageQuery, SessionBody, SessionQuery
from midwatch.api.dependencies import PREFIX, Caller, DeskDep, IdempotencyKey, StillAllowed
from midwatch.api.events import LastEventId, resume_point, stream, watched
from midwatch.api.markdown import to_html
from midwatch.api.reply import Json, list_page
from midwatch.api.sse import Shape
from midwatch.domain.event import EventFilter
from midwatch.wire.sessions import Interrupted, MessagePage, SentInfo, SessionInfo, SessionPage

SLASH = "\x1f"
"""Stands for a slash in a key while the router splits the path. No path from outside contains it."""

MOST_SHOWN = 4_000_000
"""Characters of one page of messages."""

router = APIRouter(prefix=PREFIX, tags=["sessions"])


class Keys:
    """Middleware that keeps a percent-encoded key whole, whatever it ends with."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path", b"")
        if b"%2f" in raw.lower() and b"/sessions/" in raw:
            path = "/".join(unquote(part).replace("/", SLASH) for part in raw.decode("latin-1").split("/"))
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


async def key_of(key: str) -> str:
    """Return the key in the path."""
    return key.replace(SLASH, "/")


Key = Annotated[str, Depends(key_of)]


@router.get("/sessions", responses={200: {"model": SessionPage}})
async def list_sessions(desk: DeskDep, query: Annotated[SessionQuery, Query()]) -> Json:
    """List sessions, the most recently used first. `next` is the `before` of the following page, or null."""
    found = await desk.sessions.list(query.limit, query.before)
    return list_page("sessions", [view.snapshot() for view in found], query.limit, "key")


@router.post(
    "/sessions",
    status_code=201,
    responses={201: {"model": SessionInfo}, 200: {"model": SessionInfo, "description": "It was there."}},
)
async def create(desk: DeskDep, actor: Caller, body: SessionBody, idempotency_key: IdempotencyKey = None) -> Json:
    """Open a conversation with an agent, and send the first message. One that is open already with that key, agent and
    directory is returned."""
    view, created = await desk.sessions.begin(**body.model_dump(), idempotency_key=idempotency_key, actor=actor)
    return Json(view.snapshot(), 201 if created else 200)


@router.get("/sessions/{key:path}/messages", responses={200: {"model": MessagePage}})
async def messages(desk: DeskDep, key: Key, query: Annotated[MessageQuery, Query()]) -> Json:
    """Return the messages of a conversation, in order."""
    found = await desk.sessions.messages(key, query.after, query.limit)
    if not found:
        await desk.sessions.get(key)  # an unknown session is an error, a silent one is not
    shown, size = [], 0
    for message in found:
        entry = message.snapshot()
        if query.html:
            entry["html"] = await to_html(message.text)
        shown.append(entry)
        size += len(message.text) + len(entry.get("html") or "")
        if size >= MOST_SHOWN:
            break  # whoever wants more goes on after the last number
    return Json({"messages": shown, "more": len(shown) < len(found) or len(found) == query.limit})


@router.post("/sessions/{key:path}/messages", status_code=202, responses={202: {"model": SentInfo}})
async def send(
    desk: DeskDep, actor: Caller, key: Key, body: MessageBody, idempotency_key: IdempotencyKey = None
) -> Json:
    """Send a message: a task of this conversation, which waits while another one runs; or, with another `mode`, a
    message for the turn that runs. The reply's `mode` tells which it is. Durable when the reply comes."""
    sent = await desk.sessions.say(
        key, body.text, body.mode, priority=body.priority, idempotency_key=idempotency_key, actor=actor
    )
    return Json(sent.snapshot(), 202, headers={"location": f"/api/v1/tasks/{sent.task.id}"})


@router.post("/sessions/{key:path}/interrupt", responses={200: {"model": Interrupted}})
async def interrupt(desk: DeskDep, actor: Caller, key: Key, body: InterruptBody | None = None) -> Json:
    """End the turn that runs in it now; what waits goes on. `abort` cancels it and pauses the automation or goal it
    belongs to; `resume` says how to have that go on. `stop` lets the agent close with one answer."""
    wish = body or InterruptBody()
    stopped = await desk.sessions.interrupt(key, wish.mode, hint=wish.hint, actor=actor)
    resume = (await desk.tasks.get(stopped)).resume_command if stopped and wish.mode == "abort" else None
    return Json({"interrupted": stopped, "mode": wish.mode, "resume": resume})


@router.post("/sessions/{key:path}/restart", responses={200: {"model": SessionInfo}})
async def restart(desk: DeskDep, actor: Caller, key: Key) -> Json:
    """Stop what runs in it and end its agent's process; the next message begins a new one."""
    return Json((await desk.sessions.restart(key, actor=actor)).snapshot())


@router.post("/sessions/{key:path}/close", responses={200: {"model": SessionInfo}})
async def close(desk: DeskDep, actor: Caller, key: Key) -> Json:
    """Cancel what is open in it and take no more messages."""
    return Json((await desk.sessions.close(key, actor=actor)).snapshot())


@router.get(
    "/sessions/{key:path}/live", responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
)
async def live(
    desk: DeskDep,
    request: Request,
    key: Key,
    actor: Caller,
    still_allowed: StillAllowed,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a conversation: its state, then its events, also texts that are being written."""
    which = EventFilter(session_key=key)
    batches = await watched(desk, which, resume_point(last_event_id, None))
    return stream(request.app.state.streams, batches, Shape(True, True), actor, still_allowed)


@router.get("/sessions/{key}", responses={200: {"model": SessionInfo}})
async def show(desk: DeskDep, key: Key) -> Json:
    """Return one session, and whether its agent takes messages while it works."""
    view = await desk.sessions.get(key)
    steerable = (await desk.registry.terms_of(view.session.agent)).steerable
    return Json({**view.snapshot(), "steerable": steerable})

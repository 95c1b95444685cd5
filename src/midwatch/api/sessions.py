"""Routes of sessions: open, send messages, follow, interrupt, close. Keys in paths are percent-encoded."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Query, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from midwatch.api.bodies import InterruptBody, MessageBody, MessageQuery, SessionBody, SessionQuery
from midwatch.api.dependencies import Caller, DeskDep, IdempotencyKey, StillAllowed
from midwatch.api.describe import make_router
from midwatch.api.events import LastEventId, resume_point, watch
from midwatch.api.markdown import to_html
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, list_page
from midwatch.api.sse import EventStream, Outlet, Shape
from midwatch.domain.event import EventFilter
from midwatch.wire.sessions import Interruption, MessagePage, SentInfo, SessionInfo, SessionPage

SLASH = "\x1f"
"""The character that replaces a slash in a key while the router splits the path. Requests cannot contain it."""

MAX_PAGE_CHARACTERS = 4_000_000

router = make_router("sessions")


class Keys:
    """Middleware that lets the router read a percent-encoded key as one segment, even if it contains a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path", b"")
        if b"%2f" in raw.lower() and b"/sessions/" in raw:
            path = "/".join(unquote(part).replace("/", SLASH) for part in raw.decode("latin-1").split("/"))
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


async def key_of(key: str) -> str:
    """Return the key of the session in the path, with its slashes restored."""
    return key.replace(SLASH, "/")


Key = Annotated[str, Depends(key_of)]


@router.get("/sessions", responses={200: {"model": SessionPage}})
@needs("oversee")
async def list_sessions(desk: DeskDep, actor: Caller, query: Annotated[SessionQuery, Query()]) -> Json:
    """List sessions, the most recently used first. `next` is the `before` of the following page, or null."""
    views = await desk.sessions.list(query.limit, query.before, actor=actor)
    following = views[-1].session.key if len(views) == query.limit else None
    return list_page("sessions", [view.snapshot() for view in views], following)


@router.post(
    "/sessions",
    status_code=201,
    responses={201: {"model": SessionInfo}, 200: {"model": SessionInfo, "description": "The session was open before."}},
)
@needs("operate")
async def create(desk: DeskDep, actor: Caller, body: SessionBody, idempotency_key: IdempotencyKey = None) -> Json:
    """Open a conversation with an agent, and send the first message.

    If a session with the same key, agent and directory is open already, that session is returned.
    """
    view, created = await desk.sessions.begin(**body.model_dump(), idempotency_key=idempotency_key, actor=actor)
    return Json(view.snapshot(), 201 if created else 200)


@router.get("/sessions/{key:path}/messages", responses={200: {"model": MessagePage}})
@needs("read")
async def messages(desk: DeskDep, actor: Caller, key: Key, query: Annotated[MessageQuery, Query()]) -> Json:
    """Return the messages of a conversation, in order."""
    page = await desk.sessions.messages(key, query.after, query.limit, actor=actor)
    if not page:
        await desk.sessions.get(key)  # raises NotFound for an unknown session; a session without messages is no error
    shown, size = [], 0
    for message in page:
        entry = message.snapshot()
        if query.html:
            entry["html"] = await to_html(message.text)
        shown.append(entry)
        size += len(message.text) + len(entry.get("html") or "")
        if size >= MAX_PAGE_CHARACTERS:
            break  # the client requests more after the last number
    return Json({"messages": shown, "more": len(shown) < len(page) or len(page) == query.limit})


@router.post("/sessions/{key:path}/messages", status_code=202, responses={202: {"model": SentInfo}})
@needs("manage")
async def send(
    desk: DeskDep, actor: Caller, key: Key, body: MessageBody, idempotency_key: IdempotencyKey = None
) -> Json:
    """Send a message to a session: as a new task, which waits for the tasks before it, or into the running turn.

    `mode` chooses between the two. The `mode` of the reply reports what was done. The message is durable when the reply
    arrives.
    """
    sent = await desk.sessions.say(
        key, body.text, body.mode, priority=body.priority, idempotency_key=idempotency_key, actor=actor
    )
    return Json(sent.snapshot(), 202, headers={"location": f"/api/v1/tasks/{sent.task.id}"})


@router.post("/sessions/{key:path}/interrupt", responses={200: {"model": Interruption}})
@needs("manage")
async def interrupt(desk: DeskDep, actor: Caller, key: Key, body: InterruptBody | None = None) -> Json:
    """End the running turn of a session. Waiting messages still run.

    The mode `abort` cancels the turn at once, and pauses the automation or goal of its task; `resume` in the reply is
    the command that resumes this automation or goal. The mode `stop` lets the agent give a final answer, and pauses the
    goal of its task.
    """
    body = body or InterruptBody()
    task_id = await desk.sessions.interrupt(key, body.mode, hint=body.hint, actor=actor)
    task = await desk.tasks.get(task_id, actor=actor) if task_id else None
    resume = task.resume_command if task and (body.mode == "abort" or task.cause == "goal") else None
    return Json({"interrupted": task_id, "mode": body.mode, "resume": resume})


@router.post("/sessions/{key:path}/restart", responses={200: {"model": SessionInfo}})
@needs("manage")
async def restart(desk: DeskDep, actor: Caller, key: Key) -> Json:
    """Restart a session: stop its running task and end its agent's process. The next message starts a new process."""
    return Json((await desk.sessions.restart(key, actor=actor)).snapshot())


@router.post("/sessions/{key:path}/close", responses={200: {"model": SessionInfo}})
@needs("manage")
async def close(desk: DeskDep, actor: Caller, key: Key) -> Json:
    """Close a session: cancel its open tasks and accept no more messages."""
    return Json((await desk.sessions.close(key, actor=actor)).snapshot())


@router.get(
    "/sessions/{key:path}/live", responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
)
@needs("read")
async def live(
    desk: DeskDep,
    request: Request,
    key: Key,
    actor: Caller,
    still_allowed: StillAllowed,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream a conversation: its state, then its events, including the texts of unfinished messages."""
    which = EventFilter(session_key=key)
    streams = request.app.state.streams
    outlet = Outlet(streams, Shape(brief=True, scoped=True))
    batches = await watch(desk, which, resume_point(last_event_id, None), actor, outlet)
    return EventStream(batches, streams, outlet.encode, actor, still_allowed, outlet=outlet)


@router.get("/sessions/{key}", responses={200: {"model": SessionInfo}})
@needs("read")
async def show(desk: DeskDep, actor: Caller, key: Key) -> Json:
    """Return one session, and whether its agent accepts messages while it works."""
    view = await desk.sessions.get(key, actor=actor)
    steerable = (await desk.registry.terms_of(view.session.agent)).steerable
    return Json({**view.snapshot(), "steerable": steerable})

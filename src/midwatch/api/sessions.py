"""Routes of sessions: open a conversation, speak, watch, interrupt, close. Keys are percent-encoded in paths."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from midwatch.api.bodies import InterruptBody, MessageBody, MessageQuery, SessionBody, SessionQuery
from midwatch.api.dependencies import PREFIX, DeskDep, StillAllowed, Who
from midwatch.api.events import LastEventId, resume_point, stream, watched
from midwatch.api.markdown import page_of
from midwatch.api.reply import Json
from midwatch.api.sse import Shape
from midwatch.domain.event import EventFilter
from midwatch.wire.sessions import Interrupted, MessagePage, SentInfo, SessionInfo, SessionPage

SLASH = "\x1f"
"""Stands for a slash of a key while the router looks for those of the path. No path from outside holds it."""

MOST_SHOWN = 4_000_000
"""Characters of one page of messages."""

router = APIRouter(prefix=PREFIX, tags=["sessions"])


class Keys:
    """Lets a key that is percent-encoded be just that key, whatever it ends with."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path", b"")
        if b"%2f" in raw.lower() and b"/sessions/" in raw:
            path = "/".join(unquote(part).replace("/", SLASH) for part in raw.decode("latin-1").split("/"))
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


async def key_of(key: str) -> str:
    """The key in the path."""
    return key.replace(SLASH, "/")


Key = Annotated[str, Depends(key_of)]


@router.get("/sessions", responses={200: {"model": SessionPage}})
async def list_sessions(desk: DeskDep, asked: Annotated[SessionQuery, Query()]) -> Json:
    """The most recently used sessions first. `next` is the `before` of the following page, or null."""
    found = await desk.sessions.list(asked.limit, asked.before)
    following = found[-1].session.key if len(found) == asked.limit else None
    return Json({"sessions": [view.snapshot() for view in found], "next": following})


@router.post(
    "/sessions",
    status_code=201,
    responses={201: {"model": SessionInfo}, 200: {"model": SessionInfo, "description": "It was there."}},
)
async def create(
    desk: DeskDep, who: Who, body: SessionBody, idempotency_key: Annotated[str | None, Header()] = None
) -> Json:
    """Open a conversation with an agent, and say the first thing in it. One that is open already with that key, agent
    and directory is returned."""
    view, created = await desk.sessions.begin(
        body.prompt, agent=body.agent, workdir=body.workdir, worktree=body.worktree, title=body.title, key=body.key,
        idempotency_key=idempotency_key, actor=who.name,
    )  # fmt: skip
    return Json(view.snapshot(), 201 if created else 200)


@router.get("/sessions/{key:path}/messages", responses={200: {"model": MessagePage}})
async def messages(desk: DeskDep, key: Key, asked: Annotated[MessageQuery, Query()]) -> Json:
    """The conversation, in order."""
    found = await desk.sessions.messages(key, asked.after, asked.limit)
    if not found:
        await desk.sessions.get(key)  # an unknown session is an error, a silent one is not
    shown, size = [], 0
    for message in found:
        made = message.snapshot()
        if asked.html:
            made["html"] = await page_of(message.text)
        shown.append(made)
        size += len(message.text) + len(made.get("html") or "")
        if size >= MOST_SHOWN:
            break  # whoever wants more goes on after the last number
    return Json({"messages": shown, "more": len(shown) < len(found) or len(found) == asked.limit})


@router.post("/sessions/{key:path}/messages", status_code=202, responses={202: {"model": SentInfo}})
async def send(
    desk: DeskDep, who: Who, key: Key, body: MessageBody, idempotency_key: Annotated[str | None, Header()] = None
) -> Json:
    """Say something: a task of this conversation, which waits while another one runs; or, with another `mode`, a
    message for the turn that runs. The reply's `mode` tells which it is. Durable when the reply comes."""
    sent = await desk.sessions.say(
        key, body.text, body.mode, priority=body.priority, idempotency_key=idempotency_key, actor=who.name
    )
    return Json(sent.snapshot(), 202, headers={"location": f"/api/v1/tasks/{sent.task.id}"})


@router.post("/sessions/{key:path}/interrupt", responses={200: {"model": Interrupted}})
async def interrupt(desk: DeskDep, who: Who, key: Key, body: InterruptBody | None = None) -> Json:
    """End the turn that runs in it now; what waits goes on. `abort` cancels it and pauses the automation or goal it
    belongs to; `resume` says how to have that go on. `stop` lets the agent close with one answer."""
    wanted = body or InterruptBody()
    stopped = await desk.sessions.interrupt(key, wanted.mode, hint=wanted.hint, actor=who.name)
    task = await desk.tasks.get(stopped) if stopped else None
    paused = wanted.mode == "abort" and task is not None and task.cause in ("automation", "goal") and task.cause_id
    resume = f"midwatch {task.cause} resume {task.cause_id}" if task is not None and paused else None
    return Json({"interrupted": stopped, "mode": wanted.mode, "resume": resume})


@router.post("/sessions/{key:path}/restart", responses={200: {"model": SessionInfo}})
async def restart(desk: DeskDep, who: Who, key: Key) -> Json:
    """Stop what runs in it and end its agent's process; the next message begins a new one."""
    return Json((await desk.sessions.restart(key, actor=who.name)).snapshot())


@router.post("/sessions/{key:path}/close", responses={200: {"model": SessionInfo}})
async def close(desk: DeskDep, who: Who, key: Key) -> Json:
    """Cancel what is open in it and take no more messages."""
    return Json((await desk.sessions.close(key, actor=who.name)).snapshot())


@router.get(
    "/sessions/{key:path}/live", responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
)
async def live(
    desk: DeskDep, request: Request, key: Key, who: Who, still_allowed: StillAllowed, last_event_id: LastEventId = None
) -> Response:
    """The conversation as it goes on: its state, then its events, also what is being written."""
    which = EventFilter(session_key=key)
    batches = await watched(desk, which, resume_point(last_event_id, None))
    return stream(request.app.state.streams, batches, Shape(True, True), who, still_allowed)


@router.get("/sessions/{key}", responses={200: {"model": SessionInfo}})
async def show(desk: DeskDep, key: Key) -> Json:
    """One session, and whether its agent hears messages while it works."""
    view = await desk.sessions.get(key)
    steerable = (await desk.roster.terms_of(view.session.agent)).steerable
    return Json({**view.snapshot(), "steerable": steerable})

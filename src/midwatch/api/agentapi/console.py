"""What the console's page of one session asks of the HTTP interface, for that session alone. It needs no token, so
nothing else of the desk can be reached by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.types import Receive, Scope, Send

from midwatch.api import approvals, events, identity, now, sessions, tasks
from midwatch.api.agentapi.replies import Refusal, refusal
from midwatch.api.dependencies import DeskDep
from midwatch.api.guard import MAX_BODY, replay
from midwatch.api.reply import Json, not_valid, refused
from midwatch.api.sse import Streams
from midwatch.base.errors import MidwatchError, NotFound
from midwatch.desk.desk import Desk

PREFIX = "/chat/api/v1"
MOST_QUESTIONS = 500


class Console:
    """The interface of one session, as an app."""

    def __init__(self, desk: Desk, key: str, streams: Streams) -> None:
        self._app = app = FastAPI(
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        app.state.desk, app.state.streams, app.state.session_key = desk, streams, key
        for method, path, route, check in ROUTES:
            app.add_api_route(PREFIX + path, route, methods=[method], dependencies=[Depends(check)])
        app.add_exception_handler(MidwatchError, refused)
        app.add_exception_handler(RequestValidationError, not_valid)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(Request(scope, receive))
        if len(body) > MAX_BODY:
            await refusal(scope, Refusal(413, f"the body is larger than {MAX_BODY} bytes; send less"))(
                scope, receive, send
            )
            return
        await self._app(scope, replay(body, receive), send)


async def _body(request: Request) -> bytes:
    """The body, or the beginning of one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            break
    return body


# -- whether something is of this session ----------------------------------------------------------------------------


async def always(request: Request) -> None:
    """It says nothing of any session."""


async def by_path(request: Request) -> None:
    """A session that the path names."""
    _check(request, request.path_params["key"])


async def by_query(request: Request) -> None:
    """A session that the query names; one that names none asks for all."""
    _check(request, "".join(request.query_params.getlist("session_key")))


async def by_approval(request: Request, desk: DeskDep) -> None:
    """The session of a question."""
    _check(request, (await desk.approvals.get(request.path_params["approval_id"])).session_key)


async def by_task(request: Request, desk: DeskDep) -> None:
    """The session of a task."""
    _check(request, (await desk.tasks.get(request.path_params["task_id"])).session_key)


def _check(request: Request, key: str) -> None:
    if key != request.app.state.session_key:
        raise NotFound("session", key)


async def questions(desk: DeskDep, request: Request) -> Json:
    """The open questions of the session."""
    found = await desk.approvals.list("pending", MOST_QUESTIONS)
    key = request.app.state.session_key
    return Json({"approvals": [one.snapshot() for one in found if one.session_key == key]})


Route = tuple[str, str, Callable[..., Any], Callable[..., Awaitable[None]]]
ROUTES: tuple[Route, ...] = (
    ("GET", "/me", identity.me, always),
    ("GET", "/events", events.events, by_query),
    ("GET", "/usage", now.usage, by_query),
    ("GET", "/approvals", questions, always),
    ("GET", "/approvals/{approval_id}", approvals.show, by_approval),
    ("POST", "/approvals/{approval_id}/approve", approvals.approve, by_approval),
    ("POST", "/approvals/{approval_id}/deny", approvals.deny, by_approval),
    ("POST", "/tasks/{task_id}/cancel", tasks.cancel, by_task),
    ("GET", "/sessions/{key}", sessions.show, by_path),
    ("GET", "/sessions/{key:path}/messages", sessions.messages, by_path),
    ("POST", "/sessions/{key:path}/messages", sessions.send, by_path),
    ("POST", "/sessions/{key:path}/interrupt", sessions.interrupt, by_path),
)

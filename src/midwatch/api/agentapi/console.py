"""The part of the HTTP interface that the chat page of one session needs.

These routes need no token, so they refuse every request about another session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from starlette.types import Receive, Scope, Send

from midwatch.api import approvals, events, identity, now, sessions, tasks
from midwatch.api.agentapi.replies import Refusal
from midwatch.api.agentapi.requests import check_values
from midwatch.api.dependencies import DeskDep
from midwatch.api.guard import MAX_BODY, read_body, replay
from midwatch.api.reply import HANDLERS, Json
from midwatch.api.sse import Streams
from midwatch.base.errors import NotFound
from midwatch.desk.desk import Desk

PREFIX = "/chat/api/v1"
MAX_APPROVALS = 500
NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}


class Console:
    """The app that answers the API requests of the chat page."""

    def __init__(self, desk: Desk, key: str, streams: Streams) -> None:
        self._app = app = FastAPI(
            openapi_url=None, docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY, exception_handlers={**HANDLERS}
        )
        app.state.desk, app.state.streams, app.state.session_key = desk, streams, key
        for method, path, route, check in ROUTES:
            app.add_api_route(PREFIX + path, route, methods=[method], dependencies=[Depends(check)] if check else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(Request(scope, receive), MAX_BODY)
        if len(body) > MAX_BODY:
            raise Refusal(413, f"the body is larger than {MAX_BODY} bytes; send a smaller one")
        check_values(body)
        await self._app(scope, replay(body, receive), send)


# -- checks that a request is about this session -----------------------------------------------------------------------


async def check_path(request: Request) -> None:
    """Raise NotFound if the path names another session."""
    _check(request, request.path_params["key"])


async def check_query(request: Request) -> None:
    """Raise NotFound if the query names another session, or none: then the reply would be about all sessions."""
    _check(request, "".join(request.query_params.getlist("session_key")))


async def check_approval(request: Request, desk: DeskDep) -> None:
    """Raise NotFound if the approval is about another session."""
    _check(request, (await desk.approvals.get(request.path_params["approval_id"])).session_key)


async def check_task(request: Request, desk: DeskDep) -> None:
    """Raise NotFound if the task belongs to another session."""
    _check(request, (await desk.tasks.get(request.path_params["task_id"])).session_key)


def _check(request: Request, key: str) -> None:
    if key != request.app.state.session_key:
        raise NotFound("session", key)


async def list_approvals(desk: DeskDep, request: Request) -> Json:
    """Return the open approvals of the session."""
    key = request.app.state.session_key
    pending = await desk.approvals.list("pending", MAX_APPROVALS)
    return Json({"approvals": [approval.snapshot() for approval in pending if approval.session_key == key]})


Route = tuple[str, str, Callable[..., Any], Callable[..., Awaitable[None]] | None]
ROUTES: tuple[Route, ...] = (
    ("GET", "/me", identity.me, None),
    ("GET", "/events", events.events, check_query),
    ("GET", "/usage", now.usage, check_query),
    ("GET", "/approvals", list_approvals, None),
    ("GET", "/approvals/{approval_id}", approvals.show, check_approval),
    ("POST", "/approvals/{approval_id}/approve", approvals.approve, check_approval),
    ("POST", "/approvals/{approval_id}/deny", approvals.deny, check_approval),
    ("POST", "/tasks/{task_id}/cancel", tasks.cancel, check_task),
    ("GET", "/sessions/{key}", sessions.show, check_path),
    ("GET", "/sessions/{key:path}/messages", sessions.messages, check_path),
    ("POST", "/sessions/{key:path}/messages", sessions.send, check_path),
    ("POST", "/sessions/{key:path}/interrupt", sessions.interrupt, check_path),
)

"""The part of the HTTP interface that the chat page of one session needs.

These routes need no token. Their actor may use only this session, so the services refuse everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.types import Receive, Scope, Send

from midwatch.api import approvals, events, identity, now, sessions, tasks
from midwatch.api.agentapi.replies import Refusal
from midwatch.api.agentapi.requests import check_values
from midwatch.api.describe import NO_TELEMETRY
from midwatch.api.guard import MAX_BODY, read_body, replay
from midwatch.api.reply import HANDLERS
from midwatch.api.sse import Streams
from midwatch.desk.desk import Desk

PREFIX = "/chat/api/v1"


class Console:
    """The app that answers the API requests of the chat page."""

    def __init__(self, desk: Desk, streams: Streams) -> None:
        self._app = app = FastAPI(
            openapi_url=None, docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY, exception_handlers={**HANDLERS}
        )
        app.state.desk, app.state.streams = desk, streams
        for method, path, route in ROUTES:
            app.add_api_route(PREFIX + path, route, methods=[method])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(Request(scope, receive), MAX_BODY)
        if len(body) > MAX_BODY:
            raise Refusal(413, f"the body is larger than {MAX_BODY} bytes; send a smaller one")
        check_values(body)
        await self._app(scope, replay(body, receive), send)


Route = tuple[str, str, Callable[..., Any]]
ROUTES: tuple[Route, ...] = (
    ("GET", "/me", identity.me),
    ("GET", "/events", events.events),
    ("GET", "/usage", now.usage),
    ("GET", "/approvals", approvals.list_approvals),
    ("GET", "/approvals/{approval_id}", approvals.show),
    ("POST", "/approvals/{approval_id}/approve", approvals.approve),
    ("POST", "/approvals/{approval_id}/deny", approvals.deny),
    ("POST", "/tasks/{task_id}/cancel", tasks.cancel),
    ("GET", "/sessions/{key}", sessions.show),
    ("GET", "/sessions/{key:path}/messages", sessions.messages),
    ("POST", "/sessions/{key:path}/messages", sessions.send),
    ("POST", "/sessions/{key:path}/interrupt", sessions.interrupt),
)

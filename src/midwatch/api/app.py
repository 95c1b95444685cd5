"""The HTTP app of a server: the guard, the routes of every noun, and errors as problem documents."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from midwatch.api import describe, identity, routes, sessions, web
from midwatch.api.admission import Admission
from midwatch.api.agentapi.mount import mount as mount_agentapi
from midwatch.api.guard import HEADERS as GUARD_HEADERS
from midwatch.api.guard import Guard
from midwatch.api.permissions import Permissions, needs
from midwatch.api.reply import HANDLERS, Problem, describe_problem, drop_references, make_problem
from midwatch.api.sse import Streams
from midwatch.base.errors import InvalidInput, MidwatchError
from midwatch.base.version import __version__
from midwatch.desk.desk import Desk


def create_app(desk: Desk, *, hosts: Collection[str] = ()) -> FastAPI:
    """Build the HTTP interface of a desk.

    `hosts` are additional host names of the server. `app.state.streams` holds the open event streams.
    """
    app = describe.DescribedApp(
        title="midwatch",
        summary=describe.SUMMARY,
        version=__version__,
        openapi_url=f"{describe.PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        telemetry=describe.NO_TELEMETRY,
        exception_handlers={**HANDLERS, HTTPException: handle_http_error, Exception: handle_unexpected},
    )
    app.state.desk = desk
    connections = desk.settings.max_connections
    app.state.streams = Streams(connections, max(10, connections * 3 // 5))
    app.state.failures = identity.Failures(desk.clock)
    for route in app.routes:
        needs("know")(getattr(route, "endpoint"))  # noqa: B009 - the only route so far describes the interface
    app.router.routes.extend(routes.list_routes())
    mount_agentapi(app, desk, handle_unexpected)
    web.mount(app)
    app.state.permissions = Permissions(app.routes)
    app.add_middleware(
        Guard, tokens=desk.tokens, admission=Admission(desk.settings, hosts), permissions=app.state.permissions
    )
    app.add_middleware(sessions.Keys)
    return app


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Reply to an unknown path, a wrong method, or a body that is not text."""
    assert isinstance(error, HTTPException)
    drop_references(error)
    if error.status_code == 400:
        return make_problem(InvalidInput("the body cannot be read; send JSON in UTF-8.", field="body"))
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    detail = f"{request.method} {request.url.path}: {error.detail}; see the API page of the documentation."
    headers = {"allow": list_methods(request)} if error.status_code == 405 else dict(error.headers or {})
    return Problem(describe_problem(error.status_code, code, detail), error.status_code, headers=headers)


def list_methods(request: Request) -> str:
    """Return the allowed methods of the request's path. Several routes can share a path."""

    if operations := request.app.openapi()["paths"].get(request.url.path):
        return ", ".join(sorted(method.upper() for method in operations))

    def fits(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] == Match.FULL for route in request.app.routes)

    return ", ".join(method for method in ("DELETE", "GET", "PATCH", "POST") if fits(method))


async def handle_unexpected(request: Request, error: Exception) -> Response:
    """Reply to a request that failed because of a bug in midwatch. Only the server's log file has the details."""
    reply = make_problem(MidwatchError("the request failed because of a bug in midwatch; see the server's log file."))
    reply.headers.update(GUARD_HEADERS)  # the guard cannot add its headers to this reply
    return reply

"""Adds agentapi to a server. Few servers use it, so its code is loaded by the first request for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from midwatch.api.agentapi.place import BELOW, METHODS, PLACE, Place
from midwatch.api.permissions import contains
from midwatch.api.sessions import key_of
from midwatch.desk.desk import Desk


def mount(app: FastAPI, desk: Desk, unexpected: Callable[[Request, Exception], Awaitable[Response]]) -> None:
    """Add the agentapi routes of every session to `app`. If a bug makes a request fail, `unexpected` replies to it."""

    @cache
    def load() -> FastAPI:
        from midwatch.api.agentapi.app import create_shared

        return create_shared(desk, app.state.streams, unexpected)

    @contains(lambda: load().routes)
    async def answer(request: Request) -> ASGIApp:
        key = await key_of(request.path_params["key"])
        prefix = f"/sessions/{quote(key, safe='')}/agentapi"
        path = f"/{request.path_params.get('path', '')}"
        request.scope.update({"root_path": prefix, "path": path, PLACE: Place(key, f"{prefix}/chat", "/api/v1")})
        return load()

    for address in (BELOW, BELOW + "/{path:path}"):
        app.add_route(address, answer, methods=METHODS, include_in_schema=False)  # type: ignore[arg-type]

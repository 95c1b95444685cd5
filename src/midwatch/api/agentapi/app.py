"""Where the surface stands: alone, for one conversation and without a token, or below each session of a server."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from midwatch.api.agentapi.allowed_origins import Gate, Rules
from midwatch.api.agentapi.chat import Chat
from midwatch.api.agentapi.console import PREFIX, Console
from midwatch.api.agentapi.routes import ALLOWED, Surface
from midwatch.api.agentapi.talk import Talk, Talks
from midwatch.api.agentapi.uploads import Uploads
from midwatch.api.dependencies import ACTOR, still_allowed
from midwatch.api.sessions import key_of
from midwatch.api.sse import Streams
from midwatch.desk.desk import Desk
from midwatch.domain.identity import Actor

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
BELOW = "/sessions/{key:path}/agentapi"
CLIENT = Actor("agentapi", "operator")
"""Who speaks where nobody has to say so."""
MOST_STREAMS = 600


class Alone:
    """The surface of one conversation, as an app of its own."""

    def __init__(
        self, desk: Desk, talk: Talk, rules: Rules, chat_base: str, uploads: Uploads, streams: Streams
    ) -> None:
        self._talk = talk
        self._console = Console(desk, talk.key, streams)
        self._chat_base = chat_base
        self._surface = Surface(Chat(rules.frames), uploads, streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, ACTOR: CLIENT, ALLOWED: _always}
        path: str = scope["path"]
        if path.startswith(PREFIX + "/"):
            await self._console(scope, receive, send)
            return
        request, base = Request(scope, receive), self._chat_base
        api = base.rstrip("/") + PREFIX.removeprefix("/chat")
        reply = await self._surface.answer(request, path.removeprefix("/"), self._talk.key, self._find, base, api)
        await reply(scope, receive, send)

    async def _find(self) -> Talk:
        return self._talk


async def _always() -> bool:
    return True


def standalone(desk: Desk, talk: Talk, rules: Rules, chat_base: str, uploads: Uploads) -> Starlette:
    """The app of `midwatch agentapi server`."""
    streams = Streams(MOST_STREAMS)
    app = Starlette(routes=[Mount("/", app=Alone(desk, talk, rules, chat_base, uploads, streams))])
    app.state.streams = streams
    app.add_middleware(Gate, rules=rules)
    return app


def mount(app: FastAPI, desk: Desk) -> None:
    """The surface of every session of a server, behind its guard."""
    talks = app.state.talks = Talks(desk)
    surface = Surface(Chat(), Uploads(), app.state.streams)

    async def answer(request: Request) -> Response:
        key = await key_of(request.path_params["key"])
        prefix = f"/sessions/{quote(key, safe='')}/agentapi"
        request.scope["root_path"] = prefix
        request.scope[ALLOWED] = await still_allowed(request)
        path = request.path_params.get("path", "")
        return await surface.answer(request, path, key, lambda: talks.of(key), f"{prefix}/chat", "/api/v1")

    for address in (BELOW, BELOW + "/{path:path}"):
        app.add_route(address, answer, methods=METHODS, include_in_schema=False)

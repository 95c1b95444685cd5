"""The guard in front of all routes: who may speak, what they may do, and how much they may say."""

from __future__ import annotations

import logging
import re

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midwatch.api.admission import Admission, Call
from midwatch.api.dependencies import ACTOR, CALL
from midwatch.api.refusal import Seldom
from midwatch.api.reply import problem
from midwatch.base.errors import Forbidden, InvalidInput, MidwatchError, Unauthorized, UnsupportedMediaType
from midwatch.base.trace import incoming, noted
from midwatch.domain.identity import Actor
from midwatch.services.tokens import Tokens

MAX_BODY = 2 * 1024 * 1024
MAX_STRANGERS_BODY = 4096
MAX_UPLOAD = 11 * 1024 * 1024
SELF_SERVICE = frozenset({"/api/v1/sign-out", "/api/v1/links"})
"""What every role may do, as it is about themselves."""
AGENTS_MAY = re.compile(r"/api/v1/(goals/[^/]+/(complete|delay)|handoffs(/[^/]+/cancel)?|tasks|automations)")
"""What the agent of a running task may do beside looking; the routes see to the rest."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, PATCH, DELETE",
    "access-control-allow-headers": "authorization, content-type, idempotency-key, last-event-id",
    "access-control-max-age": "600",
}

log = logging.getLogger("midwatch.guard")


class Guard:
    """Lets a request through to its route, with its actor, or refuses it."""

    def __init__(self, app: ASGIApp, tokens: Tokens, door: Admission) -> None:
        self._app = app
        self._tokens = tokens
        self._door = door
        self._log = Seldom()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return
        call = self._door.look(scope)
        reply = self._dressed(send, call)
        try:
            self._door.check(call)
            if call.method == "OPTIONS" and self._door.is_listed(call.origin):
                await Response(status_code=204, headers=PREFLIGHT)(scope, receive, reply)
                return
            actor = None if call.open else await self._identify(call)
            scope[CALL], scope[ACTOR] = call, actor
            self._allow(call, actor)
            body = await read_body(call, receive, largest_body(call) if actor else MAX_STRANGERS_BODY)
            _check_media(call, body)
        except MidwatchError as refused:
            self._tell(call, refused)
            await problem(refused)(scope, receive, reply)
        except _TooLarge as found:
            too_large = InvalidInput(f"the body is larger than {found} bytes; send less.", field="body")
            await problem(too_large, 413)(scope, receive, reply)
        except _Gone:
            pass
        else:
            told = incoming.set(noted(call.header(b"traceparent"), call.header(b"tracestate")))
            try:
                await self._app(scope, replay(body, receive), reply)
            finally:
                incoming.reset(told)

    async def _identify(self, call: Call) -> Actor:
        """Who speaks, or Unauthorized. A wrong token is not made good by anything else, and for pages of other sites
        only a token counts: what the browser or a proxy adds by itself is not theirs."""
        if (secret := call.bearer()) is not None:
            found = await self._tokens.bearer(secret)
            if found is None:
                raise Unauthorized("the token is wrong or was revoked; look with `midwatch token list`.")
            return found
        if call.origin and call.origin != call.own_origin:
            raise Unauthorized("a page of another site needs a token; send it as bearer.")
        if cookie := call.cookie():
            found = await self._tokens.cookie(cookie)
            if found is not None:
                return found
        named = self._door.named_by_proxy(call)
        if named is None:
            raise Unauthorized(
                "no valid token came with this; send that of $MIDWATCH_HOME/token as bearer, or sign in by the link "
                "of `midwatch open`."
            )
        return named

    def _allow(self, call: Call, actor: Actor | None) -> None:
        if call.safe or actor is None:
            return
        if actor.task is not None and AGENTS_MAY.fullmatch(call.path):
            return  # the route sees that it is about the agent's own task, or work it may hand in
        if actor.role == "viewer" and call.path not in SELF_SERVICE:
            raise Forbidden(f"{actor.name} is a viewer and may only look; ask the owner for another role.")
        if actor.way == "cookie" and not call.from_own_page:
            raise Forbidden("a browser's cookie counts only for pages of this server; send a token as bearer instead.")

    def _tell(self, call: Call, refused: MidwatchError) -> None:
        """Log a refusal, once a minute for each peer and reason."""
        if self._log.admits(call.peer, refused.code):
            log.warning("refused %s %.100r from %s: %s", call.method, call.path, call.peer, refused.code)

    def _dressed(self, send: Send, call: Call) -> Send:
        """A `send` whose replies carry the headers that every reply has."""

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if call.of_api:
                    headers.setdefault("cache-control", "no-store")
                if call.origin and self._door.is_listed(call.origin):
                    headers["access-control-allow-origin"] = call.origin
                    headers["vary"] = "origin"
            await send(message)

        return dressed


class _TooLarge(Exception):
    """The body is larger than it may be."""


class _Gone(Exception):
    """Whoever asked has gone."""


def largest_body(call: Call) -> int:
    """How much somebody may say who is known."""
    return MAX_UPLOAD if call.of_agentapi and call.path.endswith("/upload") else MAX_BODY


async def read_body(call: Call, receive: Receive, most: int) -> bytes:
    """The whole body, which must not be too large."""
    length = call.headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > most:
        raise _TooLarge(most)
    if length == b"0" and b"transfer-encoding" not in call.headers:
        return b""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _TooLarge(most)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _check_media(call: Call, body: bytes) -> None:
    """A form of a foreign page cannot say that it sends JSON. Clients of agentapi may send forms and say nothing: for
    them a browser's cookie counts only from a page of this server."""
    if call.of_agentapi:
        return
    if body and not call.safe and call.header(b"content-type").partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType("a body is JSON; send it with `content-type: application/json`.", field="body")


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, then whatever comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again

"""The guard in front of all routes: recognise the actor, check the role, limit the size of the body."""

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
from midwatch.base.trace import incoming, validate_trace
from midwatch.domain.identity import Actor
from midwatch.services.tokens import Tokens

MAX_BODY = 2 * 1024 * 1024
MAX_STRANGERS_BODY = 4096
MAX_UPLOAD = 11 * 1024 * 1024
SELF_SERVICE = frozenset({"/api/v1/sign-out", "/api/v1/links"})
"""Requests that every role may send, as they concern the actor alone."""
AGENTS_MAY = re.compile(r"/api/v1/(goals/[^/]+/(complete|delay)|handoffs(/[^/]+/cancel)?|tasks|automations)")
"""What the agent of a running task may do beside looking; the services check the rest."""
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
    """Middleware that passes a request on to its route, with its actor, or refuses it."""

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
        reply = self._add_headers(send, call)
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
            self._log_refusal(call, refused)
            await problem(refused)(scope, receive, reply)
        except _TooLarge as limit:
            too_large = InvalidInput(f"the body is larger than {limit} bytes; send less.", field="body")
            await problem(too_large, 413)(scope, receive, reply)
        except _Gone:
            pass
        else:
            trace = incoming.set(validate_trace(call.header(b"traceparent"), call.header(b"tracestate")))
            try:
                await self._app(scope, replay(body, receive), reply)
            finally:
                incoming.reset(trace)

    async def _identify(self, call: Call) -> Actor:
        """Return the actor, or raise Unauthorized. A wrong token is refused, whatever else the request carries. From
        pages of other sites only a token counts: browsers and proxies add cookies and names without their doing."""
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
            return  # the service checks that it concerns the agent's own task, or work it may submit
        if actor.role == "viewer" and call.path not in SELF_SERVICE:
            raise Forbidden(f"{actor.name} is a viewer and may only look; ask the owner for another role.")
        if actor.way == "cookie" and not call.from_own_page:
            raise Forbidden("a browser's cookie counts only for pages of this server; send a token as bearer instead.")

    def _log_refusal(self, call: Call, refused: MidwatchError) -> None:
        """Log a refusal, once a minute for each peer and reason."""
        if self._log.admits(call.peer, refused.code):
            log.warning("refused %s %.100r from %s: %s", call.method, call.path, call.peer, refused.code)

    def _add_headers(self, send: Send, call: Call) -> Send:
        """Return a `send` that adds the headers of every reply."""

        async def send_with_headers(message: Message) -> None:
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

        return send_with_headers


class _TooLarge(Exception):
    """Raised for a body above the limit."""


class _Gone(Exception):
    """Raised when the client has disconnected."""


def largest_body(call: Call) -> int:
    """Return the most bytes that a recognised actor may send."""
    return MAX_UPLOAD if call.of_agentapi and call.path.endswith("/upload") else MAX_BODY


async def read_body(call: Call, receive: Receive, most: int) -> bytes:
    """Return the whole body; raise _TooLarge above the limit."""
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
    """Refuse a body that is not declared as JSON: a form of a foreign page cannot declare it. Clients of agentapi may
    send forms and no type; for them a browser's cookie counts only from a page of this server."""
    if call.of_agentapi:
        return
    if body and not call.safe and call.header(b"content-type").partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType("a body is JSON; send it with `content-type: application/json`.", field="body")


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body again, then whatever comes after it."""
    replayed = False

    async def receive_again() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again

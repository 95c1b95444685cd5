"""The guard, which runs before all routes: recognise the actor, check the role, limit the size of the body.

The role is checked before the body is read. The services check everything again, with the owner of the object.
"""

from __future__ import annotations

import logging
import re

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midwatch.api.admission import Admission, Call
from midwatch.api.body_checks import check_structure
from midwatch.api.dependencies import ACTOR, CALL
from midwatch.api.permissions import Permissions
from midwatch.api.refusal import LogLimiter
from midwatch.api.reply import make_problem
from midwatch.base.errors import Forbidden, InvalidInput, MidwatchError, Unauthorized, UnsupportedMediaType
from midwatch.base.trace import incoming, validate_trace
from midwatch.domain.identity import Actor
from midwatch.services.authorization import Action, authorize
from midwatch.services.tokens import Tokens

MAX_BODY = 2 * 1024 * 1024
MAX_SHORT_BODY = 64 * 1024
LONG_BODIES = re.compile(r"/api/v1/(tasks|handoffs|tool_calls/check|(sessions|automations|goals)(/.*)?)", re.DOTALL)
"""Paths of requests with a text of a person or an agent, such as a file that a tool writes. The bodies of all other
requests are short."""
MAX_STRANGERS_BODY = 4096
WEBHOOKS = re.compile(r"/api/v1/hooks/[^/]*")
"""Paths of deliveries to webhooks. Their routes check the signature before they read anything of the body."""
MAX_DELIVERY = 1024 * 1024
MAX_UPLOAD = 11 * 1024 * 1024
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
    """Middleware that adds the actor to a request and passes the request on, or refuses the request."""

    def __init__(self, app: ASGIApp, tokens: Tokens, admission: Admission, permissions: Permissions) -> None:
        self._app = app
        self._permissions = permissions
        self._tokens = tokens
        self._admission = admission
        self._log = LogLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return
        call = self._admission.read_call(scope)
        reply = self._add_headers(send, call)
        try:
            self._admission.check(call)
            if call.method == "OPTIONS" and self._admission.is_listed(call.origin):
                await Response(status_code=204, headers=PREFLIGHT)(scope, receive, reply)
                return
            action = self._permissions.find(call.method, call.path)
            actor = None if is_open(call, action) else await self._identify(call)
            scope[CALL], scope[ACTOR] = call, actor
            if actor is not None:
                _check_actor(call, actor, action)
            body = await _read_whole_body(call, Request(scope, receive), actor)
            _check_media(call, body)
        except MidwatchError as error:
            if self._log.admits(call.peer, error.code):
                log.warning("refused %s %.100r from %s: %s", call.method, call.path, call.peer, error.code)
            await make_problem(error)(scope, receive, reply)
        except _TooLarge as limit:
            too_large = InvalidInput(f"the body is larger than {limit} bytes; send a smaller one.", field="body")
            await make_problem(too_large, 413)(scope, receive, reply)
        except ClientDisconnect:
            pass
        else:
            trace = incoming.set(validate_trace(call.header(b"traceparent"), call.header(b"tracestate")))
            try:
                await self._app(scope, replay(body, receive), reply)
            finally:
                incoming.reset(trace)

    async def _identify(self, call: Call) -> Actor:
        """Return the actor of a request, or raise Unauthorized.

        A wrong token is refused even if the request has a valid cookie. A page of another site needs a token: a cookie
        or the name from a proxy is no proof, because the browser and the proxy add them to requests of every page.
        """
        if (secret := call.bearer()) is not None:
            actor = await self._tokens.bearer(secret)
            if actor is None:
                raise Unauthorized("the token is wrong or was revoked; see `midwatch token list`.")
            return actor
        if call.origin and call.origin != call.own_origin:
            raise Unauthorized("a page of another site needs a token; send a bearer token.")
        if (cookie := call.cookie()) and (actor := await self._tokens.cookie(cookie)):
            return actor
        if actor := self._admission.find_proxy_actor(call):
            return actor
        raise Unauthorized(
            "the request has no valid token; send the owner's token or one of `midwatch token create`, or sign in with "
            "the link of `midwatch open`."
        )

    def _add_headers(self, send: Send, call: Call) -> Send:
        """Return a function like `send` that adds the security headers to the reply."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if call.is_for_api:
                    headers.setdefault("cache-control", "no-store")
                if call.origin and self._admission.is_listed(call.origin):
                    headers["access-control-allow-origin"] = call.origin
                    headers["vary"] = "origin"
            await send(message)

        return send_with_headers


def is_open(call: Call, action: Action | None) -> bool:
    """Return whether a request needs no token: its route is open, or there is neither a route nor a part of the API."""
    return action == "open" or (action is None and call.safe and not call.is_for_api)


def _check_actor(call: Call, actor: Actor, action: Action | None) -> None:
    """Raise Forbidden if the role of the actor never allows the action, or if another site may have sent the cookie."""
    if action is not None:
        authorize(actor, action)
    if actor.way == "cookie" and not call.safe and not call.from_own_page:
        raise Forbidden("a cookie is valid only for pages of this server; send a bearer token instead.")


class _TooLarge(Exception):
    """Raised if a body is too large. Its argument is the maximum number of bytes."""


async def _read_whole_body(call: Call, request: Request, actor: Actor | None) -> bytes:
    """Return the body of a request, or raise _TooLarge. Requests without an actor have a low limit."""
    if actor is None:
        limit = MAX_DELIVERY if WEBHOOKS.fullmatch(call.path) else MAX_STRANGERS_BODY
    elif call.is_for_agentapi:
        limit = MAX_UPLOAD if call.path.endswith("/upload") else MAX_BODY
    else:
        limit = MAX_BODY if LONG_BODIES.fullmatch(call.path) else MAX_SHORT_BODY
    length = call.headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > limit:
        raise _TooLarge(limit)
    if length == b"0" and b"transfer-encoding" not in call.headers:
        return b""
    body = await read_body(request, limit)
    if len(body) > limit:
        raise _TooLarge(limit)
    return body


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request. If it has more than `limit` bytes, return only its beginning."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > limit:
            break
    return b"".join(parts)


def _check_media(call: Call, body: bytes) -> None:
    """Raise UnsupportedMediaType if a body is not declared as JSON, InvalidInput if it has too many values.

    This protects against forms on pages of other sites: a form cannot send JSON. The routes of agentapi also accept
    forms and bodies without a type; there only the check of cookies in `_check_actor` protects. Deliveries to webhooks
    are no matter of a browser's rights: their signature is checked.
    """
    if call.is_for_agentapi or WEBHOOKS.fullmatch(call.path):
        return
    if body and not call.safe and call.header(b"content-type").partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType("the body must be JSON; send `content-type: application/json`.", field="body")
    check_structure(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a function like `receive` that first returns the body that was read, then all later messages."""
    replayed = False

    async def receive_again() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again

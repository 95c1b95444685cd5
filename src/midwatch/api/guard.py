"""The guard in front of all routes: who may speak, and how much they may say."""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midwatch.api.reply import problem
from midwatch.errors import InvalidInput, Unauthorized

MAX_BODY = 2 * 1024 * 1024
OPEN_PATHS = frozenset({"/api/v1/health"})


class Guard:
    """Asks every request but a health check for the token, and refuses bodies above 2 MB."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS and not self._knows(headers.get(b"authorization", b"")):
            refused = Unauthorized("the token is missing or wrong; send the content of $MIDWATCH_HOME/token as bearer.")
            await problem(refused)(scope, receive, send)
            return
        body = await read_body(headers, receive)
        if body is None:
            too_large = InvalidInput(f"the body is larger than {MAX_BODY} bytes; send less.", field="body")
            await problem(too_large, 413)(scope, receive, send)
            return
        await self._app(scope, replay(body, receive), send)

    def _knows(self, said: bytes) -> bool:
        return secrets.compare_digest(said, self._expected)


async def read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
    """The whole body, or None when it is too large."""
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > MAX_BODY:
        return None
    if length == b"0" and b"transfer-encoding" not in headers:
        return b""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


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

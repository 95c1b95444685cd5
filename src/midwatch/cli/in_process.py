"""Call the app of the HTTP interface in this process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from midwatch.client.http import Answer
from midwatch.client.transport import Exchange

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
"""An app as ASGI defines it: scope, receive, send."""


def call_app(app: App) -> Exchange:
    """Return a function that sends a request to the app and returns its whole reply."""

    async def exchange(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        path, _, query = target.partition("?")
        pairs = {"host": "midwatch", "content-length": str(len(body)), **headers}.items()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": method,
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
            "server": ("midwatch", 80), "client": ("127.0.0.1", 0),
        }  # fmt: skip
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        outgoing: list[Message] = []
        ended = asyncio.Event()

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            outgoing.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                ended.set()

        await app(scope, receive, send)
        return Answer(outgoing[0]["status"], b"".join(message.get("body", b"") for message in outgoing[1:]))

    return exchange

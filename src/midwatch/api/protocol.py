"""Connections: limit the size, the duration and the form of a request before a route gets it.

uvicorn alone reads headers of any size, waits without a timeout, and queues requests that arrive before a reply is
sent. A connection of this module has a stage: `head` (waits for the request line and headers), `body` (waits for the
body), `reply` (the request is complete and a route replies), `over` (all further input is dropped). A reply without a
known length is a stream, and has no deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, cast

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from midwatch.api.refusal import CROWDED, EARLY, LARGE, LATE, UNREAD, LogLimiter, Refusal, check_head, refuse_malformed
from midwatch.api.sse import CONNECTION

logger = logging.getLogger(__name__)

CHUNK_OVERHEAD = 8
"""Maximum bytes on the connection for each byte of a body, because a client may send the body in very small chunks."""
MAX_REJECTED = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a connection.

    connections: maximum number of open connections
    head_bytes: maximum size of the request line and all headers together
    headers: maximum number of headers
    head_seconds: maximum time from the start of the connection, or from the end of a reply, to the end of the headers
    pause_seconds: longest pause while the client sends a body, or reads a reply of known length
    body_seconds: maximum time for a whole body
    idle_seconds: if all connections are in use, a connection that was idle for this long is closed for a new one
    last_seconds, last_bytes: after a refusal, the rest of the request is received and dropped up to this time and size,
        because a client that still sends when the connection is closed never reads the reply
    stop_seconds: when the server stops, open replies may take this long
    buffered_bytes: a reply pauses while the client has not read more than this many bytes
    """

    connections: int = 1000
    head_bytes: int = 64 * 1024
    headers: int = 100
    head_seconds: float = 10.0
    pause_seconds: float = 10.0
    body_seconds: float = 60.0
    idle_seconds: float = 1.0
    last_seconds: float = 5.0
    last_bytes: int = 16 * 1024 * 1024
    stop_seconds: float = 2.0
    buffered_bytes: int = 64 * 1024


class Refused(Exception):
    """Raised to stop the parser. The connection holds the reason in `_refusal`."""


class Shared:
    """The state that all connections of a server share."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.log = LogLimiter()
        self.rejected: set[Connection] = set()


class Connection(HttpToolsProtocol):
    """One connection from a client, with limits."""

    def __init__(self, shared: Shared, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._answer, self.app = self.app, self._run
        self._shared, self.limits = shared, shared.limits
        self._stage: Literal["head", "body", "reply", "over"] = "head"
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None
        self._received = 0
        """Bytes received since the stage `head` or `over` began, without the bytes of a body."""
        self._idle_since = inf
        """Since when the server waits for the client to send or to read; infinite while the server does not wait."""

    # -- beginning and end -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        has_room = self._make_room()
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.limits.buffered_bytes)
        if has_room:
            self._await_head()
            return
        self.connections.discard(self)
        if len(self._shared.rejected) < MAX_REJECTED:
            self._shared.rejected.add(self)
            self._refuse(CROWDED)
        else:
            transport.abort()

    def _make_room(self) -> bool:
        """Return whether a new connection is allowed. If necessary, close the connection that was idle for longest."""
        if len(self.connections) < self.limits.connections:
            return True
        idle = min(cast("set[Connection]", self.connections), key=lambda other: other._idle_since)
        if time.monotonic() - idle._idle_since < self.limits.idle_seconds:
            return False
        self.connections.discard(idle)
        idle.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._shared.rejected.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Drop an incomplete request, and limit the time of a reply. The server calls this when it stops."""
        if self._stage == "body":
            self._drop_request()
            self.transport.close()
        super().shutdown()
        self.loop.call_later(self.limits.stop_seconds, self.transport.abort)

    # -- requests --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._stage == "over":
            if self._received > self.limits.last_bytes:
                self.transport.abort()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._drop_input()  # uvicorn would read the body as the next request
        except httptools.HttpParserError as error:
            if self._stage == "reply":
                self._log(EARLY)
                self._drop_input()
            else:
                self._refuse(self._refusal or refuse_malformed(str(error)))
        else:  # the parser may be inside an endless header, trailer or chunk size
            if self._received > self.limits.head_bytes * (1 if self._stage == "head" else 2):
                self._refuse(LARGE)

    def on_message_begin(self) -> None:
        if self._stage != "head":
            raise Refused  # uvicorn would lose track of the request before it
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.head_bytes or len(self.headers) > self.limits.headers:
            self._refusal = LARGE
        else:
            self._refusal = check_head(self.parser.get_http_version(), self.url, self.headers)
        if self._refusal:
            raise Refused
        self.scope["extensions"] = {CONNECTION: {"abort": self.transport.abort, "write": self._write_piece}}
        super().on_headers_complete()
        self.headers = []  # a trailer must not be used as a header, because only headers are checked
        self._stage = "body"
        self._stop_timer()

    def on_body(self, body: bytes) -> None:
        self._received -= CHUNK_OVERHEAD * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stage, self._idle_since = "reply", inf

    def _drop_input(self) -> None:
        """Drop all further input, so that the connection ends after the current reply."""
        self._stage, self._received = "over", 0

    # -- replies ---------------------------------------------------------------------------------------------------

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and limit the time for its body.

        If the connection ends after the reply, the reply says so.
        """
        cycle, started_at = self.cycle, self.loop.time()

        async def receive_in_time() -> Message:
            if not cycle.more_body:
                return await receive()
            pause_ends = self.loop.time() + self.limits.pause_seconds
            try:
                async with asyncio.timeout_at(min(pause_ends, started_at + self.limits.body_seconds)):
                    return await receive()
            except TimeoutError:
                self._refuse(LATE)
                return await receive()

        async def send_with_end(message: Message) -> None:
            if message["type"] != "http.response.start" or self._stage == "reply":
                await send(message)
                return
            self._drop_input()
            cycle.keep_alive = False
            await send(message)
            cycle.keep_alive = True  # otherwise uvicorn closes at once, and a peer that writes gets no reply

        await self._answer(scope, receive_in_time, send_with_end)

    def _write_piece(self, piece: bytes) -> bool:
        """Write a piece of a stream past the layers of the app. Return False if the client reads slowly or has left."""
        if self.flow.write_paused or self.cycle.disconnected or self.cycle.response_complete:
            return False
        self.transport.write(piece)
        return True

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            self._watch_reply()
        elif self._stage == "over":
            self._end()
        else:
            self.flow.resume_reading()
            self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.cycle is not None and self.cycle.chunked_encoding is False:
            self._idle_since = time.monotonic()
            self._watch_reply()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stage == "reply":
            self._idle_since = inf
            self._stop_timer()

    def _refuse(self, refusal: Refusal) -> None:
        self._log(refusal)
        if self._drop_request():
            self.transport.write(refusal.encode())
            self._end()
        else:
            self.transport.close()
            self._watch_reply()

    def _drop_request(self) -> bool:
        """Tell the route to stop, as if the client had disconnected. Return False if the reply has begun."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return not self.cycle.response_started

    def _end(self) -> None:
        """End the output, and give the client time to read it before the connection is closed."""
        self._drop_input()
        self._idle_since = time.monotonic()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
            self._start_timer(self.limits.last_seconds, self.transport.abort)

    # -- time ------------------------------------------------------------------------------------------------------

    def _start_timer(self, seconds: float, late: Callable[..., object], *arguments: object) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, late, *arguments)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_head(self) -> None:
        self._stage, self._received, self._idle_since = "head", 0, time.monotonic()
        self._start_timer(self.limits.head_seconds, self._check_progress, 0)

    def _watch_reply(self) -> None:
        self._start_timer(self.limits.pause_seconds, self._check_progress, self.transport.get_write_buffer_size())

    def _check_progress(self, unread_before: int) -> None:
        """End the connection if the client did not read the reply or send a request since the timer started."""
        unread = self.transport.get_write_buffer_size()
        if 0 < unread_before <= unread:
            self._log(UNREAD)
            self.transport.abort()  # `close` would wait for the peer
        elif unread:
            self._watch_reply()
        elif self._stage == "head" and unread_before:
            self._await_head()
        elif self._stage == "head" and self._received:
            self._refuse(LATE)
        elif self._stage == "head":
            self.transport.close()

    def _log(self, refusal: Refusal) -> None:
        peer = self.client[0] if self.client else "a peer"
        if self._shared.log.admits(peer, refusal.code):
            logger.warning("refused a request from %s: %d %s: %s", peer, *refusal)

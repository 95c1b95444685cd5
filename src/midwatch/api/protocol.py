"""Connections: how much a peer may send, how slowly, and in what form, before a route sees the request.

uvicorn reads heads of any size, waits for ever, and queues requests that are sent ahead of a reply. Here a connection
has a stage: `head` (a request is awaited), `body` (the rest of it is awaited), `reply` (the request is complete and
being answered), and `over` (what still comes is dropped unread). A reply without a known length, a stream, has no
deadline.
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
from midwatch.api.sse import ABORT

logger = logging.getLogger(__name__)

CHUNK_OVERHEAD = 8
"""Bytes on the wire for each byte of a body that comes in the smallest chunks."""
MOST_TURNED_AWAY = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may do.

    head_bytes: size of the request line and all headers
    head_seconds: time from the beginning of the connection, or from the end of a reply, to the end of the next head
    pause_seconds: longest pause within a body, or while a reply of known length is read
    idle_seconds: when all connections are taken, a peer that was silent for this long gives way to a new one
    last_seconds, last_bytes: how long, and how much of, the rest of a refused request is dropped unread, because a
        peer that is cut off while it writes does not read the answer
    stop_seconds: how long a reply may take when the server stops
    buffered_bytes: replies wait while more than this is not yet taken by the system
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
    """Stops the parser; the connection knows why."""


class Shared:
    """What the connections of a server have in common."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.log = LogLimiter()
        self.turned_away: set[Connection] = set()


class Connection(HttpToolsProtocol):
    """One connection with limits."""

    def __init__(self, shared: Shared, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._answer, self.app = self.app, self._run
        self._shared, self.limits = shared, shared.limits
        self._stage: Literal["head", "body", "reply", "over"] = "head"
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None
        self._received = 0
        """Bytes since the stage `head` or `over` began, without those that a body accounts for."""
        self._waits_since = inf
        """Since when the peer has to send or to read; infinite while it has not."""

    # -- beginning and end -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        has_room = self._make_room()
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.limits.buffered_bytes)
        if has_room:
            self._await_head()
            return
        self.connections.discard(self)
        if len(self._shared.turned_away) < MOST_TURNED_AWAY:
            self._shared.turned_away.add(self)
            self._refuse(CROWDED)
        else:
            transport.abort()

    def _make_room(self) -> bool:
        """Return whether there is room for one more, after closing the connection that has waited longest."""
        if len(self.connections) < self.limits.connections:
            return True
        idle = min(cast("set[Connection]", self.connections), key=lambda other: other._waits_since)
        if time.monotonic() - idle._waits_since < self.limits.idle_seconds:
            return False
        self.connections.discard(idle)
        idle.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._shared.turned_away.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Drop a request that is not complete, and give a reply a little time: the server stops."""
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
            self._hear_no_more()  # uvicorn would take the body for the next request
        except httptools.HttpParserError as error:
            if self._stage == "reply":
                self._log(EARLY)
                self._hear_no_more()
            else:
                self._refuse(self._refusal or refuse_malformed(str(error)))
        else:  # the parser may have taken in an endless header, trailer or size of a chunk
            if self._received > self.limits.head_bytes * (1 if self._stage == "head" else 2):
                self._refuse(LARGE)

    def on_message_begin(self) -> None:
        if self._stage != "head":
            raise Refused  # uvicorn would forget the request that a lost connection belongs to
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.head_bytes or len(self.headers) > self.limits.headers:
            self._refusal = LARGE
        else:
            self._refusal = check_head(self.parser.get_http_version(), self.url, self.headers)
        if self._refusal:
            raise Refused
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}
        super().on_headers_complete()
        self.headers = []  # a trailer must not pass for a header, which others have checked
        self._stage = "body"
        self._disarm()

    def on_body(self, body: bytes) -> None:
        self._received -= CHUNK_OVERHEAD * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stage, self._waits_since = "reply", inf

    def _hear_no_more(self) -> None:
        """Let the connection end with the reply to the present request."""
        self._stage, self._received = "over", 0

    # -- replies ---------------------------------------------------------------------------------------------------

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Limit the time for its body, and announce in the reply if the connection ends."""
        cycle, begun = self.cycle, self.loop.time()

        async def receive_in_time() -> Message:
            if not cycle.more_body:
                return await receive()
            pause_ends = self.loop.time() + self.limits.pause_seconds
            try:
                async with asyncio.timeout_at(min(pause_ends, begun + self.limits.body_seconds)):
                    return await receive()
            except TimeoutError:
                self._refuse(LATE)
                return await receive()

        async def send_with_end(message: Message) -> None:
            if message["type"] != "http.response.start" or self._stage == "reply":
                await send(message)
                return
            self._hear_no_more()
            cycle.keep_alive = False
            await send(message)
            cycle.keep_alive = True  # otherwise uvicorn cuts off a peer that still writes, which reads no answer then

        await self._answer(scope, receive_in_time, send_with_end)

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
            self._waits_since = time.monotonic()
            self._watch_reply()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stage == "reply":
            self._waits_since = inf
            self._disarm()

    def _refuse(self, refusal: Refusal) -> None:
        self._log(refusal)
        if self._drop_request():
            self.transport.write(refusal.encode())
            self._end()
        else:
            self.transport.close()
            self._watch_reply()

    def _drop_request(self) -> bool:
        """Tell the route that its reply is not needed any more. Return False if the reply has begun."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return not self.cycle.response_started

    def _end(self) -> None:
        """Send no more, and give the peer time to read."""
        self._hear_no_more()
        self._waits_since = time.monotonic()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
            self._arm(self.limits.last_seconds, self.transport.abort)

    # -- time ------------------------------------------------------------------------------------------------------

    def _arm(self, seconds: float, late: Callable[..., object], *arguments: object) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, late, *arguments)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_head(self) -> None:
        self._stage, self._received, self._waits_since = "head", 0, time.monotonic()
        self._arm(self.limits.head_seconds, self._check_progress, 0)

    def _watch_reply(self) -> None:
        self._arm(self.limits.pause_seconds, self._check_progress, self.transport.get_write_buffer_size())

    def _check_progress(self, unread_before: int) -> None:
        """End the connection if its peer has neither read nor sent anything since the timer was set."""
        unread = self.transport.get_write_buffer_size()
        if 0 < unread_before <= unread:
            self._log(UNREAD)
            self.transport.abort()  # closing would wait for the reader
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
            logger.warning("refused %s: %d %s: %s", peer, *refusal)

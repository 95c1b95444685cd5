"""The wire: how much a connection may send, how slowly, and in what form, before anything above it hears of it.

uvicorn reads heads of any size, waits for ever, and queues requests that are sent ahead of a reply. Here a connection
has a stage: `head` (a request is awaited), `body` (its rest is), `reply` (it is whole and being answered), and `over`
(what still comes is swallowed unread). One timer watches the stage; a reply without a known length, a stream, has none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from midwatch.api.reply import to_json
from midwatch.api.sse import ABORT

logger = logging.getLogger(__name__)

Send = Callable[[Any], Coroutine[Any, Any, None]]

SINGLE = frozenset(
    (b"host", b"authorization", b"origin", b"content-type", b"transfer-encoding", b"expect", b"last-event-id")
)
"""Headers that mean one thing to one reader and another to the next when they come twice."""
CHUNK_OVERHEAD = 8
"""Bytes on the wire for each byte of a body, when it comes in the smallest chunks."""
MOST_TURNED_AWAY = 64
MINUTE = 60.0
MOST_TOLD = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may do."""

    connections: int = 1000
    head_bytes: int = 64 * 1024
    """Request line and headers together."""
    headers: int = 100
    head_seconds: float = 10.0
    """From the beginning of the connection, or the end of the reply before, to the end of a head."""
    pause_seconds: float = 10.0
    """Longest a body may not come on, or a reply of known length not be taken."""
    body_seconds: float = 60.0
    idle_seconds: float = 1.0
    """Whose peer has let us wait for this long gives way to others when all connections are taken."""
    last_seconds: float = 5.0
    """How long the rest of a refused request is swallowed: a peer that is cut off while it writes reads no answer."""
    last_bytes: int = 16 * 1024 * 1024
    stop_seconds: float = 2.0
    """How long a reply may take when the server stops."""
    buffered_bytes: int = 64 * 1024
    """Written and not yet taken by the system: above it, who writes waits."""


class Refusal(NamedTuple):
    """What a peer is told, and the log."""

    status: int
    code: str
    detail: str


LARGE = Refusal(431, "headers_too_large", "the request line and the headers are too large or too many; send less.")
LATE = Refusal(408, "request_timeout", "the request did not arrive in time; send it again, without pauses.")
CROWDED = Refusal(
    503, "too_many_connections", "too many connections are open; try again soon, or raise max_connections."
)
UNREAD = Refusal(408, "reply_not_read", "the reply was not read in time.")
EARLY = Refusal(400, "sent_ahead", "more was sent before the reply; the connection ends with that reply.")


def malformed(why: str, status: int = 400) -> Refusal:
    """For a request that can be read in two ways, or in none."""
    return Refusal(status, "malformed_request", f"the request is not well-formed HTTP/1.1: {why}.")


class Refused(Exception):
    """Stops the parser; the connection knows why."""


class Refusals:
    """The log of refusals: one line for each peer and kind in a minute, and not endlessly many."""

    def __init__(self) -> None:
        self._since = -MINUTE
        self._told: set[tuple[str, str]] = set()

    def tell(self, peer: str, refusal: Refusal) -> None:
        """Write it down unless that was done within the minute."""
        if time.monotonic() - self._since >= MINUTE:
            self._since, self._told = time.monotonic(), set()
        if (peer, refusal.code) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((peer, refusal.code))
            logger.warning("refused %s: %d %s: %s", peer, *refusal)


class Shared:
    """What the connections of a server have in common."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.refusals = Refusals()
        self.waiting: dict[Connection, float] = {}
        """Those whose peer has to send or to read, and since when; the first has waited longest."""
        self.turned_away: set[Connection] = set()


class Connection(HttpToolsProtocol):
    """One connection, limited. Make the class of a server with `limited`."""

    shared: ClassVar[Shared]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = self.shared.limits
        self._stage: Literal["head", "body", "reply", "over"] = "head"
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None
        self._fed = 0
        """Bytes that came since the stage `head` or `over` began."""
        self._head = 0
        """Bytes of the head that were understood."""
        self._payload = 0
        self._parting = False
        self._began = self._moved = 0.0

    # -- beginning and end -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        transport.set_write_buffer_limits(high=self.limits.buffered_bytes)
        if self._has_room():
            super().connection_made(transport)
            self._await_head()
            return
        self.transport, self.client = transport, get_remote_addr(transport)
        if len(self.shared.turned_away) < MOST_TURNED_AWAY:
            self.shared.turned_away.add(self)
            self._refuse(CROWDED)
        else:
            transport.abort()

    def _has_room(self) -> bool:
        if len(self.connections) < self.limits.connections:
            return True
        idle, since = next(iter(self.shared.waiting.items()), (None, 0.0))
        if idle is None or self.loop.time() - since < self.limits.idle_seconds:
            return False
        self.connections.discard(idle)
        idle._waits(False)
        idle.transport.abort()
        return True

    def _waits(self, is_so: bool = True) -> None:
        """Note whether it is the peer's turn."""
        self.shared.waiting.pop(self, None)
        if is_so and self in self.connections:
            self.shared.waiting[self] = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._waits(False)
        self.shared.turned_away.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: what is not whole is dropped, what is being answered gets a little time."""
        if self._stage == "body":
            self._drop_request()
            self.transport.close()
        super().shutdown()
        self.loop.call_later(self.limits.stop_seconds, self.transport.abort)

    # -- what comes in ---------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._fed += len(data)
        if self._stage == "over":
            if self._fed > self.limits.last_bytes:
                self.transport.abort()
            return
        self._moved = self.loop.time()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignore_the_rest()  # uvicorn would take the body for the next request
        except httptools.HttpParserError as error:
            self._misread(error)
        else:
            self._count()

    def _count(self) -> None:
        """Bound what the parser has taken in without a word: an endless header, trailer or size of a chunk."""
        most = self.limits.head_bytes
        if self._stage != "head":
            most = 2 * most + CHUNK_OVERHEAD * self._payload
        if self._fed > most:
            self._refuse(LARGE)
        elif self._stage == "body" and self._timer is None:
            self._arm(self.limits.pause_seconds, self._body_is_late)

    def _misread(self, error: httptools.HttpParserError) -> None:
        if self._stage == "reply":
            self.shared.refusals.tell(self._peer(), EARLY)
            self._ignore_the_rest()
        else:
            self._refuse(self._refusal or malformed(str(error)))

    def _ignore_the_rest(self) -> None:
        """Answer the request that is whole, and hear nothing more."""
        self._stage, self._fed = "over", 0
        self.cycle.keep_alive = False

    def _stop(self, refusal: Refusal) -> NoReturn:
        self._refusal = refusal
        raise Refused

    def on_message_begin(self) -> None:
        if self._stage != "head":
            raise Refused  # uvicorn would forget whom to tell of a lost connection
        self._head = self._payload = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage == "body":
            return  # a trailer; it must not pass for a header, which others have checked
        super().on_header(name, value)
        self._head += len(name) + len(value) + 4
        if len(self.headers) > self.limits.headers:
            self._stop(LARGE)

    def on_headers_complete(self) -> None:
        if self._head > self.limits.head_bytes:
            self._stop(LARGE)
        if wrong := flaw(self.parser.get_http_version(), self.url, self.headers):
            self._stop(wrong)
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}
        super().on_headers_complete()
        self.cycle.send = self._announcing(self.cycle.send)  # type: ignore[assignment, method-assign]
        self._stage, self._began = "body", self.loop.time()
        self._disarm()

    def on_body(self, body: bytes) -> None:
        self._payload += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stage = "reply"
        self._waits(False)
        self._disarm()

    # -- what goes out ---------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._watch_reply()
        elif self._stage == "body" or self._parting:
            self._end()  # it was answered without being heard out
        else:
            self.flow.resume_reading()
            self._await_head()

    def _announcing(self, send: Send) -> Send:
        """A `send` that says so when the connection ends with a reply, because its request has not been heard out."""
        cycle, self._parting = self.cycle, False

        async def announcing(message: Any) -> None:
            if message["type"] != "http.response.start" or self._stage != "body":
                await send(message)
                return
            cycle.keep_alive = False
            await send(message)
            cycle.keep_alive, self._parting = True, True  # uvicorn would cut off who still writes, and reads no answer

        return announcing

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.cycle is not None and self.cycle.chunked_encoding is False:
            self._waits()
            self._watch_reply()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stage == "reply":
            self._waits(False)
            self._disarm()

    def _refuse(self, refusal: Refusal) -> None:
        self.shared.refusals.tell(self._peer(), refusal)
        if self._drop_request():
            self.transport.write(answer(refusal))
            self._end()
        else:
            self.transport.close()
            self._watch_reply()

    def _drop_request(self) -> bool:
        """Let whoever works on the request know that it is not to be answered. False when its reply has begun."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return not self.cycle.response_started

    def _end(self) -> None:
        """Say no more, and give the peer time to read."""
        self._stage, self._fed = "over", 0
        self._waits()
        if not self.transport.is_closing():
            if self.flow is not None:
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
        self._stage, self._fed = "head", 0
        self._waits()
        self._arm(self.limits.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.transport.get_write_buffer_size():
            self._watch_reply()  # no wonder: it still reads the reply before
        elif self._fed:
            self._refuse(LATE)
        else:
            self.transport.close()

    def _body_is_late(self) -> None:
        now, pause = self.loop.time(), self.limits.pause_seconds
        quiet, whole = now - self._moved, now - self._began
        if self.flow.read_paused:
            self._arm(pause, self._body_is_late)  # the delay is ours
        elif quiet >= pause or whole >= self.limits.body_seconds:
            self._refuse(LATE)
        else:
            self._arm(max(0.01, min(pause - quiet, self.limits.body_seconds - whole)), self._body_is_late)

    def _watch_reply(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._arm(self.limits.pause_seconds, self._reply_is_late, left)

    def _reply_is_late(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left and left >= before:
            self.shared.refusals.tell(self._peer(), UNREAD)
            self.transport.abort()  # closing would wait for the reader
        elif left:
            self._watch_reply()
        elif self._stage == "head":
            self._await_head()
        elif self._stage == "body":
            self._body_is_late()

    def _peer(self) -> str:
        return self.client[0] if self.client else "a peer"


def limited(limits: Limits) -> type[Connection]:
    """The class of a server's connections."""

    class Limited(Connection):
        shared = Shared(limits)

    return Limited


def flaw(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> Refusal | None:
    """What is wrong with a head that the parser let pass."""
    if version not in ("1.0", "1.1"):
        return malformed("its version is not 1.1")
    if not target.startswith(b"/"):
        return malformed("its target does not begin with a slash")
    if not readable(target):
        return malformed("its target is not UTF-8, or has control characters")
    seen: set[bytes] = set()
    for name, value in headers:
        if name in seen and name in SINGLE:
            return malformed(f"the header {name.decode()} comes twice")
        seen.add(name)
        if not value.isascii() and not is_text(value):
            return malformed("a header is not UTF-8")
        if name == b"transfer-encoding" and (version == "1.0" or value.lower() != b"chunked"):
            return malformed("its transfer encoding is not chunked")
        if name == b"expect" and value.lower() != b"100-continue":
            return malformed("it expects something else than 100-continue", 417)
    if version == "1.1" and b"host" not in seen:
        return malformed("the header host is missing")
    return None


def readable(target: bytes) -> bool:
    """Whether a target is text without control characters; a query may have line breaks and the like, but no NUL."""
    path, _, query = target.partition(b"?")
    path, query = unquote_to_bytes(path), unquote_to_bytes(query)
    return is_text(path) and is_text(query) and b"\0" not in query and min(path) >= 0x20 and 0x7F not in path


def is_text(data: bytes) -> bool:
    """Whether it is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def answer(refusal: Refusal) -> bytes:
    """A refusal as a whole reply, after which the connection ends."""
    title = HTTPStatus(refusal.status).phrase
    body = to_json({"type": "about:blank", "title": title, **refusal._asdict(), "field": None})
    wait = "retry-after: 1\r\n" if refusal.status == 503 else ""
    head = (
        f"HTTP/1.1 {refusal.status} {title}\r\n{wait}"
        "content-type: application/problem+json\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body

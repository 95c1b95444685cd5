"""HTTP/1.1 to one server, on connections that stay open. httptools, which loads fast, parses the replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

CONNECT_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""A server that sends nothing for this long, while a reply is expected, counts as lost."""
MAX_HEAD = 65_536
PIECE = 65_536
MAX_IDLE = 20
"""The number of connections that are kept for later requests."""


class Lost(Exception):
    """No connection to the server, or it was lost before the reply was complete."""


class Unreachable(Lost):
    """No connection to the server could be made."""


class Answer(NamedTuple):
    """The reply to a request."""

    status: int
    body: bytes


class Server:
    """The connections to the server at a URL such as `https://host:7171`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._address = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._host = parts.netloc.rpartition("@")[2]
        self._idle: list[Connection] = []

    async def close(self) -> None:
        """Close the connections that no request uses."""
        while self._idle:
            await self._idle.pop().close()

    def drop(self) -> None:
        """Drop the connections that no request uses."""
        while self._idle:
            self._idle.pop().abort()

    async def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request and return the whole reply. Raise Lost if there is none."""
        async with self.stream(method, target, headers, body) as (status, pieces):
            return Answer(status, b"".join([piece async for piece in pieces]))

    @asynccontextmanager
    async def stream(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"", silence: float = SILENT_SECONDS
    ) -> AsyncIterator[tuple[int, AsyncGenerator[bytes, None]]]:
        """Send a request, and yield the status of the reply and the pieces of its body as they arrive.

        Raise Lost if the connection is lost, or if the server sends nothing for `silence` seconds.
        """
        connection = await self._connect()
        try:
            reply = await connection.send(method, target, {"host": self._host, **headers}, body)
            async with aclosing(connection.read_body(reply, silence)) as pieces:
                yield reply.status, pieces
        finally:
            if connection.reusable and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.abort()

    async def _connect(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_silent():
                return connection
            connection.abort()
        tls: Any = None
        if self._tls:
            import ssl

            tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return Connection(*await asyncio.open_connection(*self._address, ssl=tls, limit=MAX_HEAD))
        except (OSError, ValueError, TimeoutError) as problem:  # ValueError: the name of the host is not valid
            raise Unreachable(str(problem) or "no reply") from None


class Connection:
    """One connection. It is `reusable` after a reply was read to its end, and while no request is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.reusable = False

    def is_silent(self) -> bool:
        """Return whether the connection is open and the server has sent nothing since the last reply."""
        reading = self._reader.read(1)
        try:
            reading.send(None)  # it returns at once if there is a byte, or if the connection is closed
        except (StopIteration, OSError):
            return False
        reading.close()  # a timeout of 0 seconds here could hide that the request is cancelled
        return not self._writer.is_closing()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        self._writer.close()
        with suppress(OSError):  # it was lost already
            await self._writer.wait_closed()

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a request and return the reply when its head has arrived."""
        self.reusable = False
        reply, left = Reply(), MAX_HEAD
        length = {} if method == "GET" else {"content-length": str(len(body))}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**headers, **length}.items())]
        with report_loss():
            self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            async with asyncio.timeout(SILENT_SECONDS):
                await self._writer.drain()
                while not reply.status:
                    data = await self._reader.read(left)
                    if not data:
                        raise EOFError("the connection was closed" if left else "the head is too long")
                    left -= len(data)
                    reply.parser.feed_data(data)
        return reply

    async def read_body(self, reply: Reply, silence: float) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of the body. Without a length the body ends with the connection."""
        with report_loss():
            while True:
                for piece in reply.take_pieces():
                    yield piece
                if reply.is_complete:
                    break
                async with asyncio.timeout(silence):
                    data = await self._reader.read(PIECE)
                if not data and reply.has_length:
                    raise EOFError("the connection was closed")
                if not data:
                    return
                reply.parser.feed_data(data)
        self.reusable = reply.keeps_connection


class Reply:
    """A reply while it arrives. The `parser` calls the methods `on_...`; `status` is 0 until the head has arrived."""

    def __init__(self) -> None:
        self.parser = HttpResponseParser(self)
        self.status = 0
        self.has_length = False
        self.is_complete = False
        self.keeps_connection = False
        self._pieces: list[bytes] = []

    def take_pieces(self) -> list[bytes]:
        """Return the pieces of the body that have arrived since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("there is something after the reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length" or (name.lower() == b"transfer-encoding" and b"chunked" in value.lower()):
            self.has_length = True

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        self.status = status if status >= 200 else 0  # an informational reply comes before the real one

    def on_body(self, piece: bytes) -> None:
        if self.status:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_complete = self.status > 0
        self.keeps_connection = self.parser.should_keep_alive()  # the parser forgets this after the call


@contextmanager
def report_loss() -> Iterator[None]:
    """Raise Lost for every error that means that no whole reply will arrive."""
    try:
        yield
    except TimeoutError:
        raise Lost("no reply in time") from None
    except (OSError, EOFError, ValueError, HttpParserError, HttpParserUpgrade) as problem:
        raise Lost(str(problem) or type(problem).__name__) from None


class Messages:
    """Reads the messages of server-sent events from the pieces of a stream."""

    def __init__(self) -> None:
        self._kind = "message"
        self._data: list[bytes] = []
        self._rest: list[bytes] = []

    def read(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the kind and the data of each message that this piece completes."""
        self._rest.append(piece)
        if b"\n" not in piece:
            return
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest = [rest]
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            if name == b"event":
                self._kind = value.strip().decode()
            elif name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line.strip():
                if self._data:
                    yield self._kind, b"\n".join(self._data)
                self._kind, self._data = "message", []

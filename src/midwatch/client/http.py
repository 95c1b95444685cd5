"""HTTP/1.1 to one server, on connections that stay open. It needs only the standard library, so that it loads fast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

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


class Head(NamedTuple):
    """The status and the headers of a reply. The names of headers are in lower case."""

    status: int
    headers: dict[str, str]


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
        async with self.stream(method, target, headers, body) as (head, pieces):
            return Answer(head.status, b"".join([piece async for piece in pieces]))

    @asynccontextmanager
    async def stream(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"", silence: float = SILENT_SECONDS
    ) -> AsyncIterator[tuple[Head, AsyncGenerator[bytes, None]]]:
        """Send a request, and yield the head of the reply and the pieces of its body as they arrive.

        Raise Lost if the connection is lost, or if the server sends nothing for `silence` seconds.
        """
        connection = await self._connect()
        try:
            head = await connection.send(method, target, {"host": self._host, **headers}, body)
            async with aclosing(connection.read_body(head, silence)) as pieces:
                yield head, pieces
        finally:
            if connection.reusable and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.abort()

    async def _connect(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            connection.abort()
        tls: Any = None
        if self._tls:
            import ssl

            tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return Connection(*await asyncio.open_connection(*self._address, ssl=tls, limit=MAX_HEAD))
        except (OSError, TimeoutError) as problem:
            raise Unreachable(str(problem) or "no reply") from None


class Connection:
    """One connection. It is `reusable` after a reply was read to its end, and while no request is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.reusable = False

    def is_closed(self) -> bool:
        """Return whether the server has closed the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        self._writer.close()
        with suppress(OSError):  # it was lost already
            await self._writer.wait_closed()

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Head:
        """Send a request and return the head of the reply."""
        self.reusable = False
        length = {} if method == "GET" else {"content-length": str(len(body))}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**headers, **length}.items())]
        with report_loss():
            self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            async with asyncio.timeout(SILENT_SECONDS):
                await self._writer.drain()
                while (head := parse_head(await self._reader.readuntil(b"\r\n\r\n"))).status < 200:
                    pass  # an informational reply comes before the real one
        return head

    async def read_body(self, head: Head, silence: float) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of the body. Without a length the body ends with the connection."""
        length = head.headers.get("content-length")
        with report_loss():
            if head.headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await self._read_line(silence)).partition(b";")[0], 16):
                    async with asyncio.timeout(silence):
                        chunk = await self._reader.readexactly(size + 2)
                    yield chunk[:-2]
                while await self._read_line(silence):
                    pass  # headers may follow the last chunk
            elif length is None and head.status not in (204, 304):
                while piece := await self._read(PIECE, silence):
                    yield piece
                return
            else:
                left = int(length or 0)
                while left:
                    piece = await self._read(min(left, PIECE), silence)
                    if not piece:
                        raise EOFError("the connection was closed")
                    left -= len(piece)
                    yield piece
        self.reusable = head.headers.get("connection", "").lower() != "close"

    async def _read(self, size: int, silence: float) -> bytes:
        async with asyncio.timeout(silence):
            return await self._reader.read(size)

    async def _read_line(self, silence: float) -> bytes:
        async with asyncio.timeout(silence):
            return (await self._reader.readuntil(b"\n")).rstrip()


@contextmanager
def report_loss() -> Iterator[None]:
    """Raise Lost for every error that means that no whole reply will arrive."""
    try:
        yield
    except TimeoutError:
        raise Lost("no reply in time") from None
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as problem:
        raise Lost(type(problem).__name__) from None


def parse_head(head: bytes) -> Head:
    """Return the status and the headers of a reply. Raise ValueError if it is not HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, status = first.split(" ", 2)[:2]
    if not version.startswith("HTTP/1."):
        raise ValueError("not HTTP/1")
    pairs = (line.partition(":") for line in lines if line)
    return Head(int(status), {name.strip().lower(): value.strip() for name, _, value in pairs})


class Messages:
    """Reads the messages of server-sent events from the pieces of a stream."""

    def __init__(self) -> None:
        self._kind = "message"
        self._data: list[bytes] = []
        self._rest = b""

    def read(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the kind and the data of each message that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
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

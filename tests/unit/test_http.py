"""Test the connections of the client with a server that sends exact bytes, and closes or keeps each connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from midwatch.client import http
from midwatch.client.http import Lost, Server, Unreachable
from servers import eventually

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\nhi"


@dataclass
class Raw:
    """A server that answers the n-th request with the n-th reply, and repeats the last one."""

    replies: tuple[bytes, ...]
    closes: bool
    by_bytes: bool
    requests: int = 0
    connections: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.add(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                reply = self.replies[min(self.requests, len(self.replies) - 1)]
                self.requests += 1
                for piece in [reply[i : i + 1] for i in range(len(reply))] if self.by_bytes else [reply]:
                    writer.write(piece)
                    await writer.drain()
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has gone
        finally:
            self.open.discard(writer)
            writer.close()


@asynccontextmanager
async def serve(*replies: bytes, closes: bool = False, by_bytes: bool = False) -> AsyncIterator[tuple[Raw, Server]]:
    """Start a server with these replies, and yield it with a client."""
    raw = Raw(replies, closes, by_bytes)
    listening = await asyncio.start_server(raw.answer, "127.0.0.1", 0)
    client = Server(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    async with listening:
        yield raw, client
        await client.close()
        assert await eventually(lambda: not raw.open)  # no connection is left behind


async def get(client: Server) -> tuple[int, bytes]:
    async with asyncio.timeout(30):
        return await client.request("GET", "/", {})


COMPLETE = {
    "length": (WHOLE, 200, b"hi"),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", 200, b""),
    "chunks": (CHUNKED + b"3\r\nabc\r\n2;name=value\r\nde\r\n0\r\n\r\n", 200, b"abcde"),
    "chunks and trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nX-Sum: 1\r\nConnection: x\r\n\r\n", 200, b"hi"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", 304, b""),
    "informational": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + WHOLE, 200, b"hi"),
    "names in lower case": (b"HTTP/1.1 500 Oh\r\ncontent-length:1\r\n\r\nx", 500, b"x"),
}


@pytest.mark.parametrize("by_bytes", [False, True])
@pytest.mark.parametrize("name", COMPLETE)
async def test_a_connection_is_used_again_after_a_complete_reply(name: str, by_bytes: bool) -> None:
    reply, status, body = COMPLETE[name]
    async with serve(reply, by_bytes=by_bytes) as (raw, client):
        assert [await get(client) for _ in range(3)] == [(status, body)] * 3
        assert (raw.requests, raw.connections) == (3, 1)


LAST = {
    "close": (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    "no length": (OK + b"\r\nuntil the end", b"until the end"),
    "other encoding": (OK + b"Transfer-Encoding: x\r\n\r\nabc", b"abc"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
}


@pytest.mark.parametrize("by_bytes", [False, True])
@pytest.mark.parametrize("name", LAST)
async def test_a_connection_that_ends_with_its_reply_is_not_used_again(name: str, by_bytes: bool) -> None:
    reply, body = LAST[name]
    async with serve(reply, closes=True, by_bytes=by_bytes) as (raw, client):
        assert [await get(client) for _ in range(2)] == [(200, body)] * 2
        assert raw.connections == 2


BROKEN = {
    "nothing": b"",
    "garbage": b"\x16\x03\x01 what is this?\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "half of a head": OK + b"Content-Len",
    "half of a body": OK + b"Content-Length: 10\r\n\r\nhalf",
    "half of a chunk": CHUNKED + b"a\r\nhalf",
    "between chunks": CHUNKED + b"2\r\nhi\r\n",
    "half of the trailers": CHUNKED + b"0\r\nX-Sum: 1\r\n",
    "size of a chunk": CHUNKED + b"hello\r\nhi\r\n",
    "end of a chunk": CHUNKED + b"2\r\nhigh\r\n0\r\n\r\n",
    "length": OK + b"Content-Length: two\r\n\r\nhi",
    "status": b"HTTP/1.1 abc\r\n\r\n",
    "only informational": b"HTTP/1.1 100 Continue\r\n\r\n",
    "another protocol on request": b"HTTP/1.1 101 Hello\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello",
}


@pytest.mark.parametrize("by_bytes", [False, True])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_reply_is_lost(name: str, by_bytes: bool) -> None:
    async with serve(BROKEN[name], WHOLE, closes=True, by_bytes=by_bytes) as (raw, client):
        with pytest.raises(Lost) as caught:
            await get(client)
        assert not isinstance(caught.value, Unreachable)
        assert str(caught.value)
        assert await get(client) == (200, b"hi")
        assert raw.connections == 2


@pytest.mark.parametrize("reply", [WHOLE + WHOLE, OK + b"Content-Length: 1\r\n\r\nhi"])
async def test_a_reply_with_something_behind_it_is_lost(reply: bytes) -> None:
    async with serve(reply, WHOLE) as (raw, client):
        with pytest.raises(Lost):
            await get(client)
        assert await get(client) == (200, b"hi")
        assert raw.connections == 2


@pytest.mark.parametrize("head", [OK + b"X: " + b"x" * 200_000, OK + b"X: x\r\n" * 30_000, b"x" * 200_000])
async def test_a_head_without_end_is_lost(head: bytes) -> None:
    async with serve(head) as (_, client):
        with pytest.raises(Lost):
            await get(client)


async def test_a_long_head_and_a_long_body_are_read() -> None:
    body = bytes(range(256)) * 5000
    head = OK + b"X: " + b"x" * 60_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serve(head + body) as (raw, client):
        assert [await get(client) for _ in range(2)] == [(200, body)] * 2
        assert raw.connections == 1


@pytest.mark.parametrize("start", [b"", OK + b"X: ", OK + b"Content-Length: 3\r\n\r\nab", CHUNKED + b"2\r\nh"])
async def test_a_silent_server_is_lost(start: bytes, monkeypatch) -> None:
    monkeypatch.setattr(http, "SILENT_SECONDS", 0.2)
    async with serve(start) as (raw, client):
        with pytest.raises(Lost, match="no reply in time"):
            async with client.stream("GET", "/", {}, silence=0.2) as (_, pieces):
                [piece async for piece in pieces]
        assert raw.requests == 1


async def test_pieces_are_read_as_they_arrive() -> None:
    """The chunk has not arrived completely."""
    async with (
        asyncio.timeout(30),
        serve(CHUNKED + b"a\r\nhalf") as (_, client),
        client.stream("GET", "/", {}) as (status, pieces),
    ):
        assert status == 200
        assert await anext(pieces) == b"half"


async def test_a_cancelled_request_ends_its_connection() -> None:
    async with serve(OK + b"Content-Length: 9\r\n\r\nab", WHOLE) as (raw, client):
        request = asyncio.create_task(get(client))
        assert await eventually(lambda: raw.requests == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await eventually(lambda: not raw.open)
        assert await get(client) == (200, b"hi")


async def test_a_connection_that_the_server_has_closed_is_replaced() -> None:
    async with serve(WHOLE) as (raw, client):
        assert await get(client) == (200, b"hi")
        for writer in raw.open:
            writer.close()
        assert await eventually(lambda: all(idle._reader.at_eof() for idle in client._idle))
        assert await get(client) == (200, b"hi")
        assert raw.connections == 2


async def test_bytes_that_arrive_between_two_requests_are_no_reply() -> None:
    async with serve(WHOLE) as (raw, client):
        assert (await client.request("GET", "/", {})).body == b"hi"
        (writer,) = raw.open
        writer.write(OK + b"Content-Length: 3\r\n\r\nold")
        await writer.drain()
        (idle,) = client._idle
        assert await eventually(lambda: len(idle._reader._buffer) > 0)  # type: ignore[attr-defined]
        assert (await client.request("GET", "/", {})).body == b"hi"
        assert raw.connections == 2


async def test_the_body_of_an_informational_reply_is_skipped() -> None:
    async with serve(b"HTTP/1.1 150 Odd\r\nContent-Length: 2\r\n\r\nno" + WHOLE) as (_, client):
        assert (await client.request("GET", "/", {})).body == b"hi"


async def test_a_name_that_no_host_can_have_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        await Server("http://a..b:1").request("GET", "/", {})


def test_a_long_line_of_a_stream_may_arrive_in_many_pieces() -> None:
    messages, long = http.Messages(), b"x" * 1000
    found = [
        m
        for piece in (b"event: a\nda", b"ta: ", *[long] * 300, b"\r\n\nda", b"ta: y\n\n")
        for m in messages.read(piece)
    ]
    assert found == [("a", long * 300), ("message", b"y")]


async def test_a_request_that_was_cancelled_before_it_began_is_cancelled() -> None:
    async def cancel_and_request() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()  # as Ctrl-C does between two requests
        await client.request("GET", "/", {})

    async with serve(WHOLE) as (_, client):
        assert (await client.request("GET", "/", {})).body == b"hi"
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(cancel_and_request())

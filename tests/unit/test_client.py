"""The client against a small loopback server that says exactly what a test tells it to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from midwatch import errors
from midwatch.client import BY_CODE, Client, quoted
from midwatch.errors import InvalidInput, MidwatchError, NotFound, NotRunning, Unauthorized


@dataclass
class Heard:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Loopback:
    """Answers the n-th request with the n-th reply; the last one again and again."""

    replies: list[bytes]
    heard: list[Heard] = field(default_factory=list)
    url: str = ""
    by_bytes: bool = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        reply = self.replies[min(len(self.heard), len(self.replies) - 1)]
        self.heard.append(Heard(method, target, headers, body))
        for piece in [reply[i : i + 1] for i in range(len(reply))] if self.by_bytes else [reply]:
            writer.write(piece)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def loopback(*replies: bytes, by_bytes: bool = False) -> AsyncIterator[Loopback]:
    told = Loopback(list(replies), by_bytes=by_bytes)
    server = await asyncio.start_server(told.answer, "127.0.0.1", 0)
    told.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield told


def reply(status: int, content: object, kind: str = "application/json") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (
        status, kind.encode(), len(body), body,
    )  # fmt: skip


def problem(status: int, code: str, detail: str = "what to do", **more: object) -> bytes:
    return reply(status, {"code": code, "detail": detail, "status": status, "field": None, **more})


def stream(*frames: str) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hello\n\n"
    return head + "".join(frames).encode()


def frame(seq: int, kind: str = "task_progress", text: str = "x") -> str:
    name = f"id: {seq}\n" if seq else ""
    return f"{name}event: {kind}\ndata: {json.dumps({'seq': seq, 'kind': kind, 'payload': {'text': text}})}\n\n"


@pytest.mark.parametrize("code", sorted(BY_CODE))
async def test_a_problem_comes_back_as_the_error_it_was_raised_as(code: str) -> None:
    async with loopback(problem(409, code)) as server, Client(server.url, "t") as client:
        with pytest.raises(MidwatchError) as caught:
            await client.summary()
    assert type(caught.value) is BY_CODE[code]
    assert str(caught.value) == "what to do"
    assert caught.value.exit_status == BY_CODE[code].exit_status


def test_every_error_has_a_code_of_its_own() -> None:
    named = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MidwatchError)]
    assert len({kind.code for kind in named}) == len(named) == len(BY_CODE)


async def test_an_error_keeps_its_attributes() -> None:
    replies = [problem(422, "unknown_agent", field="agent"), problem(404, "not_found", noun="task", key="t_1")]
    async with loopback(*replies) as server, Client(server.url, "t") as client:
        with pytest.raises(InvalidInput) as invalid:
            await client.submit("x")
        with pytest.raises(NotFound) as missing:
            await client.get("t_1")
    assert invalid.value.field == "agent"
    assert (missing.value.noun, missing.value.key) == ("task", "t_1")


async def test_a_reply_that_is_no_problem_document_is_told_as_it_is() -> None:
    replies = [reply(502, b"<html>bad gateway</html>", "text/html"), problem(418, "teapot", "short and stout")]
    async with loopback(*replies) as server, Client(server.url, "t") as client:
        with pytest.raises(MidwatchError, match="answered 502"):
            await client.summary()
        with pytest.raises(MidwatchError, match="short and stout"):
            await client.summary()


async def test_no_server_is_not_running() -> None:
    async with loopback(b"") as server:
        pass
    async with Client(server.url, "t") as client:
        with pytest.raises(NotRunning, match="midwatch up"):
            await client.summary()


async def test_a_server_that_dies_before_it_answers_is_told_apart() -> None:
    async with loopback(b"") as server, Client(server.url, "t") as client:
        with pytest.raises(NotRunning, match="went away before it answered"):
            await client.submit("x")


def test_a_home_without_a_server_is_not_running(tmp_path) -> None:
    with pytest.raises(NotRunning, match="midwatch up"):
        Client.for_home(tmp_path)


async def test_requests_carry_token_filters_and_only_what_was_said() -> None:
    replies = (reply(200, {"tasks": [], "next": None}), reply(201, {"id": "t_1"}))
    async with loopback(*replies) as server, Client(server.url, "secret") as client:
        await client.list(status=["failed", "done"], limit=7)
        assert (await client.submit("hi", {"agent": None, "priority": 3}))["id"] == "t_1"
    listed, submitted = server.heard
    assert listed.target == "/api/v1/tasks?status=failed&status=done&limit=7"
    assert listed.headers["authorization"] == submitted.headers["authorization"] == "Bearer secret"
    assert json.loads(submitted.body) == {"prompt": "hi", "priority": 3}


@pytest.mark.parametrize(("key", "path"), [("t_1", "t_1"), ("a/b c|d", "a%2Fb%20c%7Cd"), ("ü", "%C3%BC")])
def test_ids_are_one_part_of_the_path(key: str, path: str) -> None:
    assert quoted(key) == path


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_an_id_that_would_change_the_path_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        quoted(key)


async def followed(client: Client, count: int, **asked) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    async with aclosing(client.follow(**asked)) as events:
        async for event in events:
            found.append((event["seq"], event["payload"]["text"]))
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("by_bytes", [False, True])
async def test_following_goes_on_after_the_last_stored_event(by_bytes: bool) -> None:
    first = stream(frame(1), frame(2, text="zwei\nü"), frame(0, "message_delta", "live"))
    replies = [first, problem(503, "store_unavailable"), stream(frame(3))]
    async with loopback(*replies, by_bytes=by_bytes) as server, Client(server.url, "t") as client:
        found = await followed(client, 4, after=0, kinds=("task_progress",), live=True)
    assert found == [(1, "x"), (2, "zwei\nü"), (0, "live"), (3, "x")]
    assert [heard.headers["last-event-id"] for heard in server.heard] == ["0", "2", "2"]
    assert {heard.target for heard in server.heard} == {"/api/v1/events?kind=task_progress&live=true"}


async def test_a_frame_cut_off_in_the_middle_is_read_again_whole() -> None:
    whole = stream(frame(1), frame(2))
    async with loopback(whole[:-20], stream(frame(2), frame(3))) as server, Client(server.url, "t") as client:
        assert await followed(client, 3) == [(1, "x"), (2, "x"), (3, "x")]


async def test_following_without_the_right_token_is_an_error() -> None:
    async with loopback(problem(401, "unauthorized")) as server, Client(server.url, "t") as client:
        with pytest.raises(Unauthorized):
            await followed(client, 1)


async def test_following_gives_up_when_the_server_stays_away() -> None:
    async with loopback(stream(frame(1))) as server:
        pass
    async with Client(server.url, "t") as client:
        with pytest.raises(NotRunning):
            await followed(client, 1, patience=0.0)


async def test_a_follower_finds_the_server_where_it_is_now() -> None:
    async with loopback(stream(frame(1))) as old, loopback(stream(frame(2))) as new:
        where: Callable[[], str | None] = lambda: new.url  # noqa: E731
        async with Client(old.url, "t", locate=where) as client:
            assert await followed(client, 2) == [(1, "x"), (2, "x")]
    assert new.heard[0].headers["last-event-id"] == "1"

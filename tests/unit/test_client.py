"""Test the client with a small loopback server that sends exactly the replies of the test."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from midwatch.base import errors
from midwatch.base.errors import InvalidInput, MidwatchError, NotFound, NotRunning, Pruned, Unauthorized
from midwatch.client import BY_CODE, Client, quote_key


@dataclass
class Request:
    """A request as the server received it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Loopback:
    """A server that answers the n-th request with the n-th reply, and repeats the last one."""

    replies: list[bytes]
    heard: list[Request] = field(default_factory=list)
    url: str = ""
    by_bytes: bool = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        reply = self.replies[min(len(self.heard), len(self.replies) - 1)]
        self.heard.append(Request(method, target, headers, body))
        for piece in [reply[i : i + 1] for i in range(len(reply))] if self.by_bytes else [reply]:
            writer.write(piece)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def loopback(*replies: bytes, by_bytes: bool = False) -> AsyncIterator[Loopback]:
    fake_server = Loopback(list(replies), by_bytes=by_bytes)
    server = await asyncio.start_server(fake_server.answer, "127.0.0.1", 0)
    fake_server.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield fake_server


@contextmanager
def unused_address() -> Iterator[str]:
    """Return an address where nobody listens and that no other process can take meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


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
async def test_a_problem_document_raises_its_original_error(code: str) -> None:
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


async def test_a_reply_that_is_no_problem_document_is_reported() -> None:
    replies = [reply(502, b"<html>bad gateway</html>", "text/html"), problem(418, "teapot", "short and stout")]
    async with loopback(*replies) as server, Client(server.url, "t") as client:
        with pytest.raises(MidwatchError, match="the reply 502"):
            await client.summary()
        with pytest.raises(MidwatchError, match="short and stout"):
            await client.summary()


async def test_a_refused_connection_raises_not_running() -> None:
    with unused_address() as url:
        async with Client(url, "t") as client:
            with pytest.raises(NotRunning, match="midwatch up"):
                await client.summary()


async def test_a_server_that_dies_before_it_answers_is_reported() -> None:
    async with loopback(b"") as server, Client(server.url, "t") as client:
        with pytest.raises(NotRunning, match="was lost before it answered"):
            await client.submit("x")


def test_a_home_without_a_server_is_not_running(tmp_path) -> None:
    with pytest.raises(NotRunning, match="midwatch up"):
        Client.for_home(tmp_path)


async def test_requests_contain_the_token_filters_and_only_set_values() -> None:
    replies = (reply(200, {"tasks": [], "next": None}), reply(201, {"id": "t_1"}))
    async with loopback(*replies) as server, Client(server.url, "secret") as client:
        await client.list(status=["failed", "done"], limit=7)
        assert (await client.submit("hi", {"agent": None, "priority": 3}))["id"] == "t_1"
    listed, submitted = server.heard
    assert listed.target == "/api/v1/tasks?status=failed&status=done&limit=7"
    assert listed.headers["authorization"] == submitted.headers["authorization"] == "Bearer secret"
    assert json.loads(submitted.body) == {"prompt": "hi", "priority": 3}


async def test_event_queries_have_the_requested_parameters() -> None:
    page = reply(200, {"events": [], "oldest_seq": 1, "last_seq": 0})
    async with loopback(page) as server, Client(server.url, "t") as client:
        await client.events(7, kinds=["error"], session_key="chat:1|x/y", agent="a", actor=None)
        await client.events(before=9, limit=2, actor="ada")
        await client.events()
    assert [request.target.partition("?")[2] for request in server.heard] == [
        "after=7&limit=1000&kind=error&session_key=chat%3A1%7Cx%2Fy&agent=a",
        "before=9&limit=2&actor=ada",
        "limit=1000",
    ]


async def test_pruned_events_are_an_error_with_the_oldest_event() -> None:
    async with loopback(problem(410, "pruned", oldest_seq=40)) as server, Client(server.url, "t") as client:
        with pytest.raises(Pruned) as caught:
            await client.events(3)
    assert caught.value.oldest_seq == 40


async def test_the_client_uses_the_routes_of_the_server() -> None:
    answer = {"id": "x", "messages": [], "interrupted": None, "deliveries": [], "sessions": []}
    async with loopback(reply(200, answer)) as server, Client(server.url, "t") as client:
        await client.sessions(before="chat:1", limit=2)
        await client.session("chat:1|x/y")
        await client.create_session(agent="demo", key="chat:1")
        await client.messages("chat:1", 4, html=True)
        await client.send("chat:1", "hi", idempotency_key="k")
        assert (await client.interrupt("chat:1"))["interrupted"] is None
        await client.close_session("chat:1")
        await client.task_page("t_1")
        await client.retry("t_1", idempotency_key="k")
        await client.deliveries("failed", limit=3)
        await client.delivery("d_1")
        await client.retry_delivery("d_1")
        await client.test_agent("demo", "k")
        await client.now()
        await client.usage(datetime(2026, 3, 1, tzinfo=UTC))
        await client.settings()
        await client.directories("/srv", hidden=True)
        await client.ready()
    assert [f"{request.method} {request.target.removeprefix('/api/v1')}" for request in server.heard] == [
        "GET /sessions?before=chat%3A1&limit=2", "GET /sessions/chat%3A1%7Cx%2Fy", "POST /sessions",
        "GET /sessions/chat%3A1/messages?after=4&limit=500&html=true", "POST /sessions/chat%3A1/messages",
        "POST /sessions/chat%3A1/interrupt", "POST /sessions/chat%3A1/close", "GET /tasks/t_1/page",
        "POST /tasks/t_1/retry", "GET /deliveries?status=failed&limit=3", "GET /deliveries/d_1",
        "POST /deliveries/d_1/retry", "POST /agents/demo/test", "GET /now", SINCE, "GET /settings",
        "GET /directories?path=%2Fsrv&hidden=true", "GET /ready",
    ]  # fmt: skip
    with_key = [request.target for request in server.heard if request.headers.get("idempotency-key") == "k"]
    assert [target.rpartition("/")[2] for target in with_key] == ["messages", "retry", "test"]
    assert json.loads(server.heard[2].body) == {"agent": "demo", "key": "chat:1"}
    assert json.loads(server.heard[4].body) == {"text": "hi"}


async def test_the_client_uses_the_routes_of_automations() -> None:
    answer = {"id": "am_1", "automations": [{"id": "am_1"}], "runs": [{"task_id": "t_1"}]}
    async with loopback(reply(200, answer)) as server, Client(server.url, "t") as client:
        assert await client.automations("all", scope_kind="chat", scope_id="c 1", limit=5) == [{"id": "am_1"}]
        assert (await client.automation("am_1"))["id"] == "am_1"
        await client.create_automation("do", {"every": "90m", "zone": "UTC"})
        await client.patch_automation("am_1", {"quiet": None}, prompt="else", revision=3)
        await client.patch_automation("am_1", {"title": "x"})
        await client.pause_automation("am_1")
        await client.resume_automation("am_1")
        await client.run_automation("am_1")
        await client.delete_automation("am_1")
        assert await client.automation_history("am_1", 7) == [{"task_id": "t_1"}]
        await client.export_automations(["am_1", "am_2"])
        await client.import_automations([{"id": "am_1"}])
        with pytest.raises(NotFound, match="midwatch automation list"):
            await client.automation("a/b")
    assert [f"{request.method} {request.target.removeprefix('/api/v1')}" for request in server.heard] == [
        "GET /automations?status=all&scope_kind=chat&scope_id=c+1&limit=5", "GET /automations/am_1",
        "POST /automations", "PATCH /automations/am_1", "PATCH /automations/am_1", "POST /automations/am_1/pause",
        "POST /automations/am_1/resume", "POST /automations/am_1/run", "DELETE /automations/am_1",
        "GET /automations/am_1/history?limit=7", "GET /automations/export?id=am_1&id=am_2",
        "POST /automations/import",
    ]  # fmt: skip
    assert [json.loads(server.heard[number].body) for number in (2, 3, 4, 11)] == [
        {"prompt": "do", "every": "90m", "zone": "UTC"}, {"quiet": None, "prompt": "else", "revision": 3},
        {"title": "x"}, {"automations": [{"id": "am_1"}]},
    ]  # fmt: skip
    assert {request.headers.get("content-type") for request in server.heard[2:5]} == {"application/json"}


async def test_the_client_uses_the_routes_of_goals() -> None:
    answer = {"id": "g_1", "goals": [{"id": "g_1"}], "runs": [{"task_id": "t_1"}]}
    async with loopback(reply(200, answer)) as server, Client(server.url, "t") as client:
        assert await client.goals("active", limit=5) == [{"id": "g_1"}]
        assert (await client.goal("g_1"))["id"] == "g_1"
        await client.create_goal("reach it", {"deadline": "in 2h"})
        await client.edit_goal("g_1", {"max_steps": 3}, objective="else", revision=2)
        assert await client.goal_steps("g_1", 7) == [{"task_id": "t_1"}]
        await client.step_goal("g_1")
        await client.pause_goal("g_1")
        await client.resume_goal("g_1")
        await client.complete_goal("g_1", "proof")
        await client.delay_goal("g_1", "30m", "why")
        await client.clear_goal("g_1")
        with pytest.raises(NotFound, match="midwatch goal list"):
            await client.goal("a/b")
    assert [f"{request.method} {request.target.removeprefix('/api/v1')}" for request in server.heard] == [
        "GET /goals?status=active&limit=5", "GET /goals/g_1", "POST /goals", "PATCH /goals/g_1",
        "GET /goals/g_1/steps?limit=7", "POST /goals/g_1/step", "POST /goals/g_1/pause", "POST /goals/g_1/resume",
        "POST /goals/g_1/complete", "POST /goals/g_1/delay", "DELETE /goals/g_1",
    ]  # fmt: skip
    assert [json.loads(server.heard[number].body) for number in (2, 3, 8, 9)] == [
        {"objective": "reach it", "deadline": "in 2h"}, {"max_steps": 3, "objective": "else", "revision": 2},
        {"evidence": "proof"}, {"duration": "30m", "reason": "why"},
    ]  # fmt: skip


SINCE = f"GET /usage?since={quote_key(datetime(2026, 3, 1, tzinfo=UTC).astimezone().isoformat())}"


async def test_a_key_with_characters_no_header_allows_is_refused() -> None:
    async with Client("http://127.0.0.1:9", "t") as client:
        for key in ("schlüssel", "two\nlines"):
            with pytest.raises(InvalidInput, match="ASCII"):
                await client.retry("t_1", key)


@pytest.mark.parametrize(("fields", "why"), [({"max_tokens": 10**20}, "max_tokens: the number is too large"),
                                              ({"verifier": "\udcff"}, "cannot be sent as JSON")])  # fmt: skip
async def test_a_value_that_json_cannot_hold_is_refused(fields: Any, why: str) -> None:
    async with Client("http://127.0.0.1:9", "t") as client:
        with pytest.raises(InvalidInput, match=why):
            await client.create_goal("x", fields)


async def test_metrics_are_text() -> None:
    async with (
        loopback(reply(200, b"# HELP x\nx 1\n", "text/plain; version=0.0.4")) as server,
        Client(server.url, "t") as client,
    ):
        assert await client.metrics() == "# HELP x\nx 1\n"


async def test_an_id_with_a_slash_is_not_found() -> None:
    async with Client("http://127.0.0.1:9", "t") as client:
        with pytest.raises(NotFound, match="midwatch tasks"):
            await client.get("a/b")


@pytest.mark.parametrize(("key", "path"), [("t_1", "t_1"), ("a/b c|d", "a%2Fb%20c%7Cd"), ("ü", "%C3%BC")])
def test_ids_are_one_part_of_the_path(key: str, path: str) -> None:
    assert quote_key(key) == path


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_an_id_that_would_change_the_path_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        quote_key(key)


async def read_events(client: Client, count: int, **query) -> list[tuple[int, str]]:
    pairs: list[tuple[int, str]] = []
    async with aclosing(client.follow(**query)) as events:
        async for event in events:
            pairs.append((event["seq"], event["payload"]["text"]))
            if len(pairs) == count:
                break
    return pairs


@pytest.mark.parametrize("by_bytes", [False, True])
async def test_following_resumes_after_the_last_stored_event(by_bytes: bool) -> None:
    first = stream(frame(1), frame(2, text="zwei\nü"), frame(0, "message_delta", "live"))
    replies = [first, problem(503, "store_unavailable"), stream(frame(3))]
    async with loopback(*replies, by_bytes=by_bytes) as server, Client(server.url, "t") as client:
        pairs = await read_events(client, 4, after=0, kinds=("task_progress",), live=True)
    assert pairs == [(1, "x"), (2, "zwei\nü"), (0, "live"), (3, "x")]
    assert [request.headers["last-event-id"] for request in server.heard] == ["0", "2", "2"]
    assert {request.target for request in server.heard} == {"/api/v1/events?kind=task_progress&live=true"}


async def test_a_truncated_frame_is_read_again() -> None:
    whole = stream(frame(1), frame(2))
    async with loopback(whole[:-20], stream(frame(2), frame(3))) as server, Client(server.url, "t") as client:
        assert await read_events(client, 3) == [(1, "x"), (2, "x"), (3, "x")]


async def test_following_without_the_right_token_is_an_error() -> None:
    async with loopback(problem(401, "unauthorized")) as server, Client(server.url, "t") as client:
        with pytest.raises(Unauthorized):
            await read_events(client, 1)


async def test_following_ends_when_the_server_stays_away() -> None:
    with unused_address() as url:
        async with Client(url, "t") as client:
            with pytest.raises(NotRunning):
                await read_events(client, 1, patience=0.0)


async def test_a_follower_finds_a_server_at_a_new_address() -> None:
    async with (
        loopback(stream(frame(1))) as old,
        loopback(stream(frame(2))) as new,
        Client(old.url, "t", locate=lambda: (new.url, "u")) as client,
    ):
        assert await read_events(client, 2) == [(1, "x"), (2, "x")]
    assert new.heard[0].headers["last-event-id"] == "1"
    assert new.heard[0].headers["authorization"] == "Bearer u"


def state(seq: int, **fields: object) -> str:
    return f"id: {seq}\nevent: state\ndata: {json.dumps({'as_of_seq': seq, **fields})}\n\n"


def make_live_frame(kind: str, **payload: object) -> str:
    return f"event: {kind}\ndata: {json.dumps({'payload': payload})}\n\n"


async def read_frames(frames, count: int) -> list[dict]:
    received: list[dict] = []
    async with aclosing(frames) as stream:
        async for frame in stream:
            received.append(dict(frame))
            if len(received) == count:
                break
    return received


def brief(frames: list[dict]) -> list[tuple[str, int | None]]:
    return [(frame["kind"], frame.get("as_of_seq") or frame.get("seq")) for frame in frames]


async def test_a_watcher_gets_the_state_and_later_events_over_a_restart() -> None:
    delta = make_live_frame("message_delta", message_id="t_1.1", offset=0, text="Hel")
    first = stream(state(5, session={"key": "chat:1"}), frame(6), delta)
    again = stream(frame(7), frame(8), state(9), frame(10))
    replies = [first, problem(503, "store_unavailable"), again]
    async with loopback(*replies) as server, Client(server.url, "t") as client:
        frames = await read_frames(client.watch_session("chat:1"), 7)
    assert brief(frames) == [
        ("state", 5), ("task_progress", 6), ("message_delta", 0), ("task_progress", 7), ("task_progress", 8),
        ("state", 9), ("task_progress", 10),
    ]  # fmt: skip
    assert frames[0]["session"] == {"key": "chat:1"}
    assert (frames[2]["session_key"], frames[2]["payload"]["text"]) == ("chat:1", "Hel")
    assert [request.headers.get("last-event-id") for request in server.heard] == [None, "6", "6"]
    assert {request.target for request in server.heard} == {"/api/v1/events?session_key=chat%3A1&state=true"}


async def test_a_watcher_of_a_task_begins_at_the_requested_event() -> None:
    frames = stream(frame(4), state(4), make_live_frame("message_delta", text="x"))
    async with loopback(frames) as server, Client(server.url, "t") as client:
        received = await read_frames(client.watch_task("t_1", 3), 3)
    assert brief(received) == [("task_progress", 4), ("state", 4), ("message_delta", 0)]
    assert received[2]["task_id"] == "t_1"
    assert server.heard[0].headers["last-event-id"] == "3"


async def test_an_event_is_never_returned_twice() -> None:
    replies = [stream(frame(1), frame(2)), stream(frame(1), frame(2), frame(3), state(3), frame(3), frame(4))]
    async with loopback(*replies) as server, Client(server.url, "t") as client:
        frames = await read_frames(client.watch_task("t_1", 0), 5)
    assert brief(frames) == [
        ("task_progress", 1), ("task_progress", 2), ("task_progress", 3), ("state", 3), ("task_progress", 4),
    ]  # fmt: skip


async def test_after_a_gap_a_follower_continues() -> None:
    """After a restore the log may be another one with lower numbers."""
    replies = [stream(frame(90), make_live_frame("gap", oldest_seq=1, dropped=None), frame(40)), stream(frame(41))]
    async with loopback(*replies) as server, Client(server.url, "t") as client:
        frames = await read_frames(client.follow(89), 4)
    assert brief(frames) == [("task_progress", 90), ("gap", 0), ("task_progress", 40), ("task_progress", 41)]
    assert [request.headers["last-event-id"] for request in server.heard[:2]] == ["89", "40"]


async def test_a_gap_of_live_events_changes_nothing() -> None:
    replies = [stream(frame(7), make_live_frame("gap", oldest_seq=None, dropped=12)), stream(frame(8))]
    async with loopback(*replies) as server, Client(server.url, "t") as client:
        assert brief(await read_frames(client.follow(6), 3)) == [
            ("task_progress", 7),
            ("gap", 0),
            ("task_progress", 8),
        ]
    assert server.heard[1].headers["last-event-id"] == "7"


async def test_watching_an_unknown_id_is_an_error() -> None:
    async with (
        loopback(problem(404, "not_found", noun="session", key="x")) as server,
        Client(server.url, "t") as client,
    ):
        with pytest.raises(NotFound):
            await read_frames(client.watch_session("x"), 1)

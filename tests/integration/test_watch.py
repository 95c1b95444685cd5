"""Test watching over HTTP: the state first, then all later events, once and in order, whoever writes and however slow
the reader is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.function import FunctionAgent
from midwatch.base.errors import AgentError
from midwatch.domain.agent import AgentTerms, Turn
from midwatch.domain.changes import Changes
from midwatch.domain.event import EVERYTHING, AgentFault, MessageDelta, ScreenUpdate, TaskProgress, event
from midwatch.domain.identity import OWNER
from midwatch.domain.session import MAX_ERRORS
from servers import PATIENCE, eventually
from serving import Frame, Served, path_of, serve_agents, watch

TERMS = AgentTerms(timeout_seconds=60.0, on_crash="rerun", slots=64)
STEPS, SIZE = 450, 73 * 1024


class Gates:
    """The gates that the agents of this file wait for."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.random = random.Random(7)


def answer_id(turn: Turn) -> str:
    return f"{turn.task_id}.{turn.attempt}"


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
async def served(home: Path, gates: Gates) -> AsyncIterator[Served]:
    async def echo(prompt: str) -> str:
        return prompt.upper()

    async def hold(prompt: str) -> str:
        await gates.go.wait()
        return "let go"

    async def write(prompt: str, turn: Turn) -> str:
        """Write in pieces of all sizes, and sometimes replace earlier text."""
        text = ""
        for number in range(int(prompt)):
            piece = gates.random.choice('abcdeé🦊\n"') * gates.random.randrange(1, 9)
            offset = len(text)
            if number % 17 == 16:
                offset -= min(3, offset)
            await turn.emit(MessageDelta(message_id=answer_id(turn), offset=offset, text=piece))
            text = text[:offset] + piece
            await asyncio.sleep(0 if gates.random.random() < 0.5 else 0.001)
        return text

    async def begin(prompt: str, turn: Turn) -> str:
        """Write one half, wait, and write the other half."""
        await turn.emit(MessageDelta(message_id=answer_id(turn), offset=0, text="one half, "))
        await turn.emit(ScreenUpdate(screen="$ half"))
        await gates.go.wait()
        if prompt == "fail":
            raise AgentError("no other half")
        await turn.emit(MessageDelta(message_id=answer_id(turn), offset=10, text="the other"))
        return "one half, the other"

    async def stream(prompt: str, turn: Turn) -> str:
        text = ('The quick brown fox jumps over the lazy dog, "again".\n' * 2000)[:SIZE]
        size = SIZE // STEPS + 1
        for offset in range(0, SIZE, size):
            await turn.emit(MessageDelta(message_id=answer_id(turn), offset=offset, text=text[offset : offset + size]))
            await asyncio.sleep(0.002)  # so that each step is sent separately
        return text

    bodies = {"echo": echo, "hold": hold, "write": write, "begin": begin, "stream": stream}
    agents = {name: FunctionAgent(name, body, on_loop=True, terms=TERMS) for name, body in bodies.items()}
    async with serve_agents(home, agents) as server:
        yield server
        gates.go.set()


async def open_session(served: Served, agent: str = "echo", key: str = "chat:1") -> None:
    await served.post("/sessions", {"key": key, "agent": agent})


async def send(served: Served, text: str, key: str = "chat:1") -> str:
    return str((await served.post(path_of(key, "/messages"), {"text": text}))["id"])


async def progress(served: Served, *texts: str, **meta: Any) -> None:
    events = tuple(event(TaskProgress(text=text), served.runtime.clock.now(), **meta) for text in texts)
    await served.runtime.store.apply(Changes(events=events))


async def wait_for_partial(served: Served) -> None:
    """Return once a part of an answer is shown."""
    async with asyncio.timeout(PATIENCE):
        while not served.runtime.bus._live.texts(EVERYTHING):
            await asyncio.sleep(0.005)


async def read_first_frames(served: Served, path: str, count: int, **headers: str) -> list[Frame]:
    """Return the first frames of a stream."""
    received: list[Frame] = []
    async with asyncio.timeout(PATIENCE), aclosing(watch(served.http, path, **headers)) as frames:
        async for frame in frames:
            received.append(frame)
            if len(received) == count:
                break
    return received


# -- the state ---------------------------------------------------------------------------------------------------------


async def test_a_watcher_gets_the_state_of_a_session_and_then_its_events(served: Served, gates: Gates) -> None:
    await open_session(served, "begin")
    task, waiting = await send(served, "x"), await send(served, "y")
    await wait_for_partial(served)
    async with asyncio.timeout(PATIENCE), aclosing(watch(served.http, path_of("chat:1", "/live"))) as frames:
        state = await anext(frames)
        assert (state.event, state.id) == ("state", state.data["as_of_seq"])
        shown = state.data
        assert (shown["session"]["key"], shown["session"]["status"]) == ("chat:1", "busy")
        assert [(message["role"], message["text"], message["number"]) for message in shown["messages"]] == [
            ("user", "x", 1)
        ]
        assert shown["running"]["id"] == task
        assert [queued["id"] for queued in shown["queue"]] == [waiting]
        assert shown["partial"] == [{"message_id": f"{task}.1", "task_id": task, "text": "one half, "}]
        assert (shown["screen"], shown["errors"]) == ("$ half", [])
        gates.go.set()
        delta = await anext(frames)
        assert (delta.event, delta.id) == ("message_delta", None)
        assert delta.data["payload"] == {"message_id": f"{task}.1", "offset": 10, "text": "the other"}
        stored = [await anext(frames) for _ in range(4)]
        assert [frame.id for frame in stored] == sorted(frame.id for frame in stored if frame.id)
        update = next(frame for frame in stored if frame.event == "message_update")
        assert update.data["payload"]["message"] == "one half, the other"
        assert (update.data["payload"]["message_id"], update.data["payload"]["number"]) == (f"{task}.1", 2)


async def test_the_text_of_a_failed_turn_is_not_shown_as_partial(served: Served, gates: Gates) -> None:
    await open_session(served, "begin")
    task = await send(served, "fail")
    await wait_for_partial(served)
    gates.go.set()
    await served.wait_for_end(task)
    (state,) = await read_first_frames(served, path_of("chat:1", "/live"), 1)
    assert state.data["partial"] == []
    assert [error["message"] for error in state.data["errors"]] == ["no other half"]
    assert [error["level"] for error in state.data["errors"]] == ["error"]
    await served.post(path_of("chat:1", "/close"))
    (state,) = await read_first_frames(served, path_of("chat:1", "/live"), 1)
    assert (state.data["session"]["status"], state.data["screen"]) == ("closed", None)


async def test_watchers_of_a_task_and_of_the_desk_get_the_state_first(served: Served, gates: Gates) -> None:
    task = (await served.post("/tasks", {"prompt": "x", "agent": "begin"}))["id"]
    await wait_for_partial(served)
    (state,) = await read_first_frames(served, f"/events?task_id={task}&state=true", 1)
    assert state.data["task"]["id"] == task
    assert (state.data["partial"]["message_id"], state.data["partial"]["text"]) == (f"{task}.1", "one half, ")
    (state,) = await read_first_frames(served, "/events?state=true", 1)
    assert (state.data["summary"]["running"], [running_task["id"] for running_task in state.data["running"]]) == (
        1,
        [task],
    )
    assert state.id == state.data["as_of_seq"] == (await served.get("/events", limit=0))["last_seq"]
    reply = await served.http.get("/events?task_id=t_no&state=true")
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


async def test_the_newest_hundred_errors_are_shown(served: Served) -> None:
    await open_session(served)
    for start in range(0, MAX_ERRORS + 50, 50):
        faults = tuple(
            event(AgentFault(message=f"e{number}", level="error"), number, session_key="chat:1")
            for number in range(start, start + 50)
        )
        await served.runtime.store.apply(Changes(events=faults))
    (state,) = await read_first_frames(served, path_of("chat:1", "/live"), 1)
    shown = [error["message"] for error in state.data["errors"]]
    assert shown == [f"e{number}" for number in range(50, MAX_ERRORS + 50)]


async def test_a_state_is_small_however_large_the_session_is(served: Served) -> None:
    await open_session(served)
    for _ in range(3):
        await served.wait_for_end(await send(served, "é" * 300_000))
    await open_session(served, "hold", "chat:2")
    for _ in range(5):
        task = await send(served, "é" * 300_000, "chat:2")
    await served.until("turn_start", session_key="chat:2")
    for path in (
        path_of("chat:1", "/live"),
        path_of("chat:2", "/live"),
        "/events?state=true",
        f"/events?task_id={task}&state=true",
    ):
        (state,) = await read_first_frames(served, path, 1)
        assert len(json.dumps(state.data, ensure_ascii=False)) < 150_000, path


# -- no gap, no duplicate ----------------------------------------------------------------------------------------------


async def read_joined_text(served: Served, path: str, task: str) -> tuple[str, bool]:
    """Return the answer as a reader that joins now assembles it, and whether it joined during the stream."""
    name, text, joined = f"{task}.1", "", False
    async with aclosing(watch(served.http, path)) as frames:
        async for frame in frames:
            if frame.event == "state":
                partial = frame.data["partial"]
                for part in partial if isinstance(partial, list) else [partial] if partial else []:
                    assert part["message_id"] == name
                    text, joined = part["text"], True
                messages = {message["id"]: message["text"] for message in frame.data.get("messages", ())}
                result = messages.get(name, (frame.data.get("task") or {}).get("result"))
                if result is not None:
                    return result, False
            elif frame.event == "message_delta":
                payload = frame.data["payload"]
                assert payload["message_id"] == name
                assert payload["offset"] <= len(text), "a hole"
                text = text[: payload["offset"]] + payload["text"]
            elif frame.event == "gap":
                raise AssertionError("nobody was slow")
            elif frame.event in ("message_update", "task_finished") and frame.data["payload"].get("role") != "user":
                payload = frame.data["payload"]
                whole = payload.get("message") or payload.get("result")
                # a reader that joins at the moment of the end gets nothing before the whole text
                assert text in ("", whole), "what was put together is not what was said"
                return whole, joined
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("of", ["session", "task"])
async def test_a_reader_who_joins_at_any_moment_gets_the_whole_text(served: Served, gates: Gates, of: str) -> None:
    await open_session(served, "write")
    in_the_middle = 0
    for _ in range(4):
        task = await send(served, "300")
        path = path_of("chat:1", "/live") if of == "session" else f"/events?task_id={task}&state=true"

        async def join(path: str = path, task: str = task) -> tuple[str, bool]:
            await asyncio.sleep(gates.random.random() * 0.4)
            return await read_joined_text(served, path, task)

        async with asyncio.timeout(120):
            read = await asyncio.gather(*(join() for _ in range(25)))
        final = (await served.wait_for_end(task))["result"]
        assert {text for text, _ in read} == {final}
        in_the_middle += sum(joined for _, joined in read)
    assert in_the_middle > 10, "joining in mid-stream was not tried"


async def test_readers_who_join_and_return_during_writes_see_every_event_once(served: Served, gates: Gates) -> None:
    last = 3000

    async def writer(name: str) -> None:
        for number in range(last // 60):
            await progress(served, *(f"{name} {number} {part}" for part in range(20)))
            await asyncio.sleep(0)

    async def reader() -> None:
        """Join, leave after some frames, and return with the last event id."""
        await asyncio.sleep(gates.random.random() * 0.2)
        last_id: int | None = None
        states = 0
        while last_id is None or last_id < last:
            headers = {} if last_id is None else {"last_event_id": str(last_id)}
            async with aclosing(watch(served.http, "/events?state=true", **headers)) as frames:
                patience = gates.random.randrange(1, 400)
                async for frame in frames:
                    assert frame.event != "gap"
                    if frame.event == "state":
                        assert frame.id == frame.data["as_of_seq"]
                        assert last_id is None or frame.id == last_id, (
                            "the state comes when nothing before it is missing"
                        )
                        last_id = frame.id
                        states += 1
                    else:
                        assert last_id is not None
                        assert frame.id == last_id + 1
                        last_id = frame.id
                    patience -= 1
                    if last_id >= last or patience <= 0:
                        break
        assert states >= 1

    async with asyncio.timeout(200):
        await asyncio.gather(*(writer(name) for name in "abc"), *(reader() for _ in range(20)))
    assert (await served.get("/events", limit=0))["last_seq"] == last


async def test_state_and_events_together_are_the_whole_conversation(served: Served, gates: Gates) -> None:
    await open_session(served)
    count = 40

    async def reader() -> list[int]:
        await asyncio.sleep(gates.random.random() * 0.3)
        numbers: list[int] = []
        async with aclosing(watch(served.http, path_of("chat:1", "/live"))) as frames:
            async for frame in frames:
                if frame.event == "state":
                    numbers += [message["number"] for message in frame.data["messages"]]
                elif frame.event == "message_update":
                    numbers.append(frame.data["payload"]["number"])
                if numbers and numbers[-1] == 2 * count:
                    break
        return numbers

    async def talk() -> None:
        for number in range(count):
            await served.runtime.tasks.wait(await send(served, f"m{number}"))

    async with asyncio.timeout(120):
        _, *read = await asyncio.gather(talk(), *(reader() for _ in range(15)))
    assert all(numbers == list(range(1, 2 * count + 1)) for numbers in read)


async def test_a_returning_watcher_gets_missed_events_and_then_the_state(served: Served) -> None:
    await open_session(served)
    await served.wait_for_end(await send(served, "one"))
    (state,) = await read_first_frames(served, path_of("chat:1", "/live"), 1)
    await open_session(served, "echo", "chat:2")
    await served.wait_for_end(await send(served, "elsewhere", "chat:2"))
    await served.wait_for_end(await send(served, "two"))
    expected = await served.read_log(session_key="chat:1")
    missed = [event["seq"] for event in expected if event["seq"] > state.data["as_of_seq"]]
    for path, headers in (
        (path_of("chat:1", "/live"), {"last_event_id": str(state.id)}),
        (f"/events?session_key=chat:1&state=true&after={state.id}", {}),
    ):
        frames = await read_first_frames(served, path, len(missed) + 1, **headers)
        assert [frame.id for frame in frames[:-1]] == missed
        assert frames[-1].event == "state"
        assert [message["text"] for message in frames[-1].data["messages"]] == ["one", "ONE", "two", "TWO"]


async def test_the_stream_of_one_session_has_no_events_of_another(served: Served) -> None:
    await open_session(served, "write", "chat:1")
    await open_session(served, "write", "chat:2")
    received: list[Frame] = []

    async def reader() -> None:
        async with aclosing(watch(served.http, path_of("chat:1", "/live"))) as frames:
            async for frame in frames:
                received.append(frame)
                if frame.event == "status_change" and frame.data["payload"]["status"] == "idle":
                    break

    reading = asyncio.create_task(reader())
    while not received:
        await asyncio.sleep(0)
    mine, other_task = await asyncio.gather(send(served, "100", "chat:1"), send(served, "100", "chat:2"))
    async with asyncio.timeout(PATIENCE):
        await reading
    await served.wait_for_end(other_task)
    assert {frame.data["session_key"] for frame in received[1:] if frame.id} == {"chat:1"}
    live = {frame.data["payload"]["message_id"] for frame in received if frame.event == "message_delta"}
    assert live == {f"{mine}.1"}


# -- pruned events, slow readers, ends ---------------------------------------------------------------------------------


async def prune(served: Served, keep: int) -> int:
    """Remove all but the newest events and return the seq of the oldest that remains."""
    store = served.runtime.store
    begins = -1
    while (oldest := (await store.read_log_bounds()).oldest_seq) != begins:
        begins = oldest
        await store.prune_events(0, keep)
    return begins


async def test_pruned_events_are_a_gap_followed_by_the_state(served: Served) -> None:
    await open_session(served)
    await served.wait_for_end(await send(served, "one"))
    await progress(served, *(str(number) for number in range(100)))
    oldest = await prune(served, 10)
    reply = await served.http.get("/events?after=3", headers={"accept": "application/json"})
    assert (reply.status_code, reply.json()["code"], reply.json()["oldest_seq"]) == (410, "pruned", oldest)
    assert (await served.get("/events"))["events"][0]["seq"] == oldest
    for path in (path_of("chat:1", "/live"), "/events?state=true"):
        gap, state = await read_first_frames(served, path, 2, last_event_id="3")
        assert (gap.event, gap.id, gap.data["payload"]["oldest_seq"]) == ("gap", None, oldest)
        assert state.event == "state"
    log = await read_first_frames(served, "/events", 3, last_event_id="3")
    assert [frame.event for frame in log] == ["gap", "task_progress", "task_progress"]
    assert log[1].id == oldest
    ahead, state = await read_first_frames(served, "/events?state=true", 2, last_event_id="100000")
    assert (ahead.event, state.event) == ("gap", "state")


def connect_socket(served: Served, path: str, buffer: int = 2048) -> socket.socket:
    """Open a stream on a bare socket with a small buffer."""
    host, port = served.url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.connect((host, int(port)))
    token = served.http.headers["authorization"]
    request = f"GET /api/v1{path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: {token}\r\n\r\n"
    sock.sendall(request.encode())
    sock.setblocking(False)
    return sock


async def receive(stream: socket.socket, enough: bytes, most: int = 4096) -> bytes:
    """Read up to a number of bytes, or to the end."""
    loop, received = asyncio.get_running_loop(), bytearray()
    async with asyncio.timeout(120):
        while enough not in received[-most - len(enough) :]:
            part = await loop.sock_recv(stream, most)
            if not part:
                break
            received += part
    return bytes(received)


def numbers(raw: bytes) -> list[int]:
    """Return the ids of the frames."""
    return [int(number) for number in re.findall(rb"^id: (\d+)\n", raw, re.M)]


async def test_a_slow_reader_of_stored_events_loses_none(served: Served) -> None:
    filler = "x" * 2000
    with contextlib.closing(connect_socket(served, "/events?after=0&live=true")) as stream:
        await receive(stream, b": still here")
        for number in range(200):  # far more than fits in memory buffers or on the connection
            await progress(served, *(f"{number} {part} {filler}" for part in range(50)))
        assert (await served.get("/health"))["status"] == "ok"
        raw = await receive(stream, b"id: 10000\n", 65536)
    assert numbers(raw) == list(range(1, 10001))


async def test_a_slow_watcher_gets_a_gap_and_the_state_after_pruning(served: Served) -> None:
    filler = "x" * 1000
    with contextlib.closing(connect_socket(served, "/events?state=true")) as stream:
        await receive(stream, b"event: state")
        for number in range(200):
            await progress(served, *(f"{number} {part} {filler}" for part in range(50)))
        oldest = await prune(served, 20)
        raw = await receive(stream, b"id: 10000\nevent: state\n", 65536)
    before, gap, after = raw.partition(b"event: gap\n")
    assert gap, "it was to fall behind"
    assert numbers(before) == list(range(1, len(numbers(before)) + 1))
    assert b"event: state\n" not in before
    assert f'"oldest_seq":{oldest}'.encode() in after
    assert re.findall(rb"^event: (\w+)\n", after, re.M)[0] == b"state"
    assert numbers(after) == [10000]


async def test_a_stream_ends_cleanly_when_the_server_stops(served: Served) -> None:
    await open_session(served)
    streams = [connect_socket(served, path) for path in ("/events", "/events?state=true", path_of("chat:1", "/live"))]
    for stream in streams:
        await receive(stream, b": still here")
    while len(served.streams) < len(streams):
        await asyncio.sleep(0)
    served.stopping.set()
    for stream in streams:
        with contextlib.closing(stream):
            assert (await receive(stream, b"never")).endswith(b"0\r\n\r\n")


async def test_a_silent_session_stream_sends_keepalives(served: Served) -> None:
    served.streams.heartbeat = 0.05
    await open_session(served)
    with contextlib.closing(connect_socket(served, path_of("chat:1", "/live"))) as stream:
        raw = await receive(stream, b"event: state")
        for _ in range(3):
            raw += await receive(stream, b": still here")
    assert raw.count(b": still here") >= 3


# -- costs -------------------------------------------------------------------------------------------------------------


async def test_a_long_reply_in_many_steps_costs_at_most_twice_its_size(served: Served) -> None:
    await open_session(served, "stream")
    with contextlib.closing(connect_socket(served, path_of("chat:1", "/live"), 1 << 20)) as stream:
        raw = await receive(stream, b"event: state")
        await send(served, "go")
        raw += await receive(stream, b'"status":"idle","agent_type"', 1 << 16)
    steps = raw.count(b"event: message_delta\n")
    print(f"\n{len(raw)} bytes for {SIZE} in {steps} steps: {len(raw) / SIZE:.2f}x")
    assert steps > STEPS * 0.8, "steps were joined, so that their cost was not measured"
    assert len(raw) <= 2 * SIZE


async def test_reads_do_not_wait_for_a_running_turn(served: Served) -> None:
    await open_session(served, "hold")
    task = await send(served, "x")
    await served.until("turn_start", task_id=task)
    paths = (
        "/health", "/ready", "/me", "/now", "/usage", "/settings", "/metrics", "/directories", "/summary", "/tasks",
        f"/tasks/{task}", f"/tasks/{task}/page", "/sessions", path_of("chat:1"), path_of("chat:1", "/messages"),
        "/events", "/approvals", "/deliveries", "/agents", "/cluster", "/tokens",
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        replies = await asyncio.gather(
            *(served.http.get(path, headers={"accept": "application/json"}) for path in paths)
        )
        (state,) = await read_first_frames(served, path_of("chat:1", "/live"), 1)
    assert {reply.status_code for reply in replies} == {200}
    assert state.data["running"]["id"] == task
    assert (await served.get(f"/tasks/{task}"))["status"] == "running"


# -- the log -----------------------------------------------------------------------------------------------------------


async def test_the_log_is_read_backwards_in_pages(served: Served) -> None:
    await progress(served, *(str(number) for number in range(25)))
    pages, before = [], 2**62
    while page := (await served.get("/events", before=before, limit=10))["events"]:
        pages.append([event["seq"] for event in page])
        before = page[0]["seq"]
    assert pages == [list(range(16, 26)), list(range(6, 16)), list(range(1, 6))]
    assert (await served.get("/events", before=0))["events"] == []
    assert (await served.get("/events", before=5, limit=0))["events"] == []


async def test_events_are_filtered_by_agent_actor_kind_session_and_task(served: Served) -> None:
    async with served.as_role("operator") as operator:
        await open_session(served)
        mine = await send(served, "a")
        theirs = (
            await operator.post("/tasks", json={"prompt": "b", "agent": "write", "session_key": "chat:2"})
        ).json()["id"]
        for task in (mine, theirs):
            await served.runtime.tasks.wait(task)
    whole = await served.read_log()
    for params, fits in (
        ({"agent": "write"}, lambda event: event.get("agent_id") == "write"),
        ({"actor": "operator"}, lambda event: event.get("actor") == "operator"),
        ({"session_key": "chat:1"}, lambda event: event.get("session_key") == "chat:1"),
        ({"task_id": theirs}, lambda event: event["task_id"] == theirs),
        ({"kind": ["turn_start", "turn_end"]}, lambda event: event["kind"] in ("turn_start", "turn_end")),
        (
            {"actor": "operator", "kind": "turn_end"},
            lambda event: (event["task_id"], event["kind"]) == (theirs, "turn_end"),
        ),
        ({"agent": "nobody"}, lambda event: False),
    ):  # fmt: skip
        expected = [event["seq"] for event in whole if fits(event)]
        assert [event["seq"] for event in await served.read_log(**params)] == expected, params
        back = (await served.get("/events", before=2**62, limit=1000, **params))["events"]
        assert [event["seq"] for event in back] == expected, params
        if expected:
            query = "&".join(
                f"{name}={value}"
                for name, values in params.items()
                for value in ([values] if isinstance(values, str) else values)
            )
            frames = await read_first_frames(served, f"/events?after=0&{query}", len(expected))
            assert [frame.id for frame in frames] == expected, params


# -- permissions and limits ------------------------------------------------------------------------------------------


async def test_a_paused_reader_is_cut_off_when_its_token_is_revoked(served: Served) -> None:
    served.streams.heartbeat = 0.05
    events = tuple(event(TaskProgress(text="x" * 500_000), 1) for _ in range(40))
    await served.runtime.store.apply(Changes(events=events))
    token, secret = await served.runtime.tokens.create("reader", "viewer", by=OWNER)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", int(served.url.rpartition(":")[2])))
        head = f"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {secret}\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(sock, head.encode())
        assert await eventually(lambda: len(served.streams) == 1)
        await served.runtime.tokens.revoke(token.id, by=OWNER)
        assert await eventually(lambda: len(served.streams) == 0)
        received = 0
        with suppress(ConnectionResetError):
            while part := await asyncio.get_running_loop().sock_recv(sock, 1_000_000):
                received += len(part)
    assert received < 5_000_000


async def test_the_number_of_streams_per_actor_is_limited(served: Served) -> None:
    served.streams.max_per_actor = 2
    async with served.http.stream("GET", "/events") as first, served.http.stream("GET", "/events?state=true") as second:
        assert await eventually(lambda: len(served.streams) == 2)
        assert (first.status_code, second.status_code) == (200, 200)
        refused = await served.http.get("/events", headers={"accept": "text/event-stream"})
        assert (refused.status_code, refused.json()["code"]) == (429, "limit_reached")
        assert refused.headers["retry-after"]
    assert await eventually(lambda: len(served.streams) == 0)
    async with served.http.stream("GET", "/events") as again:
        assert again.status_code == 200

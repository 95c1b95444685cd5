"""Test the HTTP API on a real socket with a real runtime."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from internals import watchers_of
from midwatch.agents.function import FunctionAgent
from midwatch.api import sse
from midwatch.api.app import create_app
from midwatch.api.guard import MAX_BODY, MAX_SHORT_BODY
from midwatch.api.server import listen, local_url
from midwatch.base.errors import (
    AlreadyFinished,
    Conflict,
    InvalidInput,
    KeyReused,
    LimitReached,
    NotFinished,
    NotFound,
    PortInUse,
    Unauthorized,
    UnknownAgent,
)
from midwatch.cli.in_process import call_app
from midwatch.client import Client
from midwatch.desk.config import Settings
from midwatch.domain.agent import TurnResult
from midwatch.domain.event import Event, MessageDelta, event
from midwatch.domain.identity import OWNER, Actor
from midwatch.runtime.runtime import Runtime
from records import a_task
from serving import client as http_client
from serving import serve_runtime


async def echo(prompt: str) -> str:
    return prompt.upper()


async def hang(prompt: str) -> str:
    await asyncio.Event().wait()
    return "never"


async def ask(prompt: str, turn) -> TurnResult:
    answer = await turn.ask("May I?", ("yes", "no", "later"))
    return TurnResult(text=f"{answer.status} {answer.choice} {answer.why}")


async def speak(prompt: str, turn) -> str:
    for offset in range(5):
        await turn.emit(MessageDelta(message_id="m", offset=offset, text="x"))
    return "xxxxx"


AGENTS = {"echo": echo, "hang": hang, "ask": ask, "speak": speak}


@dataclass
class Served:
    runtime: Runtime
    url: str
    client: Client
    http: httpx2.AsyncClient
    streams: sse.Streams
    stopping: asyncio.Event


@asynccontextmanager
async def serve_desk(home, **settings) -> AsyncIterator[Served]:
    loaded = Settings.load(home, **{"detect_agents": False, "default_agent": "echo", "shutdown_grace": 0, **settings})
    agents = {name: FunctionAgent(name, body, on_loop=True) for name, body in AGENTS.items()}
    async with (
        Runtime.open(home, settings=loaded, agents=agents, role="up") as runtime,
        serve_runtime(runtime) as (url, app, stopping),
        Client(url, runtime.home.token()) as client,
        http_client(url, runtime.home.token()) as http,
    ):
        yield Served(runtime, url, client, http, app.state.streams, stopping)


@pytest.fixture
async def served(tmp_path) -> AsyncIterator[Served]:
    async with serve_desk(tmp_path / "home") as server:
        yield server


async def wait_for_end(served: Served, task_id: str) -> dict:
    await served.runtime.tasks.wait(task_id)
    return await served.client.get(task_id)


async def wait_for_start(served: Served, task_id: str) -> None:
    async for log_event in served.runtime.bus.follow(0):
        if log_event.kind == "turn_start" and log_event.task_id == task_id:
            return


# -- tasks -------------------------------------------------------------------------------------------------------------


async def test_a_task_is_submitted_run_and_read(served: Served, tmp_path) -> None:
    reply = await served.http.post("/tasks", json={"prompt": "hi", "workdir": str(tmp_path), "timeout": "10m"})
    assert reply.status_code == 201
    task = reply.json()
    assert reply.headers["location"] == f"/api/v1/tasks/{task['id']}"
    assert (task["status"], task["timeout_seconds"], task["creator"]) == ("pending", 600.0, "owner")
    done = await wait_for_end(served, task["id"])
    assert (done["status"], done["outcome"], done["result"], done["attempt"]) == ("done", "ok", "HI", 1)
    assert await served.client.result(task["id"]) == "HI"
    assert await served.client.summary() == {
        "total": 1, "pending": 0, "running": 0, "done": 1, "failed": 0, "cancelled": 0,
    }  # fmt: skip


async def test_tasks_are_listed_newest_first_in_pages(served: Served) -> None:
    ids = [(await served.client.submit(f"n{n}", {"session_key": f"chat:{n % 2}"}))["id"] for n in range(5)]
    for task_id in ids:
        await wait_for_end(served, task_id)
    page = await served.client.list(limit=2)
    task_ids = [task["id"] for task in page["tasks"]]
    while page["next"]:
        page = await served.client.list(limit=2, before=page["next"])
        task_ids += [task["id"] for task in page["tasks"]]
    assert task_ids == ids[::-1]
    assert len((await served.client.list(session_key="chat:0"))["tasks"]) == 3
    assert (await served.client.list(status=["failed", "pending"]))["tasks"] == []
    assert (await served.client.list(agent="hang"))["tasks"] == []
    assert len((await served.client.list(creator="owner", status=["done"]))["tasks"]) == 5


async def test_a_running_task_is_cancelled_and_retried(served: Served) -> None:
    task = await served.client.submit("x", {"agent": "hang"})
    await wait_for_start(served, task["id"])
    with pytest.raises(NotFinished):
        await served.client.result(task["id"])
    assert (await served.client.cancel(task["id"]))["stop_requested"] == "cancel"
    assert (await wait_for_end(served, task["id"]))["status"] == "cancelled"
    with pytest.raises(AlreadyFinished):
        await served.client.cancel(task["id"])
    reply = await served.http.post(f"/tasks/{task['id']}/retry")
    assert (reply.status_code, reply.json()["retry_of"]) == (201, task["id"])
    bad = await served.http.post(f"/tasks/{task['id']}/retry", json={"budget": {"euro": 1}})
    assert (bad.status_code, bad.json()["field"]) == (422, "budget")
    with pytest.raises(Conflict):
        await served.client.retry(reply.json()["id"])


async def test_an_idempotency_key_makes_one_task(served: Served) -> None:
    first = await served.client.submit("x", {"idempotency_key": "k"})
    reply = await served.http.post("/tasks", json={"prompt": "x", "priority": 0}, headers={"idempotency-key": "k"})
    assert reply.json()["id"] == first["id"]
    with pytest.raises(KeyReused):
        await served.client.submit("y", {"idempotency_key": "k"})
    both_reply = await served.http.post(
        "/tasks", json={"prompt": "x", "idempotency_key": "a"}, headers={"idempotency-key": "b"}
    )
    assert both_reply.status_code == 422
    assert (await served.client.summary())["total"] == 1


async def test_tasks_above_max_open_are_refused_with_retry_after(tmp_path) -> None:
    async with serve_desk(tmp_path / "home", max_open=1) as served:
        await served.client.submit("x", {"agent": "hang"})
        reply = await served.http.post("/tasks", json={"prompt": "y"})
        assert (reply.status_code, reply.json()["code"]) == (429, "limit_reached")
        assert int(reply.headers["retry-after"]) > 0
        with pytest.raises(LimitReached):
            await served.client.submit("y")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid_input", "prompt"),
        ({"prompt": "  "}, "invalid_input", "prompt"),
        ({"prompt": 5}, "invalid_input", "prompt"),
        ({"prompt": "x", "agent": "nobody"}, "unknown_agent", "agent"),
        ({"prompt": "x", "workdir": "/no/such/place"}, "invalid_input", "workdir"),
        ({"prompt": "x", "workdir": "relative"}, "invalid_input", "workdir"),
        ({"prompt": "x", "timeout": -1}, "invalid_input", "timeout"),
        ({"prompt": "x", "timeout": 0}, "invalid_input", "timeout"),
        ({"prompt": "x", "timeout": "soon"}, "invalid_input", "timeout"),
        ({"prompt": "x", "priority": 101}, "invalid_input", "priority"),
        ({"prompt": "x", "delay": -1}, "invalid_input", "delay"),
        ({"prompt": "x", "on_crash": "panic"}, "invalid_input", "on_crash"),
        ({"prompt": "x", "route": "nowhere"}, "invalid_input", "route"),
        ({"prompt": "x", "session_key": "a\nb"}, "invalid_input", "session_key"),
        ({"prompt": "x", "promt": "x"}, "invalid_input", "promt"),
        ([], "invalid_input", "body"),
    ],
)
async def test_invalid_tasks_are_refused_with_their_field(served: Served, body: object, code: str, field: str) -> None:
    reply = await served.http.post("/tasks", json=body)
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert (problem["code"], problem["field"], problem["status"]) == (code, field, 422)
    assert problem["title"]
    assert problem["detail"].endswith(".")
    assert "\n" not in problem["detail"]
    assert (await served.client.summary())["total"] == 0


@pytest.mark.parametrize("body", [b"{", b"nonsense", b'{"prompt": "\\ud800"}', b'{"prompt": NaN}', b"\xff", b""])
async def test_bodies_that_are_not_json_are_refused(served: Served, body: bytes) -> None:
    reply = await served.http.post("/tasks", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_input")


@pytest.mark.parametrize(
    "path",
    [
        "/tasks?status=sleeping", "/tasks?limit=0", "/tasks?limit=501", "/tasks?stat=done", "/events?after=-1",
        "/events?kind=nonsense", "/events?turn_id=", "/events?after=x", "/events?limit=1001", "/approvals?status=maybe",
    ],
)  # fmt: skip
async def test_invalid_queries_are_refused(served: Served, path: str) -> None:
    reply = await served.http.get(path, headers={"accept": "application/json"})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_input")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tasks/t_no"), ("GET", "/tasks/t_no/result"), ("POST", "/tasks/t_no/cancel"),
        ("POST", "/tasks/t_no/retry"), ("POST", "/approvals/a_no/approve"), ("GET", "/sessions/chat:1/messages"),
        ("GET", "/nonsense"), ("GET", "/"),
    ],
)  # fmt: skip
async def test_unknown_ids_are_not_found(served: Served, method: str, path: str) -> None:
    reply = await served.http.request(method, path)
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert reply.headers["content-type"] == "application/problem+json"


async def test_a_wrong_method_is_refused(served: Served) -> None:
    reply = await served.http.delete("/tasks")
    assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize("said", [None, "Bearer wrong", "Bearer x", "Basic abc", "bearer"])
@pytest.mark.parametrize("path", ["/tasks", "/events", "/nonsense", "/openapi.json"])
async def test_every_route_requires_a_token(served: Served, said: str | None, path: str) -> None:
    base, headers = f"{served.url}/api/v1", {"authorization": said} if said else {}
    async with httpx2.AsyncClient(base_url=base, headers=headers, trust_env=False, timeout=30.0) as stranger:
        reply = await stranger.get(path)
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized")
        assert (await stranger.get("/health")).json()["status"] == "ok"
    async with Client(served.url, "wrong") as client:
        with pytest.raises(Unauthorized):
            await client.summary()


async def test_a_prefix_of_the_owners_token_is_refused(served: Served) -> None:
    token = served.runtime.home.token()
    async with Client(served.url, token[:-1]) as client:
        with pytest.raises(Unauthorized):
            await client.summary()


async def test_bodies_above_two_megabytes_are_refused(served: Served) -> None:
    too_much = b'{"prompt": "' + b"x" * MAX_BODY + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(too_much), 100_000):
            yield too_much[start : start + 100_000]

    for content in (too_much, pieces()):
        reply = await served.http.post("/tasks", content=content, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["code"], reply.json()["field"]) == (413, "invalid_input", "body")
    assert (await served.client.summary())["total"] == 0


async def test_bodies_without_a_long_text_are_small_and_no_body_has_very_many_values(served: Served) -> None:
    headers = {"content-type": "application/json"}
    reply = await served.http.post("/tokens", content=b" " * (MAX_SHORT_BODY + 1), headers=headers)
    assert (reply.status_code, reply.json()["field"]) == (413, "body")
    reply = await served.http.post("/tasks", content=b'{"prompt": [%s1]}' % (b"1," * 60_000), headers=headers)
    assert (reply.status_code, reply.json()["detail"]) == (
        422, "the body has more than 50000 values; send fewer at a time.",
    )  # fmt: skip


async def test_a_long_prompt_is_complete(served: Served) -> None:
    task = await served.client.submit("é" * 900_000)
    assert len((await wait_for_end(served, task["id"]))["result"]) == 900_000


async def test_an_internal_error_shows_no_details(served: Served, caplog) -> None:
    class Broken:
        async def summary(self, *, actor: object) -> None:
            raise RuntimeError("secret detail")

    served.runtime.tasks = Broken()
    reply = await served.http.get("/summary")
    assert (reply.status_code, reply.json()["code"]) == (500, "error")
    assert "secret" not in reply.text
    assert "secret detail" in caplog.text
    assert (await served.client.health())["status"] == "ok"


# -- events ------------------------------------------------------------------------------------------------------------


async def test_the_log_is_read_in_pages(served: Served) -> None:
    task = await served.client.submit("x")
    await wait_for_end(served, task["id"])
    whole = await served.client.events()
    assert [event["seq"] for event in whole["events"]] == list(range(1, whole["last_seq"] + 1))
    assert whole["oldest_seq"] == 1
    first = await served.client.events(limit=2)
    second = await served.client.events(first["events"][-1]["seq"])
    assert first["events"] + second["events"] == whole["events"]
    finished = await served.client.events(kinds=["task_finished"], task_id=task["id"])
    assert [event["payload"]["result"] for event in finished["events"]] == ["X"]
    assert (await served.client.events(limit=0))["events"] == []
    assert {"seq", "kind", "time", "task_id", "payload"} <= set(whole["events"][0])


async def frames(served: Served, count: int, path: str = "/events", headers: dict | None = None) -> list[str]:
    """Return the first frames of a stream without comments."""
    event_frames: list[str] = []
    async with served.http.stream("GET", path, headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        buffer = ""
        async for text in reply.aiter_text():
            buffer += text
            *whole, buffer = buffer.split("\n\n")
            event_frames += [frame for frame in whole if not frame.startswith(":")]
            if len(event_frames) >= count:
                return event_frames[:count]
    return event_frames


async def test_a_stream_has_ids_kinds_and_data(served: Served) -> None:
    task = await served.client.submit("x")
    await wait_for_end(served, task["id"])
    lines = (await frames(served, 1))[0].split("\n")
    assert lines[:2] == ["id: 1", "event: task_submitted"]
    assert json.loads(lines[2].removeprefix("data: "))["task_id"] == task["id"]


async def test_last_event_id_wins_over_after(served: Served) -> None:
    task = await served.client.submit("x")
    await wait_for_end(served, task["id"])
    assert (await frames(served, 1, "/events?after=1"))[0].startswith("id: 2\n")
    assert (await frames(served, 1, "/events?after=1", {"last-event-id": "3"}))[0].startswith("id: 4\n")
    reply = await served.http.get("/events", headers={"last-event-id": "x"})
    assert (reply.status_code, reply.json()["field"]) == (422, "Last-Event-ID")


async def test_a_stream_sends_new_events(served: Served) -> None:
    results: list[str] = []
    async with aclosing(served.client.follow(kinds=["task_finished"])) as events:
        reader = asyncio.create_task(anext(events))
        task = await served.client.submit("later")
        event = await reader
        results.append(event["payload"]["result"])
        assert event["task_id"] == task["id"]
    assert results == ["LATER"]


async def test_live_events_have_no_id(served: Served) -> None:
    async with aclosing(served.client.follow(live=True, kinds=["message_delta", "task_finished"])) as events:
        reader = asyncio.create_task(anext(events))
        while not watchers_of(served.runtime):
            await asyncio.sleep(0)
        await served.client.submit("x", {"agent": "speak"})
        received_events = [await reader]
        while received_events[-1]["kind"] != "task_finished":
            received_events.append(await anext(events))
    assert {(event["kind"], event["seq"] > 0) for event in received_events[:-1]} == {("message_delta", False)}
    assert received_events[-1]["seq"] > 0
    assert (
        "".join(event["payload"]["text"] for event in received_events[:-1]) == received_events[-1]["payload"]["result"]
    )
    assert b"id:" not in sse.encode(event(MessageDelta(message_id="m", offset=0, text="x"), 1))


async def test_a_silent_stream_sends_keepalives(served: Served) -> None:
    served.streams.heartbeat = 0.05
    async with served.http.stream("GET", "/events?after=0") as reply:
        stream_bytes = b""
        async for part in reply.aiter_raw():
            stream_bytes += part
            if stream_bytes.count(sse.HEARTBEAT) >= 3:
                break
    assert stream_bytes.replace(sse.HEARTBEAT, b"") == b""


async def test_streams_end_cleanly_when_the_server_stops(served: Served) -> None:
    async with served.http.stream("GET", "/events?after=0") as reply:
        parts = reply.aiter_raw()
        await anext(parts)
        served.stopping.set()
        assert b"".join([part async for part in parts]) == b""


async def test_a_reader_that_disconnects_leaves_nothing_behind(served: Served) -> None:
    before = asyncio.all_tasks()
    async with served.http.stream("GET", "/events?live=true") as reply:
        await anext(reply.aiter_raw())
        assert watchers_of(served.runtime)
    async with asyncio.timeout(60):
        while watchers_of(served.runtime) or asyncio.all_tasks() - before:
            await asyncio.sleep(0.01)


async def test_an_event_is_encoded_once_and_the_cache_is_small() -> None:
    streams = sse.Streams()
    events = [Event("error", n, {"stage": "s", "message": "m"}, id=f"e{n}", seq=n) for n in range(1, 2000)]
    first = streams.frame(events[0])
    assert streams.frame(events[0]) is first
    frames = [streams.frame(event) for event in events]
    assert streams.frame(events[-1]) is frames[-1]
    assert streams.frame(events[-sse.KEPT_FRAMES - 1]) is not frames[-sse.KEPT_FRAMES - 1]
    large = [Event("error", n, {"message": "x" * sse.LARGEST_KEPT}, id=f"l{n}", seq=n) for n in range(2)]
    assert streams.frame(large[0]) is not streams.frame(large[0])
    shared = [Event("error", n, {"message": "x" * (sse.KEPT_BYTES // 8)}, id=f"s{n}", seq=n) for n in range(9)]
    frames = [streams.frame(event) for event in shared]
    assert streams.frame(shared[-1]) is frames[-1]  # clients that read slowly share the bytes
    assert streams.frame(shared[0]) is not frames[0]


async def test_streams_are_counted_for_each_actor_and_attempt() -> None:
    streams = sse.Streams(connections=100, max_per_actor=20)
    person, agent = Actor("ada", "operator"), Actor("ada", "attempt", "attempt", task=a_task())
    with ExitStack() as places:
        for _ in range(streams.max_per_attempt):
            places.enter_context(streams.place(agent))
        with pytest.raises(LimitReached, match="this attempt has 8 open event streams"):
            streams.check_room(agent)
        for _ in range(20):  # the streams of her agents do not count
            places.enter_context(streams.place(person))
        with pytest.raises(LimitReached, match="ada has 20"):
            streams.check_room(person)
        for number in range(80 - 28):
            places.enter_context(streams.place(Actor(f"person {number}", "viewer")))
        with pytest.raises(LimitReached, match="the server has 80"):
            streams.check_room(Actor("eve", "owner"))
    streams.check_room(agent)


async def test_streams_with_many_old_events_take_turns() -> None:
    """All events of many streams at once would stop the loop."""
    streams, encoded, most = sse.Streams(), [0], [0]

    def encode(event: int) -> bytes:
        encoded[0] += 1
        return b"x" * 1000

    async def batches() -> AsyncIterator[list[int]]:
        yield list(range(1000))

    async def count_in_each_turn() -> None:
        while True:
            most[0], encoded[0] = max(most[0], encoded[0]), 0
            await asyncio.sleep(0)

    async def allowed() -> bool:
        return True

    sent: list[int] = []

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))

    async def receive() -> Any:
        return await asyncio.Future()

    counting = asyncio.create_task(count_in_each_turn())
    replies = [sse.EventStream(batches(), streams, encode, OWNER, allowed) for _ in range(20)]
    await asyncio.gather(*(reply({}, receive, send) for reply in replies))
    counting.cancel()
    assert sum(sent) >= 20 * 1000 * 1000
    assert 0 < most[0] <= sse.CATCHING_UP * (sse.PIECE // 1000 + 2)


async def test_a_new_stream_is_refused_while_the_server_stops(served: Served) -> None:
    served.streams.close()
    reply = await served.http.get("/events")
    assert (reply.status_code, reply.json()["code"]) == (503, "store_unavailable")


# -- approvals, sessions, deliveries, agents ---------------------------------------------------------------------------


async def question(served: Served, task_id: str) -> str:
    async for log_event in served.runtime.bus.follow(0):
        if log_event.kind == "approval_requested" and log_event.task_id == task_id:
            return str(log_event.payload["approval_id"])
    raise AssertionError("the log ended")


@pytest.mark.parametrize(
    ("route", "body", "result"),
    [
        ("approve", {}, "granted yes None"),
        ("approve", None, "granted yes None"),
        ("approve", {"choice": "later"}, "denied later None"),
        ("deny", {"why": "too late"}, "denied no too late"),
    ],
)
async def test_a_question_is_answered_once(served: Served, route: str, body: dict | None, result: str) -> None:
    task = await served.client.submit("x", {"agent": "ask"})
    approval_id = await question(served, task["id"])
    assert [approval["id"] for approval in await served.client.approvals()] == [approval_id]
    wrong = await served.http.post(f"/approvals/{approval_id}/approve", json={"choice": "perhaps"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "choice")
    reply = await served.http.post(f"/approvals/{approval_id}/{route}", json=body)
    assert (reply.status_code, reply.json()["answered_by"]) == (200, "owner")
    assert (await wait_for_end(served, task["id"]))["result"] == result
    with pytest.raises(Conflict):
        await served.client.approve(approval_id)
    assert await served.client.approvals() == []
    assert [approval["id"] for approval in await served.client.approvals("all")] == [approval_id]
    assert (await served.http.get(f"/approvals/{approval_id}")).json()["status"] == reply.json()["status"]


@pytest.mark.parametrize("key", ["chat:42|thread:7", "repo:a/b", "user:ü x"])
async def test_a_conversation_is_read_by_its_key(served: Served, key: str) -> None:
    task = await served.client.submit("hello", {"session_key": key})
    await wait_for_end(served, task["id"])
    listed = (await served.http.get("/sessions")).json()["sessions"]
    assert [session["key"] for session in listed] == [key]
    path = httpx2.URL(f"{served.url}/api/v1/sessions/").raw_path.decode() + f"{key}/messages"
    messages = (await served.http.get(served.url + path)).json()["messages"]
    assert [(message["role"], message["text"]) for message in messages] == [("user", "hello"), ("agent", "HELLO")]
    later = (await served.http.get(f"{served.url}{path}?after=1")).json()["messages"]
    assert [message["number"] for message in later] == [2]


async def test_notices_are_listed(served: Served) -> None:
    task = await served.client.submit("hello", {"route": "console", "notices": "all"})
    await wait_for_end(served, task["id"])
    deliveries = await served.client.deliveries(task_id=task["id"])
    assert {delivery["notice"] for delivery in deliveries} == {"started", "done"}
    assert await served.client.deliveries("failed") == []


async def test_agents_are_listed_with_their_capabilities(served: Served) -> None:
    listed = {agent["name"]: agent for agent in await served.client.agents()}
    assert set(listed) == {*AGENTS, "demo"}
    assert listed["echo"] | {"description": ""} == {
        "name": "echo", "kind": "function", "description": "", "slots": 64, "timeout": 1800.0, "on_crash": "rerun",
        "live": True, "problem": None, "why": None, "target": "echo (on the event loop)", "capabilities": [],
        "handoffs": True, "steerable": False,
    }  # fmt: skip


async def test_the_openapi_document_is_served(served: Served) -> None:
    document = (await served.http.get("/openapi.json")).json()
    assert set(document["paths"]["/api/v1/tasks"]) == {"get", "post"}


# -- the app in process, and the socket ----------------------------------------------------------------------------


async def test_the_client_calls_the_app_without_a_socket(tmp_path) -> None:
    async with Runtime.open(tmp_path / "home", work=False) as runtime:
        exchange = call_app(create_app(runtime, hosts=("midwatch",)))
        async with Client("http://midwatch", runtime.home.token(), exchange=exchange) as client:
            task = await client.submit("x", {"agent": "demo"})
            assert (await client.get(task["id"]))["status_text"] == "pending: no live process has agent 'demo'"
            with pytest.raises(UnknownAgent):
                await client.submit("x", {"agent": "nobody"})
            with pytest.raises(InvalidInput):
                await client.submit("")
            with pytest.raises(NotFound):
                await client.get("t_no")


def test_replies_are_sent_without_delay() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} .* --port N"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1"),
        ("0.0.0.0", "http://127.0.0.1"),
        ("::1", "http://[::1]"),
        ("::", "http://[::1]"),
    ],
)
def test_the_advertised_address_is_reachable(host: str, url: str) -> None:
    with listen("127.0.0.1", 0) as listener:
        assert local_url(host, listener) == f"{url}:{listener.getsockname()[1]}"


@pytest.mark.parametrize("body", [b'{"prompt": "' + b"x" * 100_000, b'{"prompt": "\xff"}', b'{"promt": "x"}'])
async def test_a_refused_body_is_freed_without_the_garbage_collector(served: Served, body: bytes) -> None:
    gc.collect()
    gc.disable()  # it counts objects, not bytes, so many large bodies would fill the memory
    try:
        for _ in range(3):
            reply = await served.http.post("/tasks", content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 422
        kinds = (RequestValidationError, HTTPException, json.JSONDecodeError, UnicodeDecodeError)
        assert [kept for kept in gc.get_objects() if isinstance(kept, kinds)] == []
    finally:
        gc.enable()

"""Test conversations over HTTP: open, send, queue, interrupt, close, and the events of each of these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from midwatch.agents.function import FunctionAgent
from midwatch.base.errors import AgentError, TransientError
from midwatch.domain.agent import AgentTerms, Turn, TurnResult
from midwatch.domain.event import MessageUpdate
from midwatch.domain.session import MAX_KEY, MAX_TITLE
from midwatch.services.sessions import repeatable_key
from servers import PATIENCE, Server
from serving import Served, client, path_of, serve_agents

RERUN = AgentTerms(timeout_seconds=60.0, on_crash="rerun", slots=16)


class Gates:
    """Turns that wait until the test opens their gates."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self._open = asyncio.Semaphore(0)

    def release(self, turns: int = 1) -> None:
        for _ in range(turns):
            self._open.release()

    async def hold(self, prompt: str) -> str:
        self.began.append(prompt)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self._open.acquire()
        finally:
            self.at_once -= 1
        return f"did {prompt}"


async def echo(prompt: str) -> str:
    return prompt.upper()


async def fail(prompt: str) -> str:
    raise AgentError(f"no {prompt}")


async def shaky(prompt: str, turn: Turn) -> str:
    if turn.attempt == 1:
        raise TransientError("not today")
    return "yes"


async def speak(prompt: str, turn: Turn) -> str:
    """Emit the answer before the end, then return the same answer."""
    await turn.emit(MessageUpdate(message_id=f"{turn.task_id}.{turn.attempt}", role="agent", message="spoken"))
    if prompt == "slowly":
        await asyncio.sleep(0.05)
    return "spoken"


async def improve(prompt: str, turn: Turn) -> str:
    for text in ("a", "ab", "ab"):
        await turn.emit(MessageUpdate(message_id=f"{turn.task_id}.{turn.attempt}", role="agent", message=text))
    return "abc"


async def ask(prompt: str, turn: Turn) -> TurnResult:
    answer = await turn.ask("May I?")
    return TurnResult(text=f"{answer.choice}")


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
async def served(home: Path, gates: Gates) -> AsyncIterator[Served]:
    bodies = {
        "echo": echo, "hold": gates.hold, "other": gates.hold, "fail": fail, "shaky": shaky, "speak": speak,
        "improve": improve, "ask": ask,
    }  # fmt: skip
    agents = {name: FunctionAgent(name, body, on_loop=True, terms=RERUN) for name, body in bodies.items()}
    async with serve_agents(home, agents) as server:
        yield server


async def open_session(served: Served, key: str = "chat:1", **more: Any) -> Any:
    return await served.post("/sessions", {"key": key, **more})


async def send(served: Served, text: str, key: str = "chat:1", **more: Any) -> Any:
    return await served.post(path_of(key, "/messages"), {"text": text, **more})


async def read_messages(served: Served, key: str = "chat:1") -> list[tuple[str, str]]:
    return [(message["role"], message["text"]) for message in (await served.get(path_of(key, "/messages")))["messages"]]


async def check_updates(served: Served, key: str = "chat:1") -> None:
    """Check that every stored message was announced once, with its number, in the order of the numbers."""
    stored = (await served.get(path_of(key, "/messages"), limit=1000))["messages"]
    events = await served.read_log(session_key=key, kind="message_update")
    assert [event["payload"]["number"] for event in events] == [message["number"] for message in stored]
    assert [event["payload"]["message_id"] for event in events] == [message["id"] for message in stored]
    assert [event["payload"]["message"] for event in events] == [message["text"] for message in stored]
    assert [message["number"] for message in stored] == list(range(1, len(stored) + 1))


async def statuses(served: Served, key: str = "chat:1") -> list[str]:
    return [event["payload"]["status"] for event in await served.read_log(session_key=key, kind="status_change")]


# -- opening -----------------------------------------------------------------------------------------------------------


async def test_a_session_is_opened_shown_and_listed(served: Served, tmp_path: Path) -> None:
    reply = await served.http.post("/sessions", json={"agent": "hold", "workdir": str(tmp_path), "title": "Notes"})
    assert reply.status_code == 201
    session = reply.json()
    assert session["key"].startswith("chat:")
    assert (session["agent"], session["workdir"], session["title"]) == ("hold", str(tmp_path), "Notes")
    assert (session["status"], session["queued"], session["running_task"], session["creator"]) == (
        "idle",
        0,
        None,
        "owner",
    )
    assert await served.get(path_of(session["key"])) == {**session, "steerable": False}
    assert await served.get("/sessions") == {"sessions": [session], "next": None}
    (event,) = await served.read_log(kind="session_opened")
    assert event["payload"] == {"agent": "hold", "workdir": str(tmp_path), "title": "Notes"}
    assert (event["session_key"], event["actor"]) == (session["key"], "owner")


async def test_opening_a_session_again_changes_nothing(served: Served) -> None:
    first = await served.http.post("/sessions", json={"key": "chat:1", "title": "One"})
    again = await served.http.post("/sessions", json={"key": " chat:1 ", "agent": "echo"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert len(await served.read_log(kind="session_opened")) == 1


async def test_concurrent_opens_make_one_session(served: Served) -> None:
    replies = await asyncio.gather(*(served.http.post("/sessions", json={"key": "chat:1"}) for _ in range(10)))
    assert sorted(reply.status_code for reply in replies) == [200] * 9 + [201]
    assert len(await served.read_log(kind="session_opened")) == 1


@pytest.mark.parametrize("closed", [False, True])
async def test_the_same_key_with_other_values_is_a_conflict(served: Served, tmp_path: Path, closed: bool) -> None:
    await open_session(served, workdir=str(tmp_path))
    if closed:
        await served.post(path_of("chat:1", "/close"))
    for fields in ({"agent": "hold", "workdir": str(tmp_path)}, {}, {"workdir": "/"}):
        reply = await served.http.post("/sessions", json={"key": "chat:1", **fields})
        assert (reply.status_code, reply.json()["code"]) == (409, "conflict")
    assert (await served.get(path_of("chat:1")))["status"] == ("closed" if closed else "idle")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"agent": "nobody"}, "unknown_agent", "agent"),
        ({"key": "a\nb"}, "invalid_input", "key"),
        ({"key": "   "}, "invalid_input", "key"),
        ({"key": "a\0b"}, "invalid_input", "key"),
        ({"key": "x" * (MAX_KEY + 1)}, "invalid_input", "key"),
        ({"key": "bg:t_1"}, "invalid_input", "key"),
        ({"key": "."}, "invalid_input", "key"),
        ({"key": ".."}, "invalid_input", "key"),
        ({"key": 5}, "invalid_input", "key"),
        ({"title": "x" * (MAX_TITLE + 1)}, "invalid_input", "title"),
        ({"title": "a\nb"}, "invalid_input", "title"),
        ({"workdir": "relative"}, "invalid_input", "workdir"),
        ({"workdir": "/no/such/place"}, "invalid_input", "workdir"),
        ({"workdir": "/etc/hostname"}, "invalid_input", "workdir"),
        ({"name": "x"}, "invalid_input", "name"),
    ],
)
async def test_invalid_sessions_are_refused_with_their_field(served: Served, body: Any, code: str, field: str) -> None:
    reply = await served.http.post("/sessions", json=body)
    assert (reply.status_code, reply.json()["code"], reply.json()["field"]) == (422, code, field)
    assert await served.get("/sessions") == {"sessions": [], "next": None}


async def test_sessions_are_listed_in_pages_most_recently_used_first(served: Served) -> None:
    for number in range(5):
        await open_session(served, f"chat:{number}")
    await served.wait_for_end((await send(served, "x", "chat:1"))["id"])
    keys: list[str] = []
    page = await served.get("/sessions", limit=2)
    while True:
        keys += [session["key"] for session in page["sessions"]]
        if page["next"] is None:
            break
        page = await served.get("/sessions", limit=2, before=page["next"])
    assert keys == ["chat:1", "chat:4", "chat:3", "chat:2", "chat:0"]


# -- keys --------------------------------------------------------------------------------------------------------------

KEYS = [
    "x", "x/messages", "x/live", "x/close", "x/interrupt", "x/messages/messages", "/", "/x", "x/", "//", "a/../b",
    "chat:42|thread:7|message:9", "üñî çødé 🦊", "a b", "a+b", "a%2Fb", "%", "?a=b#c&d", 'quo"te\'s', "<script>",
    "messages", "live", "...", "a;b=c", "x" * MAX_KEY, "日" * MAX_KEY,
]  # fmt: skip


async def test_similar_keys_name_different_sessions(served: Served) -> None:
    for key in KEYS:
        session = await open_session(served, key)
        assert session["key"] == key
    for key in KEYS:
        task = await send(served, f"to {key}", key)
        assert (task["session_key"], task["cause"]) == (key, "message")
        await served.wait_for_end(task["id"])
    for key in KEYS:
        assert (await served.get(path_of(key)))["key"] == key
        assert await read_messages(served, key) == [("user", f"to {key}"), ("agent", f"to {key}".upper())]
        assert await served.post(path_of(key, "/interrupt")) == {"interrupted": None, "mode": "abort", "resume": None}
        assert {event["session_key"] for event in await served.read_log(session_key=key)} == {key}
        assert (await served.get("/tasks", session_key=key))["tasks"][0]["prompt"] == f"to {key}"
    for key in KEYS:
        closed = await served.post(path_of(key, "/close"))
        assert (closed["key"], closed["status"]) == (key, "closed")
    assert len(await served.read_log(kind="session_closed")) == len(KEYS)


@pytest.mark.parametrize("part", ["", "/messages", "/live"])
async def test_an_unknown_session_is_not_found(served: Served, part: str) -> None:
    await open_session(served, "x")
    for key in ("y", "x/messages", "X"):
        reply = await served.http.get(path_of(key, part))
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    for verb in ("interrupt", "close"):
        assert (await served.http.post(path_of("y", f"/{verb}"))).status_code == 404
    assert (await served.http.post(path_of("y", "/messages"), json={"text": "x"})).status_code == 404


# -- sending -----------------------------------------------------------------------------------------------------------


async def test_messages_wait_for_their_turn_in_order(served: Served, gates: Gates) -> None:
    await open_session(served, agent="hold")
    reply = await served.http.post(path_of("chat:1", "/messages"), json={"text": "m0"})
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/api/v1/tasks/{reply.json()['id']}"
    await served.until("turn_start", task_id=reply.json()["id"])
    sent = [await send(served, f"m{number}") for number in range(1, 6)]
    urgent = await send(served, "urgent", priority=5)
    shown = await served.get(path_of("chat:1"))
    assert (shown["status"], shown["queued"], shown["running_task"]) == ("busy", 6, reply.json()["id"])
    state = await served.runtime.store.read_session_state("chat:1")
    assert state is not None
    assert [task.prompt for task in state.queue] == ["urgent", "m1", "m2", "m3", "m4", "m5"]
    gates.release(7)
    for task in (*sent, urgent):
        await served.wait_for_end(task["id"])
    assert gates.began == ["m0", "urgent", "m1", "m2", "m3", "m4", "m5"]
    assert gates.most_at_once == 1
    shown = await served.get(path_of("chat:1"))
    assert (shown["status"], shown["queued"], shown["running_task"]) == ("idle", 0, None)
    assert await read_messages(served) == [
        pair for text in gates.began for pair in (("user", text), ("agent", f"did {text}"))
    ]
    await check_updates(served)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": " \n"}, "text"),
        ({"text": 5}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"text": "x" * 1_000_001}, "text"),
        ({"text": "x", "priority": 101}, "priority"),
        ({"text": "x", "priority": "1"}, "priority"),
        ({"text": "x", "agent": "hold"}, "agent"),
    ],
)
async def test_invalid_messages_are_refused_with_their_field(served: Served, body: Any, field: str) -> None:
    await open_session(served)
    reply = await served.http.post(path_of("chat:1", "/messages"), json=body)
    assert (reply.status_code, reply.json()["field"]) == (422, field)
    assert (await served.get("/summary"))["total"] == 0


async def test_a_message_that_is_not_json_is_refused(served: Served) -> None:
    await open_session(served)
    path = path_of("chat:1", "/messages")
    form = await served.http.post(
        path, content=b"text=x", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert (form.status_code, form.json()["code"], form.json()["field"]) == (415, "unsupported_media_type", "body")
    large = await served.http.post(path, content=b"x" * 3_000_000, headers={"content-type": "application/json"})
    assert (large.status_code, large.json()["field"]) == (413, "body")
    assert (await served.get("/summary"))["total"] == 0


async def test_a_message_with_a_key_is_sent_once(served: Served) -> None:
    await open_session(served)
    await open_session(served, "chat:2")
    first = await served.post(path_of("chat:1", "/messages"), {"text": "x"}, idempotency_key="k")
    again = await served.post(path_of("chat:1", "/messages"), {"text": "x", "priority": 0}, **{"idempotency-key": "k"})
    assert first["id"] != again["id"], "a header is spelt with a dash"
    third = await served.post(path_of("chat:1", "/messages"), {"text": "x"}, **{"idempotency-key": "k"})
    assert third["id"] == again["id"]
    for key, text in (("chat:1", "y"), ("chat:2", "x")):
        reply = await served.http.post(path_of(key, "/messages"), json={"text": text}, headers={"idempotency-key": "k"})
        assert (reply.status_code, reply.json()["code"]) == (409, "key_reused")
    async with served.as_role("operator") as operator:
        assert (await operator.post(path_of("chat:1", "/messages"), json={"text": "x"})).status_code == 403
        await operator.post("/sessions", json={"key": "chat:3"})
        reply = await operator.post(
            path_of("chat:3", "/messages"), json={"text": "x"}, headers={"idempotency-key": "k"}
        )
        assert (reply.status_code, reply.json()["id"] != third["id"]) == (202, True)
        assert reply.json()["creator"] == "operator"


async def test_an_idempotency_key_opens_one_session(served: Served) -> None:
    async def create(http: httpx2.AsyncClient, repeatable: str, **body: Any) -> httpx2.Response:
        return await http.post("/sessions", json=body, headers={"idempotency-key": repeatable})

    first = await create(served.http, "k", title="a")
    again = await create(served.http, "k", title="a")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["key"] == again.json()["key"]
    await served.post(path_of(first.json()["key"], "/close"))
    late = await create(served.http, "k", title="a")
    assert (late.status_code, late.json()["status"]) == (200, "closed"), "a repetition opens nothing"
    for fields in ({"title": "b"}, {"title": "a", "agent": "hold"}, {"title": "a", "workdir": "/"}, {}):
        reply = await create(served.http, "k", **fields)
        assert (reply.status_code, reply.json()["code"]) == (409, "key_reused"), fields
    rejection = await create(served.http, "k", key="chat:1")
    assert (rejection.status_code, rejection.json()["field"]) == (422, "key")
    async with served.as_role("operator") as somebody:
        theirs = await create(somebody, "k", title="a")
        assert (theirs.status_code, theirs.json()["key"] != first.json()["key"]) == (201, True)
        key = repeatable_key("operator", "x")
        await served.post("/sessions", {"key": key})
        assert (await create(somebody, "x")).json()["code"] == "key_reused", "nobody opens it for somebody else"
    assert len(await served.read_log(kind="session_opened")) == 3


def test_keys_of_different_actors_never_collide() -> None:
    assert repeatable_key("a/b", "c") != repeatable_key("a", "b/c")


@pytest.mark.parametrize("path", ["/tasks", "/sessions", "/sessions/chat:1/messages", "RETRY", "/agents/echo/test"])
@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
async def test_invalid_idempotency_keys_are_refused_on_every_route(served: Served, path: str, key: str) -> None:
    bodies = {"/tasks": {"prompt": "x"}, "/sessions/chat:1/messages": {"text": "x"}, "/sessions": {}}
    await open_session(served)
    if path == "RETRY":
        task = await served.post("/tasks", {"prompt": "x", "agent": "fail"})
        await served.wait_for_end(task["id"])
        path = f"/tasks/{task['id']}/retry"
    before = (await served.get("/summary"))["total"]
    reply = await served.http.post(path, json=bodies.get(path), headers={"idempotency-key": key})
    assert (reply.status_code, reply.json()["field"]) == (422, "idempotency_key"), reply.text
    assert (await served.get("/summary"))["total"] == before
    assert len((await served.get("/sessions"))["sessions"]) == 1


async def test_retry_and_test_with_a_key_run_once(served: Served) -> None:
    key = {"idempotency-key": "k"}
    task = await served.post("/tasks", {"prompt": "x", "agent": "fail"})
    await served.wait_for_end(task["id"])
    again = [await served.http.post(f"/tasks/{task['id']}/retry", headers=key) for _ in range(2)]
    assert [reply.status_code for reply in again] == [201, 201]
    assert again[0].json()["id"] == again[1].json()["id"]
    tested = [await served.http.post("/agents/echo/test", headers={"idempotency-key": "t"}) for _ in range(2)]
    assert [reply.status_code for reply in tested] == [201, 201]
    assert tested[0].json()["id"] == tested[1].json()["id"]
    reused = await served.http.post("/agents/speak/test", headers={"idempotency-key": "t"})
    assert (reused.status_code, reused.json()["code"]) == (409, "key_reused")


async def test_too_many_waiting_messages_are_refused_with_retry_after(home: Path, gates: Gates) -> None:
    async with serve_agents(home, {"hold": FunctionAgent("hold", gates.hold, on_loop=True)}, max_open=2) as served:
        await open_session(served)
        for text in ("a", "b"):
            await send(served, text)
        reply = await served.http.post(path_of("chat:1", "/messages"), json={"text": "c"})
        assert (reply.status_code, reply.json()["code"]) == (429, "limit_reached")
        assert int(reply.headers["retry-after"]) > 0
        test = await served.http.post("/agents/hold/test")
        assert (test.status_code, test.json()["code"]) == (429, "limit_reached")


async def test_two_agents_take_turns_in_one_session(served: Served, gates: Gates) -> None:
    await open_session(served, agent="hold")
    first = await send(served, "one")
    await served.until("turn_start", task_id=first["id"])
    second = await served.post("/tasks", {"prompt": "two", "agent": "other", "session_key": "chat:1"})
    third = await send(served, "three")
    gates.release(3)
    for task in (first, second, third):
        await served.wait_for_end(task["id"])
    assert gates.most_at_once == 1
    messages = (await served.get(path_of("chat:1", "/messages")))["messages"]
    assert {message["text"]: message["author"] for message in messages if message["role"] == "agent"} == {
        "did one": "hold", "did two": "other", "did three": "hold",
    }  # fmt: skip
    await check_updates(served)


async def test_a_result_is_posted_to_the_session_of_its_request(served: Served) -> None:
    await open_session(served)
    task = await served.post("/tasks", {"prompt": "x", "origin_session": "chat:1"})
    await served.wait_for_end(task["id"])
    assert await read_messages(served) == [("result", "X")]
    await check_updates(served)
    assert {event["session_key"] for event in await served.read_log(session_key="chat:1")} == {"chat:1"}


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("agent", "text"), [("speak", "quickly"), ("speak", "slowly"), ("echo", "x"), ("fail", "x")])
async def test_every_message_is_announced_once(served: Served, agent: str, text: str) -> None:
    await open_session(served, agent=agent)
    for _ in range(3):
        await served.wait_for_end((await send(served, text))["id"])
    await check_updates(served)
    assert len(await read_messages(served)) == 6


async def test_every_change_of_a_message_is_announced(served: Served) -> None:
    await open_session(served, agent="improve")
    task = await served.wait_for_end((await send(served, "x"))["id"])
    events = await served.read_log(session_key="chat:1", kind="message_update")
    assert [(event["payload"]["number"], event["payload"]["message"]) for event in events] == [
        (1, "x"), (2, "a"), (2, "ab"), (2, "abc"),
    ]  # fmt: skip
    assert {event["payload"]["message_id"] for event in events} == {task["id"], f"{task['id']}.1"}
    assert await read_messages(served) == [("user", "x"), ("agent", "abc")]


async def test_a_retry_adds_its_own_messages(served: Served) -> None:
    await open_session(served, agent="fail")
    task = await served.wait_for_end((await send(served, "x"))["id"])
    again = await served.post(f"/tasks/{task['id']}/retry")
    assert again["session_key"] == "chat:1"
    await served.wait_for_end(again["id"])
    assert [role for role, _ in await read_messages(served)] == ["user", "agent", "user", "agent"]
    await check_updates(served)


async def test_another_attempt_repeats_no_message_and_warns(served: Served) -> None:
    await open_session(served, agent="shaky")
    task = await served.wait_for_end((await send(served, "x"))["id"])
    assert (task["status"], task["attempt"]) == ("done", 2)
    assert await read_messages(served) == [("user", "x"), ("agent", "yes")]
    await check_updates(served)
    assert await statuses(served) == ["idle", "busy", "idle", "busy", "idle"]
    (warned,) = await served.read_log(session_key="chat:1", kind="agent_error")
    assert (warned["payload"]["level"], "not today" in warned["payload"]["message"]) == ("warning", True)


async def test_a_failure_is_shown_to_watchers(served: Served) -> None:
    await open_session(served, agent="fail")
    await served.wait_for_end((await send(served, "x"))["id"])
    (failed,) = await served.read_log(session_key="chat:1", kind="agent_error")
    assert failed["payload"] == {"message": "no x", "level": "error"}
    private = await served.post("/tasks", {"prompt": "x", "agent": "fail"})
    await served.wait_for_end(private["id"])
    assert len(await served.read_log(kind="agent_error")) == 1


async def test_the_activity_of_a_session_is_announced_in_order(served: Served) -> None:
    await open_session(served, agent="ask")
    task = await send(served, "x")
    await served.until("approval_requested")
    assert (await served.get(path_of("chat:1")))["status"] == "asking"
    (question,) = (await served.get("/approvals"))["approvals"]
    await served.post(f"/approvals/{question['id']}/approve")
    await served.wait_for_end(task["id"])
    await served.post(path_of("chat:1", "/close"))
    assert await statuses(served) == ["idle", "busy", "asking", "busy", "idle", "closed"]
    events = await served.read_log(session_key="chat:1", kind="status_change")
    assert {event["payload"]["agent_type"] for event in events} == {"ask"}


async def test_a_restarted_server_repeats_no_message(home: Path, gates: Gates) -> None:
    agents = {"hold": FunctionAgent("hold", gates.hold, on_loop=True, terms=RERUN)}
    async with serve_agents(home, agents) as served:
        await open_session(served)
        task = await send(served, "x")
        await served.until("turn_start", task_id=task["id"])
    gates.release()
    async with serve_agents(home, agents) as served:
        done = await served.wait_for_end(task["id"])
        assert (done["status"], done["interruptions"], done["attempt"]) == ("done", 1, 2)
        assert await read_messages(served) == [("user", "x"), ("agent", "did x")]
        await check_updates(served)
        assert await statuses(served) == ["idle", "busy", "idle", "busy", "idle"]


async def test_a_killed_server_repeats_no_message(home: Path) -> None:
    home.mkdir()
    (home / "midwatch.toml").write_text('detect_agents = false\ndefault_agent = "demo"\n')
    server = Server(home)
    await server.start()
    try:
        token = (home / "token").read_text().strip()
        async with client(server.url, token) as http:
            await http.post("/sessions", json={"key": "chat:1"})
            task = (await http.post(path_of("chat:1", "/messages"), json={"text": "demo:sleep=4"})).json()["id"]
            async with asyncio.timeout(PATIENCE):
                while not (await log(http, "task_progress")):
                    await asyncio.sleep(0.02)
        await server.kill()
        await server.start()
        async with client(server.url, token) as http:
            async with asyncio.timeout(PATIENCE):
                while (await http.get(f"/tasks/{task}")).json()["status"] != "done":
                    await asyncio.sleep(0.05)
            messages = (await http.get(path_of("chat:1", "/messages"))).json()["messages"]
            assert [message["id"] for message in messages] == [task, f"{task}.2"]
            events = await log(http, "message_update")
            assert [event["payload"]["message_id"] for event in events] == [task, f"{task}.2"]
            status = [event["payload"]["status"] for event in await log(http, "status_change")]
            assert status == ["idle", "busy", "idle", "busy", "idle"]
    finally:
        await server.stop()


async def log(http: Any, kind: str) -> list[Any]:
    reply = await http.get("/events", params={"kind": kind}, headers={"accept": "application/json"})
    events: list[Any] = reply.json()["events"]
    return events


# -- interrupting and closing ------------------------------------------------------------------------------------------


async def test_an_interrupt_stops_the_turn_and_the_next_message_runs(served: Served, gates: Gates) -> None:
    await open_session(served, agent="hold")
    assert await served.post(path_of("chat:1", "/interrupt")) == {"interrupted": None, "mode": "abort", "resume": None}
    first, second = await send(served, "one"), await send(served, "two")
    await served.until("turn_start", task_id=first["id"])
    assert await served.post(path_of("chat:1", "/interrupt")) == {
        "interrupted": first["id"],
        "mode": "abort",
        "resume": None,
    }
    assert (await served.wait_for_end(first["id"]))["status"] == "cancelled"
    await served.until("turn_start", task_id=second["id"])
    gates.release()
    assert (await served.wait_for_end(second["id"]))["result"] == "did two"
    assert gates.began == ["one", "two"]
    await check_updates(served)


async def test_closing_cancels_all_open_tasks(served: Served, gates: Gates) -> None:
    await open_session(served, agent="hold")
    sent = [await send(served, f"m{number}") for number in range(250)]
    await served.until("turn_start", task_id=sent[0]["id"])
    beside = await served.post("/tasks", {"prompt": "beside", "agent": "hold", "session_key": "chat:2"})
    closed = await served.post(path_of("chat:1", "/close"))
    assert closed["status"] == "closed"
    for task in sent:
        assert (await served.wait_for_end(task["id"]))["status"] == "cancelled"
    assert gates.began.count("beside") + len(gates.began[:1]) == len(gates.began), "nothing of the queue was begun"
    shown = await served.get(path_of("chat:1"))
    assert (shown["status"], shown["queued"], shown["running_task"]) == ("closed", 0, None)
    again = await served.http.post(path_of("chat:1", "/close"))
    assert (again.status_code, again.json()["status"]) == (200, "closed")
    assert len(await served.read_log(kind="session_closed")) == 1
    await served.until("turn_start", task_id=beside["id"])
    assert (await served.get(f"/tasks/{beside['id']}"))["status"] == "running"
    await check_updates(served)


async def test_the_last_event_of_a_closed_session_is_its_close(served: Served) -> None:
    await open_session(served, agent="hold")
    task = await send(served, "x")
    await served.until("turn_start", task_id=task["id"])
    await served.post(path_of("chat:1", "/close"))
    await served.wait_for_end(task["id"])
    assert (await statuses(served))[-1] == "closed"


async def test_a_closed_session_takes_no_message_until_it_is_reopened(served: Served) -> None:
    await open_session(served, title="Kept")
    await served.wait_for_end((await send(served, "one"))["id"])
    await served.post(path_of("chat:1", "/close"))
    reply = await served.http.post(path_of("chat:1", "/messages"), json={"text": "two"})
    assert (reply.status_code, reply.json()["code"]) == (409, "conflict")
    assert await read_messages(served) == [("user", "one"), ("agent", "ONE")]
    assert await served.post(path_of("chat:1", "/interrupt")) == {"interrupted": None, "mode": "abort", "resume": None}
    reply = await served.http.post("/sessions", json={"key": "chat:1"})
    assert (reply.status_code, reply.json()["status"], reply.json()["title"]) == (201, "idle", "Kept")
    await served.wait_for_end((await send(served, "three"))["id"])
    assert [text for _, text in await read_messages(served)] == ["one", "ONE", "three", "THREE"]
    kinds = [
        event["kind"] for event in await served.read_log(session_key="chat:1") if event["kind"].startswith("session_")
    ]
    assert kinds == ["session_opened", "session_closed", "session_opened"]
    await check_updates(served)


async def test_nothing_stays_open_when_messages_race_with_the_close(served: Served, gates: Gates) -> None:
    for number in range(20):
        key = f"chat:{number}"
        await open_session(served, key, agent="hold")

        async def one(key: str = key) -> int:
            return (await served.http.post(path_of(key, "/messages"), json={"text": "x"})).status_code

        replies = await asyncio.gather(one(), one(), served.http.post(path_of(key, "/close")), one(), one())
        assert {reply for reply in replies if isinstance(reply, int)} <= {202, 409}
        for task in (await served.get("/tasks", session_key=key))["tasks"]:
            assert (await served.wait_for_end(task["id"]))["status"] == "cancelled"


async def test_a_viewer_can_only_read(served: Served) -> None:
    await open_session(served)
    await served.wait_for_end((await send(served, "x"))["id"])
    failed = await served.post("/tasks", {"prompt": "x", "agent": "fail"})
    await served.wait_for_end(failed["id"])
    async with served.as_role("viewer") as viewer:
        before = (await served.get("/events", limit=0))["last_seq"]
        for path, body in (
            ("/sessions", {"key": "chat:2"}), (path_of("chat:1", "/messages"), {"text": "x"}),
            (path_of("chat:1", "/interrupt"), None), (path_of("chat:1", "/close"), None), ("/agents/echo/test", None),
            (f"/tasks/{failed['id']}/retry", None), ("/deliveries/d_1/retry", None), ("/tasks", {"prompt": "x"}),
            ("/approvals/a_1/approve", None),
        ):  # fmt: skip
            reply = await viewer.post(path, json=body)
            assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), path
        assert (await served.get("/events", limit=0))["last_seq"] == before
        for path in (
            "/sessions",
            path_of("chat:1"),
            path_of("chat:1", "/messages"),
            "/now",
            "/usage",
            "/settings",
            "/metrics",
        ):
            assert (await viewer.get(path)).status_code == 200, path
        assert (await viewer.get("/directories")).status_code == 403

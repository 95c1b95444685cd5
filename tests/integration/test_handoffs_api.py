"""Test handoffs over HTTP: created, awaited, listed, cancelled, retried; from a task, and by its own agent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from internals import worker_of
from midwatch.agents.function import FunctionAgent
from midwatch.domain.agent import AgentCapability
from midwatch.domain.identity import OWNER
from servers import eventually
from serving import Served, client, serve_agents

SUBMITS = FunctionAgent.terms._replace(submits=True)


class Crew:
    """Agents that a test controls."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.url = ""
        self.replies: list[httpx2.Response] = []
        self.asks: list[tuple[str, dict[str, Any]]] = []

    async def echo(self, prompt: str) -> str:
        return f"<{prompt}>"

    async def broken(self, prompt: str) -> str:
        raise RuntimeError("broke")

    async def hangs(self, prompt: str) -> str:
        await asyncio.Event().wait()
        return ""

    def held(self, prompt: str) -> str:
        self.go.wait(30)
        return "late"

    async def asking(self, prompt: str, turn: Any) -> str:
        """An agent that calls the server with the token of its attempt."""
        async with client(self.url, turn.env["MIDWATCH_TOKEN"]) as http:
            for path, body in self.asks:
                self.replies.append(await http.post(path, json=body))
        return "asked"


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
async def served(home: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("MIDWATCH_DETECT_AGENTS", "false")
    coder = FunctionAgent("coder", crew.echo)
    coder.capabilities = (AgentCapability(name="coding", task_types=("code",), priority=3),)
    agents = {
        "echo": FunctionAgent("echo", crew.echo), "coder": coder, "held": FunctionAgent("held", crew.held),
        "hangs": FunctionAgent("hangs", crew.hangs),
        "asking": FunctionAgent("asking", crew.asking, terms=SUBMITS), "broken": FunctionAgent("broken", crew.broken),
    }  # fmt: skip
    async with serve_agents(home, agents) as server:
        crew.url = server.url
        yield server


async def hand(served: Served, to: str | None = "echo", text: str = "do it", **more: Any) -> Any:
    return await served.post("/handoffs", {"to": to, "task": {"description": text}, "wait": 15, **more})


async def post_refused(served: Served, body: Any, **headers: str) -> tuple[int, str, str | None]:
    reply = await served.http.post("/handoffs", json=body, headers=headers)
    problem = reply.json()
    assert reply.headers["content-type"] == "application/problem+json"
    return reply.status_code, problem["code"], problem.get("handoff")


async def test_a_handoff_is_made_and_awaited(served: Served) -> None:
    done = await hand(served, context={"messages": [{"role": "user", "content": "earlier"}], "variables": {"a": 1}})
    assert (done["status"], done["to_agent_id"], done["creator"]) == ("completed", "echo", "owner")
    assert "earlier" in done["result"]["output"] and done["result"]["output"].count("do it") == 1
    assert done["context"]["variables"] == {"a": 1}
    assert await served.get(f"/handoffs/{done['id']}") == done
    by_type = await hand(served, None, task={"type": "code", "input": {"file": "a.py"}})
    assert by_type["to_agent_id"] == "coder" and "a.py" in by_type["result"]["output"]
    agents = {agent["name"]: agent for agent in (await served.get("/agents"))["agents"]}
    assert agents["coder"]["capabilities"] == [
        {"name": "coding", "description": "", "task_types": ["code"], "priority": 3}
    ]
    assert agents["echo"]["capabilities"] == [] and agents["echo"]["handoffs"]


async def test_the_reply_waits_no_longer_than_requested(served: Served, crew: Crew) -> None:
    open_ = await hand(served, "held", wait=0.05)
    assert open_["status"] == "in_progress"
    waiting = asyncio.create_task(served.get(f"/handoffs/{open_['id']}", wait=15))
    crew.go.set()
    handoff = await waiting
    assert handoff["status"] == "completed", handoff
    assert handoff["result"]["output"] == "late"


async def test_each_failure_has_its_error_code(served: Served) -> None:
    work = {"task": {"description": "x"}}
    assert (await post_refused(served, {"task": {"type": "paint", "description": "x"}}))[:2] == (409, "no_candidate")
    served.runtime.handoffs.enable("echo", False)
    status, code, record = await post_refused(served, {"to": "echo", **work})
    assert (status, code) == (409, "handoff_disabled")
    assert (await served.get(f"/handoffs/{record}"))["status"] == "rejected"
    assert (await post_refused(served, {"to": "nobody", **work}))[:2] == (422, "unknown_agent")
    assert (await post_refused(served, work))[:2] == (422, "invalid_input")
    assert (await post_refused(served, {"to": "coder", "from_agent": "coder", **work}))[:2] == (422, "invalid_input")
    for fields in ({"timeout": 0}, {"timeout": 1e12}, {"workdir": "/nowhere/at/all"}):
        assert (await post_refused(served, {"to": "coder", **work, **fields}))[:2] == (422, "invalid_input")
    assert (await post_refused(served, {"to": "coder", **work, "source_task": "t_none"}))[:2] == (404, "not_found")
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    for odd in (deep, 2**70, {"a": "\0"}, ["\ud800"]):
        body = json.dumps({"to": "coder", "task": {"input": odd}})
        reply = await served.http.post("/handoffs", content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 422, reply.text
    failed = await hand(served, "broken")
    assert (failed["status"], failed["result"]["output"]) == ("failed", None)


async def test_too_many_handoffs_of_one_task_are_refused(home: Path, crew: Crew) -> None:
    async with serve_agents(home, {"a": crew.echo, "b": crew.echo}, handoffs={"total": 1}) as served:
        task = (await served.post("/tasks", {"prompt": "x", "agent": "a"}))["id"]
        body = {"to": "b", "source_task": task}
        await served.post("/handoffs", body)
        assert (await post_refused(served, body))[:2] == (429, "handoff_limit")


async def test_a_key_makes_one_handoff(served: Served) -> None:
    async def post(key: str, text: str = "x", **more: Any) -> httpx2.Response:
        body = {"to": "echo", "task": {"description": text}, **more}
        return await served.http.post("/handoffs", json=body, headers={"idempotency-key": key})

    first, second, third = await post("k"), await post("k"), await post("other")
    assert first.json()["id"] == second.json()["id"] != third.json()["id"]
    assert (await post("k", "something else")).json()["code"] == "conflict"
    for more in ({"timeout": 5}, {"max_retries": 3}, {"to": "coder"}):
        assert (await post("k", **more)).json()["code"] == "conflict", more


async def test_lists_are_filtered_and_paged(served: Served) -> None:
    task = (await served.post("/tasks", {"prompt": "the work", "agent": "echo"}))["id"]
    await served.wait_for_end(task)
    ids = [(await hand(served, "coder", source_task=task))["id"], (await hand(served, "echo", "y" * 9000))["id"]]
    newest = await served.get("/handoffs", limit=1)
    assert [handoff["id"] for handoff in newest["handoffs"]] == ids[1:] and newest["next"] == ids[1]
    assert len(newest["handoffs"][0]["task"]["description"]) <= 2001
    older = await served.get("/handoffs", limit=1, before=newest["next"])
    assert [handoff["id"] for handoff in older["handoffs"]] == ids[:1]
    assert older["handoffs"][0]["context"]["messages"] == []
    for query, expected in (
        ({"root": task}, ids[:1]), ({"agent": "coder"}, ids[:1]), ({"status": "failed"}, []),
        ({"status": ["completed", "failed"]}, ids[::-1]),
    ):  # fmt: skip
        listed = await served.get("/handoffs", **query)
        assert [handoff["id"] for handoff in listed["handoffs"]] == expected, query
    page = await served.get(f"/tasks/{task}/page")
    assert [handoff["id"] for handoff in page["handoffs"]] == ids[:1]
    assert {relative["relation"] for relative in page["lineage"]} == {"self", "child"}
    again = await hand(served, "coder", source_task=task)
    sibling = await served.get(f"/tasks/{again['task_id']}/page")
    assert sorted(relative["relation"] for relative in sibling["lineage"]) == ["other", "parent", "self"]


async def test_a_task_is_handed_off_with_its_prompt_result_and_conversation(served: Served, crew: Crew) -> None:
    tasks = []
    for text in ("first", "second", "third"):
        tasks.append((await served.post("/tasks", {"prompt": text, "agent": "echo", "session_key": "chat:1"}))["id"])
        await served.wait_for_end(tasks[-1])
    middle = tasks[1]
    whole = await hand(served, "coder", source_task=middle, task=None)
    assert (whole["task"]["description"], whole["task"]["input"]) == ("second", "<second>")
    messages = [(message["role"], message["content"]) for message in whole["context"]["messages"]]
    assert messages == [("user", "first"), ("assistant", "<first>")]
    assert (whole["context"]["conversation_id"], whole["from_agent_id"]) == ("chat:1", "echo")
    handoff = await hand(served, "coder", "look at this", source_task=middle)
    assert [message["content"] for message in handoff["context"]["messages"]] == [
        "first",
        "<first>",
        "second",
        "<second>",
    ]
    assert handoff["result"]["output"].count("second") == 2

    onwards = await hand(served, "echo", "and now?", source_task=handoff["task_id"])
    texts = [message["content"] for message in onwards["context"]["messages"]]
    assert texts[:-1] == ["first", "<first>", "second", "<second>", "look at this"]
    assert onwards["context"]["parent_handoff"] == handoff["id"]

    running = (await served.post("/tasks", {"prompt": "private", "agent": "held"}))["id"]
    await served.until("task_started", task_id=running)
    running_handoff = await hand(served, "coder", "go on", source_task=running)
    assert [message["content"] for message in running_handoff["context"]["messages"]] == ["private"]
    alone = await hand(served, "coder", source_task=running, task=None)
    assert (alone["task"]["description"], alone["task"]["input"], alone["context"]["messages"]) == ("private", None, [])
    crew.go.set()


async def test_cancel_stops_the_task_and_retry_makes_a_new_one(served: Served) -> None:
    handoff = await hand(served, "hangs", wait=0)
    cancelled = await served.post(f"/handoffs/{handoff['id']}/cancel")
    assert (cancelled["status"], cancelled["reason"]) == ("cancelled", "cancelled by owner")
    assert (await served.wait_for_end(handoff["task_id"]))["status"] == "cancelled"
    assert (await served.http.post(f"/handoffs/{handoff['id']}/cancel")).json()["code"] == "conflict"
    again = await served.post(f"/handoffs/{handoff['id']}/retry", **{"idempotency-key": "k"})
    assert (again["retry_of"], again["status"]) == (handoff["id"], "in_progress")
    assert (await served.post(f"/handoffs/{handoff['id']}/retry", **{"idempotency-key": "k"}))["id"] == again["id"]
    assert (await served.http.get("/handoffs/h_none")).status_code == 404


async def test_an_agent_can_hand_off_only_its_own_task(served: Served, crew: Crew) -> None:
    other_handoff = await hand(served, "held", wait=0)
    work = {"task": {"description": "help"}, "to": "echo"}
    crew.asks = [
        ("/handoffs", {**work, "wait": 15}), ("/handoffs", {**work, "source_task": other_handoff["task_id"]}),
        (f"/handoffs/{other_handoff['id']}/cancel", {}), (f"/handoffs/{other_handoff['id']}/retry", {}),
    ]  # fmt: skip
    task = (await served.post("/tasks", {"prompt": "mine", "agent": "asking"}))["id"]
    await served.wait_for_end(task)
    reply, *no = crew.replies
    assert reply.status_code == 201, reply.text
    handoff = reply.json()
    assert (handoff["source_task"], handoff["from_agent_id"], handoff["status"]) == (task, "asking", "completed")
    assert [refusal.status_code for refusal in no] == [403, 403, 403]
    crew.go.set()


async def test_an_agent_cannot_grant_more_than_it_has(served: Served, crew: Crew, home: Path) -> None:
    own, foreign = home / "own", await hand(served, "held", wait=0)
    (own / "below").mkdir(parents=True)
    body: dict[str, Any] = {"task": {"description": "help"}, "to": "echo"}
    field_sets = (
        {},
        {"workdir": f"{own}/below"},
        {"context": {"parent_handoff": foreign["id"]}},
        {"workdir": str(home)},
    )
    crew.asks = [("/handoffs", {**body, **fields}) for fields in field_sets]
    task = await served.post("/tasks", {"prompt": "mine", "agent": "asking", "workdir": str(own)})
    await served.wait_for_end(task["id"])
    *replies, outside = crew.replies
    places = [(await served.get(f"/tasks/{reply.json()['task_id']}"))["workdir"] for reply in replies]
    assert places == [str(own), f"{own}/below", str(own)]
    assert (outside.status_code, outside.json()["code"]) == (403, "forbidden")
    assert replies[2].json()["context"]["parent_handoff"] is None and len(replies[2].json()["chain"]) == 1
    crew.go.set()


async def test_an_agent_that_may_not_submit_cannot_hand_off(home: Path, crew: Crew) -> None:
    crew.asks = [("/handoffs", {"task": {"description": "help"}, "to": "echo"})]
    async with serve_agents(home, {"asking": FunctionAgent("asking", crew.asking), "echo": crew.echo}) as served:
        crew.url = served.url
        await served.wait_for_end((await served.post("/tasks", {"prompt": "x", "agent": "asking"}))["id"])
        assert (crew.replies[0].status_code, crew.replies[0].json()["code"]) == (403, "forbidden")
        assert (await served.get("/handoffs"))["handoffs"] == []


@pytest.mark.parametrize(("mode", "status"), [("creator_only", 403), ("scope_all", 200)])
async def test_handoffs_have_the_permissions_of_tasks(home: Path, crew: Crew, mode: str, status: int) -> None:
    async with serve_agents(home, {"held": crew.held, "echo": crew.echo}, manage_tasks=mode) as served:
        task = (await served.post("/tasks", {"prompt": "x", "agent": "held"}))["id"]
        handoff = await served.post("/handoffs", {"to": "held", "task": {"description": "x"}})
        _, secret = await served.runtime.tokens.create("bob", "operator", by=OWNER)
        _, viewer_secret = await served.runtime.tokens.create("eve", "viewer", by=OWNER)
        async with client(served.url, secret) as bob:
            handoff_reply = await bob.post("/handoffs", json={"to": "echo", "source_task": task})
            assert handoff_reply.status_code == (201 if status == 200 else 403)
            reply = await bob.post(f"/handoffs/{handoff['id']}/cancel")
            assert reply.status_code == status, reply.text
        async with client(served.url, viewer_secret) as eve:
            assert (await eve.get("/handoffs")).status_code == 200
            assert (await eve.post("/handoffs", json={"to": "echo", "task": {"input": "x"}})).status_code == 403
        crew.go.set()


# -- agents that poll --------------------------------------------------------------------------------------------------


class Caller:
    """An agent that hands off and polls as a program does: over HTTP, with the token of its attempt."""

    def __init__(self) -> None:
        self.served: Served | None = None
        self.begun, self.go, self.may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.waits = [0.05, 15.0]
        self.replies: list[tuple[str, int]] = []
        self.before_last_poll: Callable[[], Awaitable[None]] | None = None

    @property
    def free(self) -> int:
        assert self.served is not None
        return worker_of(self.served.runtime).slots.free()

    async def target(self, prompt: str) -> str:
        self.begun.set()
        await self.go.wait()
        return f"<{prompt}>"

    async def source(self, prompt: str, turn: Any) -> str:
        assert self.served is not None
        async with client(self.served.url, turn.env["MIDWATCH_TOKEN"]) as http:
            body = {"to": "target", "task": {"description": prompt}, "wait": self.waits[0]}
            handoff = (await http.post("/handoffs", json=body)).json()
            while not self.begun.is_set():
                handoff = (await http.get(f"/handoffs/{handoff['id']}", params={"wait": 0.05})).json()
            self.replies.append((handoff["status"], self.free))
            for wait in self.waits[1:]:
                self.go.set()
                if self.before_last_poll is not None:
                    await self.before_last_poll()
                handoff = (await http.get(f"/handoffs/{handoff['id']}", params={"wait": wait})).json()
                self.replies.append((handoff["status"], self.free))
        await self.may_end.wait()
        return str((handoff["result"] or {}).get("output"))


@pytest.fixture
def caller() -> Caller:
    return Caller()


def set_linger(served: Served, seconds: float) -> None:
    """Set how late an agent that polls may ask again."""
    handoffs = served.runtime.handoffs
    handoffs.limits = handoffs.limits._replace(linger=seconds)


async def serve_caller(home: Path, caller: Caller, slots: int) -> AsyncIterator[Served]:
    agents = {
        name: FunctionAgent(name, getattr(caller, name), on_loop=True, terms=SUBMITS) for name in ("source", "target")
    }
    async with serve_agents(home, agents, slots=slots) as server:
        caller.served = server
        set_linger(server, 30.0)
        yield server


@pytest.fixture
async def one_slot(home: Path, caller: Caller) -> AsyncIterator[Served]:
    async for server in serve_caller(home, caller, 1):
        yield server


@pytest.fixture
async def two_slots(home: Path, caller: Caller) -> AsyncIterator[Served]:
    async for server in serve_caller(home, caller, 2):
        yield server


async def test_an_agent_that_polls_holds_no_slot_between_requests(one_slot: Served, caller: Caller) -> None:
    caller.may_end.set()
    task = (await one_slot.post("/tasks", {"prompt": "hello", "agent": "source"}))["id"]
    async with asyncio.timeout(60):
        assert (await one_slot.wait_for_end(task))["result"].endswith("hello>")
    # At the first reply the target had the slot; with the answer the source had it again.
    assert caller.replies == [("in_progress", 0), ("completed", 0)]
    assert caller.begun.is_set()
    assert await eventually(lambda: caller.free == 1)  # returned a moment after the end is written


async def test_an_answer_between_two_polls_is_returned_with_a_slot(one_slot: Served, caller: Caller) -> None:
    slots, back = worker_of(one_slot.runtime).slots, asyncio.Event()
    real = slots.take_back

    async def late(agent: str, actor: str = "") -> None:
        await back.wait()
        await real(agent, actor)

    async def wait_for_answer() -> None:
        await one_slot.until("handoff_completed")
        assert await eventually(lambda: caller.free == 1)
        asyncio.get_running_loop().call_later(0.2, back.set)

    slots.take_back = late
    caller.before_last_poll = wait_for_answer
    caller.may_end.set()
    task = (await one_slot.post("/tasks", {"prompt": "hello", "agent": "source"}))["id"]
    async with asyncio.timeout(60):
        await one_slot.wait_for_end(task)
    assert caller.replies == [("in_progress", 0), ("completed", 0)]


async def test_an_agent_that_stops_polling_gets_its_slot_back(two_slots: Served, caller: Caller) -> None:
    set_linger(two_slots, 0.05)
    caller.waits = [0.05]
    task = (await two_slots.post("/tasks", {"prompt": "hello", "agent": "source"}))["id"]
    await asyncio.wait_for(caller.begun.wait(), 30)
    async with asyncio.timeout(30):
        while caller.free:
            await asyncio.sleep(0.01)
    caller.may_end.set()
    assert (await two_slots.wait_for_end(task))["status"] == "done"
    async with asyncio.timeout(30):
        while caller.free < 2:
            await asyncio.sleep(0.01)


async def test_a_turn_that_ends_before_its_answer_frees_its_slot_and_cancels_the_handoff(
    one_slot: Served, caller: Caller
) -> None:
    caller.waits = [0.05]
    task = (await one_slot.post("/tasks", {"prompt": "hello", "agent": "source"}))["id"]
    await asyncio.wait_for(caller.begun.wait(), 30)
    caller.may_end.set()
    async with asyncio.timeout(30):  # although the only slot is taken
        assert (await one_slot.wait_for_end(task))["status"] == "done"
        await one_slot.until("handoff_cancelled")
        (handoff,) = await one_slot.runtime.handoffs.list()
        assert (await one_slot.wait_for_end(handoff.task_id or ""))["status"] == "cancelled"
        while not caller.free:
            await asyncio.sleep(0.01)
    assert caller.free == 1


async def test_handoffs_of_a_cancelled_agent_are_cancelled(one_slot: Served, caller: Caller) -> None:
    caller.waits = [15.0]
    task = (await one_slot.post("/tasks", {"prompt": "hello", "agent": "source"}))["id"]
    await asyncio.wait_for(caller.begun.wait(), 30)
    await one_slot.post(f"/tasks/{task}/cancel")
    async with asyncio.timeout(30):
        assert (await one_slot.wait_for_end(task))["status"] == "cancelled"
        await one_slot.until("handoff_cancelled")
        while not caller.free:
            await asyncio.sleep(0.01)
    assert caller.free == 1 and caller.replies == []


@pytest.mark.parametrize(("polls", "limits", "outcome"), [
    (1, {"timeout": 1.5}, "timeout"), (1, {"budget": {"seconds": 1.5}}, "budget"), (2, {}, "ok"),
])  # fmt: skip
async def test_a_poll_while_the_turn_waits_for_its_slot_changes_no_limit(
    home: Path, polls: int, limits: dict[str, Any], outcome: str
) -> None:
    async def work(prompt: str) -> str:
        await asyncio.sleep(1)  # meanwhile it has the only slot
        return "worked"

    async def source(prompt: str, turn: Any) -> str:
        async with client(served.url, turn.env["MIDWATCH_TOKEN"]) as http:
            body = {"to": "target", "task": {"description": "d"}, "wait": 0.05}
            handoff = (await http.post("/handoffs", json=body)).json()
            for _ in range(polls):
                await asyncio.sleep(0.3)  # an agent that polls less often than `linger`
                await http.get(f"/handoffs/{handoff['id']}", params={"wait": 0.05})
        await asyncio.sleep(60 if limits else 0)
        return "done"

    functions = {"source": source, "target": work}
    agents = {name: FunctionAgent(name, run, on_loop=True, terms=SUBMITS) for name, run in functions.items()}
    async with serve_agents(home, agents, slots=1) as served:
        handoffs, slots = served.runtime.handoffs, worker_of(served.runtime).slots
        handoffs.limits = handoffs.limits._replace(linger=0.05)
        task = await served.post("/tasks", {"prompt": "p", "agent": "source", **limits})
        assert (await served.wait_for_end(task["id"]))["outcome"] == outcome
        assert await eventually(lambda: (slots.free(), slots._paused) == (1, 0))

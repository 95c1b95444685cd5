"""Test messages to running turns: taken once, passed on when the turn ends first, and never lost in a crash."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from midwatch import Runtime, Settings, Turn
from midwatch.agents.function import FunctionAgent
from midwatch.base.errors import AgentError, Conflict, InvalidInput, LimitReached, TransientError
from midwatch.domain.event import EventFilter
from midwatch.domain.session import Message
from midwatch.domain.steering import MOST_QUEUED, STOP
from midwatch.domain.task import Task
from midwatch.domain.task_store import TaskFilter
from midwatch.testing import FakeClock, ScriptedAgent, receive, say
from servers import until
from serving import path_of, serve_agents, watch

KEY = "chat:1"


async def start_turn(desk: Runtime, agent: str, prompt: str = "begin") -> Task:
    """Start the first turn of a conversation and return it when it runs."""
    await desk.sessions.create(key=KEY, agent=agent)
    task = await desk.sessions.send(KEY, prompt)

    async def runs() -> bool:
        return (await desk.tasks.get(task.id)).status == "running"

    await until(runs)
    return task


async def wait_for_end(desk: Runtime, task: Task) -> Task:
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def read_messages(desk: Runtime, key: str = KEY) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in await desk.sessions.messages(key)]


async def check_announced_once(desk: Runtime, key: str = KEY) -> list[Message]:
    """Check that every message was announced once, in the order of the numbers."""
    stored = await desk.sessions.messages(key)
    events = await desk.store.read_events(0, EventFilter(session_key=key, kinds=("message_update",)))
    assert [e.payload["message_id"] for e in events] == [message.id for message in stored]
    return stored


class ControlledTurns:
    """Turns that the test controls."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.prompts: list[str] = []
        self.received: list[str] = []

    async def hold(self, prompt: str, turn: Turn) -> str:
        """Take no message although it could."""
        self.prompts.append(prompt)
        self.began.set()
        await self.go.wait()
        return f"did {prompt}"

    async def alone(self, prompt: str) -> str:
        """An agent that cannot take messages."""
        return await self.hold(prompt, None)  # type: ignore[arg-type]

    async def listen(self, prompt: str, turn: Turn) -> str:
        self.prompts.append(prompt)
        if prompt != "begin":
            return f"did {prompt}"
        self.received.append(await turn.receive())
        return f"heard {self.received[-1]}"

    async def stumble(self, prompt: str, turn: Turn) -> str:
        self.prompts.append(prompt)
        if turn.attempt == 1:
            self.began.set()
            await self.go.wait()
            raise TransientError("not yet")
        return await turn.receive()

    async def fall(self, prompt: str, turn: Turn) -> str:
        if prompt == "begin":
            await self.go.wait()
            raise AgentError("no")
        return f"did {prompt}"


@pytest.fixture
def turns() -> ControlledTurns:
    return ControlledTurns()


@pytest.fixture
async def desk(home: Path, turns: ControlledTurns) -> AsyncIterator[Runtime]:
    bodies = ("hold", "alone", "listen", "stumble", "fall")
    agents = {name: FunctionAgent(name, getattr(turns, name), on_loop=True) for name in bodies}
    async with Runtime.open(home, agents=agents) as opened:
        yield opened


async def test_a_message_reaches_the_running_turn(desk: Runtime, turns: ControlledTurns) -> None:
    task = await start_turn(desk, "listen")
    sent = await desk.sessions.say(KEY, "look here", "interrupt", actor="ann")
    assert (sent.task.id, sent.mode) == (task.id, "interrupt")
    assert sent.steer is not None
    assert (await wait_for_end(desk, task)).result == "heard look here"
    assert await read_messages(desk) == [("user", "begin"), ("user", "look here"), ("agent", "heard look here")]
    (event,) = await desk.store.read_events(0, EventFilter(task_id=task.id, kinds=("steering_injected",)))
    assert event.payload == {"count": 1, "total_content_len": 9, "steer_ids": [sent.steer.id]}
    await check_announced_once(desk)
    assert turns.prompts == ["begin"], "it is no task of its own"


async def test_a_script_takes_steering_messages(home: Path) -> None:
    agent = ScriptedAgent(receive(), say("hm"), receive(), name="it")
    async with Runtime.open(home, agents={"it": agent}) as desk:
        task = await start_turn(desk, "it")
        for text in ("one", "two"):
            await desk.sessions.say(KEY, text, "after_tool")
        assert (await wait_for_end(desk, task)).result == "two"


async def test_messages_a_turn_did_not_take_become_tasks_in_order(desk: Runtime, turns: ControlledTurns) -> None:
    task = await start_turn(desk, "hold")
    late = await desk.sessions.say(KEY, "last of all", actor="ann")
    modes = ("interrupt", "after_tool", "interrupt")
    sent = [await desk.sessions.say(KEY, f"m{n}", mode, actor="ann") for n, mode in enumerate(modes)]
    turns.go.set()
    assert (await wait_for_end(desk, task)).result == "did begin"
    for delivery in sent:
        assert delivery.steer is not None
        done = await wait_for_end(desk, delivery.task._replace(id=delivery.steer.id))
        assert (done.creator, done.cause, done.agent, done.session_key) == ("ann", "message", "hold", KEY)
    await wait_for_end(desk, late.task)
    assert turns.prompts == ["begin", "last of all", "m0", "m1", "m2"], "in the order they were sent"
    stored = await check_announced_once(desk)
    assert Counter(message.text for message in stored if message.role == "user") == Counter(turns.prompts), (
        "each is shown once"
    )


@pytest.mark.parametrize("how", ["error", "abort", "timeout"])
async def test_messages_continue_however_their_task_ends(desk: Runtime, turns: ControlledTurns, how: str) -> None:
    if how == "timeout":
        await desk.sessions.create(key=KEY, agent="hold")
        task = await desk.tasks.submit("begin", agent="hold", session_key=KEY, timeout=3)
        await turns.began.wait()
    else:
        task = await start_turn(desk, "fall" if how == "error" else "hold")
    sent = await desk.sessions.say(KEY, "still here", "interrupt")
    assert sent.steer is not None
    if how == "abort":
        assert await desk.sessions.interrupt(KEY) == task.id
    elif how == "error":
        turns.go.set()
    assert (await wait_for_end(desk, task)).outcome == {"abort": "cancelled"}.get(how, how)
    turns.go.set()
    assert (await wait_for_end(desk, task._replace(id=sent.steer.id))).result == "did still here"
    await check_announced_once(desk)


async def test_a_later_attempt_gets_the_messages_of_an_earlier_one(desk: Runtime, turns: ControlledTurns) -> None:
    task = await start_turn(desk, "stumble")
    await turns.began.wait()
    await desk.sessions.say(KEY, "remember me", "interrupt")
    turns.go.set()
    ended_task = await wait_for_end(desk, task)
    assert (ended_task.result, ended_task.attempt, turns.prompts) == ("remember me", 2, ["begin", "begin"])


async def test_a_cancelled_pending_task_passes_on_its_messages(home: Path, turns: ControlledTurns) -> None:
    agents = {"stumble": FunctionAgent("stumble", turns.stumble, on_loop=True)}
    async with Runtime.open(home, agents=agents, clock=FakeClock()) as desk:  # so that its pause does not end
        task = await start_turn(desk, "stumble")
        await turns.began.wait()
        sent = await desk.sessions.say(KEY, "remember me", "interrupt")
        assert sent.steer is not None
        turns.go.set()

        async def waits() -> bool:
            return (await desk.tasks.get(task.id)).wait == "backoff"

        await until(waits)
        await desk.tasks.cancel(task.id)
        steer_task = await desk.store.get_task(sent.steer.id)
        assert steer_task is not None
        assert steer_task.prompt == "remember me"


async def test_closing_a_session_drops_waiting_messages(desk: Runtime, turns: ControlledTurns) -> None:
    task = await start_turn(desk, "hold")
    await desk.sessions.say(KEY, "never mind", "interrupt")
    await desk.sessions.close(KEY)
    assert (await wait_for_end(desk, task)).outcome == "cancelled"
    assert await desk.store.list_queued_steers(task.id) == []
    assert (await desk.tasks.summary()).total == 1


async def test_an_agent_without_steering_gets_the_message_after_its_turn(desk: Runtime, turns: ControlledTurns) -> None:
    task = await start_turn(desk, "alone")
    sent = await desk.sessions.say(KEY, "wait", "interrupt")
    assert (sent.mode, sent.steer, sent.task.status) == ("after_turn", None, "pending")
    with pytest.raises(Conflict, match=f"midwatch session interrupt {KEY}"):
        await desk.sessions.interrupt(KEY, "stop")
    turns.go.set()
    await wait_for_end(desk, task)
    assert (await wait_for_end(desk, sent.task)).result == "did wait"


async def test_a_stop_is_a_separate_kind_of_message(desk: Runtime, turns: ControlledTurns) -> None:
    task = await start_turn(desk, "listen")
    assert await desk.sessions.interrupt(KEY, "stop", actor="ann") == task.id
    assert (await wait_for_end(desk, task)).result == f"heard {STOP}"
    assert await read_messages(desk) == [("user", "begin"), ("agent", f"heard {STOP}")]
    assert await desk.sessions.interrupt(KEY, "stop") is None, "nothing runs"
    (event,) = await desk.store.read_events(0, EventFilter(task_id=task.id, kinds=("interrupt_received",)))
    assert (event.payload["reason"], event.actor) == ("stop", "ann")


async def test_a_hint_is_shown_and_an_unused_stop_is_dropped(desk: Runtime, turns: ControlledTurns) -> None:
    task = await start_turn(desk, "hold")
    await desk.sessions.interrupt(KEY, "stop", hint="sum up")
    assert ("user", "sum up") in await read_messages(desk)
    turns.go.set()
    await wait_for_end(desk, task)
    assert (await desk.tasks.summary()).total == 1
    with pytest.raises(InvalidInput):
        await desk.sessions.interrupt(KEY, hint="why")
    with pytest.raises(InvalidInput):
        await desk.sessions.interrupt(KEY, "softly")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await desk.sessions.say(KEY, "x", "soon")  # type: ignore[arg-type]


async def test_the_queue_of_a_turn_is_limited(desk: Runtime, turns: ControlledTurns) -> None:
    await start_turn(desk, "hold")
    for number in range(MOST_QUEUED):
        await desk.sessions.say(KEY, f"{number}", "interrupt")
    with pytest.raises(LimitReached):
        await desk.sessions.say(KEY, "one more", "interrupt")
    assert (await desk.sessions.say(KEY, "one more")).mode == "after_turn"
    turns.go.set()


async def test_the_http_reply_reports_when_a_message_is_delivered(home: Path, turns: ControlledTurns) -> None:
    agents = {name: FunctionAgent(name, getattr(turns, name), on_loop=True) for name in ("hold", "alone", "listen")}
    async with serve_agents(home, agents) as served:
        await served.post("/sessions", {"key": KEY, "agent": "listen"})
        idle = await served.post(path_of(KEY, "/interrupt"), {"mode": "stop"})
        assert idle == {"interrupted": None, "mode": "stop", "resume": None}
        first = await served.post(path_of(KEY, "/messages"), {"text": "begin", "mode": "interrupt"})
        assert (first["mode"], first["steer"], first["prompt"]) == ("after_turn", None, "begin")
        await served.until("turn_start", task_id=first["id"])
        sent = await served.post(path_of(KEY, "/messages"), {"text": "hear me", "mode": "after_tool"})
        assert (sent["id"], sent["mode"], sent["steer"]["text"]) == (first["id"], "after_tool", "hear me")
        await served.wait_for_end(first["id"])
        assert turns.received == ["hear me"]
        refused = await served.http.post(path_of(KEY, "/messages"), json={"text": "x", "mode": "soon"})
        assert (refused.status_code, refused.json()["field"]) == (422, "mode")
        refused = await served.http.post(path_of(KEY, "/interrupt"), json={"hint": "why"})
        assert (refused.status_code, refused.json()["field"]) == (422, "hint")


async def test_a_watcher_sees_waiting_messages_and_too_many_are_429(home: Path, turns: ControlledTurns) -> None:
    agents = {name: FunctionAgent(name, getattr(turns, name), on_loop=True) for name in ("hold", "alone")}
    async with serve_agents(home, agents) as served:
        for agent in agents:
            await served.post("/sessions", {"key": f"chat:{agent}", "agent": agent, "prompt": "begin"})
            await served.until("turn_start", session_key=f"chat:{agent}")
        stop = {"mode": "stop", "hint": "sum up"}
        refused = await served.http.post(path_of("chat:alone", "/interrupt"), json=stop)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert "midwatch session interrupt chat:alone" in refused.json()["detail"]
        key = path_of("chat:hold", "/messages")
        once = {"idempotency-key": "k"}
        sent = [await served.post(key, {"text": "0", "mode": "interrupt"}, **once) for _ in range(2)]
        assert sent[0]["steer"]["id"] == sent[1]["steer"]["id"]
        for number in range(1, MOST_QUEUED):
            await served.post(key, {"text": f"{number}", "mode": "interrupt"})
        full = await served.http.post(key, json={"text": "more", "mode": "interrupt"})
        assert (full.status_code, full.json()["code"]) == (429, "limit_reached")
        assert (await served.post(path_of("chat:hold", "/interrupt"), stop))["mode"] == "stop"
        async with aclosing(watch(served.http, path_of("chat:hold", "/live"))) as frames:
            state = (await anext(frames)).data
        waiting = [(steer["mode"], steer["text"]) for steer in state["steers"]]
        assert waiting == [*(("interrupt", f"{n}") for n in range(MOST_QUEUED)), ("stop", "sum up")]
        steerable_agents = {
            agent_info["name"]: agent_info["steerable"] for agent_info in (await served.get("/agents"))["agents"]
        }
        assert steerable_agents["hold"] is True
        assert steerable_agents["alone"] is False
        turns.go.set()
        await served.wait_for_end(sent[0]["id"])
        assert (await served.wait_for_end(sent[0]["steer"]["id"]))["result"] == "did 0"


async def eager(prompt: str, turn: Turn) -> str:
    """Take the messages that come within a moment, then end."""
    texts = [prompt]
    with suppress(TimeoutError):
        async with asyncio.timeout(random.uniform(0, 0.02)):
            while True:
                texts.append(await turn.receive())
    return " ".join(texts)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_each_message_arrives_exactly_once_while_turns_end(
    home: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Whether the turn took a message or it became a task: its text arrives once, also if it came as the turn ended."""
    settings = Settings.load(home, db=request.getfixturevalue("database") if kind == "postgres" else "")
    agents = {"it": FunctionAgent("it", eager, on_loop=True)}
    async with Runtime.open(agents=agents, settings=settings) as desk:
        await desk.sessions.create(key=KEY, agent="it")
        sent: list[str] = []

        async def talk(who: str) -> None:
            for number in range(25):
                text = f"{who}{number}"
                with suppress(LimitReached):
                    await desk.sessions.say(KEY, text, random.choice(("after_turn", "interrupt", "after_tool")))
                    sent.append(text)
                await asyncio.sleep(random.uniform(0, 0.01))

        await asyncio.gather(*(talk(who) for who in "abc"))

        async def is_idle() -> bool:
            return await desk.tasks.active_count() == 0

        await until(is_idle)
        received = [
            part for task in await desk.store.list_tasks(TaskFilter(limit=500)) for part in (task.result or "").split()
        ]
        assert Counter(received) == Counter(sent), sorted(received)
        stored = await check_announced_once(desk)
        assert Counter(message.text for message in stored if message.role == "user") == Counter(sent)

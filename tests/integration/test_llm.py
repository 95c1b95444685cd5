"""Test the agent kind `llm` on a real desk: its events, its history, messages to a running turn, and what remains
afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import Model, serve
from internals import worker_of
from midwatch import Runtime, Task
from midwatch.agents.llm.kind import LlmAgent
from midwatch.domain.event import Event, EventFilter
from servers import eventually

Fake = tuple[str, Model]


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Yield a fake model and its address."""
    async with serve() as url_and_model:
        yield url_and_model


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def agent(fake: Fake, *tools: Any, **more: Any) -> LlmAgent:
    return LlmAgent("it", "openai:fake", base_url=f"{fake[0]}/v1", tools=tools, **more)


async def run(desk: Runtime, prompt: str, **options: Any) -> Task:
    task = await desk.tasks.submit(prompt, agent="it", **options)
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def read_events(desk: Runtime, task: Task) -> list[Event]:
    return list(await desk.store.read_events(0, EventFilter(task_id=task.id)))


async def test_a_turn_with_a_tool_gives_the_canonical_events(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake, add)}) as desk:
        task = await run(desk, '[[tool add {"a": 1, "b": 2}]] [[say done]]')
        assert (task.outcome, task.result) == ("ok", "The tool said: 3 done")
        events = [event for event in await read_events(desk, task) if not event.kind.startswith("task_")]
        assert [event.kind for event in events] == [
            "turn_start", "llm_request", "llm_response", "tool_exec_start", "tool_exec_end", "llm_request",
            "llm_response", "turn_end",
        ]  # fmt: skip
        assert {(event.turn_id, event.session_key, event.agent_id) for event in events} == {
            (f"{task.id}.1", task.session_key, "it")
        }
        assert [event.iteration for event in events] == [None, 1, 1, 1, 1, 2, 2, None]
        request, response, tool_start, tool_end = (event.payload for event in events[1:5])
        assert (request["model"], request["messages_count"], request["tools_count"]) == ("openai:fake", 1, 1)
        assert (response["tool_calls"], response["content_len"], response["finish_reason"]) == (1, 0, "tool_call")
        assert request["request_id"] == response["request_id"]
        assert response["usage"]["output_tokens"] == 1
        assert (tool_start["tool"], tool_start["arguments"]) == ("add", {"a": 1, "b": 2})
        assert tool_start["tool_call_id"] == tool_end["tool_call_id"]
        assert (tool_end["for_llm_len"], tool_end["is_error"], tool_end["async"]) == (1, False, False)
        assert (events[-1].payload["status"], events[-1].payload["iterations"]) == ("completed", 2)
        assert task.tokens_used == sum(
            sum(event.payload["usage"].values()) for event in events if event.kind == "llm_response"
        )


def has_message(desk: Runtime, task: Task) -> bool:
    """Return whether the message sent to the turn has reached it."""
    return bool(worker_of(desk).running[task.id].inbox.list())


def check_balance(events: list[Event]) -> None:
    """Check that every start has exactly one end."""
    for start, end, name in (
        ("turn_start", "turn_end", None),
        ("llm_request", "llm_response", "request_id"),
        ("tool_exec_start", "tool_exec_end", "tool_call_id"),
    ):
        opened = [(event.turn_id, event.payload.get(name)) for event in events if event.kind == start]
        assert sorted(opened) == sorted(
            (event.turn_id, event.payload.get(name)) for event in events if event.kind == end
        )


async def say(desk: Runtime, key: str, text: str) -> Task:
    task = await desk.sessions.send(key, text)
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def test_a_session_remembers_its_turns_except_cancelled_ones(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake, add)}) as desk:
        key = (await desk.sessions.create(agent="it"))[0].session.key
        assert (await say(desk, key, "I am Ada.")).result == "You said: I am Ada."
        held_task = await desk.sessions.send(key, '[[tool add {"a": 1, "b": 2}]] [[hold a]]')
        await fake[1].until(lambda seen: "a" in seen.held)
        await desk.sessions.interrupt(key)
        async with asyncio.timeout(60):
            ended_task = await desk.tasks.wait(held_task.id)
        assert ended_task.outcome == "cancelled"
        events = await read_events(desk, ended_task)
        check_balance(events)
        assert [event.payload["finish_reason"] for event in events if event.kind == "llm_response"][-1] == "cut_off"
        assert (await say(desk, key, "[[recall]]")).result == "You said: I am Ada."
    async with Runtime.open(home, agents={"it": agent(fake, add)}) as desk:
        assert (await say(desk, key, "[[recall]]")).result == "You said: I am Ada. | [[recall]]"


async def test_a_message_interrupts_the_running_turn_and_reaches_the_model_once(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake, add)}) as desk:
        key = (await desk.sessions.create(agent="it"))[0].session.key
        task = await desk.sessions.send(key, "[[hold a]]")
        await fake[1].until(lambda seen: "a" in seen.held)
        sent = await desk.sessions.say(key, "[[say instead]]", "interrupt")
        assert (sent.mode, sent.task.id) == ("interrupt", task.id)
        async with asyncio.timeout(60):
            assert (await desk.tasks.wait(task.id)).result == "instead"
        events = await read_events(desk, task)
        check_balance(events)
        kinds = [event.kind for event in events]
        assert kinds.count("interrupt_received") == kinds.count("steering_injected") == 1
        assert (await say(desk, key, "[[recall]]")).result == "You said: [[hold a]] | [[say instead]]"
        assert len(fake[1].requests) == 3


async def test_a_stopped_turn_ends_with_a_closing_answer(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake, add)}) as desk:
        key = (await desk.sessions.create(agent="it"))[0].session.key
        task = await desk.sessions.send(key, '[[hold a]] [[tool add {"a": 1, "b": 2}]] [[say never]]')
        await fake[1].until(lambda seen: "a" in seen.held)
        await desk.sessions.interrupt(key, "stop", hint="[[say closing]]")
        assert await eventually(lambda: has_message(desk, task))  # the agent is notified a moment after the write
        fake[1].release("a")
        async with asyncio.timeout(60):
            ended_task = await desk.tasks.wait(task.id)
        assert (ended_task.outcome, ended_task.result) == ("ok", "closing")
        events = await read_events(desk, task)
        check_balance(events)
        assert [event.kind for event in events].count("tool_exec_skipped") == 1
        assert fake[1].requests[-1]["tools"] == []
        assert [event.payload["status"] for event in events if event.kind == "turn_end"] == ["completed"]


async def test_a_task_waits_for_the_provider_limit_and_frees_its_slot(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake)}) as desk:
        task = await desk.tasks.submit("[[limit 3600 a]]", agent="it")
        async with asyncio.timeout(60):
            async for event in desk.bus.follow(0, EventFilter(task_id=task.id)):
                if event.kind == "task_waiting":
                    break
        assert event.payload["wait"] == "limit"
        check_balance(await read_events(desk, task))


async def test_a_turn_continues_after_a_clean_stop_and_after_a_temporary_failure(fake: Fake, home: Path) -> None:
    ran: list[int] = []

    def note(n: int) -> str:
        """Notes a number."""
        ran.append(n)
        return f"noted {n}"

    prompt = '[[tool note {"n": 1}]] [[hold a]] [[tool note {"n": 2}]] [[fail 500 1 b]] [[say the end]]'
    async with Runtime.open(home, agents={"it": agent(fake, note)}) as desk:
        task = await desk.tasks.submit(prompt, agent="it")
        await fake[1].until(lambda seen: "a" in seen.held)
    fake[1].release("a")
    async with Runtime.open(home, agents={"it": agent(fake, note, retries=0)}) as desk:
        async with asyncio.timeout(60):
            ended_task = await desk.tasks.wait(task.id)
        assert (ended_task.outcome, (ended_task.result or "").endswith("the end")) == ("ok", True)
        assert ran == [1, 2]
        assert len(fake[1].requests) == 5
        events = await read_events(desk, task)
        check_balance(events)
        assert [event.kind for event in events].count("turn_start") == 3


async def test_a_timeout_ends_a_turn_at_any_point(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake)}) as desk:
        task = await run(desk, "[[hold a]]", timeout=0.5)
        assert task.outcome == "timeout"
        check_balance(await read_events(desk, task))


async def test_a_configured_agent_works(fake: Fake, home: Path) -> None:
    home.mkdir()
    (home / "midwatch.toml").write_text(
        f'[agents.it]\nkind = "llm"\nmodel = "openai:fake"\nbase_url = "{fake[0]}/v1"\nsystem = "Be brief."\n'
    )
    async with Runtime.open(home) as desk:
        task = await run(desk, "Hello.")
        assert (task.result, task.usage and task.usage["input_tokens"] > 0) == ("You said: Hello.", True)
        assert fake[1].requests[0]["system"] == "Be brief."


async def test_a_spent_budget_ends_the_turn_and_a_larger_one_continues_it(fake: Fake, home: Path) -> None:
    ran: list[int] = []

    def note(n: int) -> str:
        """Notes a number."""
        ran.append(n)
        return f"noted {n}"

    calls = " ".join(f'[[tool note {{"n": {n}}}]]' for n in range(4))
    async with Runtime.open(home, agents={"it": agent(fake, note)}) as desk:
        task = await run(desk, f"{calls} [[say the end]]", budget={"steps": 3})
        assert (task.outcome, ran, len(fake[1].requests)) == ("budget", [0], 2)
        check_balance(await read_events(desk, task))
        again = await desk.tasks.retry(task.id, budget={"steps": 100})
        async with asyncio.timeout(60):
            ended_task = await desk.tasks.wait(again.id)
        assert (ended_task.outcome, (ended_task.result or "").endswith("the end")) == ("ok", True)
        assert (ran, len(fake[1].requests)) == ([0, 1, 2, 3], 5)

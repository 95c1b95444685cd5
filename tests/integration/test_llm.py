"""Kind llm on a real desk: its events, its history, what people send into a turn, and what is left after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import Model, serve
from midwatch import Runtime, Task
from midwatch.agents.llm import LlmAgent
from midwatch.event import Event, EventFilter

Fake = tuple[str, Model]


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """A model, and where it is."""
    async with serve() as found:
        yield found


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def agent(fake: Fake, *tools: Any, **more: Any) -> LlmAgent:
    return LlmAgent("it", "openai:fake", base_url=f"{fake[0]}/v1", tools=tools, **more)


async def run(desk: Runtime, prompt: str, **wish: Any) -> Task:
    task = await desk.tasks.submit(prompt, agent="it", **wish)
    async with asyncio.timeout(30):
        return await desk.tasks.wait(task.id)


async def told(desk: Runtime, task: Task) -> list[Event]:
    return list(await desk.store.read_events(0, EventFilter(task_id=task.id)))


async def test_a_turn_with_a_tool_gives_the_canonical_events(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake, add)}) as desk:
        task = await run(desk, '[[tool add {"a": 1, "b": 2}]] [[say done]]')
        assert (task.outcome, task.result) == ("ok", "The tool said: 3 done")
        events = [one for one in await told(desk, task) if not one.kind.startswith("task_")]
        assert [one.kind for one in events] == [
            "turn_start", "llm_request", "llm_response", "tool_exec_start", "tool_exec_end", "llm_request",
            "llm_response", "turn_end",
        ]  # fmt: skip
        assert {(one.turn_id, one.session_key, one.agent_id) for one in events} == {
            (f"{task.id}.1", task.session_key, "it")
        }
        assert [one.iteration for one in events] == [None, 1, 1, 1, 1, 2, 2, None]
        asked, answered, began, ended = (one.payload for one in events[1:5])
        assert (asked["model"], asked["messages_count"], asked["tools_count"]) == ("openai:fake", 1, 1)
        assert (answered["tool_calls"], answered["content_len"], answered["finish_reason"]) == (1, 0, "tool_call")
        assert asked["request_id"] == answered["request_id"]
        assert answered["usage"]["output_tokens"] == 1
        assert (began["tool"], began["arguments"]) == ("add", {"a": 1, "b": 2})
        assert began["tool_call_id"] == ended["tool_call_id"]
        assert (ended["for_llm_len"], ended["is_error"], ended["async"]) == (1, False, False)
        assert (events[-1].payload["status"], events[-1].payload["iterations"]) == ("completed", 2)
        assert task.tokens_used == sum(
            sum(one.payload["usage"].values()) for one in events if one.kind == "llm_response"
        )

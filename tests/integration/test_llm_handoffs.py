"""Test models that hand off work: agents that take over and agents that are asked, and the history each sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fakes.model_server import Model, serve
from midwatch import Runtime, Task
from midwatch.agents.function import FunctionAgent
from midwatch.agents.llm.handoff_tools import HandoffTo
from midwatch.agents.llm.kind import LlmAgent
from midwatch.base.errors import BadConfig, HandoffError
from midwatch.domain.handoff import HandoffFilter
from midwatch.domain.handoff_history import HandoffInputData
from midwatch.testing import RecordingTurn

Fake = tuple[str, Model]
MOVE = "[[tool transfer_to_expert {}]]"


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Yield a fake model and its address."""
    async with serve() as url_and_model:
        yield url_and_model


def llm(fake: Fake, name: str, **more: Any) -> LlmAgent:
    return LlmAgent(name, "openai:fake", base_url=f"{fake[0]}/v1", **more)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def upper(prompt: str) -> str:
    return prompt.upper()


def asks(data: HandoffInputData) -> HandoffInputData:
    """Return the question for the expert; otherwise the script in the prompt would run again in the expert's model."""
    work = tuple({**message, "content": "[[recall]]"} for message in data.new_messages)
    return replace(data, new_messages=work)


async def run_task(desk: Runtime, prompt: str, **options: Any) -> Task:
    task = await desk.tasks.submit(prompt, agent="it", **options)
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def test_a_transfer_moves_the_conversation_to_another_model(fake: Fake, home: Path) -> None:
    to = HandoffTo(agent="expert", input_filter=asks)
    agents = {
        "it": llm(fake, "it", system="You are the desk.", handoffs=[to], tools=[add]),
        "expert": llm(fake, "expert", system="You are the expert."),
    }
    async with Runtime.open(home, agents=agents) as desk:
        key = (await desk.sessions.create(agent="it"))[0].session.key
        first = await desk.sessions.send(key, "I am Ada.")
        await asyncio.wait_for(desk.tasks.wait(first.id), 60)
        task = await desk.sessions.send(key, f'[[also add {{"a": 1, "b": 2}}]]{MOVE}')
        after = await asyncio.wait_for(desk.tasks.wait(task.id), 60)
        assert (after.agent, after.outcome, after.session_key) == ("expert", "ok", key)
        assert after.result == "You said: I am Ada."
        request = fake[1].requests[-1]
        assert (request["system"], request["said"]) == ("You are the expert.", ["I am Ada.", "[[recall]]"])
        source = await desk.tasks.get(task.id)
        assert (source.outcome, source.transferred_to) == ("transferred", after.id)
        (handoff,) = await desk.handoffs.list()
        before = handoff.surroundings.messages
        assert [message["role"] for message in before] == ["user", "assistant", "assistant", "tool"]
        assert (before[2]["tool_calls"][0]["name"], before[3]["content"]) == ("add", "3")
        assert (handoff.form, handoff.status, handoff.tool_name) == ("transfer", "completed", "transfer_to_expert")
        again = await desk.sessions.send(key, "[[recall]]")  # the expert has the conversation now
        last = await asyncio.wait_for(desk.tasks.wait(again.id), 60)
        assert (last.agent, last.result) == ("expert", "You said: I am Ada. | [[recall]]")
        texts = [message.text for message in await desk.sessions.messages(key) if message.role == "user"]
        assert texts == ["I am Ada.", task.prompt, "[[recall]]"]
        steps = json.dumps([step.data for step in await desk.store.list_task_steps(task.id)])
        assert '{\\"assistant\\":\\"expert\\"}' in steps  # every call has a result


async def test_the_first_transfer_wins_and_invalid_arguments_are_returned(fake: Fake, home: Path) -> None:
    class Case(BaseModel):
        number: int

    agents = {
        "it": llm(fake, "it", handoffs=[HandoffTo(agent="expert", input=Case, tool="escalate"), "other"]),
        "expert": FunctionAgent("expert", upper, on_loop=True),
        "other": FunctionAgent("other", upper, on_loop=True),
    }
    async with Runtime.open(home, agents=agents) as desk:
        task = await run_task(desk, '[[also transfer_to_other {}]][[tool escalate {"number": 1}]]')
        assert task.agent == "other"
        source = await desk.tasks.get(task.parent_id or "")
        skipped = [event for event in await desk.store.read_events(0) if event.kind == "tool_exec_skipped"]
        assert [(event.task_id, event.payload["reason"]) for event in skipped] == [
            (source.id, "The work was already transferred to another agent.")
        ]
        wrong = await run_task(desk, '[[tool escalate {"number": "many"}]]')
        assert (wrong.agent, wrong.outcome) == ("it", "ok")
        assert "The argument object does not have the required form" in (wrong.result or "")
        right = await run_task(desk, '[[tool escalate {"number": 7}]]')
        assert right.agent == "expert" and '"NUMBER": 7' in (right.result or "")
        assert len(await desk.handoffs.list(HandoffFilter(limit=10))) == 2


async def test_a_delegation_returns_as_a_tool_result_or_error(fake: Fake, home: Path) -> None:
    async def broken(prompt: str) -> str:
        raise RuntimeError("it broke")

    agents = {
        "it": llm(fake, "it", delegates=["upper", "broken"]),
        "upper": FunctionAgent("upper", upper, on_loop=True),
        "broken": FunctionAgent("broken", broken, on_loop=True),
    }
    async with Runtime.open(home, agents=agents) as desk:
        done = await run_task(desk, '[[tool delegate_to_upper {"task": "loud"}]]')
        assert done.result == "The tool said: LOUD"
        failed = await run_task(desk, '[[tool delegate_to_broken {"task": "x"}]]')
        assert failed.outcome == "ok" and "it broke" in (failed.result or "")
        statuses = [(handoff.to_agent, handoff.status) for handoff in await desk.handoffs.list()]
        assert statuses == [("broken", "failed"), ("upper", "completed")]


async def test_forbidden_targets_are_not_offered(fake: Fake, home: Path) -> None:
    agents = {
        "it": llm(fake, "it", handoffs=["expert"]),
        "expert": FunctionAgent("expert", upper, on_loop=True, description="It knows."),
    }
    async with Runtime.open(home, agents=agents) as desk:
        await run_task(desk, "hello")
        assert fake[1].requests[-1]["tools"] == ["transfer_to_expert"]
        desk.handoffs.enable("expert", False)
        await run_task(desk, "hello")
        assert not fake[1].requests[-1].get("tools")


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"handoffs": ["it"]}, "cannot hand work to itself"),
        ({"handoffs": ["a", {"agent": "b", "tool": "transfer_to_a"}]}, "two tools are named 'transfer_to_a'"),
        ({"handoffs": [{"agent": "a", "tool": "add"}], "tools": [add]}, "two tools are named 'add'"),
        ({"delegates": [{"agent": "a", "tool": "no name!"}]}, "is no valid name for a tool"),
        ({"delegates": [{"agent": "a", "input": {"type": "string"}}]}, "schema of an object"),
        ({"handoffs": [{"agnt": "a"}]}, "handoffs"),
    ],
)
def test_conflicting_names_are_an_error_at_startup(wish: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        LlmAgent("it", "openai:fake", **wish)


async def test_an_attempt_interrupted_after_the_transfer_repeats_it_without_the_model(fake: Fake) -> None:
    agent = llm(fake, "it", handoffs=["expert"])
    first = RecordingTurn(MOVE)
    turn_result = await (await agent.open(first.session("it"))).turn(first)
    assert (turn_result.outcome, turn_result.transfer is not None) == ("transferred", True)
    request_count = len(fake[1].requests)
    second = RecordingTurn(MOVE, task_id=first.task_id, attempt=2, steps=first.steps, thread_id=first.thread_id)
    again = await (await agent.open(second.session("it"))).turn(second)
    assert again.transfer is not None and len(fake[1].requests) == request_count
    assert first.transferred[0][2]["once"] == second.transferred[0][2]["once"]
    refused = RecordingTurn(MOVE, replies=[HandoffError("no"), "x"])
    after = await (await agent.open(refused.session("it"))).turn(refused)
    assert (after.outcome, after.text) == ("ok", 'The tool said: {"error":"no"}')

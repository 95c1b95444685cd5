"""Test handoffs whose source task ends first or is lost with its process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.function import FunctionAgent
from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict
from midwatch.desk.config import Settings
from midwatch.domain.agent import AgentTerms, Turn, TurnResult
from midwatch.domain.event import EventFilter
from midwatch.domain.handoff import Handoff
from midwatch.runtime.runtime import Runtime

FRAGILE = AgentTerms(on_crash="fail", slots=8)
DIES = """
import asyncio, os, signal, sys
sys.path.insert(0, {tests!r})
from midwatch.desk.config import Settings
from midwatch.runtime.runtime import Runtime
from integration.test_handoff_ends import crew

async def main():
    async def target(prompt):
        begun.append(prompt)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()

    begun = []
    async with Runtime.open(settings=Settings(home={home!r}, detect_agents=False), agents=crew(target)) as desk:
        await desk.tasks.submit("go", agent="lead")
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def lead(prompt: str, turn: Turn) -> str:
    """Delegate one task to any capable agent without waiting, and wait for another."""
    await turn.delegate("target", "for others", wait=False)
    return str((await turn.delegate("target", "for me")).output)


def crew(target: Any) -> dict[str, Any]:
    return {
        "lead": FunctionAgent("lead", lead, on_loop=True, terms=FRAGILE),
        "target": FunctionAgent("target", target, on_loop=True),
    }


async def list_handoffs(desk: Runtime) -> dict[str, Handoff]:
    return {handoff.work.description: handoff for handoff in await desk.handoffs.list()}


async def test_delegations_of_a_lost_task_are_cancelled_and_others_continue(tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = DIES.format(tests=str(Path(__file__).parents[1]), home=str(home))
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        assert await asyncio.wait_for(child.wait(), 60) == -9
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()

    async def target(prompt: str) -> str:
        return f"did it: {prompt}"

    async with Runtime.open(settings=Settings(home=home, detect_agents=False), agents=crew(target)) as desk:
        handoffs = await list_handoffs(desk)
        source = await desk.tasks.wait(handoffs["for me"].source_task or "")
        assert (source.status, source.outcome) == ("failed", "lost")
        mine = await desk.handoffs.get(handoffs["for me"].id)
        assert (mine.status, mine.reason) == ("cancelled", "the task that waited for it has ended")
        assert (await asyncio.wait_for(desk.tasks.wait(mine.task_id or ""), 30)).status == "cancelled"
        other_handoff = await asyncio.wait_for(desk.handoffs.wait(handoffs["for others"].id), 30)
        assert other_handoff.output == "did it: for others"


# -- transferred work ----------------------------------------------------------------------------------------------


class TransferringAgents:
    """An agent that transfers its work, and the agent that gets it."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def first(self, prompt: str, turn: Turn) -> TurnResult:
        return TurnResult(outcome="transferred", transfer=await turn.transfer("second"))

    async def second(self, prompt: str, turn: Turn) -> TurnResult:
        return TurnResult(outcome="transferred", transfer=await turn.transfer("last"))

    async def last(self, prompt: str) -> str:
        self.begun.set()
        await self.go.wait()
        return f"did {prompt}"


@pytest.fixture
def passing() -> TransferringAgents:
    return TransferringAgents()


@pytest.fixture
async def desk(tmp_path: Path, passing: TransferringAgents) -> AsyncIterator[Runtime]:
    agents = {name: FunctionAgent(name, getattr(passing, name), on_loop=True) for name in ("first", "second", "last")}
    settings = Settings(home=tmp_path / "home", detect_agents=False, shutdown_grace=0.0)
    async with Runtime.open(settings=settings, agents=agents) as desk:
        yield desk


async def test_a_transferred_run_is_open_until_its_task_ends(desk: Runtime, passing: TransferringAgents) -> None:
    automation = await desk.automations.create("work", agent="first", every="1h", fresh=True)
    await desk.automations.run(automation.id)
    await asyncio.wait_for(passing.begun.wait(), 30)
    (run,) = await desk.automations.history(automation.id)
    assert (run.status, run.outcome) == ("done", "transferred")
    now = await desk.automations.open_run(automation.id)
    assert now is not None and (now.agent, now.root_id) == ("last", run.id)
    with pytest.raises(Conflict, match=now.id):
        await desk.automations.run(automation.id)
    await desk.automations.patch(automation.id, {"next_run_at": desk.clock.now() + SECOND // 10})
    async with asyncio.timeout(30):
        async for event in desk.bus.follow(0, EventFilter(kinds=("automation_missed",))):
            assert event.payload["reason"] == "overlap"
            break
    assert len(await desk.automations.history(automation.id)) == 1
    await desk.automations.pause(automation.id)
    passing.go.set()
    assert (await asyncio.wait_for(desk.tasks.wait(run.id), 30)).result == "did work"
    assert await desk.automations.open_run(automation.id) is None
    after = await desk.automations.get(automation.id)
    assert (after.last_result or "").startswith("ok: ") and after.run_count == 1


async def test_a_transferred_run_is_stopped_when_the_automation_is_deleted(
    desk: Runtime, passing: TransferringAgents
) -> None:
    automation = await desk.automations.create("work", agent="first", every="1h", fresh=True)
    run = await desk.automations.run(automation.id)
    await asyncio.wait_for(passing.begun.wait(), 30)
    await desk.automations.delete(automation.id)
    assert (await asyncio.wait_for(desk.tasks.wait(run.id), 30)).status == "cancelled"
    assert [handoff.status for handoff in await desk.handoffs.list()] == ["cancelled", "cancelled"]
    after = await desk.automations.get(automation.id)
    assert (after.status, after.run_count) == ("deleted", 1)


async def test_a_transferred_step_is_stopped_with_the_goal(desk: Runtime, passing: TransferringAgents) -> None:
    goal = await desk.goals.create("work", agent="first")
    await asyncio.wait_for(passing.begun.wait(), 30)
    step = await desk.store.find_open_step(goal.id)
    assert step is not None and step.agent == "last"
    assert [task.cause for task in await desk.tasks.list()] == [
        "handoff",
        "handoff",
        "goal",
    ]  # no other step was started
    await desk.goals.pause(goal.id, stop=True)
    assert (await asyncio.wait_for(desk.tasks.wait(step.id), 30)).status == "cancelled"
    assert (await desk.goals.get(goal.id)).status == "paused"
    assert [handoff.status for handoff in await desk.handoffs.list()] == ["cancelled", "cancelled"]

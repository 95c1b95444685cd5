"""Test a crash of a goal's process before and after every write: the next process continues and nothing is lost or
doubled.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from crashing import crash_at_every_write, list_crash_cases, run_crashes
from midwatch import Runtime, Settings
from midwatch.base.clock import LONGEST_NAP, SECOND
from midwatch.base.errors import AgentError
from midwatch.domain.agent import Turn
from midwatch.domain.goal_step import MOST_ERRORS
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, ScriptedAgent

START = 1_767_225_600 * SECOND
TIME = "time"
STEPS = 3
SCENARIOS: dict[str, dict[str, Any]] = {
    "steps": {},
    "verified": {"verifier": "judge"},
    "errors": {},
    "budget": {"max_steps": 2},
}
ENDS = {"steps": "complete", "verified": "complete", "errors": "paused", "budget": "paused"}


async def run_scenario(home: Path, name: str) -> None:
    """Run the whole scenario from its present state to its end."""
    clock = FakeClock(int((home / TIME).read_text()) if (home / TIME).exists() else START)
    desk: Runtime

    async def work(turn: Turn) -> str:
        if name == "errors":
            raise AgentError("no luck")
        goal_id = turn.env["MIDWATCH_GOAL"]
        step = (await desk.goals.get(goal_id)).step
        if step >= STEPS and name != "budget":
            await desk.goals.complete(goal_id, evidence="it is there", in_step=turn.task_id)
        return f"step {step}"

    async def judge(turn: Turn) -> str:
        return "REACHED"

    settings = Settings.load(home, shutdown_grace=0, detect_agents=False)
    agents: dict[str, Any] = {"it": ScriptedAgent(work, name="it"), "judge": ScriptedAgent(judge, name="judge")}
    async with Runtime.open(settings=settings, agents=agents, clock=clock) as opened:
        desk = opened
        goals = await desk.goals.list("all")
        goal = (
            goals[0] if goals else await desk.goals.create("reach it", agent="it", route="console", **SCENARIOS[name])
        )
        async with asyncio.timeout(60):
            while (goal := await desk.goals.get(goal.id)).status == "active":
                await clock.advance(0)
                if goal.next_run_at is not None and goal.next_run_at > clock.now():
                    (home / TIME).write_text(str(goal.next_run_at))
                    clock.set(goal.next_run_at - int(LONGEST_NAP * SECOND))
                    await clock.advance(LONGEST_NAP)
                await asyncio.sleep(0.001)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "when"), list_crash_cases(SCENARIOS))
async def test_a_crash_at_any_write_of_a_goal_loses_and_doubles_nothing(tmp_path: Path, name: str, when: str) -> None:
    for crash_at in await run_crashes(__file__, str(tmp_path), name, when):
        await check_outcome(tmp_path / str(crash_at), name)


async def check_outcome(home: Path, name: str) -> None:
    """Check the data that a crashed process and its successor left."""
    store = await SqliteStore.open(home / "midwatch.db")
    try:
        (goal,) = await store.list_goals()
        steps = await store.list_goal_steps(goal.id, 100)
        kinds = Counter(event.kind for event in await store.read_events(0, limit=2000))
        notices = Counter(delivery.notice.partition(":")[0] for delivery in await store.list_deliveries(limit=500))
    finally:
        await store.close()
    assert goal.status == ENDS[name]
    assert not any(step.open for step in steps)
    assert kinds["goal_step"] == len(steps) == len({step.internal_key for step in steps})
    assert kinds["task_finished"] == kinds["task_submitted"] == len(steps)
    assert kinds["goal_completed"] == notices["goal_completed"] == int(ENDS[name] == "complete")
    assert kinds["goal_paused"] == notices["goal_paused"] == int(ENDS[name] == "paused")
    expected = {"steps": STEPS, "verified": STEPS + 1, "errors": MOST_ERRORS, "budget": 2}
    lost = sum(step.outcome == "lost" for step in steps)
    assert len(steps) - lost == expected[name]


if __name__ == "__main__":
    crash_at_every_write(run_scenario, Path(sys.argv[1]), sys.argv[2], sys.argv[3])

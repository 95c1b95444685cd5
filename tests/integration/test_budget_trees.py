"""Test random trees of delegates, transfers, parallel children and crashes: they never exceed the limit of the root.

`tests/chaos/test_budget.py` kills real processes that work on such trees, on both stores.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budget_desk import CALL, TERMS, end_call, start_call, work
from internals import simulate_crash
from midwatch import Runtime, Settings, Task, Turn, TurnResult
from midwatch.agents.function import FunctionAgent
from midwatch.domain.event import EventFilter

NODES = st.recursive(
    st.fixed_dictionaries({"calls": st.integers(0, 4)}),
    lambda child: st.fixed_dictionaries(
        {"calls": st.integers(0, 3)},
        optional={"parallel": st.lists(child, min_size=1, max_size=3), "transfer": child},
    ),
    max_leaves=6,
)
LIMITS = st.fixed_dictionaries({}, optional={"steps": st.integers(1, 12), "tokens": st.integers(1, 12 * CALL)})


class Tree:
    """Agents that work on a tree: how many calls they make at once, and when their process dies."""

    def __init__(self, dies_at: int | None) -> None:
        self.calls = 0
        self.running = 0
        self.most_running = 0
        self.died = asyncio.Event()
        self._dies_at = dies_at

    async def work(self, prompt: str, turn: Turn) -> TurnResult:
        """Work on a node of the tree."""
        return await work(turn, self._call)

    async def _call(self, turn: Turn) -> None:
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        name = f"{turn.task_id}.{turn.attempt}.{self.calls}"
        await start_call(turn, name)
        if self.calls == self._dies_at:
            self.died.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self.running -= 1
        await end_call(turn, name)


async def grow(tree: dict[str, Any], limits: dict[str, int], dies_at: int | None, db: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        task: Task | None = None
        spender = Tree(dies_at)
        for _ in range(2):
            agents = {name: FunctionAgent(name, spender.work, on_loop=True, terms=TERMS) for name in ("a", "b")}
            chosen = Settings(home=Path(folder), slots=16, detect_agents=False, db=db, shutdown_grace=0.0)
            async with Runtime.open(settings=chosen, agents=agents) as desk:
                if task is None:
                    wish: Any = {"agent": "a", "budget": limits or {"steps": 1000}, "on_crash": "rerun"}
                    task = await desk.tasks.submit(json.dumps(tree), **wish)
                ended = asyncio.create_task(desk.tasks.wait(task.id))
                died = asyncio.create_task(spender.died.wait())
                async with asyncio.timeout(60):
                    await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
                died.cancel()
                if ended.done():
                    await check(desk, task, limits, spender)
                    return
                ended.cancel()
                simulate_crash(desk)
            flight, spender = spender.most_running, Tree(None)
            spender.most_running = flight


async def check(desk: Runtime, task: Task, limits: dict[str, int], spender: Tree) -> None:
    """Check that the account is within its limits, except for calls in flight, and equal to the log."""
    (account,) = await desk.store.read_accounts([task.id])
    if "steps" in limits:
        assert account.steps <= limits["steps"]
    if "tokens" in limits:
        assert account.tokens < limits["tokens"] + max(1, spender.most_running) * CALL
    logged = 0
    for member in await desk.store.list_account_tasks(task.id):
        answers = await desk.store.read_events(0, EventFilter(kinds=("llm_response",), task_id=member.id))
        logged += sum((answer.payload["usage"] or {}).get("input_tokens", 0) for answer in answers)
    assert account.tokens == logged


SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@settings(max_examples=25, **SETTINGS)
@given(tree=NODES, limits=LIMITS, dies_at=st.none() | st.integers(1, 6))
def test_random_trees_hold_the_limit(tree: dict[str, Any], limits: dict[str, int], dies_at: int | None) -> None:
    asyncio.run(grow(tree, limits, dies_at, None))


@pytest.mark.slow
@settings(max_examples=8, **SETTINGS)
@given(tree=NODES, limits=LIMITS)
def test_random_trees_hold_the_limit_on_postgres(database: str, tree: dict[str, Any], limits: dict[str, int]) -> None:
    asyncio.run(grow(tree, limits, None, database))

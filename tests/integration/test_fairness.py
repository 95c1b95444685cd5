"""Test that actors share the slots of a real desk: five hundred tasks of one actor do not delay the one task of
another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midwatch import Runtime, Settings, Task, Turn
from midwatch.base.clock import SystemClock
from midwatch.base.errors import LimitReached
from midwatch.domain.agent import AgentTerms
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.task import end
from midwatch.engines import jobs
from midwatch.running.slots import Slots
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import ScriptedAgent
from records import put

LONG = 20.0
AGENTS = ("x", "y")


class ControlledAgent:
    """An agent that records the order of its turns and ends them on request."""

    def __init__(self, slots: int) -> None:
        self.began: asyncio.Queue[Turn] = asyncio.Queue()
        self._ends: dict[str, asyncio.Event] = {}
        self.agent = ScriptedAgent(
            self._play, name="stage", terms=AgentTerms(timeout_seconds=None, on_crash="rerun", slots=slots)
        )

    async def _play(self, turn: Turn) -> str:
        over = self._ends[turn.prompt] = asyncio.Event()
        self.began.put_nowait(turn)
        await over.wait()
        return "done"

    async def next(self) -> str:
        """Return the prompt of the next turn that starts."""
        async with asyncio.timeout(LONG):
            return (await self.began.get()).prompt

    def finish(self, prompt: str) -> None:
        self._ends[prompt].set()


@asynccontextmanager
async def desk_with(home: Path, controlled: ControlledAgent, **options: Any) -> AsyncIterator[Runtime]:
    chosen = Settings.load(home, shutdown_grace=0, detect_agents=False, **options)
    async with Runtime.open(home, agents={"stage": controlled.agent}, settings=chosen) as desk:
        yield desk


async def submit(desk: Runtime, actor: str, count: int, **options: Any) -> list[Task]:
    each = (desk.tasks.submit(f"{actor}{n}", agent="stage", actor=actor, **options) for n in range(count))
    return list(await asyncio.gather(*each))


@pytest.mark.parametrize(("of_process", "of_agent"), [(4, 4), (64, 4), (4, 64), (1, 1), (1, 64), (64, 1)])
async def test_a_single_task_runs_next_although_another_actor_has_five_hundred(
    home: Path, of_process: int, of_agent: int
) -> None:
    slots, controlled = min(of_process, of_agent), ControlledAgent(of_agent)
    async with desk_with(home, controlled, slots=of_process) as desk:
        await submit(desk, "ann", 500)
        running = [await controlled.next() for _ in range(slots)]  # alone, ann may use every slot
        assert controlled.began.empty()
        (task,) = await submit(desk, "bob", 1)
        controlled.finish(running.pop(0))
        assert await controlled.next() == "bob0"
        controlled.finish("bob0")
        async with asyncio.timeout(LONG):
            assert (await desk.tasks.wait(task.id)).status == "done"
        assert (await controlled.next()).startswith("ann")  # his slot does not stay free


async def test_a_single_task_runs_next_in_a_cluster_too(home: Path, database: str) -> None:
    await jobs.prepare(database)
    controlled = ControlledAgent(2)
    async with desk_with(home, controlled, slots=2, db=database) as desk:
        await submit(desk, "ann", 50)
        running = [await controlled.next() for _ in range(2)]
        await submit(desk, "bob", 1)
        controlled.finish(running.pop(0))
        assert await controlled.next() == "bob0"
        controlled.finish("bob0")
        assert (await controlled.next()).startswith("ann")


async def test_busy_actors_alternate_and_a_third_is_served_in_between(home: Path) -> None:
    controlled, order = ControlledAgent(1), ""
    async with desk_with(home, controlled, slots=1) as desk:
        await submit(desk, "ann", 20)
        await submit(desk, "bob", 20)
        for number in range(8):
            prompt = await controlled.next()
            order += prompt[0]
            if number == 3:
                await submit(desk, "cat", 1)
            controlled.finish(prompt)
    assert order == "ababcaba" or order == "ababcbab"


async def test_an_actor_never_exceeds_its_running_limit(home: Path) -> None:
    controlled = ControlledAgent(8)
    async with desk_with(home, controlled, slots=8, max_running_per_actor=2) as desk:
        await submit(desk, "ann", 20)
        first = [await controlled.next() for _ in range(2)]
        await submit(desk, "bob", 1)
        assert await controlled.next() == "bob0"  # six slots were free and ann used none of them
        assert controlled.began.empty()
        controlled.finish(first[0])
        assert (await controlled.next()).startswith("ann")
        assert controlled.began.empty()


async def test_an_actor_never_exceeds_its_open_limit_except_for_retries(home: Path) -> None:
    controlled = ControlledAgent(1)
    async with desk_with(home, controlled, slots=1, max_open_per_actor=2) as desk:
        first, second = await submit(desk, "ann", 2)
        with pytest.raises(LimitReached, match="2 tasks of ann"):
            await submit(desk, "ann", 1)
        await submit(desk, "bob", 1)
        await submit(desk, "ann", 1, cause="automation")
        await desk.tasks.cancel(second.id)
        await submit(desk, "ann", 1)
        again = await desk.tasks.retry(second.id)
        assert (again.creator, again.retry_of) == ("ann", second.id)
        assert first.creator == "ann"


# -- any combination of actors and limits ------------------------------------------------------------------------


class Model:
    """A store, the slots of one process, and the work of an engine with both; the test ends the turns."""

    def __init__(self, store: SqliteStore, total: int, per_agent: dict[str, int], most: int | None) -> None:
        self.store = store
        self.slots = Slots(total, per_agent, most)
        self.limits = (total, per_agent, most)
        self.pending: list[Task] = []
        self.running: list[Task] = []
        self.overtaken: dict[str, Counter[str]] = {}
        """For each waiting actor without a slot: how many slots others got since."""

    async def submit(self, actor: str, agent: str, session: str) -> None:
        named = {"session_key": session} if session else {}
        self.pending.append(await put(self.store, creator=actor, agent=agent, **named))

    async def finish(self, number: int) -> None:
        if self.running:
            task = self.running.pop(number % len(self.running))
            await self.store.apply(end(task, SystemClock().now(), outcome="ok", result="")[1])
            self.slots.give(task.agent, task.actor)

    async def claim(self) -> None:
        free = self.slots.free()
        request = ClaimRequest("i_one", "here", free, self.slots.free_by_agent(), shares=self.slots.shares(free))
        tasks = [claim.task for claim in (await self.store.claim(request, SystemClock().now())).taken]
        for task in tasks:
            self.slots.take(task.agent, task.actor)
            self.running.append(task)
        task_ids = {task.id for task in tasks}
        self.pending = [task for task in self.pending if task.id not in task_ids]
        self.check(tasks)

    def check(self, tasks: list[Task]) -> None:
        total, per_agent, most = self.limits
        assert len(self.running) <= total
        agents, actors = Counter(t.agent for t in self.running), Counter(t.actor for t in self.running)
        assert all(agents[agent] <= per_agent[agent] for agent in agents)
        assert most is None or all(count <= most for count in actors.values())
        gates = {task.gate_key for task in self.running}
        assert len(gates) == len(self.running)
        able = [
            task
            for task in self.pending
            if task.gate_key not in gates and agents[task.agent] < per_agent[task.agent]
            if most is None or actors[task.actor] < most
        ]
        assert not able or len(self.running) == total, "a slot is empty and somebody could use it"
        if len(per_agent) == 1 and not any(t.session_key.startswith("chat:") for t in self.pending):
            self._count(tasks, actors)

    def _count(self, tasks: list[Task], actors: Counter[str]) -> None:
        """Check that each other actor gets at most one slot before a waiting actor that has none."""
        waiting = {task.actor for task in self.pending if not actors[task.actor]}
        before, self.overtaken = self.overtaken, {}
        for actor in waiting:
            since = before.get(actor, Counter())
            since.update(task.actor for task in tasks)
            assert all(count <= 1 for count in since.values()), f"{actor} was passed by {since}"
            self.overtaken[actor] = since


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from("abcd"), st.integers(0, 1), st.integers(1, 6)),
        st.tuples(st.just("talk"), st.sampled_from("abcd"), st.integers(0, 1), st.integers(1, 2)),
        st.tuples(st.just("finish"), st.lists(st.integers(0, 99), min_size=1, max_size=4)),
    ),
    max_size=40,
)


@given(
    total=st.integers(1, 6),
    per_agent=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    most=st.one_of(st.none(), st.integers(1, 3)),
    talks=st.booleans(),
    steps=STEPS,
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_limits_hold_no_slot_is_idle_and_no_actor_is_skipped_twice(
    total: int, per_agent: list[int], most: int | None, talks: bool, steps: list[tuple[Any, ...]]
) -> None:
    limits = dict(zip(AGENTS, per_agent, strict=False))

    async def play() -> None:
        store = await SqliteStore.open(":memory:")
        try:
            desk = Model(store, total, limits, most)
            for step in steps:
                if step[0] == "finish":
                    for number in step[1]:
                        await desk.finish(number)
                else:
                    _, actor, agent, count = step
                    for number in range(count):
                        session = f"chat:{number}" if step[0] == "talk" and talks else ""
                        await desk.submit(actor, AGENTS[agent % len(limits)], session)
                await desk.claim()
            for _ in range(len(desk.pending) + len(desk.running)):
                await desk.finish(0)
                await desk.claim()
            assert not desk.pending and not desk.running
        finally:
            await store.close()

    asyncio.run(play())

"""Test the pruner: old and surplus data is removed, and open data is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from midwatch.domain.changes import Changes
from midwatch.domain.event import Pruned
from midwatch.domain.store import Store
from midwatch.domain.task import end
from midwatch.domain.task_store import TaskFilter
from midwatch.loops.pruner import FIRST_PRUNE_SECONDS, PRUNE_SECONDS, Pruner, Retention
from midwatch.stores.sqlite import SqliteStore
from midwatch.stores.verbs import event
from midwatch.testing import FakeClock, settle
from records import fence, progress, put, submit_and_claim


@pytest.fixture
async def store() -> AsyncIterator[Any]:
    """Yield an empty store."""
    opened = await SqliteStore.open(":memory:")
    yield opened
    await opened.close()


class SmallStepStore(SqliteStore):
    """A store that looks at only a few events in one transaction."""

    async def prune_events(self, before: int, keep: int, after: int = 0) -> Pruned:
        return await self.write(event.prune, before, keep, after, 0.0)


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallStepStore]:
    """Yield an empty store that prunes in many steps of three events."""
    monkeypatch.setattr(event, "PRUNE_PAGE", 3)
    opened = SmallStepStore(":memory:")
    yield opened
    await opened.close()


def pruner(store: Any, clock: FakeClock, *, tasks: int = 100, events: int = 1000) -> Pruner:
    """Return a pruner of a leading process that keeps data for very long."""
    return Pruner(store, clock, lambda: True, Retention(tasks, 1e6, events, 1e6), pause_factor=0)


async def end_tasks(store: Any, clock: FakeClock, count: int) -> None:
    """Store tasks that ended successfully."""
    for _ in range(count):
        task = await submit_and_claim(store)
        await store.apply(end(task, clock.now(), outcome="ok", result="")[1])


async def pass_time(store: Store, clock: FakeClock, seconds: float) -> None:
    """Advance the clock; the store's thread answers before and after."""
    for step in (0.0, seconds):
        await clock.advance(step)
        for _ in range(20):
            await settle()
            await store.count_tasks()


async def test_pruning_ends_and_keeps_recent_data(store: Any, clock: FakeClock) -> None:
    await end_tasks(store, clock, 30)
    waiting = await put(store)
    few = pruner(store, clock, tasks=10, events=40)
    async with asyncio.timeout(60):
        assert await few.prune() == (20, 91 - 40)
        assert await few.prune() == (0, 0)
    assert (await store.count_tasks()).total == 11
    assert (await store.get_task(waiting.id)).status == "pending"
    async with asyncio.timeout(60):
        await pruner(store, clock, tasks=0, events=0).prune()
    assert [task.id for task in await store.list_tasks(TaskFilter())] == [waiting.id]
    assert {event.task_id for event in await store.read_events(0)} == {waiting.id}


async def test_pruning_in_many_steps_ends_too(small: SmallStepStore, clock: FakeClock) -> None:
    await end_tasks(small, clock, 20)
    async with asyncio.timeout(60):
        assert await pruner(small, clock, events=0).prune() == (0, 60)
    assert (await small.read_log_bounds()).oldest_seq == 61


async def test_events_of_an_open_task_do_not_stop_the_pruning_of_others(
    small: SmallStepStore, clock: FakeClock
) -> None:
    long_one = await submit_and_claim(small)
    for _ in range(5):
        await small.apply(Changes(fence=fence(long_one), events=(progress(long_one),)))
    await end_tasks(small, clock, 5)
    await pruner(small, clock, events=0).prune()
    assert {event.task_id for event in await small.read_events(0)} == {long_one.id}


async def test_pruning_happens_soon_after_the_start_and_then_every_hour(store: Any, clock: FakeClock) -> None:
    hourly = pruner(store, clock, tasks=0)
    await end_tasks(store, clock, 1)
    await hourly.start()
    await pass_time(store, clock, FIRST_PRUNE_SECONDS - 1)
    assert (await store.count_tasks()).total == 1
    await pass_time(store, clock, 2)
    assert (await store.count_tasks()).total == 0
    await end_tasks(store, clock, 1)
    await pass_time(store, clock, PRUNE_SECONDS - 60)
    assert (await store.count_tasks()).total == 1
    await pass_time(store, clock, 61)
    assert (await store.count_tasks()).total == 0
    await hourly.stop()
    await hourly.stop()

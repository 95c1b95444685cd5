"""Test the scheduler with a real store: what it fires and when, and that it makes no unnecessary reads and writes.

A4 and A14 to A16: it never waits for the runs it fired, writes only due automations, one row each, earliest first; a
run that must wait for its session or a slot is a pending task. A17 cannot happen: the revision of the automation
guards each fire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.clock import LONGEST_NAP, SECOND, iso
from midwatch.base.errors import Conflict, StoreUnavailable
from midwatch.base.schedule import Schedule
from midwatch.domain import automation as rules
from midwatch.domain import automation_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes, Update, update_record
from midwatch.domain.event import EventFilter
from midwatch.domain.session import Session
from midwatch.domain.task import Task
from midwatch.domain.task_store import TaskFilter
from midwatch.loops.scheduler import BATCH, PAUSE_SECONDS, Scheduler
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, settle
from records import a_goal, a_task, an_automation

HOUR = 3600 * SECOND


class CountingStore(SqliteStore):
    """A store that counts writes and fails on request."""

    writes = 0
    looks = 0
    fails: Exception | None = None
    hide_runs = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.news = asyncio.Condition()
        self.on_commit(lambda commit: setattr(self, "_told", asyncio.get_running_loop().create_task(self._notify())))

    async def write(self, verb: Callable[..., Any], *args: Any) -> Any:
        self.writes += 1
        if self.fails is not None:
            raise self.fails
        return await super().write(verb, *args)

    async def find_next_automation_at(self) -> int | None:
        self.looks += 1
        next_at = await super().find_next_automation_at()
        await self._notify()
        return next_at

    async def find_open_run(self, automation_id: str) -> Task | None:
        return None if self.hide_runs else await super().find_open_run(automation_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` is true; it is checked after each query and each commit."""
        async with asyncio.timeout(30), self.news:
            await self.news.wait_for(condition)

    async def _notify(self) -> None:
        async with self.news:
            self.news.notify_all()

    def version(self) -> int:
        """Return a number that changes with every commit."""
        return int(self._reader().execute("PRAGMA data_version").fetchone()[0])


async def terms(agent: str) -> AgentTerms:
    return AgentTerms()


async def stop(task_id: str) -> None:
    """Do nothing: no goal in these tests has a step to stop."""
    raise AssertionError(task_id)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CountingStore]:
    opened = CountingStore(tmp_path / "midwatch.db")
    yield opened
    await settle()
    await opened.close()


@pytest.fixture
async def scheduler(store: CountingStore, clock: FakeClock) -> AsyncIterator[Scheduler]:
    new_scheduler = Scheduler(store, clock, lambda: True, terms, stop)
    yield new_scheduler
    await new_scheduler.stop()


async def put(store: CountingStore, clock: FakeClock, **fields: Any) -> Automation:
    automation = an_automation(clock.now(), **fields)
    await store.apply(Changes(records=(automation,)))
    return automation


async def wait_for_run(store: CountingStore, automation: Automation) -> None:
    """Return when the automation was fired."""
    async with asyncio.timeout(30):
        while not await store.list_runs(automation.id):
            pass


async def list_fired(store: CountingStore) -> list[str]:
    """Return the ids of the automations that were fired, in order."""
    events = await store.read_events(0, EventFilter(kinds=("automation_fired",)))
    return [event.payload["automation_id"] for event in events]


async def test_an_idle_scheduler_writes_nothing_and_returns_the_next_time(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    assert await scheduler.look() is None
    await put(store, clock, next_run_at=clock.now() + 5)
    await store.apply(Changes(records=(a_goal(clock.now(), next_run_at=clock.now() + 9),)))
    writes, version = store.writes, store.version()
    for _ in range(5):
        assert await scheduler.look() == clock.now() + 5
    assert (store.writes, store.version()) == (writes, version)


async def test_paused_deleted_and_unscheduled_automations_are_not_due(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    now = clock.now()
    await put(store, clock, status="paused", next_run_at=now)
    await put(store, clock, status="deleted", next_run_at=now)
    await put(store, clock, next_run_at=None)
    writes = store.writes
    assert await scheduler.look() is None
    assert store.writes == writes


async def test_a_due_automation_is_fired_in_one_write(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    automation = await put(store, clock, next_run_at=clock.now())
    writes = store.writes
    assert await scheduler.look() == clock.now() + HOUR
    assert store.writes == writes + 1
    run = await store.find_open_run(automation.id)
    assert run is not None
    assert run.internal_key == f"{automation.id}@{clock.now()}"


async def test_many_automations_are_fired_once_earliest_first(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    now = clock.now()
    automations = [
        an_automation(now - n, id=f"am_{n:04}", session_key=f"s:{n}", next_run_at=now - n) for n in range(BATCH + 50)
    ]
    await store.apply(Changes(records=tuple(automations)))
    writes = store.writes
    await scheduler.look()
    order = await list_fired(store)
    assert sorted(order) == [automation.id for automation in automations]
    assert set(order[:BATCH]) == {
        automation.id for automation in automations[-BATCH:]
    }  # earliest batch first; a batch is fired together
    assert store.writes == writes + len(automations)


async def test_a_run_for_a_busy_session_waits_as_a_task(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    first = await put(store, clock, next_run_at=clock.now(), session_key="chat:1")
    second = await put(store, clock, next_run_at=clock.now(), session_key="chat:1")
    await scheduler.look()
    writes = store.writes
    clock.set(clock.now() + 60 * SECOND)
    await scheduler.look()
    assert store.writes == writes  # both wait as pending tasks; nothing is claimed and released again
    for automation in (first, second):
        assert await store.find_open_run(automation.id) is not None


async def test_an_open_run_skips_the_next(store: CountingStore, clock: FakeClock, scheduler: Scheduler) -> None:
    automation = await put(store, clock, next_run_at=clock.now())
    await scheduler.look()
    clock.set(clock.now() + HOUR)
    assert await scheduler.look() == clock.now() + HOUR
    assert len(await store.list_runs(automation.id)) == 1
    (missed,) = await store.read_events(0, EventFilter(kinds=("automation_missed",)))
    assert (missed.payload["reason"], missed.payload["scheduled_for"]) == ("overlap", iso(clock.now()))


async def test_an_unreadable_automation_is_paused_and_delays_no_other(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    odd = await put(store, clock, next_run_at=clock.now() - 5, schedule={"cron": "0 9 * * *", "zone": "No/Where"})
    good = await put(store, clock, next_run_at=clock.now())
    assert await scheduler.look() == clock.now() + HOUR
    assert await list_fired(store) == [good.id]
    automation = await store.get_automation(odd.id)
    assert automation is not None
    assert (automation.status, automation.next_run_at) == ("paused", None)
    assert "No/Where" in (automation.paused_why or "")
    writes = store.writes
    await scheduler.look()
    assert store.writes == writes
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_time_that_was_run_is_not_run_again(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    automation = await put(store, clock, next_run_at=clock.now())
    due = clock.now()
    await scheduler.look()
    (task,) = await store.list_runs(automation.id)
    await store.apply(Changes(updates=(_make_end(task, clock),)))
    stored_automation = await store.get_automation(automation.id)
    assert stored_automation is not None
    await store.apply(
        Changes(updates=(update_record(stored_automation, clock.now(), next_run_at=due),))
    )  # the clock was set back
    async with asyncio.timeout(30):
        assert await scheduler.look() == due + HOUR
    assert [run.id for run in await store.list_runs(automation.id)] == [task.id]
    after = await store.get_automation(automation.id)
    assert after is not None
    assert (after.run_count, after.status) == (1, "active")


def _make_end(task: Task, clock: FakeClock) -> Update:
    fields = {"status": "cancelled", "outcome": "cancelled", "completed_at": clock.now()}
    return Update("task", task.id, fields, {"status": "pending"})


async def test_a_closed_session_pauses_the_automation_with_a_notice(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    talk = Session(key="chat:1", agent="demo", gate_key="chat:1", created_at=1, updated_at=1)
    automation = await put(store, clock, next_run_at=clock.now(), session_key="chat:1", route="console")
    await store.apply(Changes(sessions=(talk,)))
    await store.close_session("chat:1", clock.now(), ())
    await scheduler.look()
    assert await store.list_runs(automation.id) == []
    stored_automation = await store.get_automation(automation.id)
    assert stored_automation is not None
    assert (stored_automation.status, stored_automation.paused_why) == ("paused", rules.CLOSED)
    (notice,) = await store.list_deliveries()
    assert notice.text.endswith(f"then resume it: midwatch automation resume {automation.id}")


async def test_a_retry_by_hand_skips_the_next_run(store: CountingStore, clock: FakeClock, scheduler: Scheduler) -> None:
    automation = await put(store, clock, next_run_at=clock.now())
    await store.apply(Changes(records=(a_task(cause="automation", cause_id=automation.id, retry_of="t_0"),)))
    store.hide_runs = True  # it was changed after the query
    await scheduler.look()
    store.hide_runs = False
    assert len(await store.list_runs(automation.id)) == 1
    (missed,) = await store.read_events(0, EventFilter(kinds=("automation_missed",)))
    assert missed.payload["reason"] == "overlap"


class RefusingStore(CountingStore):
    """A store that refuses every write for one automation."""

    async def apply(self, changes: Changes) -> None:
        if any(update.id == "am_stuck" for update in changes.updates):
            raise Conflict("no")
        await super().apply(changes)


async def test_an_automation_that_cannot_advance_does_not_loop(tmp_path: Path, clock: FakeClock) -> None:
    store = RefusingStore(tmp_path / "midwatch.db")
    try:
        await put(store, clock, id="am_stuck", next_run_at=clock.now() - 5)
        good = await put(store, clock, next_run_at=clock.now())
        scheduler = Scheduler(store, clock, lambda: True, terms, stop)
        async with asyncio.timeout(30):
            assert await scheduler.look() == clock.now() + int(PAUSE_SECONDS * SECOND)
        assert await list_fired(store) == [good.id]
    finally:
        await store.close()


async def test_a_failing_agent_list_delays_no_other_automation(
    store: CountingStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing_terms(agent: str) -> AgentTerms:
        if agent == "odd":
            raise RuntimeError("unexpected")
        return AgentTerms()

    await put(store, clock, agent="odd", next_run_at=clock.now() - 5)
    good = await put(store, clock, next_run_at=clock.now())
    scheduler = Scheduler(store, clock, lambda: True, failing_terms, stop)
    assert await scheduler.look() == clock.now() + int(PAUSE_SECONDS * SECOND)
    assert await list_fired(store) == [good.id]
    assert "could not be started" in caplog.text


async def test_a_run_fired_by_another_process_is_no_error(store: CountingStore, clock: FakeClock) -> None:
    automation = await put(store, clock, next_run_at=clock.now())
    await asyncio.gather(*(Scheduler(store, clock, lambda: True, terms, stop).look() for _ in range(5)))
    assert len(await store.list_runs(automation.id)) == 1
    assert await list_fired(store) == [automation.id]


async def test_the_scheduler_sleeps_until_the_next_time(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    automation = await put(store, clock, next_run_at=clock.now() + 3600 * SECOND)
    await scheduler.start()
    await scheduler.start()
    await store.until(lambda: store.looks == 1)
    await wait_for_timer(clock)
    await clock.advance(3599)
    assert store.looks == 1  # it checked the clock only
    await clock.advance(1)
    await store.until(lambda: store.looks >= 2)
    await wait_for_run(store, automation)
    assert await list_fired(store) == [automation.id]


async def wait_for_timer(clock: FakeClock) -> None:
    """Return when a timer is pending."""
    async with asyncio.timeout(30):
        while not any(timer.callback for _, _, timer in clock._timers):  # its reads happen in threads
            await asyncio.sleep(0.001)


async def test_a_suspended_machine_is_noticed_within_half_a_minute(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    automation = await put(store, clock, next_run_at=clock.now() + 5 * HOUR, missed="once")
    await scheduler.start()
    await wait_for_timer(clock)
    clock.set(clock.now() + 8 * HOUR)  # monotonic time did not advance
    await clock.advance(LONGEST_NAP)
    await wait_for_run(store, automation)
    (missed,) = await store.read_events(0, EventFilter(kinds=("automation_missed",)))
    assert (missed.payload["reason"], missed.payload["count"]) == ("caught_up", 4)


async def test_a_clock_set_back_makes_the_scheduler_wait_longer(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    automation = await put(store, clock, next_run_at=clock.now() + 60 * SECOND)
    await scheduler.start()
    await wait_for_timer(clock)
    clock.set(clock.now() - HOUR)
    await clock.advance(60)
    assert store.looks == 1
    await clock.advance(3600)
    await wait_for_run(store, automation)


async def test_a_wake_up_call_wakes_the_scheduler(store: CountingStore, clock: FakeClock, scheduler: Scheduler) -> None:
    await scheduler.start()
    await store.until(lambda: store.looks == 1)
    automation = await put(store, clock, next_run_at=clock.now())
    scheduler.wake()
    await wait_for_run(store, automation)


async def test_a_process_that_does_not_lead_fires_nothing(store: CountingStore, clock: FakeClock) -> None:
    leads = False
    automation = await put(store, clock, next_run_at=clock.now())
    scheduler = Scheduler(store, clock, lambda: leads, terms, stop)
    await scheduler.start()
    try:
        await settle()
        scheduler.wake()
        await settle()
        assert store.looks == 0
        leads = True
        scheduler.wake()
        await wait_for_run(store, automation)
    finally:
        await scheduler.stop()
        await scheduler.stop()


async def test_an_unavailable_store_is_queried_again(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    automation = await put(store, clock, next_run_at=clock.now())
    store.fails = StoreUnavailable("the disk is full.")
    await scheduler.start()
    await wait_for_timer(clock)
    assert await store.list_tasks(TaskFilter()) == []
    store.fails = None
    await clock.advance(PAUSE_SECONDS)
    await wait_for_run(store, automation)
    assert await list_fired(store) == [automation.id]


async def test_an_automation_deleted_or_changed_since_the_query_is_not_fired(
    store: CountingStore, clock: FakeClock, scheduler: Scheduler
) -> None:
    automation = await put(store, clock, next_run_at=clock.now())
    await store.apply(steps.pause_automation(automation, clock.now(), "why", None))
    await scheduler._fire(automation)
    assert await store.list_runs(automation.id) == []
    changed = await put(store, clock, id="am_2", next_run_at=clock.now())
    schedule = Schedule.make(every=60, zone="UTC", anchor=clock.now()).snapshot()
    await store.apply(Changes(updates=(update_record(changed, clock.now(), schedule=schedule, next_run_at=None),)))
    await scheduler._fire(replace(changed))
    assert await store.list_runs("am_2") == []

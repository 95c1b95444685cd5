"""Test the bus: each follower gets stored events once and in order; live events may be dropped, and their number is
sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.clock import SystemClock
from midwatch.base.errors import NotFound, StoreUnavailable
from midwatch.domain.changes import Changes
from midwatch.domain.event import EVERYTHING, Event, EventFilter, MessageDelta, TaskProgress, event
from midwatch.domain.store import Commit
from midwatch.domain.task import Task, end, meta
from midwatch.live.bus import LIMITS, Bus, Limits
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import settle
from records import CLOCK, progress, put, submit_and_claim

FAR_FUTURE = 10 * CLOCK.now()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "midwatch.db")
    yield store
    await store.close()


@asynccontextmanager
async def open_bus(disk: SqliteStore, limits: Limits = LIMITS, store: Any = None) -> AsyncIterator[Bus]:
    """Open a bus that receives commits of the disk store and reads events from it or from another store."""
    bus = Bus(store or disk, SystemClock(), limits=limits)
    await bus.start()
    disk.on_commit(bus.receive_commit)
    try:
        yield bus
    finally:
        await bus.stop()


@pytest.fixture
async def bus(disk: SqliteStore) -> AsyncIterator[Bus]:
    async with open_bus(disk) as new_bus:
        yield new_bus


async def write(store: Any, *texts: str, task_id: str | None = None) -> None:
    """Append progress events with the texts."""
    events = tuple(event(TaskProgress(text=text), CLOCK.now(), task_id=task_id) for text in texts)
    await store.apply(Changes(events=events))


async def wait_for_task(bus: Bus, store: SqliteStore, task_id: str) -> Task:
    """Wait for the end of a task as the task service does."""

    async def read() -> Task:
        task = await store.get_task(task_id)
        if task is None:
            raise NotFound("task", task_id)
        return task

    return await bus._waiter.wait(task_id, read, lambda task: not task.open)


def list_leftovers(bus: Bus) -> tuple[Any, ...]:
    """Return the watchers, the waiters for tasks, and the reader of the log that remain."""
    return bus._watchers, bus._waiter._waiting, bus._pump


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


class Follower:
    """A follower in the background that records events."""

    def __init__(self, bus: Bus, after: int = 0, live: bool = False, **which: Any) -> None:
        self.found: list[Event] = []
        self._news = asyncio.Event()
        self._events = bus.follow(after, EventFilter(**which), live=live)
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: self._news.set())

    async def _run(self) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                self.found.append(event)
                self._news.set()

    async def until(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        async with asyncio.timeout(30):
            while not (self.found and enough(self.found)):
                self._news.clear()
                if self.task.done():
                    self.task.result()
                    raise AssertionError("it ended too early")
                await self._news.wait()
        return self.found

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


async def follow(bus: Bus, enough: Callable[[list[Event]], bool], after: int = 0, **which: Any) -> list[Event]:
    """Follow until `enough` is true."""
    following = Follower(bus, after, **which)
    try:
        return await following.until(enough)
    finally:
        await following.end()


def seqs(events: list[Event]) -> list[int]:
    return [event.seq for event in events]


def texts(events: list[Event]) -> list[str]:
    return [event.payload["text"] for event in events]


# -- stored events -----------------------------------------------------------------------------------------------


async def test_every_follower_sees_every_event_once_and_in_order(bus: Bus, disk: SqliteStore, tmp_path: Path) -> None:
    """Use eight writers; half of them write through another store on the same file, as another process would."""
    other_store = await SqliteStore.open(tmp_path / "midwatch.db")
    total = 8 * 30 * 2

    async def writer(number: int) -> None:
        for n in range(30):
            await write(disk if number % 2 else other_store, f"{number}.{n}a", f"{number}.{n}b")

    try:
        followers = [asyncio.create_task(follow(bus, lambda events: len(events) == total)) for _ in range(3)]
        await settle()
        await asyncio.gather(*(writer(number) for number in range(8)))
        late = asyncio.create_task(follow(bus, lambda events: len(events) == total - 100, after=100))
        for events in await asyncio.gather(*followers):
            assert seqs(events) == list(range(1, total + 1))
            assert len({event.id for event in events}) == total
        assert seqs(await late) == list(range(101, total + 1))
    finally:
        await other_store.close()


async def test_events_of_another_process_arrive_without_a_local_write(bus: Bus, tmp_path: Path) -> None:
    other_store = await SqliteStore.open(tmp_path / "midwatch.db")
    try:
        follower = asyncio.create_task(follow(bus, lambda events: len(events) == 2))
        await write(other_store, "a", "b")
        assert texts(await follower) == ["a", "b"]
    finally:
        await other_store.close()


async def test_a_fast_follower_never_reads_the_database(disk: SqliteStore) -> None:
    reads: list[int] = []

    class CountingStore:
        def __getattr__(self, name: str) -> Any:
            if name == "read_events":
                reads.append(1)
            return getattr(disk, name)

    async with open_bus(disk, store=CountingStore()) as bus:
        follower = asyncio.create_task(follow(bus, lambda events: len(events) == 50))
        await settle()
        for number in range(50):
            await write(disk, str(number))
        assert texts(await follower) == numbers(0, 49)
    assert reads == []


async def test_a_slow_follower_reads_from_the_log(disk: SqliteStore) -> None:
    async with open_bus(disk, Limits(tail=16, page=10)) as bus, aclosing(bus.follow(0)) as events:
        await write(disk, "0")
        received = [await anext(events)]
        for batch in range(10):  # far more events than the tail holds, while nobody reads
            await write(disk, *numbers(batch * 10 + 1, batch * 10 + 10))
        async with asyncio.timeout(30):
            while len(received) < 101:
                received.append(await anext(events))
    assert texts(received) == numbers(0, 100)
    assert seqs(received) == list(range(1, 102))


@pytest.mark.parametrize("page", [1, 2, 3, 7, 500])
async def test_a_filtered_follower_misses_no_event_while_the_log_grows(disk: SqliteStore, page: int) -> None:
    """Read history from pages of the store, then new events; most events do not match the filter."""
    await write(disk, *numbers(0, 40), task_id="t_other")
    for number in range(5):
        await write(disk, f"mine {number}", task_id="t_mine")
        await write(disk, *numbers(0, 10), task_id="t_other")
    expected = [f"mine {number}" for number in range(15)]

    async def grow() -> None:
        for number in range(5, 15):
            await write(disk, *numbers(0, number), task_id="t_other")
            await write(disk, f"mine {number}", task_id="t_mine")

    async with open_bus(disk, Limits(tail=5, page=page)) as bus:
        follower = asyncio.create_task(follow(bus, lambda events: len(events) == 15, task_id="t_mine"))
        of_kind = asyncio.create_task(follow(bus, lambda events: len(events) >= 15, kinds=("task_progress",), after=41))
        await asyncio.gather(grow(), follower, of_kind)
    assert texts(follower.result()) == expected
    assert seqs(of_kind.result())[:15] == list(range(42, 57))


async def test_a_follower_may_begin_at_any_event(bus: Bus, disk: SqliteStore) -> None:
    await write(disk, *numbers(1, 20))
    for after in (0, 5, 19):
        events = await follow(bus, lambda events: events[-1].seq == 20, after=after)
        assert seqs(events) == list(range(after + 1, 21))
    late = asyncio.create_task(follow(bus, lambda events: len(events) == 1, after=20))
    await settle()
    assert not late.done()
    await write(disk, "21")
    assert seqs(await late) == [21]


async def test_following_resumes_after_the_log_could_not_be_read(disk: SqliteStore, tmp_path: Path) -> None:
    failures = [StoreUnavailable("busy")] * 3

    class FailingStore:
        def __getattr__(self, name: str) -> Any:
            if name == "read_events" and failures:
                raise failures.pop()
            return getattr(disk, name)

    other_store = await SqliteStore.open(tmp_path / "midwatch.db")
    try:
        async with open_bus(disk, Limits(pause_seconds=0.01), store=FailingStore()) as bus:
            await write(other_store, "theirs")
            await write(disk, "ours")  # its seq is one too high, so the earlier events must be read
            events = await follow(bus, lambda events: len(events) == 2)
        assert texts(events) == ["theirs", "ours"]
        assert failures == []
    finally:
        await other_store.close()


async def test_events_committed_during_a_read_are_read_too(disk: SqliteStore) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    class SlowStore:
        def __getattr__(self, name: str) -> Any:
            return getattr(disk, name)

        async def read_events(self, after: int, which: EventFilter = EVERYTHING, *limits: int) -> list[Event]:
            page = await disk.read_events(after, which, *limits)
            started.set()
            await go.wait()
            return page

    task = await submit_and_claim(disk)
    commits: list[Commit] = []
    disk.on_commit(commits.append)
    bus = Bus(SlowStore(), SystemClock())  # type: ignore[arg-type]
    await bus.start()
    waiting = asyncio.create_task(wait_for_task(bus, disk, task.id))
    try:
        await settle(50)
        bus.receive_commit(Commit(frozenset(), (), foreign=True))
        await started.wait()  # there was nothing to read
        await disk.apply(end(task, CLOCK.now(), outcome="ok", result="")[1])  # written by another process
        await write(disk, "ours")
        bus.receive_commit(commits[1])
        go.set()
        await asyncio.wait({waiting}, timeout=30)
        assert waiting.done()
    finally:
        waiting.cancel()
        await bus.stop()


# -- pruned events -----------------------------------------------------------------------------------------------


async def test_a_follower_before_the_oldest_event_gets_a_gap_and_the_rest(bus: Bus, disk: SqliteStore) -> None:
    await write(disk, *numbers(1, 10))
    await disk.prune_events(0, keep=4)
    events = await follow(bus, lambda events: events[-1].seq == 10, after=3)
    assert (events[0].kind, events[0].seq, events[0].payload["oldest_seq"]) == ("gap", 0, 7)
    assert seqs(events[1:]) == [7, 8, 9, 10]
    whole = await follow(bus, lambda events: events[-1].seq == 10, after=6)
    assert seqs(whole) == [7, 8, 9, 10]


async def test_an_empty_log_after_pruning_is_a_gap_too(bus: Bus, disk: SqliteStore) -> None:
    await write(disk, *numbers(1, 10))
    await disk.prune_events(FAR_FUTURE, keep=1000)
    follower = asyncio.create_task(follow(bus, lambda events: len(events) == 2, after=3))
    await settle(50)
    await write(disk, "11")
    gap, after = await follower
    assert (gap.kind, gap.payload["oldest_seq"], after.seq) == ("gap", 11, 11)


async def test_a_follower_overtaken_by_pruning_gets_a_gap(disk: SqliteStore) -> None:
    async with open_bus(disk, Limits(tail=4)) as bus, aclosing(bus.follow(0)) as events, asyncio.timeout(30):
        await write(disk, "1")
        assert (await anext(events)).seq == 1
        for number in range(2, 30):
            await write(disk, str(number))
        await disk.prune_events(0, keep=10)
        following = await anext(events)
        assert following.kind == "gap" or following.seq == 2


async def test_events_pruned_before_this_process_saw_them_do_no_harm(disk: SqliteStore, tmp_path: Path) -> None:
    """Suspend a process while others write and prune."""
    here, other_store = SqliteStore(tmp_path / "midwatch.db", look_seconds=3600.0), disk
    async with open_bus(here) as bus:
        task = await submit_and_claim(other_store)
        for number in range(20):
            await write(other_store, str(number))
            if number % 5 == 0:
                await other_store.apply(Changes(events=(progress(task, f"kept {number}"),)))
        await other_store.prune_events(FAR_FUTURE, keep=1000)
        bus.receive_commit(Commit(frozenset(), (), foreign=True))
        await settle(200)
        await write(here, "one", "two", "three")
        before = (await other_store.read_log_bounds()).last_seq - 3
        events = await follow(bus, lambda events: events[-1].payload.get("text") == "three", after=before)
        assert texts(events) == ["one", "two", "three"]
    await here.close()


async def test_events_pruned_before_they_were_read_are_not_awaited(disk: SqliteStore) -> None:
    reads: list[int] = []

    class CountingStore:
        def __getattr__(self, name: str) -> Any:
            return getattr(disk, name)

        async def read_events(self, after: int, which: EventFilter = EVERYTHING, *limits: int) -> list[Event]:
            reads.append(after)
            return await disk.read_events(after, which, *limits)

    bus = Bus(CountingStore(), SystemClock())  # type: ignore[arg-type]
    await bus.start()
    commits: list[Commit] = []
    disk.on_commit(commits.append)
    try:
        await write(disk, "1")
        await write(disk, "2")
        await disk.prune_events(FAR_FUTURE, keep=1000)
        bus.receive_commit(commits[1])  # not the next seq, so the log is read
        for _ in range(40):
            await disk.describe()  # time passes and nothing is written
        assert len(reads) < 10
    finally:
        await bus.stop()


async def test_a_follower_at_the_end_survives_pruning_of_the_next_events(disk: SqliteStore) -> None:
    bus = Bus(disk, SystemClock())
    await bus.start()
    commits: list[Commit] = []
    disk.on_commit(commits.append)
    await write(disk, "1")
    bus.receive_commit(commits[0])
    following = Follower(bus, live=True)
    try:
        await following.until(lambda events: len(events) == 1)
        await write(disk, "2")
        await write(disk, "3")
        await disk.prune_events(FAR_FUTURE, keep=1000)
        bus.receive_commit(commits[2])  # another process wrote the second event
        await settle(100)
        await disk.describe()
        await settle(100)
        bus.show(live(1))
        await write(disk, "4")
        bus.receive_commit(commits[3])
        await following.until(lambda events: any(event.seq == 4 for event in events))
    finally:
        await following.end()
        await bus.stop()


async def test_a_follower_beyond_the_end_of_the_log_gets_a_gap(bus: Bus, disk: SqliteStore) -> None:
    await write(disk, *numbers(1, 5))
    ahead, behind = Follower(bus, after=1000), Follower(bus, after=5)
    try:
        await write(disk, *numbers(6, 10))
        await behind.until(lambda events: len(events) == 5)
        await ahead.until(lambda events: len(events) > 0)
        assert ahead.found[0].kind == "gap"
    finally:
        await ahead.end()
        await behind.end()


# -- live events -------------------------------------------------------------------------------------------------


def live(number: int, **about: Any) -> Event:
    return event(MessageDelta(message_id="m", offset=10 * number, text=str(number)), CLOCK.now(), **about)


async def test_live_events_are_sent_only_to_matching_watchers(bus: Bus, disk: SqliteStore) -> None:
    bus.show(live(0))  # nobody watches yet
    await write(disk, "begin", task_id="t_2")
    watching, reading = Follower(bus, live=True), Follower(bus)
    filtered = Follower(bus, live=True, task_id="t_2")
    everybody = (watching, reading, filtered)
    for watcher in everybody:
        await watcher.until(lambda events: len(events) == 1)
    for number, task in ((1, "t_1"), (2, "t_2"), (3, "t_1")):
        bus.show(live(number, task_id=task))
    await watching.until(lambda events: len(events) == 4)
    await write(disk, "end", task_id="t_2")
    for watcher in everybody:
        await watcher.until(lambda events: texts(events)[-1] == "end")
        await watcher.end()
    assert texts(watching.found) == ["begin", "1", "2", "3", "end"]
    assert seqs(watching.found) == [1, 0, 0, 0, 2]
    assert texts(reading.found) == ["begin", "end"]
    assert texts(filtered.found) == ["begin", "2", "end"]


async def test_a_late_watcher_sees_all_events_in_order(bus: Bus, disk: SqliteStore) -> None:
    at = CLOCK.now()
    async with aclosing(bus.follow(0, live=True)) as events, asyncio.timeout(30):
        await write(disk, "0")
        await anext(events)
        for step in (1, 3):  # the watcher does not read meanwhile
            bus.show(live(step)._replace(time=at + step))
            await disk.apply(Changes(events=(event(TaskProgress(text=str(step + 1)), at + step + 1),)))
        received = [await anext(events) for _ in range(4)]
    assert texts(received) == numbers(1, 4)


async def test_a_slow_watcher_loses_only_live_events_and_gets_their_number(
    disk: SqliteStore,
) -> None:
    few = Limits(live_waiting=10)
    async with open_bus(disk, few) as bus, aclosing(bus.follow(0, live=True)) as events, asyncio.timeout(30):
        await write(disk, "0")
        received = [await anext(events)]
        for number in range(1, 31):  # the watcher does not read meanwhile
            bus.show(live(number))
            if number % 10 == 0:
                await write(disk, f"stored {number}")
        while len(received) < 1 + 3 + 10 + 1:
            received.append(await anext(events))
        bus.show(live(99))
        received.append(await anext(events))
    stored = [event for event in received if event.seq]
    shown = [event for event in received if event.kind == "message_delta"]
    (gap,) = [event for event in received if event.kind == "gap"]
    assert texts(stored) == ["0", "stored 10", "stored 20", "stored 30"]
    assert texts(shown) == [*numbers(1, 10), "99"]
    assert gap.payload["dropped"] == 20
    assert received.index(shown[9]) < received.index(gap) < received.index(shown[10])


async def test_a_slow_watcher_does_not_delay_a_fast_one(disk: SqliteStore) -> None:
    await write(disk, "begin")
    async with open_bus(disk, Limits(live_waiting=5)) as bus, aclosing(bus.follow(0, live=True)) as slow:
        quick = Follower(bus, live=True)
        assert (await anext(slow)).seq == 1
        for number in range(50):
            await quick.until(lambda events, number=number: len(events) == number + 1)  # type: ignore[misc]
            bus.show(live(number))
        await quick.until(lambda events: len(events) == 51)
        assert texts(quick.found[1:]) == numbers(0, 49)
        assert [(await anext(slow)).payload.get("text") for _ in range(6)] == [*numbers(0, 4), None]
        await quick.end()


# -- the end -----------------------------------------------------------------------------------------------------


async def test_stopping_ends_followers_after_all_earlier_events(disk: SqliteStore) -> None:
    bus = Bus(disk, SystemClock())
    await bus.start()
    disk.on_commit(bus.receive_commit)

    async def read_all(live: bool) -> list[Event]:
        return [event async for event in bus.follow(0, live=live)]

    followers = [asyncio.create_task(read_all(live)) for live in (True, False, True)]
    watching = Follower(bus)
    await write(disk, *numbers(1, 10))
    await watching.until(lambda events: len(events) == 10)
    await bus.stop()
    async with asyncio.timeout(30):
        await watching.task
        for events in await asyncio.gather(*followers):
            assert seqs(events) == list(range(1, len(events) + 1))
    await write(disk, "after the end")
    bus.show(live(1))
    assert list_leftovers(bus) == (set(), {}, None)


async def test_stopping_ends_a_follower_that_reads_the_log(disk: SqliteStore, tmp_path: Path) -> None:
    bus = Bus(disk, SystemClock())
    await bus.start()
    before = asyncio.all_tasks()
    bus.receive_commit(Commit(frozenset(), (), foreign=True))
    await bus.stop()
    assert asyncio.all_tasks() == before


async def test_a_cancelled_follower_leaks_nothing(bus: Bus, disk: SqliteStore) -> None:
    before = asyncio.all_tasks()
    for wait in (0, 1, 5, 50):  # at different positions in the log
        follower = asyncio.create_task(follow(bus, lambda events: False, live=True))
        await settle(wait)
        follower.cancel()
        with pytest.raises(asyncio.CancelledError):
            await follower
        ending = asyncio.create_task(wait_for_task(bus, disk, (await put(disk)).id))
        await settle(wait)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
    assert list_leftovers(bus) == (set(), {}, None)
    assert asyncio.all_tasks() == before


# -- waiting for a task ------------------------------------------------------------------------------------------


async def test_a_waiter_is_notified_of_the_end_of_a_task_from_any_process(
    bus: Bus, disk: SqliteStore, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        await wait_for_task(bus, disk, "t_none")
    other_store = await SqliteStore.open(tmp_path / "midwatch.db")
    try:
        for writer in (disk, other_store):
            task = await submit_and_claim(writer)
            waiting = [asyncio.create_task(wait_for_task(bus, disk, task.id)) for _ in range(3)]
            await settle(50)
            assert not any(waiter.done() for waiter in waiting)
            await writer.apply(end(task, CLOCK.now(), outcome="ok", result="")[1])
            async with asyncio.timeout(30):
                await asyncio.gather(*waiting)
                await wait_for_task(bus, disk, task.id)  # the task had ended before
    finally:
        await other_store.close()
    assert list_leftovers(bus) == (set(), {}, None)


async def test_a_waiter_gets_an_error_when_the_bus_stops(bus: Bus, disk: SqliteStore) -> None:
    waiting = asyncio.create_task(wait_for_task(bus, disk, (await put(disk)).id))
    await settle(50)
    await bus.stop()
    await asyncio.wait({waiting})
    assert not waiting.cancelled()
    assert isinstance(waiting.exception(), StoreUnavailable)


async def test_waiting_after_the_bus_stopped_is_an_error(bus: Bus, disk: SqliteStore) -> None:
    task = await put(disk)
    await settle(50)
    assert meta(task)["task_id"] in bus._waiter._open_tasks
    await bus.stop()
    waiting = asyncio.create_task(wait_for_task(bus, disk, task.id))
    try:
        await settle(50)
        assert waiting.done()
        assert not isinstance(waiting.exception(), asyncio.CancelledError)
    finally:
        waiting.cancel()


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_a_follower_that_is_behind_holds_few_characters(disk: SqliteStore) -> None:
    await write(disk, *(str(n) * 100_000 for n in range(10)))
    async with open_bus(disk) as bus, aclosing(bus.batches(0)) as batches:
        sizes = [sum(len(each.payload["text"]) for each in await anext(batches)) for _ in range(3)]
    assert max(sizes) <= LIMITS.page_text + 100_000


async def test_live_events_for_a_slow_watcher_are_limited_in_characters(bus: Bus) -> None:
    async with aclosing(bus.batches(0, live=True)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await settle()
        for number in range(100):
            bus.show(event(MessageDelta(message_id=f"m{number}", offset=0, text="x" * 50_000), number))
        (watcher,) = bus._watchers
        assert sum(len(each.payload["text"]) for each in watcher.waiting) <= LIMITS.live_text
        shown = await waiting
    assert shown[-1].kind == "gap" and shown[-1].payload["dropped"] == 100 - len(shown) + 1


async def test_a_large_live_event_reaches_a_watcher_that_has_read_everything(bus: Bus) -> None:
    async with aclosing(bus.batches(0, live=True)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await settle()
        bus.show(event(MessageDelta(message_id="m", offset=0, text="x" * 2 * LIMITS.live_text), 1))
        assert [each.kind for each in await waiting] == ["message_delta"]


async def test_few_followers_read_the_log_at_the_same_time(disk: SqliteStore) -> None:
    reading, most = 0, 0

    class CountingStore:
        def __getattr__(self, name: str) -> Any:
            return getattr(disk, name)

        async def read_events(self, *args: Any) -> Any:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            try:
                return await disk.read_events(*args)
            finally:
                reading -= 1

    await write(disk, *"abc")
    async with open_bus(disk, store=CountingStore()) as bus:
        read = await asyncio.gather(*(follow(bus, lambda events: len(events) == 3, after=0) for _ in range(20)))
    assert len(read) == 20 and 0 < most <= LIMITS.readers


async def test_events_that_are_passed_on_at_once_and_read_later_come_once_and_in_order(disk: SqliteStore) -> None:
    """A follower that waits is offered new events; if they cannot be passed on, it reads them itself."""
    found: list[str] = []
    offers: list[int] = []

    def take(events: Sequence[Event]) -> bool:
        offers.append(len(offers))
        if offers[-1] % 3 == 1:
            return False
        if offers[-1] % 3 == 2:
            raise ValueError("it cannot be encoded")
        found.extend(each.payload["text"] for each in events)
        return True

    async with open_bus(disk) as bus:

        async def follow() -> None:
            async with aclosing(bus.batches(0, EventFilter(task_id="t"), take=take)) as batches:
                async for batch in batches:
                    found.extend(each.payload["text"] for each in batch)

        other = Follower(bus)
        following = asyncio.create_task(follow())
        for number in range(30):
            await write(disk, str(number), task_id="t")
            await write(disk, "not for it", task_id="other")
            await settle()
        everything = await other.until(lambda events: len(events) == 60)
        following.cancel()
        await asyncio.wait({following})
        await other.end()
        assert not bus._waiting  # nobody waits any more
    assert found == numbers(0, 29)
    assert len(offers) >= 10 and [each.seq for each in everything] == list(range(1, 61))

"""Test subscriptions: each gets events independently of the others and counts their results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.clock import SystemClock
from midwatch.base.errors import InvalidInput, StoreUnavailable
from midwatch.domain.changes import Changes
from midwatch.domain.event import Event, EventFilter, LoopError, MessageDelta, TaskProgress, event
from midwatch.live.bus import Bus
from midwatch.live.subscriptions import Subscriptions, TryAgain, try_again
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import settle
from records import CLOCK
from servers import eventually


class Place:
    """A store, its bus, and subscriptions."""

    def __init__(self, store: SqliteStore, **patience: float) -> None:
        self.store = store
        self.bus = Bus(store, SystemClock())
        self.subscriptions = Subscriptions(store, self.bus, SystemClock(), **patience)

    async def write(self, *texts: str) -> None:
        events = tuple(event(TaskProgress(text=text), CLOCK.now()) for text in texts)
        await self.store.apply(Changes(events=events))

    async def close(self) -> None:
        await self.subscriptions.stop()
        await self.bus.stop()
        await self.store.close()


async def open_place(file: Path, **patience: float) -> Place:
    place = Place(await SqliteStore.open(file), **patience)
    await place.bus.start()
    place.store.on_commit(place.bus.receive_commit)
    return place


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    new_place = await open_place(tmp_path / "midwatch.db")
    yield new_place
    await new_place.close()


class RecordingHandler:
    """A handler that records events and then calls a function."""

    def __init__(self, beside: Callable[[Event], Any] = lambda _: None) -> None:
        self.events: list[Event] = []
        self._beside = beside

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if (more := self._beside(event)) is not None:
            await more

    @property
    def texts(self) -> list[str]:
        return [event.payload.get("text", event.kind) for event in self.events]


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


def fail(_: Event) -> None:
    raise RuntimeError("no")


async def test_hanging_and_failing_subscribers_do_not_affect_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    never = asyncio.Event()
    quick, hung, failing, tap = (
        RecordingHandler(),
        RecordingHandler(lambda _: never.wait()),
        RecordingHandler(fail),
        RecordingHandler(lambda _: never.wait()),
    )
    await place.subscriptions.add("failing", failing)
    hangs = await place.subscriptions.add("hung", hung)
    taps = await place.subscriptions.add("tap", tap, live=True, most=10)
    good = await place.subscriptions.add("quick", quick)
    with caplog.at_level(logging.ERROR, "midwatch.subscriptions"):
        for first in range(1, 5001, 500):
            await place.write(*numbers(first, first + 499))
        assert await eventually(lambda: len(quick.events) == 5000)
        assert await eventually(lambda: len(failing.events) == 5000)
    assert quick.texts == failing.texts == numbers(1, 5000)
    assert (good.received, good.handled, good.failed, good.dropped) == (5000, 5000, 0, 0)
    assert await eventually(lambda: good.lag == 0)
    assert await eventually(lambda: (hangs.received, hangs.handled, hangs.lag) == (1, 0, 5000))
    assert await eventually(lambda: (taps.received, len(tap.events), taps.lag <= 11) == (5000, 1, True))
    counted = {subscription.name: subscription.failed for subscription in place.subscriptions.list()}
    assert counted == {"failing": 5000, "hung": 0, "quick": 0, "tap": 0}


async def test_a_subscriber_that_times_out_is_skipped(place: Place) -> None:
    never = asyncio.Event()
    slow = RecordingHandler(lambda event: never.wait() if event.payload["text"] == "1" else None)
    subscription = await place.subscriptions.add("slow", slow, seconds=0.01)
    await place.write("1", "2")
    assert await eventually(lambda: slow.texts == ["1", "2"])
    assert await eventually(lambda: (subscription.handled, subscription.failed) == (1, 1))


async def test_a_failing_subscriber_does_not_fill_the_log_file(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    failing = await place.subscriptions.add("failing", RecordingHandler(fail))
    await place.write(*numbers(1, 200))
    assert await eventually(lambda: failing.failed == 200)
    assert 1 <= len(caplog.records) < 20
    assert "subscription failing failed at event task_progress" in caplog.text


async def test_a_durable_subscriber_resumes_at_its_position(tmp_path: Path) -> None:
    file = tmp_path / "midwatch.db"
    handler = RecordingHandler()
    for run in range(3):
        place = await open_place(file)
        await place.write(f"{run} before")
        await place.subscriptions.add("mine", handler, durable=True)
        await place.write(f"{run} after")
        assert await eventually(lambda run=run: handler.texts[-1:] == [f"{run} after"])
        await place.close()
    assert handler.texts == ["0 after", "1 before", "1 after", "2 before", "2 after"]


async def test_an_unhandled_event_is_delivered_again_after_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "midwatch.db"
    never = asyncio.Event()
    place = await open_place(file)
    first = RecordingHandler(lambda event: never.wait() if event.payload["text"] == "2" else None)
    await place.subscriptions.add("mine", first, durable=True)
    await place.write("1", "2", "3")
    assert await eventually(lambda: first.texts == ["1", "2"])
    await place.close()  # the handler is cancelled during the second event
    place, again = await open_place(file), RecordingHandler()
    await place.subscriptions.add("mine", again, durable=True)
    assert await eventually(lambda: again.texts == ["2", "3"])
    await place.close()


async def test_a_handler_of_midwatch_without_a_store_gets_the_event_again(tmp_path: Path) -> None:
    place = await open_place(tmp_path / "midwatch.db", pause_seconds=0.01)
    refusals = ["no", "no"]

    def refuse(_: Event) -> None:
        if refusals:
            with try_again():
                raise StoreUnavailable(refusals.pop())

    handler = RecordingHandler(refuse)
    subscription = await place.subscriptions.add("mine", handler)
    await place.write("1")
    assert await eventually(lambda: subscription.handled == 1)
    assert (handler.texts, subscription.failed) == (["1", "1", "1"], 0)
    await place.close()


async def test_a_gap_is_delivered_and_counted_once(tmp_path: Path) -> None:
    file = tmp_path / "midwatch.db"
    place = await open_place(file)
    await place.subscriptions.add("mine", RecordingHandler(), durable=True)
    await place.close()
    place, handler = await open_place(file), RecordingHandler()
    await place.write(*numbers(1, 10))
    await place.store.prune_events(0, 3)
    subscription = await place.subscriptions.add("mine", handler, durable=True)
    await place.write("11")
    assert await eventually(lambda: handler.texts == ["gap", "8", "9", "10", "11"])
    assert await eventually(lambda: (subscription.received, subscription.handled, subscription.dropped) == (5, 5, 7))
    await place.close()


async def test_a_live_subscriber_drops_overflow_and_gets_a_gap(place: Place) -> None:
    go = asyncio.Event()
    handler = RecordingHandler(lambda _: go.wait())
    subscription = await place.subscriptions.add(
        "tap", handler, EventFilter(kinds=("task_*", "message_*")), live=True, most=3
    )
    await place.write("1")
    assert await eventually(lambda: handler.texts == ["1"])
    place.bus.show(event(MessageDelta(message_id="m", offset=0, text="live"), CLOCK.now()))
    place.bus.show(event(LoopError(stage="x", message="of another kind"), CLOCK.now()))
    assert await eventually(lambda: subscription.received == 2)
    await place.write(*numbers(2, 9))
    assert await eventually(lambda: subscription.received == 10)
    go.set()
    assert await eventually(lambda: handler.texts == ["1", "live", "2", "3", "gap"])
    assert (handler.events[-1].payload["dropped"], subscription.dropped) == (6, 6)
    await place.write("10")
    assert await eventually(lambda: handler.texts[-1] == "10")
    assert subscription.lag == 0


async def test_only_matching_events_are_delivered(place: Place) -> None:
    handler = RecordingHandler()
    await place.subscriptions.add("mine", handler, EventFilter(kinds=("err*",)))
    await place.write("1")
    await place.store.apply(Changes(events=(event(LoopError(stage="x", message="y"), CLOCK.now()),)))
    assert await eventually(lambda: [e.kind for e in handler.events] == ["error"])


async def test_a_name_is_used_once_until_it_is_removed(place: Place) -> None:
    handler = RecordingHandler()
    await place.subscriptions.add("mine", handler)
    with pytest.raises(InvalidInput, match="mine"):
        await place.subscriptions.add("mine", handler)
    with pytest.raises(InvalidInput, match="live"):
        await place.subscriptions.add("other", handler, durable=True, live=True)
    await place.subscriptions.remove("mine")
    await place.subscriptions.remove("mine")
    await place.write("1")
    await settle()
    assert (handler.events, place.subscriptions.list()) == ([], [])
    await place.subscriptions.add("mine", handler)


class Harsh(BaseException):
    """An exception that no `except Exception` catches."""


def cancel_own_task(_: Event) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def await_cancelled(_: Event) -> None:
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


@pytest.mark.parametrize("options", [{}, {"durable": True}, {"live": True}], ids=str)
@pytest.mark.parametrize(
    "problem",
    [
        asyncio.CancelledError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        Harsh,
        StopAsyncIteration,
        partial(StoreUnavailable, "no"),
    ],
)
async def test_whatever_a_handler_raises_the_next_event_is_delivered(
    place: Place, caplog: pytest.LogCaptureFixture, problem: Callable[[], BaseException], options: dict[str, Any]
) -> None:
    def refuse(event: Event) -> None:
        if event.payload["text"] in ("1", "2"):
            raise problem()

    handler = RecordingHandler(refuse)
    subscription = await place.subscriptions.add("mine", handler, **options)
    await place.write("1", "2", "3")
    await place.write("4")
    assert await eventually(lambda: (handler.texts, subscription.handled) == (numbers(1, 4), 2))
    assert subscription.failed == 2
    assert "subscription mine failed at event task_progress" in caplog.text
    await place.subscriptions.remove("mine")
    await place.write("5")
    await settle()
    assert handler.texts == numbers(1, 4)


@pytest.mark.parametrize("options", [{}, {"durable": True}, {"live": True}], ids=str)
async def test_a_failing_task_group_of_a_handler_ends_only_its_call(place: Place, options: dict[str, Any]) -> None:
    async def fail_in_group(event: Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse(event))

    async def refuse(event: Event) -> None:
        fail(event)

    async def hide(event: Event) -> None:
        with suppress(BaseExceptionGroup):
            await fail_in_group(event)

    handlers = {"raises": RecordingHandler(fail_in_group), "hides": RecordingHandler(hide)}
    for name, handler in handlers.items():
        await place.subscriptions.add(name, handler, **options)
    await place.write("1", "2", "3")
    assert await eventually(lambda: all(handler.texts == numbers(1, 3) for handler in handlers.values()))
    assert await eventually(lambda: [each.failed for each in place.subscriptions.list()] == [0, 3])
    await place.subscriptions.remove("raises")
    assert [each.name for each in place.subscriptions.list()] == ["hides"]


@pytest.mark.parametrize("options", [{"durable": True}, {"live": True}], ids=str)
async def test_a_handler_cannot_cancel_its_subscription(place: Place, options: dict[str, Any]) -> None:
    handlers = {"cancel": RecordingHandler(cancel_own_task), "await": RecordingHandler(await_cancelled)}
    for name, handler in handlers.items():
        await place.subscriptions.add(name, handler, **options)
    await place.write("1", "2")
    assert await eventually(lambda: all(handler.texts == ["1", "2"] for handler in handlers.values()))
    assert await eventually(lambda: [each.failed for each in place.subscriptions.list()] == [2, 0])


@pytest.mark.parametrize("options", [{}, {"durable": True}, {"live": True}], ids=str)
@pytest.mark.parametrize("ending", ["return", "raise"])
async def test_a_removal_ends_a_handler_that_hides_its_cancellation(
    place: Place, caplog: pytest.LogCaptureFixture, ending: str, options: dict[str, Any]
) -> None:
    never = asyncio.Event()

    async def hide() -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            if ending == "raise":
                raise RuntimeError("hidden") from None

    handler = RecordingHandler(lambda _: hide())
    await place.subscriptions.add("mine", handler, **options)
    await place.write("1", "2")
    assert await eventually(lambda: handler.texts == ["1"])
    await place.subscriptions.remove("mine")
    assert "does not end" not in caplog.text
    await settle()
    assert handler.texts == ["1"]
    if options.get("durable"):
        again = RecordingHandler()
        await place.subscriptions.add("mine", again, durable=True)
        assert await eventually(lambda: again.texts == (["2"] if ending == "return" else ["1", "2"]))


@pytest.mark.parametrize("options", [{}, {"durable": True}, {"live": True}], ids=str)
@pytest.mark.parametrize("inside", ["the handler", "a task of the handler"])
async def test_a_handler_removes_itself(place: Place, inside: str, options: dict[str, Any]) -> None:
    async def leave(event: Event) -> None:
        if event.payload["text"] == "2":
            removal = place.subscriptions.remove("mine")
            await (removal if inside == "the handler" else asyncio.gather(removal))

    handler = RecordingHandler(leave)
    subscription = await place.subscriptions.add("mine", handler, **options)
    async with asyncio.timeout(3):  # less than a removal waits for a handler
        await place.write("1", "2", "3")
        assert await eventually(lambda: subscription.handled == 2)
    assert place.subscriptions.list() == []
    again = RecordingHandler()
    await place.write("4")
    await settle()
    await place.subscriptions.add("mine", again, **options)
    await place.write("5")
    assert await eventually(lambda: again.texts == (["3", "4", "5"] if options.get("durable") else ["5"]))
    assert handler.texts == ["1", "2"]


async def test_a_handler_may_stop_all_subscriptions(place: Place) -> None:
    async def stop_all(_: Event) -> None:
        await place.subscriptions.stop()

    handler, other = RecordingHandler(stop_all), RecordingHandler()
    stopping = await place.subscriptions.add("mine", handler, durable=True)
    await place.subscriptions.add("other", other, EventFilter(kinds=("error",)), live=True)
    async with asyncio.timeout(3):  # less than a removal waits for a handler
        await place.write("1", "2")
        assert await eventually(lambda: stopping.handled == 1)
    assert place.subscriptions.list() == []
    await place.write("3")
    await settle()
    assert (handler.texts, other.texts) == (["1"], [])


@pytest.mark.parametrize("options", [{}, {"live": True}], ids=str)
def test_a_closed_event_loop_ends_subscriptions_that_nobody_removed(tmp_path: Path, options: dict[str, Any]) -> None:
    handlers = [RecordingHandler(lambda _: asyncio.Event().wait()), RecordingHandler()]

    async def forget() -> SqliteStore:
        place = await open_place(tmp_path / "midwatch.db")
        for number, handler in enumerate(handlers):
            await place.subscriptions.add(f"{number}", handler, **options)
        await place.write("1")
        assert await eventually(lambda: all(handler.texts == ["1"] for handler in handlers))
        return place.store

    asyncio.run(asyncio.run(forget()).close())


@pytest.mark.parametrize("options", [{}, {"durable": True}, {"live": True}], ids=str)
async def test_a_subscription_for_one_event_is_called_once(place: Place, options: dict[str, Any]) -> None:
    handler, failing = RecordingHandler(), RecordingHandler(fail)
    one = await place.subscriptions.add("one", handler, EventFilter(kinds=("task_*",)), once=True, **options)
    other = await place.subscriptions.add("other", failing, once=True, **options)
    await place.store.apply(Changes(events=(event(LoopError(stage="x", message="y"), CLOCK.now()),)))
    await place.write("1", "2")
    await place.write("3")
    assert await eventually(lambda: place.subscriptions.list() == [])
    assert (handler.texts, one.handled, failing.texts, other.failed) == (["1"], 1, ["error"], 1)


async def test_a_durable_subscription_for_one_event_stays_done_after_a_restart(tmp_path: Path) -> None:
    file, never = tmp_path / "midwatch.db", asyncio.Event()
    cut_off, handler, late = RecordingHandler(lambda _: never.wait()), RecordingHandler(), RecordingHandler()
    for called in (cut_off, handler, late):
        place = await open_place(file)
        await place.subscriptions.add("one", called, durable=True, once=True)
        await place.write("1")
        done = called is late
        assert await eventually(lambda called=called, done=done: called.texts == ([] if done else ["1"]))
        await settle()
        await place.close()  # the first handler has not ended, so the event is delivered again
    assert late.texts == []
    with pytest.raises(InvalidInput, match="once"):
        await place.subscriptions.add("one", handler, once=True, batches=True)


async def test_batches_are_passed_again_while_the_handler_has_no_store(tmp_path: Path) -> None:
    place = await open_place(tmp_path / "midwatch.db", pause_seconds=0.01)
    batches: list[list[str]] = []

    async def collect(events: Sequence[Event]) -> None:
        batches.append([event.payload["text"] for event in events])
        if len(batches) < 3:
            raise TryAgain("no")

    subscription = await place.subscriptions.add("mine", collect, durable=True, batches=True)
    await place.write("1", "2", "3")
    assert await eventually(lambda: subscription.handled == 3)
    assert batches == [["1", "2", "3"]] * 3
    await place.close()


async def test_a_handler_that_does_not_end_blocks_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = await open_place(tmp_path / "midwatch.db", stop_seconds=0.01)
    go = asyncio.Event()

    async def stubborn() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    handler = RecordingHandler(lambda _: stubborn())
    await place.subscriptions.add("stubborn", handler)
    await place.write("1")
    assert await eventually(lambda: handler.texts == ["1"])
    await place.subscriptions.remove("stubborn")
    assert "stubborn does not end" in caplog.text
    go.set()
    await settle()
    await place.close()

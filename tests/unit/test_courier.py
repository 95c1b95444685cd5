"""Test the courier with channels and a store that are controlled by the test."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import pytest

from midwatch.base.clock import LONGEST_NAP, SECOND
from midwatch.base.errors import Conflict, DeliveryError, StoreUnavailable
from midwatch.domain.changes import Changes
from midwatch.domain.channel import BACKOFF_SECONDS, MAX_ATTEMPTS, Delivery, Status
from midwatch.domain.event import Event
from midwatch.loops.courier import CROWDED, CROWDED_SECONDS, LANE_WIDTH, PATIENCE, Courier, Patience
from midwatch.testing import FakeClock

START = 1_700_000_000 * SECOND


class ChangeSignal:
    """Notifies waiting tests of calls and writes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await self._event.wait()


class Clock(FakeClock):
    """A clock that also shows its timers."""

    @property
    def pending(self) -> list[float]:
        """Return the seconds until each timer that was not cancelled."""
        return sorted(at - self.monotonic() for at, _, timer in self._timers if timer.callback is not None)


class MemoryStore:
    """Deliveries in a dict, with the guards of the real store and errors on demand."""

    def __init__(self, changed: ChangeSignal) -> None:
        self.rows: dict[str, Delivery] = {}
        self.events: list[Event] = []
        self.calls: list[str] = []
        self.conflicts = 0
        self.read_errors: list[Exception] = []
        self.write_errors: list[Exception] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self._changed = changed

    def add(self, delivery_id: str, channel: str, **fields: object) -> None:
        delivery = Delivery(
            id=delivery_id, task_id=f"t_{delivery_id}", channel=channel, notice="done", text="it is done", due_at=START,
            created_at=START,
        )  # fmt: skip
        self.rows[delivery_id] = replace(delivery, **fields)  # type: ignore[arg-type]

    def status(self, delivery_id: str) -> Status:
        return self.rows[delivery_id].status

    async def list_due_deliveries(self, now: int, limit: int = 50) -> list[Delivery]:
        self._record_call("due_deliveries")
        if self.read_errors:
            raise self.read_errors.pop(0)
        deliveries = [d for d in self.rows.values() if d.status == "pending" and d.due_at <= now]
        answer = sorted(deliveries, key=lambda d: (d.due_at, d.id))[:limit]
        await self.reading.wait()
        return answer

    async def find_next_delivery_at(self) -> int | None:
        self._record_call("next_delivery_at")
        return min((d.due_at for d in self.rows.values() if d.status == "pending"), default=None)

    async def get_delivery(self, delivery_id: str) -> Delivery | None:
        return self.rows.get(delivery_id)

    async def list_deliveries(
        self, *, task_id: str | None = None, status: Status | None = None, limit: int = 50
    ) -> list[Delivery]:
        return list(self.rows.values())[:limit]

    async def apply(self, changes: Changes) -> None:
        self._record_call("apply")
        if self.write_errors:
            raise self.write_errors.pop(0)
        for update in changes.updates:
            assert update.noun == "delivery"
            row = self.rows[update.id]
            if any(getattr(row, field) != value for field, value in update.guard.items()):
                self.conflicts += 1
                raise Conflict("changed meanwhile")
            self.rows[update.id] = replace(row, **update.fields)
        self.events.extend(changes.events)
        self._changed.notify()

    def _record_call(self, name: str) -> None:
        self.calls.append(name)
        self._changed.notify()


class ScriptedChannel:
    """A channel that raises the given errors one by one, then accepts everything. It hangs while `open` is not set."""

    def __init__(self, name: str, changed: ChangeSignal) -> None:
        self.name = name
        self.problems: list[BaseException] = []
        self.begun: list[str] = []
        self.sent: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self._changed = changed

    async def deliver(self, delivery: Delivery) -> None:
        self.begun.append(delivery.id)
        self._changed.notify()
        await self.open.wait()
        if self.problems:
            raise self.problems.pop(0)
        self.sent.append(delivery.id)
        self._changed.notify()

    def typing(self, target: str | None) -> nullcontext[None]:
        return nullcontext()

    def listen(self) -> None:
        return None

    async def close(self) -> None:
        pass


class Desk:
    """A courier with its store, channels and clock."""

    def __init__(self) -> None:
        self.changed = ChangeSignal()
        self.clock = Clock()
        self.store = MemoryStore(self.changed)
        self.fast = ScriptedChannel("fast", self.changed)
        self.slow = ScriptedChannel("slow", self.changed)
        self.leading = True
        self.asked_to_lead = 0
        self.courier = self.make_courier()

    def make_courier(self, patience: Patience = PATIENCE) -> Courier:
        return Courier(self.store, self.clock, {"fast": self.fast, "slow": self.slow}, self._leads, patience)

    def _leads(self) -> bool:
        self.asked_to_lead += 1
        self.changed.notify()
        return self.leading

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.changed.until(condition)

    async def wait_for_sleep(self) -> None:
        """Wait until the courier has queried the store twice more: then it has acted on all it read before."""
        for _ in range(2):
            queries = self.queries
            self.courier.wake()
            await self.until(lambda queries=queries: self.queries > queries)  # type: ignore[misc]

    @property
    def queries(self) -> int:
        return self.store.calls.count("next_delivery_at") if self.leading else self.asked_to_lead


@asynccontextmanager
async def run_courier(desk: Desk) -> AsyncIterator[None]:
    await desk.courier.start()
    try:
        yield
    finally:
        desk.fast.open.set()
        desk.slow.open.set()
        desk.store.reading.set()
        await desk.courier.stop()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    yield Desk()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_due_delivery_is_sent_once_and_recorded(desk: Desk) -> None:
    desk.store.add("d_1", "fast")
    async with run_courier(desk):
        await desk.until(lambda: desk.store.status("d_1") == "sent")
        await desk.wait_for_sleep()
    row = desk.store.rows["d_1"]
    assert (row.attempts, row.sent_at, row.error) == (1, START, None)
    assert desk.fast.sent == ["d_1"]
    [event] = desk.store.events
    assert event.kind == "delivery_sent"
    assert event.task_id == "t_d_1"
    assert event.payload == {"delivery_id": "d_1", "channel": "fast", "notice": "done"}


async def test_a_wake_up_sends_new_deliveries(desk: Desk) -> None:
    async with run_courier(desk):
        await desk.until(lambda: "next_delivery_at" in desk.store.calls)
        desk.store.add("d_1", "fast")
        desk.courier.wake()
        await desk.until(lambda: desk.store.status("d_1") == "sent")


async def test_a_retry_keeps_the_id(desk: Desk) -> None:
    desk.store.add("d_1", "fast")
    desk.fast.problems = [DeliveryError("busy"), DeliveryError("still busy")]
    async with run_courier(desk):
        await desk.until(lambda: desk.store.rows["d_1"].attempts == 1)
        assert (desk.store.status("d_1"), desk.store.rows["d_1"].error) == ("pending", "busy")
        await desk.wait_for_sleep()
        assert desk.fast.begun == ["d_1"]  # not before its time
        await desk.clock.advance(BACKOFF_SECONDS[0] * 1.2)
        await desk.until(lambda: desk.store.rows["d_1"].attempts == 2)
        await desk.wait_for_sleep()
        await desk.clock.advance(BACKOFF_SECONDS[1] * 1.2)
        await desk.until(lambda: desk.store.status("d_1") == "sent")
    assert desk.fast.begun == ["d_1"] * 3
    assert desk.store.rows["d_1"].error is None
    assert [event.kind for event in desk.store.events] == ["delivery_sent"]


async def test_failures_back_off_until_the_last_try(desk: Desk) -> None:
    desk.store.add("d_1", "fast")
    desk.fast.problems = [DeliveryError("busy")] * MAX_ATTEMPTS
    async with run_courier(desk):
        for attempt, pause in enumerate(BACKOFF_SECONDS, start=1):
            await desk.until(lambda attempt=attempt: desk.store.rows["d_1"].attempts == attempt)  # type: ignore[misc]
            due_in = (desk.store.rows["d_1"].due_at - desk.clock.now()) / SECOND
            assert 0.8 * pause <= due_in <= 1.2 * pause
            assert desk.store.status("d_1") == "pending"
            await desk.wait_for_sleep()
            assert desk.clock.pending == [pytest.approx(min(due_in, LONGEST_NAP), abs=0.001)]
            await desk.clock.advance(due_in + 0.001)
        await desk.until(lambda: desk.store.status("d_1") == "failed")
        await desk.wait_for_sleep()
        assert desk.clock.pending == []
    assert desk.fast.begun == ["d_1"] * MAX_ATTEMPTS
    [event] = desk.store.events
    assert (event.kind, event.payload["error"]) == ("delivery_failed", "busy")


async def test_a_permanent_failure_is_not_retried(desk: Desk) -> None:
    desk.store.add("d_1", "fast")
    desk.fast.problems = [DeliveryError("gone\nfor good", permanent=True)]
    async with run_courier(desk):
        await desk.until(lambda: desk.store.status("d_1") == "failed")
        await desk.wait_for_sleep()
    assert desk.fast.begun == ["d_1"]
    [event] = desk.store.events
    assert event.payload == {"delivery_id": "d_1", "channel": "fast", "notice": "done", "error": "gone for good"}


async def test_a_channel_that_is_no_longer_configured_fails_the_delivery(desk: Desk) -> None:
    desk.store.add("d_1", "pager")
    async with run_courier(desk):
        await desk.until(lambda: desk.store.status("d_1") == "failed")
    assert desk.store.rows["d_1"].error == "there is no channel 'pager'; add [channels.pager]."


@pytest.mark.parametrize("backlog", [LANE_WIDTH + 1, CROWDED + 100])
async def test_a_hanging_channel_does_not_delay_another(desk: Desk, backlog: int) -> None:
    desk.slow.open.clear()
    for number in range(backlog):
        desk.store.add(f"d_{number:05}", "slow", due_at=START - SECOND)
    desk.store.add("d_fast", "fast")
    async with run_courier(desk):
        while desk.store.status("d_fast") == "pending":
            await desk.until(lambda: bool(desk.clock.pending) or desk.store.status("d_fast") == "sent")
            await desk.clock.advance(CROWDED_SECONDS)
        assert desk.slow.begun == [f"d_{number:05}" for number in range(LANE_WIDTH)]
        assert desk.slow.sent == []


async def test_a_hanging_channel_does_not_hide_the_retry_of_another(desk: Desk) -> None:
    desk.slow.open.clear()
    desk.fast.problems = [DeliveryError("busy")]
    desk.store.add("d_slow", "slow")
    desk.store.add("d_fast", "fast")
    async with run_courier(desk):
        await desk.until(lambda: desk.store.rows["d_fast"].attempts == 1)
        await desk.wait_for_sleep()
        while desk.store.status("d_fast") == "pending":
            await desk.until(lambda: bool(desk.clock.pending) or desk.store.status("d_fast") == "sent")
            assert desk.clock.now() < START + 10 * SECOND
            await desk.clock.advance(0.5)
        assert desk.slow.sent == []


async def test_a_send_has_a_timeout(desk: Desk) -> None:
    desk.courier = desk.make_courier(Patience(send=0.01))
    desk.slow.open.clear()
    desk.store.add("d_1", "slow")
    async with run_courier(desk):
        await desk.until(lambda: desk.store.rows["d_1"].attempts == 1)
    assert desk.store.rows["d_1"].error == "channel slow: it took longer than 0.01 s."


@pytest.mark.parametrize(
    "problem", [RuntimeError("token=hush"), TimeoutError("token=hush"), asyncio.CancelledError("token=hush")]
)
async def test_any_error_of_a_channel_is_contained(
    desk: Desk, problem: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    desk.store.add("d_1", "fast", target="https://hush.example")
    desk.fast.problems = [problem]
    async with run_courier(desk):
        await desk.until(lambda: desk.store.rows["d_1"].attempts == 1)
        await desk.wait_for_sleep()
        await desk.clock.advance(2)
        await desk.until(lambda: desk.store.status("d_1") == "sent")
    messages = [record.getMessage() for record in caplog.records if record.name == "midwatch.courier"]
    assert any(type(problem).__name__ in line and "test_courier.py" in line for line in messages)
    assert "hush" not in caplog.text


async def test_a_process_that_does_not_lead_sends_nothing(desk: Desk) -> None:
    desk.leading = False
    desk.store.add("d_1", "fast")
    async with run_courier(desk):
        await desk.wait_for_sleep()
        assert desk.store.calls == []
        assert desk.clock.pending == []
        desk.leading = True
        desk.courier.wake()
        await desk.until(lambda: desk.store.status("d_1") == "sent")


async def test_a_process_that_lost_leadership_starts_no_delivery(desk: Desk) -> None:
    desk.slow.open.clear()
    for number in range(LANE_WIDTH + 5):
        desk.store.add(f"d_{number:02}", "slow")
    async with run_courier(desk):
        await desk.until(lambda: len(desk.slow.begun) == LANE_WIDTH)
        desk.leading = False
        desk.slow.open.set()
        await desk.until(lambda: len(desk.slow.sent) == LANE_WIDTH)
        await desk.wait_for_sleep()
    assert len(desk.slow.begun) == LANE_WIDTH


async def test_stop_during_a_send_leaves_it_pending(desk: Desk) -> None:
    desk.courier = desk.make_courier(Patience(stop=0.01))
    desk.slow.open.clear()
    desk.store.add("d_1", "slow")
    await desk.courier.start()
    await desk.until(lambda: desk.slow.begun == ["d_1"])
    await desk.courier.stop()
    await desk.courier.stop()
    assert (desk.store.status("d_1"), desk.store.rows["d_1"].attempts) == ("pending", 0)
    assert "apply" not in desk.store.calls
    assert desk.clock.pending == []

    desk.slow.open.set()
    desk.courier = desk.make_courier()
    async with run_courier(desk):
        await desk.until(lambda: desk.store.status("d_1") == "sent")
    assert desk.slow.begun == ["d_1", "d_1"]


async def test_stop_sends_what_is_due(desk: Desk) -> None:
    desk.slow.open.clear()
    for number in range(LANE_WIDTH + 1):
        desk.store.add(f"d_{number}", "slow")
    await desk.courier.start()
    await desk.until(lambda: len(desk.slow.begun) == LANE_WIDTH)
    desk.store.add("d_last", "fast")  # the courier was not woken for it
    stopping = asyncio.create_task(desk.courier.stop())
    desk.slow.open.set()
    await stopping
    assert {row.status for row in desk.store.rows.values()} == {"sent"}


async def test_stop_starts_nothing_after_its_time_limit(desk: Desk) -> None:
    desk.courier = desk.make_courier(Patience(stop=0.01))
    desk.slow.open.clear()
    for number in range(LANE_WIDTH + 1):
        desk.store.add(f"d_{number}", "slow")
    await desk.courier.start()
    await desk.until(lambda: len(desk.slow.begun) == LANE_WIDTH)
    await desk.courier.stop()
    assert len(desk.slow.begun) == LANE_WIDTH
    assert {row.status for row in desk.store.rows.values()} == {"pending"}


async def test_stop_works_with_an_unreadable_store(desk: Desk) -> None:
    desk.slow.open.clear()
    desk.store.add("d_1", "slow")
    await desk.courier.start()
    await desk.until(lambda: desk.slow.begun == ["d_1"])
    desk.store.read_errors = [StoreUnavailable("disk full")] * 2
    stopping = asyncio.create_task(desk.courier.stop())
    await desk.until(lambda: len(desk.store.read_errors) < 2)
    desk.slow.open.set()
    await stopping
    assert desk.store.status("d_1") == "sent"


async def test_a_courier_can_be_started_again(desk: Desk) -> None:
    await desk.courier.stop()
    for delivery_id in ("d_1", "d_2"):
        desk.store.add(delivery_id, "fast")
        async with run_courier(desk):
            await desk.courier.start()
            await desk.until(lambda delivery_id=delivery_id: desk.store.status(delivery_id) == "sent")  # type: ignore[misc]
    assert desk.fast.sent == ["d_1", "d_2"]


async def test_an_idle_courier_makes_no_store_calls(desk: Desk) -> None:
    async with run_courier(desk):
        await desk.until(lambda: desk.store.calls == ["due_deliveries", "next_delivery_at"])
        await desk.clock.advance(24 * 3600)
        assert desk.clock.pending == []
        assert desk.store.calls == ["due_deliveries", "next_delivery_at"]


async def test_the_courier_sleeps_until_the_next_due_time(desk: Desk) -> None:
    desk.store.add("d_1", "fast", due_at=START + 7 * SECOND)
    async with run_courier(desk):
        await desk.until(lambda: bool(desk.clock.pending))
        assert desk.clock.pending == [7.0]
        assert desk.fast.begun == []
        await desk.clock.advance(7)
        await desk.until(lambda: desk.store.status("d_1") == "sent")


async def test_a_delivery_in_progress_is_not_started_again(desk: Desk) -> None:
    desk.slow.open.clear()
    desk.store.add("d_1", "slow")
    async with run_courier(desk):
        await desk.until(lambda: desk.slow.begun == ["d_1"])
        await desk.wait_for_sleep()
        assert desk.slow.begun == ["d_1"]
        desk.slow.open.set()
        await desk.until(lambda: desk.store.status("d_1") == "sent")
        await desk.wait_for_sleep()
    assert desk.slow.begun == ["d_1"]


async def test_an_outdated_query_result_sends_nothing_twice(desk: Desk) -> None:
    desk.slow.open.clear()
    desk.store.add("d_1", "slow")
    async with run_courier(desk):
        await desk.until(lambda: desk.slow.begun == ["d_1"])
        await desk.wait_for_sleep()
        desk.store.reading.clear()
        reads = desk.store.calls.count("due_deliveries")
        desk.courier.wake()
        await desk.until(lambda: desk.store.calls.count("due_deliveries") > reads)  # it has read d_1 as pending
        desk.slow.open.set()
        await desk.until(lambda: desk.store.status("d_1") == "sent")
        desk.store.reading.set()
        await desk.wait_for_sleep()
    assert desk.slow.begun == ["d_1"]


async def test_notices_of_one_task_arrive_in_order(desk: Desk) -> None:
    desk.slow.open.clear()
    desk.store.add("d_1", "slow", task_id="t_1", notice="started")
    desk.store.add("d_2", "slow", task_id="t_1", notice="done")
    desk.store.add("d_3", "slow", task_id="t_2", notice="started")
    async with run_courier(desk):
        await desk.until(lambda: len(desk.slow.begun) == 2)
        await desk.wait_for_sleep()
        assert desk.slow.begun == ["d_1", "d_3"]
        desk.slow.open.set()
        await desk.until(lambda: desk.store.status("d_2") == "sent")
    assert desk.slow.sent[0] == "d_1"


@pytest.mark.parametrize("problem", [StoreUnavailable("disk full"), RuntimeError("a bug")])
async def test_an_unreadable_store_is_queried_again_after_a_pause(desk: Desk, problem: Exception) -> None:
    desk.store.add("d_1", "fast")
    desk.store.read_errors = [problem, problem]
    async with run_courier(desk):
        for pause in (1.0, 2.0):
            await desk.until(lambda pause=pause: desk.clock.pending == [pause])  # type: ignore[misc]
            reads = len(desk.store.calls)
            desk.courier.wake()  # it does not shorten the pause
            await desk.clock.advance(pause / 2)
            assert len(desk.store.calls) == reads
            await desk.clock.advance(pause / 2)
        await desk.until(lambda: desk.store.status("d_1") == "sent")


async def test_a_result_that_cannot_be_recorded_is_recorded_later_without_a_second_send(desk: Desk) -> None:
    desk.store.add("d_1", "fast")
    desk.store.write_errors = [StoreUnavailable("disk full"), StoreUnavailable("disk full")]
    async with run_courier(desk):
        for tries in (1, 2):
            await desk.until(lambda tries=tries: desk.store.calls.count("apply") == tries)  # type: ignore[misc]
            await desk.wait_for_sleep()
            assert desk.store.status("d_1") == "pending"
            await desk.clock.advance(tries)
        await desk.until(lambda: desk.store.status("d_1") == "sent")
    assert desk.fast.begun == ["d_1"]


@pytest.mark.parametrize(("problems", "told"), [([], ["delivery_sent"]), ([DeliveryError("busy")] * 2, [])])
async def test_two_couriers_record_a_delivery_once(desk: Desk, problems: list[BaseException], told: list[str]) -> None:
    desk.slow.open.clear()
    desk.slow.problems = list(problems)
    desk.store.add("d_1", "slow")
    second_courier = desk.make_courier()
    async with run_courier(desk):
        await second_courier.start()
        await desk.until(lambda: desk.slow.begun == ["d_1", "d_1"])
        desk.slow.open.set()
        await desk.until(lambda: desk.store.calls.count("apply") == 2)
        await second_courier.stop()
    assert desk.store.conflicts == 1
    assert [event.kind for event in desk.store.events] == told
    assert desk.store.rows["d_1"].attempts == 1

"""Test the notification service with a real store: listing deliveries and retrying failed ones."""

from __future__ import annotations

import pytest

from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import Delivery
from midwatch.domain.event import EVERYTHING
from midwatch.services.notifications import Notifications
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, RecordingChannel


@pytest.fixture
def store(memory: SqliteStore) -> SqliteStore:
    return memory


@pytest.fixture
def notifications(store: SqliteStore, clock: FakeClock) -> Notifications:
    return Notifications(store, clock, {"desk": RecordingChannel("desk")})


async def delivery(store: SqliteStore, status: str = "pending", name: str = "d_1") -> None:
    row = Delivery(id=name, task_id="t_1", channel="desk", target=None, notice=name, text="hi", due_at=5, created_at=5)
    changes = [Changes(deliveries=(row,))]
    if status != "pending":
        fields = {"status": status, "attempts": 7, "error": "no" if status == "failed" else None}
        changes.append(Changes(updates=(Update("delivery", name, fields, {"status": "pending"}),)))
    for step in changes:
        await store.apply(step)


async def test_a_retried_delivery_starts_over(
    notifications: Notifications, store: SqliteStore, clock: FakeClock
) -> None:
    await delivery(store, "failed")
    again = await notifications.retry("d_1", actor="ann")
    assert (again.status, again.attempts, again.due_at, again.error) == ("pending", 0, clock.now(), None)
    assert [due_delivery.id for due_delivery in await store.list_due_deliveries(clock.now(), 10)] == ["d_1"]
    (event,) = await store.read_events(0, EVERYTHING, 10)
    assert (event.kind, event.actor, event.task_id) == ("delivery_retried", "ann", "t_1")
    assert event.payload == {"delivery_id": "d_1", "channel": "desk", "notice": "d_1"}


@pytest.mark.parametrize("status", ["pending", "sent"])
async def test_other_deliveries_cannot_be_retried(
    notifications: Notifications, store: SqliteStore, status: str
) -> None:
    await delivery(store, status)
    with pytest.raises(Conflict, match=status):
        await notifications.retry("d_1")
    assert (await notifications.get("d_1")).status == status
    assert await store.read_events(0, EVERYTHING, 10) == []


async def test_of_two_concurrent_retries_the_second_is_a_conflict(
    notifications: Notifications, store: SqliteStore, clock: FakeClock
) -> None:
    await delivery(store, "failed")
    old_delivery = await notifications.get("d_1")

    class OutdatedNotifications(Notifications):
        async def get(self, delivery_id: str) -> Delivery:
            return old_delivery

    await notifications.retry("d_1")
    with pytest.raises(Conflict):
        await OutdatedNotifications(store, clock, {}).retry("d_1")
    assert len(await store.read_events(0, EVERYTHING, 10)) == 1


async def test_deliveries_are_listed_by_task_and_status(notifications: Notifications, store: SqliteStore) -> None:
    for name, status in (("d_1", "failed"), ("d_2", "sent"), ("d_3", "pending")):
        await delivery(store, status, name)
    assert [row.id for row in await notifications.list()] == ["d_3", "d_2", "d_1"]
    assert [row.id for row in await notifications.list(status="failed")] == ["d_1"]
    assert await notifications.list(task_id="t_2") == []
    assert len(await notifications.list(limit=2)) == 2


async def test_unknown_ids_are_not_found(notifications: Notifications) -> None:
    for missing in (notifications.get("d_1"), notifications.retry("d_1")):
        with pytest.raises(NotFound, match="delivery"):
            await missing


def test_a_route_needs_an_existing_channel(notifications: Notifications) -> None:
    assert notifications.check_route(" desk:ann ") == "desk:ann"
    with pytest.raises(InvalidInput, match="use one of: desk") as refused:
        notifications.check_route("nowhere")
    assert refused.value.field == "route"

"""Test the export of automations from one home and their import into another, with real stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Forbidden, InvalidInput, NotFound
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import OVER, SPENT
from midwatch.domain.event import EVERYTHING
from midwatch.domain.identity import OWNER, Actor
from midwatch.services.automation_transfer import AutomationTransfer
from midwatch.services.automations import Automations
from midwatch.services.tasks import Tasks
from midwatch.testing import FakeClock
from records import InterferingStore

HOUR = 3600 * SECOND
ANN, BOB = Actor("ann", "operator"), Actor("bob", "operator")


class OneAgent:
    """A registry with one agent, `demo`."""

    default = "demo"

    def advice(self, agent: str) -> str | None:
        return None

    def terms(self, agent: str) -> AgentTerms | None:
        return AgentTerms() if agent == "demo" else None

    def local_names(self) -> frozenset[str]:
        return frozenset({"demo"})

    async def find_advertised(self, agent: str) -> AgentTerms | None:
        return None

    async def live(self) -> frozenset[str]:
        return self.local_names()


class Desk:
    """The store and the services of one home."""

    def __init__(self, store: InterferingStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        tasks = Tasks(store, clock, OneAgent(), lambda route: route)
        self.automations = Automations(store, clock, tasks, terms, lambda route: route)
        self.automation_transfer = AutomationTransfer(store, clock, tasks, lambda route: route)

    async def take(self, *snapshots: Any, actor: Actor = OWNER) -> list[str]:
        return [result.what for result in await self.automation_transfer.import_all(snapshots, actor=actor)]

    async def read_last_seq(self) -> int:
        return len(await self.store.read_events(0, EVERYTHING, 1000))


async def terms(agent: str) -> AgentTerms:
    return AgentTerms()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    store = await InterferingStore.open(":memory:")
    yield Desk(store, FakeClock())
    await store.close()


@pytest.fixture
async def other() -> AsyncIterator[Desk]:
    store = await InterferingStore.open(":memory:")
    yield Desk(store, FakeClock())
    await store.close()


async def test_exported_automations_are_imported_once(desk: Desk, other: Desk) -> None:
    automation = await desk.automations.create("one", every="24h", zone="UTC", tags=("a",), actor="ann", quiet="OK")
    await desk.clock.advance(1)
    await desk.automations.create("two", cron="0 9 * * *", zone="Asia/Tokyo", enabled=False)
    snapshots = [exported.snapshot() for exported in await desk.automation_transfer.export()]
    await other.clock.advance(36 * 3600)
    assert await other.take(*snapshots) == ["made", "made"]
    before = await other.read_last_seq()
    assert await other.take(*snapshots) == ["same", "same"]
    assert await other.read_last_seq() == before == 2
    imported = await other.automations.get(automation.id)
    assert (imported.schedule, imported.tags, imported.creator, imported.quiet) == (
        automation.schedule,
        ("a",),
        "ann",
        "OK",
    )
    assert imported.next_run_at == automation.created_at + 48 * HOUR  # the phase is kept and missed runs are skipped
    assert [exported.id for exported in await other.automation_transfer.export()] == [
        snapshot["id"] for snapshot in snapshots
    ]
    assert [exported.status for exported in await other.automation_transfer.export()] == ["paused", "active"]


async def test_an_import_restores_an_existing_automation_and_keeps_status_and_history(desk: Desk) -> None:
    automation = await desk.automations.create("one", every="24h", zone="UTC", max_runs=3, route="hook:secret")
    snapshot = automation.snapshot()
    assert snapshot["route"] == "hook"
    await desk.automations.run(automation.id)
    await desk.automations.patch(automation.id, {"prompt": "other", "every": "2h", "title": "x"})
    await desk.automations.pause(automation.id)
    assert await desk.take(snapshot) == ["changed"]
    back = await desk.automations.get(automation.id)
    assert (back.prompt, back.title, back.schedule, back.route) == ("one", "", automation.schedule, "hook:secret")
    assert (back.status, back.run_count, back.next_run_at) == ("paused", 1, None)
    assert await desk.take(snapshot) == ["same"]
    await desk.automations.delete(automation.id)
    assert await desk.take({**snapshot, "prompt": "other"}) == ["deleted"]
    assert (await desk.automations.get(automation.id)).prompt == "one"


async def test_an_import_is_all_or_nothing(desk: Desk) -> None:
    automation = await desk.automations.create("one", every="24h", zone="UTC")
    snapshot, before = automation.snapshot(), await desk.read_last_seq()
    for wrong in (
        {"agent": "nobody"}, {"schedule": {"cron": "@daily", "zone": "Mars"}}, {"schedule": {"zone": "UTC"}},
        {"prompt": " "}, {"workdir": "relative"}, {"timeout_seconds": -1.0}, {"session_key": "bg:t_1"},
        {"tags": ["x" * 51]},
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=r"^am_2: "):
            await desk.take({**snapshot, "title": "changed"}, {**snapshot, "id": "am_2", "session_key": "", **wrong})
    with pytest.raises(InvalidInput, match="twice"):
        await desk.take(snapshot, snapshot)
    assert await desk.read_last_seq() == before
    assert [exported.title for exported in await desk.automation_transfer.export()] == [""]


async def test_an_import_cannot_change_automations_of_others(desk: Desk) -> None:
    automation = await desk.automations.create("one", every="24h", zone="UTC", actor="ann")
    changed = {**automation.snapshot(), "prompt": "other"}
    with pytest.raises(Forbidden):
        await desk.take({**changed, "id": "am_2", "session_key": ""}, changed, actor=BOB)
    assert [exported.prompt for exported in await desk.automation_transfer.export()] == ["one"]
    assert await desk.take(automation.snapshot(), actor=BOB) == ["same"]
    assert await desk.take(changed, actor=ANN) == ["changed"]
    assert await desk.take({**changed, "id": "am_2", "session_key": ""}, actor=BOB) == ["made"]
    assert (await desk.automations.get("am_2")).creator == "bob"  # the creator in the file is ignored
    assert await desk.take({**changed, "id": "am_3", "session_key": ""}) == ["made"]
    assert (await desk.automations.get("am_3")).creator == "ann"


async def test_an_automation_that_cannot_run_is_imported_paused(desk: Desk, other: Desk) -> None:
    once = await desk.automations.create("once", at=desk.clock.now() + HOUR, zone="UTC")
    few = await desk.automations.create("few", every="24h", zone="UTC", max_runs=1)
    await desk.automations.run(few.id)
    snapshots = [automation.snapshot() for automation in await desk.automation_transfer.export([once.id, few.id])]
    await other.clock.advance(2 * 3600)
    await other.take(*snapshots)
    imported = [await other.automations.get(automation.id) for automation in (once, few)]
    assert [(automation.status, automation.paused_why, automation.next_run_at) for automation in imported] == [
        ("paused", OVER, None), ("paused", SPENT, None),
    ]  # fmt: skip


async def test_an_import_overwrites_a_concurrent_change_as_a_whole(desk: Desk) -> None:
    automation = await desk.automations.create("one", every="24h", zone="UTC")
    snapshot = {**automation.snapshot(), "prompt": "imported"}
    desk.store.interfere = lambda: desk.automations.patch(automation.id, {"title": "meanwhile", "prompt": "meanwhile"})
    assert await desk.take(snapshot) == ["changed"]
    imported = await desk.automations.get(automation.id)
    assert (imported.prompt, imported.title, imported.revision) == ("imported", "", 2)


async def test_an_unknown_automation_cannot_be_exported(desk: Desk) -> None:
    automation = await desk.automations.create("one", every="24h", zone="UTC")
    with pytest.raises(NotFound, match="am_no"):
        await desk.automation_transfer.export([automation.id, "am_no"])
    await desk.automations.delete(automation.id)
    assert await desk.automation_transfer.export() == []
    assert [exported.id for exported in await desk.automation_transfer.export([automation.id, automation.id])] == [
        automation.id
    ]

"""Test alerts on overdue, stuck and silent work: each is sent once and not repeated within the cool-down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from midwatch.base.clock import SECOND
from midwatch.domain.alert import (
    COOL_DOWN_SECONDS,
    GRACE_SECONDS,
    SILENT_SECONDS,
    check_automation,
    check_goal,
    check_pending,
    check_running,
    write_alerts,
)
from midwatch.domain.changes import Changes
from midwatch.domain.event import EventFilter, TaskProgress, event
from midwatch.domain.task import Task
from midwatch.services.alerts import Alerts
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import a_goal, a_task, an_automation

NOW = 1_700_000_000 * SECOND
GRACE, SILENT, COOL_DOWN = (int(s * SECOND) for s in (GRACE_SECONDS, SILENT_SECONDS, COOL_DOWN_SECONDS))


def runs(**fields: object) -> Task:
    base = {"status": "running", "attempt": 1, "started_at": NOW, "timeout_seconds": 60.0}
    return a_task(**{**base, **fields})


@pytest.mark.parametrize(
    ("after", "kinds"),
    [
        (60 * SECOND + GRACE - 1, []),
        (60 * SECOND + GRACE, ["stuck"]),
        (SILENT, ["stuck", "silent"]),
    ],
)
def test_a_running_task_is_stuck_after_its_timeout_and_silent_without_events(after: int, kinds: list[str]) -> None:
    assert [alert.kind for alert in check_running(runs(), None, NOW + after)] == kinds


def test_an_event_keeps_a_task_from_being_silent_and_the_alert_names_a_question() -> None:
    task = runs(timeout_seconds=None)
    progress = event(TaskProgress(text="on it"), NOW + SILENT)
    assert check_running(task, progress, NOW + SILENT + 1) == []
    (asks,) = check_running(task._replace(wait="approval"), None, NOW + SILENT)
    assert "waits for an answer" in asks.text
    (mute,) = check_running(task, None, NOW + SILENT)
    assert "does not wait for an answer" in mute.text


def test_a_question_stops_the_clock_of_a_stuck_task() -> None:
    assert [alert.kind for alert in check_running(runs(wait="approval"), None, NOW + 60 * SECOND + GRACE)] == []


def test_a_waiting_task_is_overdue_only_when_no_process_can_run_it() -> None:
    task = a_task(due_at=NOW)
    assert check_pending(task, NOW + GRACE, True) == []
    assert check_pending(task, NOW + GRACE - 1, False) == []
    assert [alert.kind for alert in check_pending(task, NOW + GRACE, False)] == ["overdue"]
    later = a_task(due_at=NOW, wait="delay")
    assert check_pending(later._replace(due_at=NOW + 2 * GRACE), NOW + GRACE, False) == []


def test_automations_and_goals_are_overdue_after_the_grace_period() -> None:
    automation = an_automation(NOW, next_run_at=NOW)
    assert check_automation(automation, NOW + GRACE - 1) == []
    assert [alert.kind for alert in check_automation(automation, NOW + GRACE)] == ["overdue"]
    assert check_automation(replace(automation, status="paused"), NOW + GRACE) == []
    aim = a_goal(NOW)
    assert check_goal(aim, NOW + GRACE - 1) == []
    assert [alert.kind for alert in check_goal(aim, NOW + GRACE)] == ["overdue"]
    assert check_goal(replace(aim, next_run_at=NOW + GRACE), NOW + GRACE) == []


def test_an_alert_is_an_event_and_with_a_route_a_delivery() -> None:
    loud, quiet = (
        check_automation(an_automation(NOW, next_run_at=NOW, route="console"), NOW + GRACE),
        check_running(runs(), None, NOW + 60 * SECOND + GRACE),
    )
    alerts, changes = write_alerts([*loud, *quiet], NOW)
    assert [alert.id for alert in alerts] == [loud[0].id, quiet[0].id]
    assert [event.kind for event in changes.events] == ["watchdog_alert"] * 2
    assert [(delivery.channel, delivery.task_id) for delivery in changes.deliveries] == [("console", loud[0].subject)]


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    new_store = await SqliteStore.open(":memory:")
    yield new_store
    await new_store.close()


async def live_agents() -> frozenset[str]:
    return frozenset({"demo"})


async def test_an_alert_is_not_repeated_within_the_cool_down_even_after_a_restart(store: SqliteStore) -> None:
    clock = FakeClock(NOW + GRACE)
    await store.apply(Changes(records=(an_automation(NOW, next_run_at=NOW),)))

    def alerts() -> Alerts:
        return Alerts(store, clock, live_agents)

    assert [alert.kind for alert in await alerts().send()] == ["overdue"]
    assert await alerts().send() == []
    clock.set(clock.now() + COOL_DOWN + 1)
    assert [alert.kind for alert in await alerts().send()] == ["overdue"]
    assert len(await store.read_events(0, EventFilter(kinds=("watchdog_alert",)))) == 2

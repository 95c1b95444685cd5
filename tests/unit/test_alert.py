"""Test the watchdog: which problems it finds, and the life of an alert from being raised until it is withdrawn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midwatch import api
from midwatch.base.clock import SECOND, SleepLog
from midwatch.base.errors import Conflict, NotFound
from midwatch.domain.alert import (
    ESCALATE_SECONDS,
    GRACE_SECONDS,
    INTERRUPTED,
    PAUSED_BY_PEOPLE,
    SILENT_SECONDS,
    TRANSITIONS,
    WAITING_SECONDS,
    Graces,
    Group,
    Plans,
    check_automation,
    check_goal,
    check_late,
    check_silent,
    check_stuck,
    count_work,
    raise_alert,
)
from midwatch.domain.approval import Approval
from midwatch.domain.automation_step import pause_automation
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import Delivery
from midwatch.domain.event import DeliverySent, EventFilter, TaskProgress, event
from midwatch.domain.instance import Instance
from midwatch.domain.task import Task, meta
from midwatch.domain.trigger import Trigger, record_firing
from midwatch.services.alerts import Alerts
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import a_goal, a_task, an_automation

NOW = 1_700_000_000 * SECOND
GRACE, SILENT, WAITING = (int(s * SECOND) for s in (GRACE_SECONDS, SILENT_SECONDS, WAITING_SECONDS))
SERVER = Instance(
    id="i_1", role="up", host="here", boot_id="b", pid=1, agents=("demo",), slots=1, started_at=NOW
)  # fmt: skip


def runs(**fields: object) -> Task:
    base = {"status": "running", "attempt": 1, "started_at": NOW, "timeout_seconds": 60.0}
    return a_task(**{**base, **fields})


def at(now: int) -> Callable[[int], float]:
    """Return the function that measures ages at a time."""
    return lambda since: (now - since) / SECOND


# -- pure rules ------------------------------------------------------------------------------------------------------


def test_a_running_task_is_stuck_by_its_working_time_and_silent_without_events() -> None:
    assert check_stuck(runs(), 60 + GRACE_SECONDS - 1) == []
    assert [alert.kind for alert in check_stuck(runs(), 60 + GRACE_SECONDS)] == ["stuck"]
    assert check_stuck(runs(wait="approval"), 60 + GRACE_SECONDS) == []
    assert check_stuck(runs(), 65.0, grace=5.0) != []
    assert check_silent(runs(), None, at(NOW + SILENT - 1)) == []
    assert [alert.kind for alert in check_silent(runs(), None, at(NOW + SILENT))] == ["silent"]
    progress = event(TaskProgress(text="on it"), NOW + SILENT)
    assert check_silent(runs(), progress, at(NOW + SILENT + 1)) == []
    (asks,) = check_silent(runs(wait="approval"), None, at(NOW + SILENT))
    assert "waits for an answer" in asks.text


def test_time_in_which_a_task_waited_is_no_working_time() -> None:
    hour = 3600 * SECOND
    waits = [(NOW + hour, NOW + 3 * hour), (NOW + 2 * hour, NOW + 4 * hour), (NOW + 5 * hour, None)]
    assert count_work(runs(), waits, NOW + 6 * hour, at(NOW + 6 * hour)) == 2 * 3600.0
    assert count_work(runs(), [], NOW + hour, at(NOW + hour)) == 3600.0


def test_late_tasks_of_an_agent_are_one_alert() -> None:
    group = Group(a_task(due_at=NOW), 100_000)
    assert check_late(group, False, at(NOW + GRACE - 1)) == []
    (overdue,) = check_late(group, False, at(NOW + GRACE))
    assert (overdue.kind, overdue.subject) == ("overdue", "demo")
    assert "100000 tasks wait" in overdue.text
    assert check_late(group, True, at(NOW + GRACE)) == []
    assert [alert.kind for alert in check_late(group, True, at(NOW + WAITING))] == ["waiting"]


def test_automations_and_goals_are_overdue_after_the_grace_period() -> None:
    automation = an_automation(NOW, next_run_at=NOW)
    assert check_automation(automation, at(NOW + GRACE - 1)) == []
    assert [alert.kind for alert in check_automation(automation, at(NOW + GRACE))] == ["overdue"]
    assert check_automation(replace(automation, status="paused"), at(NOW + GRACE)) == []
    aim = a_goal(NOW)
    assert check_goal(aim, at(NOW + GRACE - 1)) == []
    assert [alert.kind for alert in check_goal(aim, at(NOW + GRACE))] == ["overdue"]
    assert check_goal(replace(aim, next_run_at=NOW + GRACE), at(NOW + GRACE)) == []


def test_an_alert_is_an_event_and_with_a_route_a_delivery() -> None:
    (found,) = check_automation(an_automation(NOW, next_run_at=NOW), at(NOW + GRACE))
    for route, channels in (("console", ["console"]), (None, [])):
        alert, changes = raise_alert(found, "al_1", NOW, route, None)
        assert alert.status == "raised"
        assert [event.kind for event in changes.events] == ["watchdog_alert"]
        assert [delivery.channel for delivery in changes.deliveries] == channels


async def test_the_time_of_a_suspended_machine_does_not_count() -> None:
    clock = FakeClock(NOW)
    sleeps = SleepLog(clock)
    await clock.advance(60)
    sleeps.observe()
    clock.set(clock.now() + 8 * 3600 * SECOND)
    await clock.advance(60)
    sleeps.observe()
    assert sleeps.age(NOW) == 120
    assert sleeps.age(clock.now() - 30 * SECOND) == 0


# -- the service -----------------------------------------------------------------------------------------------------


class Watched:
    """An alert service on a store and a fake clock, with a live server."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.clock = FakeClock(NOW)
        self.living = [SERVER]
        self.alerts = self.restart()

    def restart(self, **options: Any) -> Alerts:
        """Build the service again, as after a restart."""
        self.alerts = Alerts(self.store, self.clock, self.list_living, route="pager", **options)
        return self.alerts

    async def list_living(self) -> list[Instance]:
        return self.living

    async def put(self, *records: Any) -> None:
        await self.store.apply(Changes(records=records))

    async def found(self) -> list[tuple[str, str]]:
        """Return kind and subject of the problems that exist now."""
        return [(alert.kind, alert.subject) for alert in await self.alerts.list()]

    async def notices(self) -> list[str]:
        """Return the first words of all notices, oldest first."""
        deliveries = await self.store.list_deliveries(limit=500)
        return [delivery.text.split("\n")[0] for delivery in reversed(deliveries)]


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    store = await SqliteStore.open(":memory:")
    yield Watched(store)
    await store.close()


async def test_an_alert_is_told_once_escalated_once_and_withdrawn_even_after_restarts(watched: Watched) -> None:
    task = runs(id="t_1", timeout_seconds=None, route=None, agent="demo", prompt="dig")
    await watched.put(task)
    await watched.clock.advance(SILENT_SECONDS)
    for _ in range(3):
        await watched.restart().send()
        await watched.clock.advance(60)
    assert await watched.notices() == ["Silent: dig"]
    sent = DeliverySent(delivery_id="d_1", channel="pager", notice="alert")
    await watched.store.apply(Changes(events=(event(sent, watched.clock.now(), **meta(task)),)))
    await watched.clock.advance(ESCALATE_SECONDS)
    for _ in range(200):  # more than three days
        await watched.restart().send()
        await watched.clock.advance(SILENT_SECONDS)
    assert await watched.notices() == ["Silent: dig", "STILL Silent: dig"]
    done = Update("task", "t_1", {"status": "done", "completed_at": watched.clock.now()}, {"status": "running"})
    await watched.store.apply(Changes(updates=(done,)))
    assert [alert.kind for alert in (await watched.alerts.send()).over] == ["silent"]
    assert await watched.notices() == ["Silent: dig", "STILL Silent: dig", "Over: Silent: dig"]
    kinds = [event.kind for event in await watched.store.read_events(0, EventFilter()) if "watchdog" in event.kind]
    assert kinds == ["watchdog_alert", "watchdog_alert", "watchdog_withdrawn"]


async def test_an_acknowledged_alert_sends_only_that_it_is_over(watched: Watched) -> None:
    automation = an_automation(NOW, id="am_1", next_run_at=NOW, title="brief", route="phone")
    await watched.put(automation)
    await watched.clock.advance(GRACE_SECONDS)
    assert [alert.status for alert in await watched.alerts.list()] == ["found"]
    (told,) = (await watched.alerts.send()).told
    for _ in range(2):  # a second call changes nothing
        alert = await watched.alerts.acknowledge(told.id)
        assert (alert.status, alert.loud) == ("acknowledged", False)
    await watched.clock.advance(3 * ESCALATE_SECONDS)
    assert (await watched.alerts.send()).told == []
    assert await watched.alerts.list_loud() == []
    later = Update("automation", "am_1", {"next_run_at": watched.clock.now() + 3600 * SECOND}, {"status": "active"})
    await watched.store.apply(Changes(updates=(later,)))
    assert len((await watched.alerts.send()).over) == 1
    assert await watched.notices() == ["Overdue: brief", "Over: Overdue: brief"]
    with pytest.raises(Conflict, match="over already"):
        await watched.alerts.acknowledge(told.id)
    with pytest.raises(NotFound):
        await watched.alerts.acknowledge("al_no")


async def test_only_pauses_by_midwatch_are_problems(watched: Watched) -> None:
    for number, why in enumerate(
        (
            "3 runs in a row failed", "paused by a person", "ann interrupted its run", "ann stopped its step t_1",
            "set night declares it as not enabled", "5 steps failed in a row: its step took too long",
        )
    ):  # fmt: skip
        paused = {"status": "paused", "paused_why": why, "next_run_at": None}
        await watched.put(an_automation(NOW, id=f"am_{number}", **paused))
        await watched.put(a_goal(NOW, id=f"g_{number}", scope_id=f"u{number}", status="paused", paused_why=why))
    assert sorted(await watched.found()) == [
        ("paused", "am_0"), ("paused", "am_5"), ("paused", "g_0"), ("paused", "g_5"),
    ]  # fmt: skip
    console = (Path(api.__file__).parent / "web/attention.js").read_text()
    assert f"const INTERRUPTED = /{INTERRUPTED.pattern}/;" in console
    for why in PAUSED_BY_PEOPLE:
        assert f'"{why}"' in console


async def test_triggers_that_cannot_fire_and_firings_without_a_run_are_problems(watched: Watched) -> None:
    git = {"id": "tr_1", "kind": "git", "repository": "/gone"}
    automation = an_automation(NOW, id="am_1", schedule={"zone": "UTC"}, next_run_at=None, triggers=(git,))
    unread = {"tip": "x", "unread_at": NOW, "unread_why": "/gone does not exist."}
    trigger = Trigger(id="tr_1", automation_id="am_1", kind="git", options=git, state=unread, created_at=NOW)
    _, fired = record_firing(automation, trigger, NOW, key="a", summary="new")
    await watched.put(automation, trigger)
    await watched.store.apply(fired)
    await watched.clock.advance(WAITING_SECONDS - 1)
    assert await watched.found() == []
    await watched.clock.advance(1)
    waiting, silent = sorted(await watched.alerts.list(), key=lambda alert: alert.subject)
    assert (waiting.kind, waiting.subject, silent.kind, silent.subject) == ("waiting", "am_1", "silent", "tr_1")
    assert "1 firing of its triggers waits" in waiting.text
    assert "cannot fire: /gone does not exist." in silent.text
    await watched.store.apply(pause_automation(automation, watched.clock.now(), "paused by a person", None))
    assert await watched.found() == [("waiting", "am_1")]  # until the scheduler skips the firing
    watched.living = []
    assert await watched.store.count_plans() == Plans(0, 0, 0)


async def test_tasks_that_wait_too_long_are_found_among_very_many(watched: Watched) -> None:
    busy = runs(id="t_b", session_key="chat:1", gate_key="chat:1", timeout_seconds=None, workdir="/w", dir_key="/w")
    waits = a_task(id="t_0", session_key="chat:1", gate_key="chat:1", due_at=NOW, created_at=NOW)
    in_dir = a_task(id="t_1", session_key="bg:t_1", workdir="/w", dir_key="/w", due_at=NOW)
    gone = a_task(id="t_2", session_key="bg:t_2", agent="gone", due_at=NOW)
    newer = [a_task(id=f"t_9{n:04d}", agent="other", due_at=NOW + 8 * 3600 * SECOND) for n in range(600)]
    await watched.put(busy, waits, in_dir, gone, *newer)
    clock = watched.clock
    await clock.advance(8 * 3600)
    progress = event(TaskProgress(text="busy"), clock.now(), **meta(busy))
    await watched.store.apply(Changes(events=(progress,)))
    assert sorted(await watched.found()) == [
        ("overdue", "gone"), ("waiting", "/w"), ("waiting", "chat:1"),
    ]  # fmt: skip
    free = a_task(id="t_3", session_key="bg:t_3", due_at=NOW)
    await watched.put(free)
    assert ("waiting", "demo") in await watched.found()


async def test_a_task_that_waited_for_an_answer_is_not_stuck(watched: Watched) -> None:
    task = runs(id="t_1", timeout_seconds=600.0)
    hour = 3600 * SECOND
    asked = Approval(
        id="ap_1", task_id="t_1", attempt=1, session_key=task.session_key, agent="demo", question="May I?",
        kind="choice", choices=(), created_at=NOW + SECOND, expires_at=NOW + 9 * hour,
    )  # fmt: skip
    await watched.put(task._replace(wait="approval"), asked)
    await watched.clock.advance(3601)
    assert sorted(await watched.found()) == [("silent", "t_1"), ("waiting", "ap_1")]
    answered = Update("approval", "ap_1", {"status": "granted", "resolved_at": NOW + hour}, {"status": "pending"})
    await watched.store.apply(Changes(updates=(answered, Update("task", "t_1", {"wait": None}))))
    progress = event(TaskProgress(text="on"), watched.clock.now(), **meta(task))
    await watched.store.apply(Changes(events=(progress,)))
    assert await watched.found() == []
    await watched.clock.advance(600 + GRACE_SECONDS)
    assert await watched.found() == [("stuck", "t_1")]
    watched.restart(worked=lambda task_id, attempt: 5.0)  # the task runs in this process, which knows better
    assert await watched.found() == []


async def test_work_without_a_server_and_failed_notices_are_problems(watched: Watched) -> None:
    await watched.put(an_automation(NOW), a_goal(NOW), a_task(due_at=NOW))
    hook = {"id": "tr_1", "kind": "webhook", "sign": "github"}
    only_triggered = an_automation(NOW, id="am_2", session_key="auto:2", next_run_at=None, triggers=(hook,))
    webhook = Trigger(id="tr_1", automation_id="am_2", kind="webhook", options=hook, created_at=NOW)
    await watched.put(only_triggered, webhook)
    assert await watched.found() == []
    watched.living = []
    (alert,) = await watched.alerts.list()
    assert (alert.kind, alert.subject) == ("stopped", "desk")
    assert "1 pending task, 2 active automations, 1 open goal" in alert.text
    watched.living = [SERVER]
    failed = Delivery(id="d_1", task_id="t_1", channel="pager", notice="done", text="x", status="failed",
        created_at=NOW,
    )  # fmt: skip
    await watched.store.apply(Changes(deliveries=(failed,)))
    assert await watched.found() == [("undelivered", "pager")]
    await watched.alerts.send()
    assert len(await watched.notices()) == 1  # no notice to the channel that fails


async def test_the_graces_are_settings_and_parameters(watched: Watched) -> None:
    await watched.put(an_automation(NOW, id="am_1", next_run_at=NOW), runs(id="t_1", timeout_seconds=60.0))
    await watched.clock.advance(100)
    assert await watched.found() == []
    looked = await watched.alerts.look(overdue_grace=60.0, running_grace=10.0)
    assert sorted((a.kind, a.subject) for a in looked.known) == [("overdue", "am_1"), ("stuck", "t_1")]
    assert await watched.store.list_open_alerts() == []
    watched.restart(graces=Graces(overdue=60.0, running=100.0))
    assert await watched.found() == [("overdue", "am_1")]


async def test_a_suspended_machine_causes_no_alert(watched: Watched) -> None:
    running = runs(id="t_1", session_key="s", gate_key="s")
    await watched.put(an_automation(NOW, next_run_at=NOW), running, a_task(agent="gone", due_at=NOW))
    await watched.clock.advance(60)
    assert (await watched.alerts.send()).told == []
    watched.clock.set(watched.clock.now() + 10 * 3600 * SECOND)
    await watched.clock.advance(30)
    assert await watched.found() == []
    await watched.clock.advance(GRACE_SECONDS)
    assert sorted(kind for kind, _ in await watched.found()) == ["overdue", "overdue", "stuck"]


async def test_one_bad_record_never_breaks_the_list(watched: Watched) -> None:
    bad = an_automation(NOW, id="am_1", next_run_at=NOW, schedule={"every": 3600, "zone": "Mars/Olympus", "anchor": 0})
    await watched.put(bad, a_goal(NOW, id="g_1"))
    await watched.clock.advance(GRACE_SECONDS)
    assert sorted(await watched.found()) == [("overdue", "am_1"), ("overdue", "g_1")]
    await watched.store.write(lambda tx: tx.statement("UPDATE automations SET schedule = 'no JSON'", ()))
    assert sorted(await watched.found()) == [("overdue", "g_1"), ("unchecked", "automations")]


def test_the_states_of_alerts_end_withdrawn() -> None:
    assert TRANSITIONS["withdrawn"] == frozenset()
    assert all("withdrawn" in after for state, after in TRANSITIONS.items() if state not in ("found", "withdrawn"))

"""Test the pure rules of automations: when they run, and what the end of a run changes.

The numbers are those of bugs of the reference system that must not happen here:
A2 a timeout counts as a failure: `test_a_failed_run_increments_the_failures`.
A7 a pause is reported: `test_three_failures_pause_an_automation_with_one_notice`; a quiet answer is no failure:
`test_a_successful_run_resets_the_failures`.
A12 an automation does not fire again and again: schedules that are too frequent, impossible or ambiguous are refused
(test_schedule.py), and an automation without a next time is paused:
`test_an_automation_without_a_next_time_is_paused`.
A13 a run interrupted by a crash is reported: `test_a_lost_last_run_is_reported`.
A23 `test_resuming_resets_failures_and_skips_missed_runs`.
A27 `test_only_the_four_placeholders_are_filled_in`.
A30 history, jitter, missed runs, zone, timeout and budget are fields and events; a missing time is None, not zero.
A14 to A16 cannot happen: an automation is one row, written when it fires and when its run ends; a run that must wait is
a pending task (test_scheduler.py). A10, A22 and A28 are in test_automations.py; A8 and A18 in the integration tests.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.base.schedule import Schedule, parse_moment
from midwatch.domain import automation as rules
from midwatch.domain import automation_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import OVER, SPENT, TRANSITIONS, Automation
from midwatch.domain.automation_step import LATE_SECONDS, MOST_FAILURES
from midwatch.domain.changes import Changes, Update, update_record
from midwatch.domain.store import Store
from midwatch.domain.task import AUTOMATION_PAUSES, Task, end
from records import a_task, claim_request, fence

NOW = parse_moment("2026-03-02T09:00:00+00:00", 0, "UTC")
HOUR = 3600 * SECOND
TERMS = AgentTerms(timeout_seconds=60.0, on_crash="rerun")


def hourly(**fields: Any) -> Automation:
    base: dict[str, Any] = {
        "id": "am_1", "prompt": "look", "agent": "demo", "session_key": "auto:am_1", "next_run_at": NOW,
        "schedule": Schedule.make(every=3600, zone="UTC", anchor=NOW).snapshot(), "creator": "ann",
    }  # fmt: skip
    return Automation(**{**base, **fields})


def once(**fields: Any) -> Automation:
    return hourly(schedule=Schedule.make(at=NOW, zone="UTC").snapshot(), **fields)


def after(before: Automation, changes: Changes) -> Automation:
    """Return the automation after the changes."""
    for update in changes.updates:
        assert update.guard["revision"] == before.revision
        before = replace(before, **update.fields)
    return before


def payloads(changes: Changes, kind: str) -> list[dict[str, Any]]:
    return [dict(event.payload) for event in changes.events if event.kind == kind]


def fire(automation: Automation, now: int = NOW, *, runs: bool = False) -> Changes:
    return steps.fire(automation, now, TERMS, runs=runs)


def task_of(changes: Changes) -> Task | None:
    (task,) = changes.records or (None,)
    assert task is None or isinstance(task, Task)
    return task


def end_run(outcome: str, *, attempt: int = 1, error: str | None = None, **fields: Any) -> Task:
    task = a_task(cause="automation", cause_id="am_1", attempt=attempt, **fields)
    return end(task, NOW + HOUR // 2, outcome=outcome, error=error)[0]  # type: ignore[arg-type]


# -- the table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "behind"), list(itertools.product(TRANSITIONS, TRANSITIONS)))
async def test_the_store_allows_only_transitions_of_the_table(
    store: Store, before: rules.Status, behind: rules.Status
) -> None:
    automation = hourly(status=before, next_run_at=None)
    await store.apply(Changes(records=(automation,)))
    step = Changes(updates=(update_record(automation, NOW, status=behind),))
    if behind in TRANSITIONS[before]:
        await store.apply(step)
    else:
        with pytest.raises(Conflict):
            await store.apply(step)
    stored = await store.get_automation("am_1")
    assert stored is not None
    assert stored.status == (behind if behind in TRANSITIONS[before] else before)


async def test_a_change_of_status_needs_the_previous_status(store: Store) -> None:
    await store.apply(Changes(records=(hourly(),)))
    with pytest.raises(KeyError):
        await store.apply(Changes(updates=(Update("automation", "am_1", {"status": "paused"}, {"revision": 0}),)))
    with pytest.raises(Conflict):
        await store.apply(Changes(updates=(update_record(hourly(status="paused"), NOW, status="active"),)))


# -- due times -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 1, int(LATE_SECONDS * SECOND)])
@pytest.mark.parametrize("policy", ["skip", "once", "once_within"])
def test_a_run_on_time_ignores_the_policy(late: int, policy: rules.Missed) -> None:
    automation = hourly(
        missed=policy, run_count=4, title="brief", route="console", workdir="/tmp", budget={"tokens": 5},
        quiet="NOTHING",
    )  # fmt: skip
    changes = fire(automation, NOW + late)
    task = task_of(changes)
    assert task is not None
    assert (task.status, task.agent, task.session_key, task.gate_key) == ("pending", "demo", "auto:am_1", "auto:am_1")
    assert (task.cause, task.cause_id, task.internal_key) == ("automation", "am_1", f"am_1@{NOW}")
    assert (task.creator, task.route, task.workdir, task.budget) == ("ann", "console", "/tmp", {"tokens": 5})
    assert (task.timeout_seconds, task.on_crash, task.quiet) == (60.0, "rerun", "NOTHING")
    assert task.max_attempts == len(AUTOMATION_PAUSES) + 1
    assert (task.due_at, task.wait) == (NOW + late, None)
    moved = after(automation, changes)
    assert (moved.run_count, moved.last_run_at, moved.next_run_at, moved.revision) == (5, NOW + late, NOW + HOUR, 1)
    (fired,) = payloads(changes, "automation_fired")
    assert fired == {
        "automation_id": "am_1",
        "task_id": task.id,
        "scheduled_for": iso(NOW),
        "run": 5,
        "firing_id": None,
    }
    assert [event.kind for event in changes.events] == ["automation_fired", "task_submitted"]


def test_terms_of_an_automation_override_those_of_its_agent() -> None:
    task = task_of(fire(hourly(timeout_seconds=5.0, on_crash="fail")))
    assert task is not None
    assert (task.timeout_seconds, task.on_crash) == (5.0, "fail")


JUST_LATE = int(LATE_SECONDS * SECOND) + 1
WINDOW = 6 * HOUR


@pytest.mark.parametrize(
    ("policy", "late", "reason"),
    [
        ("skip", JUST_LATE, "late"),
        ("once", JUST_LATE, "caught_up"),
        ("once", 1000 * HOUR, "caught_up"),
        ("once_within", JUST_LATE, "caught_up"),
        ("once_within", WINDOW, "caught_up"),
        ("once_within", WINDOW + 1, "late"),
    ],
)
def test_a_late_run_follows_the_policy(policy: rules.Missed, late: int, reason: str) -> None:
    automation = hourly(missed=policy, missed_window=WINDOW / SECOND)
    changes = fire(automation, NOW + late)
    (missed,) = payloads(changes, "automation_missed")
    assert missed["reason"] == reason
    assert missed["count"] == min(1000, late // HOUR + 1)
    assert missed["scheduled_for"] == iso(NOW)
    moved = after(automation, changes)
    assert moved.next_run_at == NOW + (late // HOUR + 1) * HOUR  # it keeps its phase and runs once
    assert (task_of(changes) is not None, moved.run_count) == ((True, 1) if reason == "caught_up" else (False, 0))
    assert moved.status == "active"


def test_an_open_run_skips_the_next() -> None:
    changes = fire(hourly(run_count=1), runs=True)
    assert task_of(changes) is None
    assert payloads(changes, "automation_missed") == [
        {"automation_id": "am_1", "reason": "overlap", "scheduled_for": iso(NOW), "count": 1, "firing_id": None}
    ]
    assert after(hourly(run_count=1), changes).next_run_at == NOW + HOUR
    (many,) = payloads(fire(hourly(missed="once"), NOW + 3 * HOUR, runs=True), "automation_missed")
    assert (many["reason"], many["count"]) == ("overlap", 4)


def test_every_due_time_is_told_if_a_run_starts_a_little_late() -> None:
    """Two times a minute apart are both on time 70 seconds after the first one."""
    each_minute = hourly(schedule=Schedule.make(every=60, zone="UTC", anchor=NOW).snapshot(), jitter_seconds=30.0)
    moved = after(each_minute, fire(each_minute, NOW + 70 * SECOND))
    assert moved.next_run_at == NOW + 60 * SECOND
    (missed,) = payloads(fire(moved, NOW + 70 * SECOND, runs=True), "automation_missed")
    assert (missed["reason"], missed["count"], missed["scheduled_for"]) == ("overlap", 1, iso(NOW + 60 * SECOND))


def test_a_run_at_the_end_of_quiet_hours_counts_as_missed() -> None:
    quiet = hourly(quiet_hours=("08:00-09:30",), next_run_at=NOW + HOUR // 2, missed="skip")
    (missed,) = payloads(fire(quiet, NOW + 2 * HOUR), "automation_missed")
    assert (missed["reason"], missed["count"]) == ("late", 3)  # 09:30, 10:00 and 11:00


@pytest.mark.parametrize(("ended", "next_run"), [(HOUR, HOUR), (HOUR // 2, HOUR), (2 * HOUR - 1, 2 * HOUR)])
def test_times_before_a_waiting_run_starts_are_not_lost(ended: int, next_run: int) -> None:
    """The open run ends at `ended`, and its waiting run starts an hour later, because the process was down."""
    planned = NOW + next_run
    waits = hourly(run_count=1, overlap="queue", waiting_run_at=NOW, next_run_at=planned)
    moved = after(waits, steps.settle(waits, end_run("ok"), NOW + ended))
    assert moved.next_run_at == min(NOW + ended, planned - 1)
    started = after(moved, fire(moved, NOW + ended + 3 * HOUR))
    assert (started.waiting_run_at, started.next_run_at, started.run_count) == (None, planned, 2)


def test_cron_uses_the_wall_clock_of_its_zone() -> None:
    start = parse_moment("2026-03-28T09:00", 0, "Europe/Berlin")
    schedule = Schedule.make(cron="0 9 * * *", zone="Europe/Berlin").snapshot()
    moved = after(hourly(), fire(hourly(schedule=schedule, next_run_at=start), start))
    assert moved.next_run_at == parse_moment("2026-03-29T09:00", 0, "Europe/Berlin") == start + 23 * HOUR


def test_a_single_time_fires_once_and_the_last_run_has_no_next() -> None:
    assert after(once(), fire(once())).next_run_at is None
    assert task_of(fire(once())) is not None
    last = after(hourly(max_runs=2, run_count=1), fire(hourly(max_runs=2, run_count=1)))
    assert (last.run_count, last.next_run_at, last.status) == (2, None, "active")  # paused when that run has ended
    assert after(hourly(max_runs=2), fire(hourly(max_runs=2))).next_run_at == NOW + HOUR


def test_an_automation_without_a_next_time_is_paused() -> None:
    automation = once(missed="skip", route="console")
    changes = fire(automation, NOW + HOUR)
    moved = after(automation, changes)
    assert (moved.status, moved.paused_why, moved.next_run_at, moved.run_count) == ("paused", OVER, None, 0)
    assert [event.kind for event in changes.events] == ["automation_missed", "automation_paused"]
    (notice,) = changes.deliveries
    assert "did not run" in notice.text
    assert "midwatch automation run am_1" in notice.text


def test_no_run_begins_above_max_runs() -> None:
    spent = hourly(max_runs=2, run_count=2)
    changes = fire(spent)
    assert task_of(changes) is None
    assert (after(spent, changes).status, after(spent, changes).paused_why) == ("paused", SPENT)


@pytest.mark.parametrize(
    "schedule",
    [
        {},
        [],
        {"cron": "* * * *", "zone": "UTC"},
        {"cron": "0 9 * * *", "zone": "Mars/Olympus"},
        {"every": 1, "zone": "UTC"},
    ],
)
def test_an_unreadable_schedule_pauses_the_automation(schedule: Any) -> None:
    automation = hourly(schedule=schedule, route="console:7")
    changes = fire(automation)
    moved = after(automation, changes)
    assert task_of(changes) is None
    assert (moved.status, moved.next_run_at) == ("paused", None)
    assert (moved.paused_why or "").startswith("its schedule cannot be read: ")
    (paused,) = payloads(changes, "automation_paused")
    assert paused["why"] == moved.paused_why
    (notice,) = changes.deliveries
    assert (notice.channel, notice.target) == ("console", "7")
    assert "midwatch automation edit am_1" in notice.text
    assert moved.snapshot()["paused_why"] == moved.paused_why  # its snapshot still works


def test_jitter_is_bounded_and_the_same_each_time() -> None:
    automation = hourly(jitter_seconds=600.0)
    begins = []
    for number in range(200):
        due = replace(automation, next_run_at=NOW + number * HOUR)
        first, second = (task_of(fire(due, NOW + number * HOUR)) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first.due_at == second.due_at
        assert first.wait == "delay"
        begins.append((first.due_at - NOW - number * HOUR) / SECOND)
    assert all(0 <= later < 600 for later in begins)
    assert len({round(later) for later in begins}) > 100
    assert min(begins) < 60
    assert max(begins) > 540
    assert fire(automation).updates[0].fields["next_run_at"] == NOW + HOUR  # jitter does not change the later times
    other_task = task_of(fire(replace(automation, id="am_2")))
    assert other_task is not None
    assert other_task.due_at != begins[0] * SECOND + NOW


def test_a_run_with_jitter_has_its_own_time_in_the_prompt() -> None:
    task = task_of(fire(hourly(jitter_seconds=600.0, prompt="{{unix}}")))
    assert task is not None
    assert task.due_at > NOW
    assert task.prompt == str(task.due_at // SECOND)


def test_fresh_runs_have_separate_sessions_and_one_gate() -> None:
    automation = hourly(fresh=True, session_key="chat:1|thread:7")
    first, second = task_of(fire(automation)), task_of(fire(automation))
    assert first is not None
    assert second is not None
    assert first.session_key != second.session_key
    assert first.gate_key == second.gate_key == "chat:1|thread:7"


def test_run_now_counts_and_does_not_change_the_schedule() -> None:
    automation = hourly(next_run_at=NOW + HOUR, max_runs=2, jitter_seconds=600.0)
    task, changes = steps.run_now(automation, NOW, TERMS, actor="bob")
    moved = after(automation, changes)
    assert (moved.run_count, moved.next_run_at, moved.last_run_at) == (1, NOW + HOUR, NOW)
    assert (task.due_at, task.wait) == (NOW, None)
    assert [event.actor for event in changes.events] == ["bob", "bob"]
    _, last = steps.run_now(moved, NOW + 1, TERMS)
    assert after(moved, last).next_run_at is None


# -- the end of a run ----------------------------------------------------------------------------------------------

RUNNING = hourly(run_count=3, next_run_at=NOW + HOUR, consecutive_failures=2, route="console", title="brief")


def settle(automation: Automation, task: Task, thread: str | None = None) -> tuple[Automation, Changes]:
    changes = steps.settle(automation, task, NOW + HOUR // 2, thread)
    return after(automation, changes), changes


@pytest.mark.parametrize("outcome", ["ok", "silent", "transferred"])
def test_a_successful_run_resets_the_failures(outcome: str) -> None:
    moved, changes = settle(RUNNING, end_run(outcome))
    assert (moved.consecutive_failures, moved.status, moved.next_run_at) == (0, "active", NOW + HOUR)
    assert moved.last_result == f"ok: {iso(NOW + HOUR // 2)}"
    assert not changes.events
    assert not changes.deliveries


@pytest.mark.parametrize("outcome", ["error", "timeout", "budget"])
def test_a_failed_run_increments_the_failures(outcome: str) -> None:
    moved, changes = settle(replace(RUNNING, consecutive_failures=0), end_run(outcome, error="no\nluck"))
    assert (moved.consecutive_failures, moved.status, moved.next_run_at) == (1, "active", NOW + HOUR)
    assert moved.last_result == "error: no\nluck"
    assert not changes.deliveries


@pytest.mark.parametrize("outcome", ["error", "timeout"])
def test_three_failures_pause_an_automation_with_one_notice(outcome: str) -> None:
    moved, changes = settle(RUNNING, end_run(outcome, error="no luck"))
    assert moved.consecutive_failures == MOST_FAILURES
    assert (moved.status, moved.next_run_at) == ("paused", None)
    assert moved.paused_why == "3 runs failed in a row"
    assert payloads(changes, "automation_paused") == [{"automation_id": "am_1", "why": moved.paused_why}]
    (notice,) = changes.deliveries
    assert (notice.notice, notice.channel) == ("automation_paused", "console")
    assert notice.text == ("Paused: brief\n3 runs failed in a row. no luck\nResume it: midwatch automation resume am_1")
    again, more = settle(moved, end_run(outcome, error="no luck"))  # for example a retry by hand
    assert again.status == "paused"
    assert not more.deliveries
    assert not more.events


def test_without_a_route_there_is_only_a_log_entry() -> None:
    moved, changes = settle(replace(RUNNING, route=None), end_run("error", error="x"))
    assert moved.status == "paused"
    assert not changes.deliveries
    assert payloads(changes, "automation_paused")


def test_a_run_cancelled_before_its_start_does_not_count() -> None:
    moved, changes = settle(RUNNING, end_run("cancelled", attempt=0))
    assert (moved.run_count, moved.consecutive_failures, moved.next_run_at) == (2, 2, NOW + HOUR)
    assert not changes.events
    last = hourly(max_runs=3, run_count=3, next_run_at=None)
    moved, _ = settle(last, end_run("cancelled", attempt=0))
    assert (moved.run_count, moved.status, moved.next_run_at) == (2, "active", NOW + HOUR)
    moved, _ = settle(replace(last, status="paused"), end_run("cancelled", attempt=0))
    assert (moved.run_count, moved.status, moved.next_run_at) == (2, "paused", None)
    assert settle(hourly(run_count=0), end_run("cancelled", attempt=0))[0].run_count == 0


def test_a_single_time_with_a_cancelled_run_is_over() -> None:
    moved, changes = settle(once(run_count=1, next_run_at=None, route="console"), end_run("cancelled", attempt=0))
    assert (moved.run_count, moved.status, moved.paused_why) == (0, "paused", OVER)
    assert not changes.deliveries


def test_a_run_cancelled_after_its_start_counts_but_not_as_a_failure() -> None:
    moved, changes = settle(RUNNING, end_run("cancelled"))
    assert (moved.run_count, moved.consecutive_failures) == (3, 2)
    assert moved.last_result == f"cancelled: {iso(NOW + HOUR // 2)}"
    assert not changes.deliveries


def test_a_cancelled_retry_does_not_change_the_count() -> None:
    moved, _ = settle(
        hourly(max_runs=1, run_count=1, next_run_at=None), end_run("cancelled", attempt=0, retry_of="t_0")
    )
    assert (moved.run_count, moved.next_run_at) == (1, None)


def test_a_lost_run_is_not_a_failure() -> None:
    moved, changes = settle(RUNNING, end_run("lost", error="its process ended"))
    assert (moved.consecutive_failures, moved.run_count, moved.status) == (2, 3, "active")
    assert moved.last_result == "lost: its process ended"
    assert not changes.deliveries  # the task itself sends the notice


@pytest.mark.parametrize("last", [hourly(max_runs=1), once()])
def test_a_lost_last_run_is_reported(last: Automation) -> None:
    last = replace(last, run_count=1, next_run_at=None, route="console")
    task = end_run("lost", error="its process ended")
    moved, changes = settle(last, task)
    assert (moved.status, moved.run_count) == ("paused", 1)
    assert "last run was lost" in (moved.paused_why or "")
    (notice,) = changes.deliveries
    assert notice.text.endswith(f"Run it again: midwatch retry {task.id}")  # resuming would be refused


@pytest.mark.parametrize("outcome", ["ok", "error", "cancelled"])
def test_after_its_last_run_an_automation_is_paused(outcome: str) -> None:
    moved, changes = settle(hourly(max_runs=3, run_count=3, next_run_at=None, route="console"), end_run(outcome))
    assert (moved.status, moved.paused_why, moved.run_count) == ("paused", SPENT, 3)
    assert payloads(changes, "automation_paused") == [{"automation_id": "am_1", "why": SPENT}]
    assert not changes.deliveries  # the task sends the notice of its end
    moved, _ = settle(once(run_count=1, next_run_at=None), end_run(outcome))
    assert (moved.status, moved.paused_why) == ("paused", OVER)


def test_raising_max_runs_during_the_last_run_continues() -> None:
    raised = hourly(max_runs=9, run_count=3, next_run_at=NOW + HOUR)
    assert settle(raised, end_run("ok"))[0].status == "active"


@pytest.mark.parametrize("status", ["paused", "deleted"])
@pytest.mark.parametrize("outcome", ["ok", "error", "lost", "cancelled"])
def test_an_automation_paused_or_deleted_during_a_run_stays_so(status: rules.Status, outcome: str) -> None:
    automation = replace(RUNNING, status=status, next_run_at=None, paused_why="by ann", max_runs=3)
    moved, changes = settle(automation, end_run(outcome, error="x"))
    assert (moved.status, moved.next_run_at, moved.paused_why) == (status, None, "by ann")
    assert not changes.events
    assert not changes.deliveries


def test_a_run_continues_the_thread_unless_each_run_is_fresh() -> None:
    moved, changes = settle(RUNNING, end_run("ok"), "th_1")
    assert moved.resume_thread_id == "th_1"
    assert "resume_thread_id" not in steps.settle(moved, end_run("ok"), NOW, "th_1").updates[0].fields
    assert settle(replace(RUNNING, fresh=True), end_run("ok"), "th_1")[0].resume_thread_id is None
    assert settle(RUNNING, end_run("error", error="x"), "th_2")[0].resume_thread_id == "th_2"
    assert len(changes.updates) == 1


async def test_a_concurrently_changed_automation_loses_no_result(store: Store) -> None:
    automation = hourly()
    await store.apply(Changes(records=(automation,)))
    await store.apply(fire(automation))
    ((task, _),) = (await store.claim(claim_request(), NOW)).taken
    stored = await store.get_automation("am_1")
    assert stored is not None
    await store.apply(steps.pause_automation(stored, NOW, "a holiday", "ann"))
    done, step = end(task, NOW, outcome="ok", result="found it")
    step = step._replace(fence=fence(task))
    with pytest.raises(Conflict):  # a conflict, not a lost lease: the worker computes the end again
        await store.apply(step.plus(steps.settle(stored, done, NOW)))
    still = await store.get_task(task.id)
    assert still is not None
    assert still.status == "running"
    newer = await store.get_automation("am_1")
    assert newer is not None
    await store.apply(step.plus(steps.settle(newer, done, NOW)))
    after_all = await store.get_task(task.id)
    assert after_all is not None
    assert (after_all.status, after_all.result) == ("done", "found it")


def test_an_unreadable_schedule_does_not_block_the_end_of_a_run() -> None:
    moved, _ = settle(hourly(schedule={}, run_count=1, next_run_at=None), end_run("cancelled", attempt=0))
    assert (moved.status, moved.run_count) == ("paused", 0)


# -- pausing, resuming, restoring ----------------------------------------------------------------------------------


def test_resuming_resets_failures_and_skips_missed_runs() -> None:
    automation = hourly(status="paused", paused_why="3 runs failed", consecutive_failures=3, next_run_at=None)
    later = NOW + 100 * HOUR + 5
    changes = steps.resume_automation(automation, later, "ann")
    moved = after(automation, changes)
    assert (moved.status, moved.paused_why, moved.consecutive_failures) == ("active", None, 0)
    assert moved.next_run_at == NOW + 101 * HOUR
    (payload,) = payloads(changes, "automation_changed")
    assert payload["status"] == "active"


def test_an_automation_without_a_next_time_is_not_resumed() -> None:
    with pytest.raises(InvalidInput, match="its time has passed; set a new schedule with `midwatch automation edit`"):
        steps.resume_automation(once(status="paused", next_run_at=None), NOW, None)
    with pytest.raises(InvalidInput, match="all its runs; raise max_runs") as refused:
        steps.resume_automation(hourly(status="paused", max_runs=1, run_count=1), NOW, None)
    assert refused.value.field == "max_runs"


@pytest.mark.parametrize(("one", "why"), [(once(), OVER), (hourly(max_runs=1, run_count=1), SPENT)])
def test_a_restored_automation_without_a_next_time_is_paused(one: Automation, why: str) -> None:
    deleted = replace(one, status="deleted", deleted_at=NOW, next_run_at=None)
    moved = after(deleted, steps.resume_automation(deleted, NOW + 1, "ann"))
    assert (moved.status, moved.paused_why, moved.deleted_at, moved.next_run_at) == ("paused", why, None, None)


def test_pausing_stores_the_reason() -> None:
    moved = after(hourly(), steps.pause_automation(hourly(), NOW, "a holiday", "ann"))
    assert (moved.status, moved.paused_why, moved.next_run_at) == ("paused", "a holiday", None)


# -- placeholders and fields ---------------------------------------------------------------------------------------


def test_only_the_four_placeholders_are_filled_in() -> None:
    text = "{{now}} {{date}} {{time}} {{unix}} {{date}}"
    at = parse_moment("2026-03-02T23:30:05.999999+00:00", 0, "UTC")
    assert steps.render(text, at, "Asia/Kolkata") == (
        f"2026-03-03T05:00:05+05:30 2026-03-03 05:00:05 {at // SECOND} 2026-03-03"
    )
    assert steps.render("{{date}}", at, "America/New_York") == "2026-03-02"


@pytest.mark.parametrize(
    "text",
    [
        "{{ now }}", "{{NOW}}", "{now}", "{{objective}}", "{{now", "now}}", "{{nowhere}}",
        "{% if x %}{{ x }}{% endif %}", "${{ github.event.inputs.date }}", "${{secrets.TOKEN}}", "{{.Now}}",
        "{{range .Items}}", "{0} {} %s %(now)s $now",
        "{{{{}}}}", "\\{\\{now\\}\\}", "",
    ],
)  # fmt: skip
def test_all_other_text_is_literal(text: str) -> None:
    assert steps.render(text, NOW, "UTC") == text


def test_inserted_text_is_not_expanded_again() -> None:
    assert steps.render("{{{{unix}}}}", NOW, "UTC") == f"{{{{{NOW // SECOND}}}}}"


def test_normalising_is_idempotent() -> None:
    rough = hourly(
        title=" brief ", prompt=" look\n", scope_id=" ann ", session_key="  ", tags=(" a", "b ", "a", ""), deleted_at=5
    )
    normalised = rules.normalise(rough)
    assert (normalised.title, normalised.prompt, normalised.scope_id, normalised.session_key) == (
        "brief",
        "look",
        "ann",
        "auto:am_1",
    )
    assert (normalised.tags, normalised.deleted_at, normalised.next_run_at) == (("a", "b"), None, NOW)
    assert rules.normalise(normalised) == normalised
    assert rules.normalise(replace(normalised, status="paused")).next_run_at is None
    assert rules.normalise(replace(normalised, status="deleted", deleted_at=5)).deleted_at == 5


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("prompt", {"prompt": ""}),
        ("title", {"title": "x" * 201}),
        ("title", {"title": "two\nlines"}),
        ("scope_kind", {"scope_kind": "world"}),
        ("scope_id", {"scope_id": ""}),
        ("manage_mode", {"manage_mode": "anyone"}),
        ("status", {"status": "running"}),
        ("max_runs", {"max_runs": -1}),
        ("run_count", {"run_count": -1}),
        ("max_runs", {"max_runs": 1, "run_count": 2}),
        ("missed", {"missed": "twice"}),
        ("missed_window", {"missed_window": 0.0}),
        ("missed_window", {"missed_window": float("nan")}),
        ("missed_window", {"missed_window": float("inf")}),
        ("jitter", {"jitter_seconds": -1.0}),
        ("jitter", {"jitter_seconds": 86401.0}),
        ("jitter", {"jitter_seconds": float("nan")}),
        ("quiet", {"quiet": "  "}),
        ("tags", {"tags": tuple(map(str, range(21)))}),
        ("tags", {"tags": ("x" * 51,)}),
        ("tags", {"tags": ("a\nb",)}),
    ],
)
def test_invalid_values_are_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    rules.validate(hourly())
    with pytest.raises(InvalidInput) as refused:
        rules.validate(hourly(**fields))
    assert refused.value.field == field


def test_missing_times_are_shown_as_null() -> None:
    shown = hourly(next_run_at=None, created_at=NOW).snapshot()
    assert shown["created_at"] == iso(NOW)
    assert [shown[name] for name in ("next_run_at", "last_run_at", "deleted_at")] == [None, None, None]
    assert (shown["zone"], shown["schedule"]["every"]) == ("UTC", 3600)

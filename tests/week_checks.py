"""Check what must hold in a simulated week: with every commit, after every step, and at the end."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

from midwatch.base.clock import SECOND, iso
from midwatch.base.schedule import Schedule, count_missed, next_run_at
from midwatch.domain import goal
from midwatch.domain.event import Event
from midwatch.domain.store import Commit
from midwatch.stores.rows import loads
from midwatch.testing import FakeClock, RecordingChannel

LATE = 90 * SECOND


class WeekChecker:
    """A checker that follows the log and the tables."""

    def __init__(self, connection: sqlite3.Connection, clock: FakeClock) -> None:
        self._connection = connection
        self._clock = clock
        self.problem: Exception | None = None
        self._seq = 0
        self._turns: set[str] = set()
        self._turned: set[str] = set()
        self._tools: Counter[tuple[str | None, str]] = Counter()
        self._said: Counter[tuple[str, str, str]] = Counter()
        self._finished: Counter[str] = Counter()
        self._over: Counter[str] = Counter()
        self._fired: Counter[str] = Counter()
        self._goals: dict[str, str] = {}
        self._next: dict[str, int | None] = {}

    def rows(self, sql: str, *params: Any) -> list[Any]:
        return self._connection.execute(sql, params).fetchall()

    # -- with every commit -----------------------------------------------------------------------------------------

    def on_commit(self, commit: Commit) -> None:
        """Check one transaction. Faults are kept for the next check: the caller that committed is not at fault."""
        try:
            self._check_events(commit)
        except Exception as problem:
            self.problem = self.problem or problem

    def _check_events(self, commit: Commit) -> None:
        for event in commit.events:
            assert event.seq == self._seq + 1, f"a hole in the log: {event.seq} after {self._seq}"
            self._seq = event.seq
            check = getattr(self, f"_{event.kind}", None)
            if check is not None:
                check(event)
        if "goal" in commit.topics:
            self._check_goals()
        if "automation" in commit.topics:
            self._check_due_times(commit.events)

    def _turn_start(self, event: Event) -> None:
        assert event.turn_id not in self._turned, f"turn {event.turn_id} begins twice"
        self._turns.add(event.turn_id or "")
        self._turned.add(event.turn_id or "")

    def _turn_end(self, event: Event) -> None:
        assert event.turn_id in self._turns, f"turn {event.turn_id} ends without a start"
        self._turns.discard(event.turn_id or "")

    def _tool_exec_start(self, event: Event) -> None:
        self._tools[event.turn_id, event.payload["tool_call_id"]] += 1

    def _tool_exec_end(self, event: Event) -> None:
        key = (event.turn_id, event.payload["tool_call_id"])
        self._tools[key] -= 1
        assert self._tools[key] == 0, f"tool {key} ends without a start"

    def _message_update(self, event: Event) -> None:
        key = (event.session_key or "", event.payload["message_id"], event.payload["message"])
        self._said[key] += 1
        assert self._said[key] == 1, f"told twice: {key}"

    def _task_finished(self, event: Event) -> None:
        self._finished[event.task_id or ""] += 1
        assert self._finished[event.task_id or ""] == 1, f"task {event.task_id} ends twice"

    def _task_started(self, event: Event) -> None:
        ((cause, cause_id, retry_of),) = self.rows(
            "SELECT cause, cause_id, retry_of FROM tasks WHERE id = ?", event.task_id
        )
        if cause == "goal":
            goal_rows = self.rows("SELECT status, task_id FROM goals WHERE id = ?", cause_id)
            wanted = [[(status, event.task_id)] for status in ("active", "paused")]  # paused: its last step goes on
            assert goal_rows in wanted, f"a step of goal {cause_id} begins, which is {goal_rows}"
        if cause == "automation" and retry_of is None:  # a retry is requested by a person
            ((status,),) = self.rows("SELECT status FROM automations WHERE id = ?", cause_id)
            assert status != "deleted", f"a run of {cause_id} begins, which is deleted"

    def _automation_fired(self, event: Event) -> None:
        self._fired[event.payload["automation_id"]] += 1

    def _goal_completed(self, event: Event) -> None:
        self._goal_over(event)

    def _goal_timed_out(self, event: Event) -> None:
        self._goal_over(event)

    def _goal_over(self, event: Event) -> None:
        self._over[event.payload["goal_id"]] += 1
        assert self._over[event.payload["goal_id"]] == 1, f"goal {event.payload['goal_id']} ends twice"

    def _check_goals(self) -> None:
        now = dict(self.rows("SELECT id, status FROM goals"))
        for goal_id, status in now.items():
            before = self._goals.get(goal_id)
            if before is None:
                assert status in ("active", "waiting_for_session")
            elif before != status:
                assert status in goal.TRANSITIONS[before], f"goal {goal_id} became {status} from {before}"  # type: ignore[index]
        self._goals = now

    def _check_due_times(self, events: tuple[Event, ...]) -> None:
        """Check that a due time passes only if it is fired or reported as missed, or because the automation was
        changed.
        """
        about = [event for event in events if "automation_id" in event.payload]
        automations = self.rows(
            "SELECT id, status, next_run_at, schedule, max_runs, run_count FROM automations "
            "WHERE overlap = 'skip' AND days_off = '[]'"
        )
        for name, status, due, schedule, most, runs in automations:
            before = self._next.get(name)
            self._next[name] = due
            if before is None or before == due:
                continue
            mine = [event for event in about if event.payload["automation_id"] == name]
            run_events = [event for event in mine if event.kind in ("automation_fired", "automation_missed")]
            spent = 0 < most <= runs
            if due is None and spent:  # it was run on request, and that was its last run
                continue
            if not run_events and any(event.kind in ("automation_changed", "automation_paused") for event in mine):
                continue
            assert run_events, f"{iso(before)} of {name} passed without a word: {[event.kind for event in mine]}"
            assert {event.payload["scheduled_for"] for event in run_events} == {iso(before)}, (name, run_events)
            now = run_events[0].time
            times = Schedule.from_data(loads(schedule))
            expected_due = next_run_at(times, max(now, before))
            assert due == (None if spent or status != "active" else expected_due), (name, iso(due), iso(expected_due))
            count = max(1, count_missed(times, before - 1, now))
            gaps = [event.payload["count"] for event in run_events if event.kind == "automation_missed"]
            assert gaps in ([count], []) and (gaps or count == 1), (name, iso(before), iso(now), count, gaps)

    # -- after every step ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what must hold whenever no work is in progress."""
        open_tasks = "status IN ('pending', 'running')"
        assert not self.rows(
            "SELECT gate_key FROM tasks WHERE status = 'running' GROUP BY gate_key HAVING count(*) > 1"
        )
        assert not self.rows(
            f"SELECT cause_id FROM tasks WHERE {open_tasks} AND cause IN ('automation', 'goal') "
            "GROUP BY cause_id HAVING count(*) > 1"
        )
        stalled = self.rows(
            "SELECT id, status, work, proposal FROM goals WHERE status = 'active' AND next_run_at IS NULL "
            f"AND NOT EXISTS (SELECT 1 FROM tasks WHERE cause_id = goals.id AND {open_tasks})"
        )
        assert not stalled, f"nothing will wake {stalled}"
        stalled = self.rows(
            "SELECT id FROM automations WHERE status = 'active' AND next_run_at IS NULL "
            f"AND NOT EXISTS (SELECT 1 FROM tasks WHERE cause_id = automations.id AND {open_tasks})"
        )
        assert not stalled, f"nothing will fire {stalled}"
        stalled = self.rows(
            "SELECT id FROM automations WHERE status = 'active' AND waiting_run_at IS NOT NULL AND next_run_at > ? "
            f"AND NOT EXISTS (SELECT 1 FROM tasks WHERE cause_id = automations.id AND {open_tasks})",
            self._clock.now(),
        )
        assert not stalled, f"the waiting run of {stalled} will not start"
        rests = self.rows("SELECT id FROM automations WHERE status <> 'active' AND waiting_run_at IS NOT NULL")
        assert not rests, f"{rests} rest, and a run waits"
        idle = self.rows(
            "SELECT tasks.id FROM tasks JOIN goals ON goals.id = tasks.cause_id WHERE tasks.status = 'running' "
            "AND goals.status <> 'active' AND coalesce(tasks.stop_requested, '') <> 'cancel' "
            "AND NOT (goals.status = 'paused' AND goals.task_id = tasks.id)"  # the last step of a paused goal goes on
        )
        assert not idle, f"{idle} work for goals that rest"
        self._counts()

    def _counts(self) -> None:
        given_back = dict(self.rows(
            "SELECT cause_id, count(*) FROM tasks WHERE cause = 'automation' AND status = 'cancelled' "
            "AND attempt = 0 AND retry_of IS NULL GROUP BY cause_id"
        ))  # fmt: skip
        for name, runs, most in self.rows("SELECT id, run_count, max_runs FROM automations"):
            expected = self._fired[name] - given_back.get(name, 0)
            assert runs == expected, f"{name} counts {runs} runs, and had {expected}"
            assert not 0 < most < runs, f"{name} had {runs} runs of {most}"

    # -- at the end ------------------------------------------------------------------------------------------------

    def check_end(self, channel: RecordingChannel) -> None:
        """Check what must hold after everything has ended."""
        self.check()
        open_tasks = self.rows("SELECT id, status, wait, agent, cause FROM tasks WHERE completed_at IS NULL")
        assert not open_tasks, f"these never ended: {open_tasks}"
        assert not self._turns, f"turns without an end: {self._turns}"
        assert not [key for key, count in self._tools.items() if count], "tools without an end"
        assert not self.rows("SELECT id FROM approvals WHERE status = 'pending'"), "questions without an end"
        for goal_id, status, route in self.rows("SELECT id, status, route FROM goals"):
            assert status in ("complete", "timeout"), f"goal {goal_id} is {status} past its deadline"
            expected_notices = [("goal_completed" if status == "complete" else "goal_timeout",)] if route else []
            notices = self.rows(
                "SELECT notice FROM deliveries WHERE task_id = ? AND notice IN ('goal_completed', 'goal_timeout')",
                goal_id,
            )
            assert notices == expected_notices, f"goal {goal_id} is {status}, told: {notices}"
        numbers = self.rows("SELECT session_key, count(*), max(number) FROM messages GROUP BY session_key")
        assert all(count == last for _, count, last in numbers), "messages are numbered with holes"
        unsent = self.rows("SELECT id, notice, status FROM deliveries WHERE status <> 'sent'")
        assert not unsent, f"lost notices: {unsent}"
        received = {delivery.id for delivery in channel.delivered}
        assert {row[0] for row in self.rows("SELECT id FROM deliveries")} <= received

"""Check a simulated year: each due time and each cause of a trigger happened, was skipped with a reason, or is pending.

The due times are computed here from the zone and the five fields alone, by trying every minute of the wall clock.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, partial
from typing import Any
from zoneinfo import ZoneInfo

from midwatch.base.clock import SECOND, iso
from midwatch.base.timetable import Calendars, Timetable
from midwatch.domain.event import Event
from midwatch.domain.store import Commit
from midwatch.stores.rows import loads
from midwatch.testing import FakeClock
from week_checks import LATE, WeekChecker

DAY_SECONDS = 86400
MOST_COUNTED = 1000


def moment_of(text: str | None) -> int:
    """Return a time of the log in microseconds."""
    return (datetime.fromisoformat((text or "").replace("Z", "+00:00")) - datetime(1970, 1, 1, tzinfo=UTC)) // (
        timedelta(microseconds=1)
    )


def read_field(text: str, low: int, high: int) -> frozenset[int]:
    """Return the numbers that a field of a cron expression names."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = (str(low), "-", str(high)) if span == "*" else span.partition("-")
        found |= set(range(int(first), int(last if dash else first) + 1, int(step or 1)))
    return frozenset(found)


@cache
def list_cron(cron: str, zone_name: str, first_day: date, days: int) -> tuple[int, ...]:
    """Return all due times of a cron expression in some days, by trying every minute of each day."""
    zone, fields = ZoneInfo(zone_name), cron.split()
    minutes, hours = read_field(fields[0], 0, 59), read_field(fields[1], 0, 23)
    in_month, months = read_field(fields[2], 1, 31), read_field(fields[3], 1, 12)
    weekdays = {number % 7 for number in read_field(fields[4], 0, 7)} if fields[4] != "*" else set(range(7))
    often = fields[0].startswith("*") or fields[1].startswith("*")
    found: set[int] = set()
    for number in range(days):
        day = first_day + timedelta(days=number)
        if day.day not in in_month or day.month not in months or day.isoweekday() % 7 not in weekdays:
            continue
        for hour in hours:
            for minute in minutes:
                found |= read_wall_time(datetime.combine(day, time(hour, minute)), zone, often)
    return tuple(sorted(found))


def read_wall_time(wall: datetime, zone: ZoneInfo, often: bool) -> set[int]:
    """Return the moments of a wall time. A skipped one is the moment of the jump, or nothing if it comes `often`."""
    moments = [round(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1)]
    real = [moment for moment in moments if datetime.fromtimestamp(moment, zone).replace(tzinfo=None) == wall]
    if real:
        return {moment * SECOND for moment in (real if often else real[:1])}
    if often:
        return set()
    jump = min(moments)
    before = datetime.fromtimestamp(jump, zone).utcoffset()
    while datetime.fromtimestamp(jump, zone).utcoffset() == before:
        jump += 60
    return {jump * SECOND}


@dataclass
class Story:
    """What is known of one automation. `head` is the due time that must be told next."""

    plan: dict[str, Any]
    row: dict[str, Any]
    timetable: Timetable
    head: int | None = None
    waiting: int | None = None
    quiet_until: int | None = None
    caught_up: int | None = None
    told: deque[Any] = field(default_factory=partial(deque, maxlen=4))


class YearChecker(WeekChecker):
    """A checker with an oracle for due times, firings and chains."""

    def __init__(self, connection: sqlite3.Connection, clock: FakeClock, start: int, days: int) -> None:
        super().__init__(connection, clock)
        self._first_day = (datetime.fromtimestamp(start // SECOND, UTC) - timedelta(days=2)).date()
        self._days = days + 10
        self.calendars: Calendars = {}
        self.stories: dict[str, Story] = {}
        self.outcomes: Counter[str] = Counter()
        self.due_times = 0
        self.firings: dict[str, list[str]] = {}
        """For each firing, what became of it: it is pending as long as the list is empty."""
        self.keys: dict[tuple[str, str], str] = {}
        """The firing of each trigger and cause."""
        self.expected: dict[tuple[str, str], tuple[int, str]] = {}
        """Causes of triggers that must have a firing: when they happened, and the automation."""
        self.resting: dict[str, int] = {}
        """When each automation was last paused, deleted or resumed."""
        self.joined: dict[tuple[str, str], set[str]] = {}
        self.chains: dict[tuple[str, str], int] = {}
        self._triggers: list[tuple[str, str, dict[str, Any], str, int]] = []

    # -- due times -------------------------------------------------------------------------------------------------

    def list_due(self, plan: dict[str, Any], more: int = 0) -> Sequence[int]:
        """Return all due times of a schedule in the year, and in some days more."""
        begin = round(datetime.combine(self._first_day, time(), UTC).timestamp()) * SECOND
        if plan.get("at"):
            return (moment_of(plan["at"]),)
        if plan.get("every"):
            anchor, step = moment_of(plan["anchor"]), int(plan["every"]) * SECOND
            return range(anchor + step, begin + (self._days + 370) * DAY_SECONDS * SECOND, step)
        if not plan.get("cron"):
            return ()
        return list_cron(plan["cron"], plan["zone"], self._first_day, self._days + more)

    def next_due(self, story: Story, after: int) -> int | None:
        times = self.list_due(story.plan)
        place = bisect_right(times, after)
        if place == len(times) and story.plan.get("cron"):
            times = self.list_due(story.plan, more=370)
            place = bisect_right(times, after)
        return times[place] if place < len(times) else None

    def count(self, story: Story, since: int, until: int) -> int:
        """Count the due times from `since` to before `until`."""
        times = self.list_due(story.plan)
        return bisect_right(times, until - 1) - bisect_right(times, since - 1)

    def count_runs(self, story: Story, since: int, until: int) -> int:
        """Count the runs from `since` to `until`, without days off and with moved runs at the end of quiet hours."""
        times = self.list_due(story.plan)
        found: set[int] = set()
        for due in (since, *times[bisect_right(times, since) : bisect_right(times, until)]):
            block = story.timetable.find_block(due)
            run = block.until if block and block.reason == "quiet_hours" else due
            if (block is None or block.reason == "quiet_hours") and run <= until:
                again = story.timetable.find_block(run)
                found |= {run} if again is None else set()
        return len(found)

    def _check_due_times(self, events: tuple[Event, ...]) -> None:
        """Do nothing: `on_commit` follows every automation."""

    def on_commit(self, commit: Commit) -> None:
        """Check one transaction."""
        super().on_commit(commit)
        try:
            for event in commit.events:
                self._note(event)
        except Exception as problem:
            self.problem = self.problem or problem

    def _note(self, event: Event) -> None:
        name = event.payload.get("automation_id")
        if event.kind in ("automation_created", "automation_changed", "automation_paused"):
            self._note_change(str(name), event)
        elif event.kind == "automation_triggered":
            self._note_firing(event)
        elif event.kind in ("automation_fired", "automation_missed", "automation_queued"):
            firing = event.payload.get("firing_id")
            if firing is not None:
                self._note_end_of_firing(event, str(firing))
            elif not self._is_run_by_hand(event):
                self._note_due(self.stories[str(name)], event)
        elif event.kind == "task_finished":
            self._note_end(event)
        self._note_cause(event)

    def _is_run_by_hand(self, event: Event) -> bool:
        if event.kind != "automation_fired":
            return False
        rows = self.rows("SELECT internal_key FROM tasks WHERE id = ?", event.payload["task_id"])
        by_hand = "@now:" in str(rows[0][0])
        self.outcomes["run by hand"] += by_hand
        return by_hand

    def _read_row(self, name: str) -> dict[str, Any]:
        columns = "status, schedule, days_off, quiet_hours, missed, missed_window, overlap, next_run_at, waiting_run_at"
        ((values),) = self.rows(f"SELECT {columns}, max_runs, run_count, triggers FROM automations WHERE id = ?", name)
        row = dict(zip([*columns.split(", "), "max_runs", "run_count", "triggers"], values, strict=True))
        return row | {key: loads(row[key]) for key in ("schedule", "days_off", "quiet_hours", "triggers")}

    def _note_change(self, name: str, event: Event) -> None:
        row, old = self._read_row(name), self.stories.get(name)
        self._triggers = []
        plan = row["schedule"]
        timetable = Timetable.make(
            _read_schedule(plan), tuple(row["days_off"]), tuple(row["quiet_hours"]), self.calendars
        )
        story = Story(plan, row, timetable)
        self.stories[name] = story
        spent = 0 < row["max_runs"] <= row["run_count"]
        kept = old is not None and old.row["status"] == "active" and old.plan == plan
        if old is not None and old.row["status"] != row["status"]:
            self.resting[name] = event.time
        if row["status"] != "active":
            self._explain(old, "its automation rests")
            return
        if kept and old is not None:
            story.head, story.waiting, story.quiet_until = old.head, old.waiting, old.quiet_until
            if story.head is None and not spent:
                story.head = self.next_due(story, event.time)
        else:
            self._explain(old, "its automation was changed")
            story.head = None if spent else self.next_due(story, event.time)
        if story.waiting is None and row["next_run_at"] != story.head:
            moved = row["next_run_at"] is not None and self._is_moved(story, row["next_run_at"])
            assert moved or (spent and row["next_run_at"] is None), (
                f"after {event.kind} {name} is next due at {iso(row['next_run_at'])}, not at {iso(story.head)}"
            )

    def _is_moved(self, story: Story, to: int) -> bool:
        return story.head == to or story.quiet_until == to

    def _explain(self, story: Story | None, why: str) -> None:
        if story is not None and story.waiting is not None:
            self.outcomes[f"waited, and {why}"] += 1
            story.waiting = None

    def _note_due(self, story: Story, event: Event) -> None:
        """Follow one due time that was fired, missed or queued."""
        due, now, name = moment_of(event.payload["scheduled_for"]), event.time, event.payload["automation_id"]
        reason, count = event.payload.get("reason"), event.payload.get("count", 1)
        about = (name, event.kind, reason, count, iso(due), iso(now), iso(story.head), iso(story.waiting), story.row)
        story.told.append(about[1:6])
        self.outcomes[reason or event.kind.removeprefix("automation_")] += count if reason != "caught_up" else count - 1
        if story.waiting is not None and due == story.waiting and due != story.head:
            if reason != "quiet_hours":  # it fired, or a newer one waits instead
                story.waiting = None
            if event.kind == "automation_fired" and story.head is not None and story.head == story.quiet_until <= now:
                story.head = self.next_due(story, story.head)  # at the end of quiet hours all moved runs are one run
            return
        if event.kind != "automation_missed" and due == story.caught_up:
            story.caught_up = None  # this event continues the one that told the lateness
            story.waiting = due if event.kind == "automation_queued" else story.waiting
            return
        if story.head is None and due in self.list_due(story.plan):  # its last run did not count
            story.head = due
        assert due == story.head, f"another due time than the next one was told: {about} after {list(story.told)}"
        late = now - due > LATE
        if reason == "quiet_hours" or reason == "day_off":
            own = story.timetable.find_block(due)
            block = own or story.timetable.find_block(now)
            assert block is not None, f"nothing blocks it: {about}"
            expected = self.count(story, due, block.until) if own else self.count_runs(story, due, now)
            expected = max(1, min(MOST_COUNTED, expected))
            story.head = self.next_due(story, block.until - 1)
            if reason == "quiet_hours":
                story.head = story.quiet_until = block.until
        else:
            expected = max(1, min(MOST_COUNTED, self.count_runs(story, due, now))) if late else 1
            story.head = self.next_due(story, now if late else due)
            assert reason != "late" or late, f"it was not late: {about}"
            assert event.kind == "automation_missed" or not late, f"it was late without a word: {about}"
        assert count == expected, f"{count} were told, and {expected} were due: {about}"
        if reason == "caught_up":
            story.caught_up = due
        self.due_times += expected
        story.waiting = due if event.kind == "automation_queued" else story.waiting

    # -- triggers --------------------------------------------------------------------------------------------------

    def _note_firing(self, event: Event) -> None:
        firing_id = event.payload["firing_id"]
        columns = "trigger_id, key, status, chain_id, kind"
        ((trigger_id, key, _, chain_id, kind),) = self.rows(f"SELECT {columns} FROM firings WHERE id = ?", firing_id)
        first = self.keys.get((trigger_id, key), "")
        assert not self.rows("SELECT 1 FROM firings WHERE id = ?", first), f"{kind} {trigger_id} fired twice for {key}"
        self.keys[trigger_id, key] = firing_id
        self.expected.pop((trigger_id, key), None)
        self.chains.pop((trigger_id, str(chain_id)), None)
        skipped = event.payload.get("skipped")
        self.firings[firing_id] = [f"skipped: {_shorten(skipped)}"] if skipped else []
        self.outcomes[f"{kind} fired"] += 1
        if skipped:
            self.outcomes[f"{kind} skipped: {_shorten(skipped)}"] += 1
            self._note_part_end(event.payload["automation_id"], firing_id, str(chain_id), event.time)

    def _note_end_of_firing(self, event: Event, firing_id: str) -> None:
        if event.payload.get("reason") == "quiet_hours":
            return
        ends = self.firings[firing_id]
        ends.append("started" if event.kind == "automation_fired" else f"skipped: {event.payload['reason']}")
        assert len(ends) == 1, f"firing {firing_id} ended twice: {ends}"
        kind = self.rows("SELECT kind, chain_id FROM firings WHERE id = ?", firing_id)[0]
        self.outcomes[f"{kind[0]} {_shorten(ends[0])}"] += 1
        if event.kind == "automation_missed":
            self._note_part_end(event.payload["automation_id"], firing_id, str(kind[1]), event.time)

    def _list_triggers(self) -> list[tuple[str, str, dict[str, Any], str, int]]:
        """Return the triggers of automations that are not deleted."""
        if not self._triggers:
            rows = self.rows(
                "SELECT triggers.id, automation_id, options, automations.status, triggers.created_at FROM triggers "
                "JOIN automations ON automations.id = automation_id WHERE removed_at IS NULL "
                "AND automations.status <> 'deleted'"
            )
            self._triggers = [(key, owner, loads(options), status, at) for key, owner, options, status, at in rows]
        return self._triggers

    def _note_end(self, event: Event) -> None:
        rows = self.rows("SELECT cause, cause_id, retry_of, outcome FROM tasks WHERE id = ?", event.task_id)
        cause, cause_id, retry_of, outcome = rows[0]
        if cause != "automation":
            return
        self.outcomes[f"run ended: {outcome}"] += 1
        first = self.rows("SELECT chain_id FROM firings WHERE task_id = ?", retry_of or event.task_id)
        chain_id = str(first[0][0]) if first else str(retry_of or event.task_id)
        self._note_part_end(cause_id, str(event.task_id), chain_id, event.time)

    def _note_part_end(self, part: str, end_id: str, chain_id: str, at: int) -> None:
        """Note which firings must follow the end of a part of a chain."""
        for trigger_id, owner, options, _, created_at in self._list_triggers():
            parts = options.get("automations", ()) if options["kind"] == "after" else ()
            if part not in parts or at < created_at:
                continue
            if len(parts) == 1:
                if (trigger_id, end_id) not in self.keys:
                    self.expected[trigger_id, end_id] = (at, owner)
                continue
            ended = self.joined.setdefault((trigger_id, chain_id), set())
            ended.add(part)
            if options.get("join") != "any" and ended == set(parts):
                ended.clear()
                self.chains[trigger_id, chain_id] = at

    def _note_cause(self, event: Event) -> None:
        """Note which triggers wait for this event."""
        if not event.kind.startswith("goal_"):
            return
        for trigger_id, owner, options, status, created_at in self._list_triggers():
            if event.kind in options.get("kinds", ()) and status == "active" and event.time >= created_at:
                self.expected[trigger_id, event.id] = (event.time, owner)

    # -- after every step, and at the end --------------------------------------------------------------------------

    def check_triggers(self, *, all_taken: bool) -> None:
        """Check that each cause has had its firing. `all_taken` is whether the triggers had time for all of them."""
        if not all_taken:
            return
        for (trigger_id, key), (at, owner) in list(self.expected.items()):
            excused = self.resting.get(owner, 0) >= at or not self.rows(
                "SELECT 1 FROM automations WHERE id = ? AND status <> 'deleted'", owner
            )
            assert excused, f"trigger {trigger_id} of {owner} did not fire for {key} at {iso(at)}"
            del self.expected[trigger_id, key]
            self.outcomes["cause of a resting automation"] += 1
        for (trigger_id, chain_id), at in list(self.chains.items()):
            ((owner,),) = self.rows("SELECT automation_id FROM triggers WHERE id = ?", trigger_id) or [("",)]
            assert self.resting.get(owner, 0) >= at, f"trigger {trigger_id} never joined {chain_id}"
            del self.chains[trigger_id, chain_id]

    def check(self) -> None:
        """Check what must hold whenever no work is in progress."""
        open_tasks = "status IN ('pending', 'running')"
        twice = self.rows(
            f"SELECT cause_id FROM tasks WHERE {open_tasks} AND cause IN ('automation', 'goal') "
            "GROUP BY cause_id HAVING count(*) > 1"
        )
        assert not twice, f"two open runs of {twice}"
        leaked = self.rows("SELECT id FROM tasks WHERE status = 'running' AND lease_owner IS NULL")
        assert not leaked, f"nobody runs {leaked}"
        idle = self.rows(
            "SELECT id FROM automations WHERE status = 'active' AND next_run_at IS NULL AND triggers = '[]' "
            f"AND NOT EXISTS (SELECT 1 FROM tasks WHERE cause_id = automations.id AND {open_tasks})"
        )
        assert not idle, f"nothing will fire {idle}"

    def check_due(self) -> None:
        """Check that no due time has passed without a word: the next one of each automation is still to come."""
        now = self._clock.now()
        for name, status, stored, waiting, max_runs, runs in self.rows(
            "SELECT id, status, next_run_at, waiting_run_at, max_runs, run_count FROM automations"
        ):
            story = self.stories[name]
            if status != "active" or 0 < max_runs <= runs:
                continue
            assert waiting == story.waiting, f"{name} has {iso(waiting)} waiting, not {iso(story.waiting)}"
            if story.head is None:  # its last run did not count
                continue
            assert story.head > now - LATE, f"{iso(story.head)} of {name} passed without a word"
            assert stored in (story.head, story.quiet_until) or waiting, (
                f"{name} is next due at {iso(stored)}, not at {iso(story.head)}"
            )

    def check_log(self) -> None:
        """Check that every firing has ended or is pending, and that nothing is left open."""
        pending = {row[0] for row in self.rows("SELECT id FROM firings WHERE status = 'pending'")}
        lost = [firing for firing, ends in self.firings.items() if not ends and firing not in pending]
        assert not lost, f"nothing became of {lost[:5]}"
        self.outcomes["firing pending"] = len(pending)
        open_tasks = self.rows("SELECT id, status, wait, agent, cause FROM tasks WHERE completed_at IS NULL")
        assert not open_tasks, f"these never ended: {open_tasks}"
        assert not self._turns, f"turns without an end: {self._turns}"
        unsent = self.rows("SELECT id, notice, status FROM deliveries WHERE status NOT IN ('sent', 'failed')")
        assert not unsent, f"lost notices: {unsent[:5]}"


def _shorten(reason: str) -> str:
    """Return the kind of a reason, without names."""
    for words in ("its automation is", "wait already", "failed", "was cancelled", "was skipped", "ended ok", "deleted"):
        if words in reason:
            return words
    return reason


def _read_schedule(plan: dict[str, Any]) -> Any:
    from midwatch.base.schedule import Schedule

    return Schedule.from_data(plan)

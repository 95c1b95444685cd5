"""Test names of automations, overlap, days off, quiet hours, and stopping by a pause, with a real store."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.base.schedule import Schedule, local_iso, next_run_at, parse_moment
from midwatch.base.timetable import Timetable
from midwatch.domain import automation_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes, update_record
from midwatch.domain.event import EventFilter
from midwatch.domain.quiet import check_quiet, is_quiet
from midwatch.domain.task import Task, end
from midwatch.domain.task_step import TaskStep
from midwatch.loops.scheduler import Scheduler
from midwatch.services.automations import Automations
from midwatch.services.task_endings import TaskEndings
from midwatch.services.tasks import Tasks
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import KnownAgents, an_automation, claim_request

HOUR = 3600 * SECOND


async def terms(agent: str) -> AgentTerms:
    return AgentTerms()


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
def tasks(store: SqliteStore, clock: FakeClock) -> Tasks:
    return Tasks(store, clock, KnownAgents("demo"), lambda route: route, endings=TaskEndings(store, clock, terms))


@pytest.fixture
def automations(store: SqliteStore, clock: FakeClock, tasks: Tasks) -> Automations:
    return Automations(store, clock, tasks, terms, lambda route: route)


async def test_a_name_is_unique_among_automations_that_are_not_deleted(automations: Automations) -> None:

    async def make(**wish: Any) -> str:
        return (await automations.create("look", agent="demo", every="1h", zone="UTC", **wish)).id

    first, second = await make(name="brief", title="Morning"), await make(title="Evening")
    with pytest.raises(Conflict, match=first):
        await make(name="brief")
    with pytest.raises(Conflict, match=first):
        await automations.patch(second, {"name": "brief"})
    for wrong in ("Brief", "am_1", "a b", "export", "x" * 61):
        with pytest.raises(InvalidInput, match="name must have"):
            await make(name=wrong)
    assert [(await automations.get(key)).id for key in (first, "brief", "Morning", "Evening")] == [
        first,
        first,
        first,
        second,
    ]
    assert (await automations.patch("brief", {"name": "other"})).id == first  # its key changes with the patch
    await make(title="Evening")
    with pytest.raises(Conflict, match="several automations"):
        await automations.get("Evening")
    await automations.delete("other")
    with pytest.raises(NotFound):
        await automations.get("other")
    third = await make(name="other")
    with pytest.raises(Conflict, match=third):
        await automations.resume(first)


async def list_events(store: SqliteStore, *kinds: str) -> list[dict[str, Any]]:
    return [dict(event.payload) for event in await store.read_events(0, EventFilter(kinds=kinds), 1000)]


def at(text: str, zone: str = "UTC") -> int:
    return parse_moment(text, 0, zone)


class Runner:
    """Start due runs like the scheduler of a server, and end runs like its worker."""

    def __init__(self, store: SqliteStore, clock: FakeClock, tasks: Tasks, **calendars: list[str]) -> None:
        self.store, self.clock, self.tasks = store, clock, tasks
        self.scheduler = Scheduler(store, clock, lambda: True, terms, tasks.cancel, calendars=calendars)
        self.endings = TaskEndings(store, clock, terms)

    async def go_to(self, moment: int) -> None:
        """Move the clock to each time at which something is due, and at last to this moment."""
        while (due := await self.scheduler.look()) is not None and due <= moment:
            self.clock.set(max(due, self.clock.now()))
        self.clock.set(moment)

    async def begin(self) -> Task:
        """Let a worker claim the next task."""
        (claimed,) = (await self.store.claim(claim_request(), self.clock.now())).taken
        return claimed.task

    async def end(self, task: Task, outcome: Any = "ok") -> Task:
        current = await self.store.get_task(task.id)
        assert current is not None
        step = TaskStep(*end(current, self.clock.now(), outcome=outcome, result="done" if outcome == "ok" else None))
        await self.store.apply(await self.endings.end_attempt(current, step))
        await self.scheduler.look()
        ended = await self.store.get_task(task.id)
        assert ended is not None
        return ended


@pytest.fixture
def runner(store: SqliteStore, clock: FakeClock, tasks: Tasks) -> Runner:
    return Runner(store, clock, tasks, holidays=["2026-12-24..2027-01-02"])


async def test_a_queued_run_starts_when_the_open_run_has_ended(
    automations: Automations, store: SqliteStore, clock: FakeClock, runner: Runner
) -> None:
    start = clock.now()
    automation = await automations.create("look", every="1h", zone="UTC", overlap="queue", max_runs=3)
    await runner.go_to(start + HOUR)
    await runner.scheduler.look()
    first = await runner.begin()
    await runner.go_to(start + 4 * HOUR - 1)
    shown = await automations.get(automation.id)
    assert (shown.waiting_run_at, shown.next_run_at) == (start + 2 * HOUR, start + 4 * HOUR)
    assert len(await store.list_runs(automation.id)) == 1
    missed = await list_events(store, "automation_missed")
    assert [(event["reason"], event["scheduled_for"]) for event in missed] == [("overlap", iso(start + 3 * HOUR))]
    await runner.end(first)
    second = await store.find_open_run(automation.id)
    assert second is not None and second.internal_key == f"{automation.id}@{start + 2 * HOUR}"
    shown = await automations.get(automation.id)
    assert (shown.waiting_run_at, shown.next_run_at) == (None, start + 4 * HOUR)
    await runner.go_to(start + 4 * HOUR)
    await runner.scheduler.look()
    assert (await automations.get(automation.id)).waiting_run_at == start + 4 * HOUR
    await automations.pause(automation.id)
    assert (await automations.get(automation.id)).waiting_run_at is None
    await runner.end(await runner.begin())
    assert len(await store.list_runs(automation.id)) == 2


@pytest.mark.parametrize("begun", [True, False])
async def test_a_due_run_replaces_the_open_run(
    automations: Automations, store: SqliteStore, clock: FakeClock, runner: Runner, begun: bool
) -> None:
    start = clock.now()
    automation = await automations.create("look", every="1h", zone="UTC", overlap="replace", route="console")
    await runner.go_to(start + HOUR)
    await runner.scheduler.look()
    (first,) = await store.list_runs(automation.id)
    if begun:
        await runner.begin()
    await runner.go_to(start + 2 * HOUR)
    await runner.scheduler.look()
    if begun:  # the worker stops the agent, meanwhile one more run is due
        assert (await store.get_task(first.id)).stop_requested == "cancel"  # type: ignore[union-attr]
        await runner.end(first, "cancelled")
    second, replaced = await store.list_runs(automation.id)
    assert (replaced.id, replaced.outcome, second.status) == (first.id, "cancelled", "pending")
    assert replaced.error == f"replaced by the run that was due at {iso(start + 2 * HOUR)}."
    assert [event["error"] for event in await list_events(store, "task_finished")] == [replaced.error]
    after = await automations.get(automation.id)
    assert (after.consecutive_failures, after.run_count, after.status) == (0, 1 + begun, "active")
    assert (after.last_result or "").startswith("replaced") == begun
    assert not [notice for notice in await store.list_deliveries() if notice.notice == "cancelled"]
    by_person = await runner.tasks.cancel(second.id, actor="ann")
    assert (by_person.outcome, by_person.error) == ("cancelled", None)


async def test_a_run_that_was_taken_already_is_not_started_twice(
    automations: Automations, store: SqliteStore, clock: FakeClock, runner: Runner
) -> None:
    """After a clock was set back, the waiting run may have had its task already."""
    automation = await automations.create("look", every="1h", zone="UTC", overlap="queue")
    due = clock.now() + HOUR
    await runner.go_to(due)
    await runner.scheduler.look()
    await runner.end(await runner.begin())
    again = await automations.get(automation.id)
    await store.apply(Changes(updates=(update_record(again, due, waiting_run_at=due, next_run_at=due),)))
    await runner.scheduler.look()
    after = await automations.get(automation.id)
    assert (after.waiting_run_at, after.next_run_at) == (None, due + HOUR)
    assert len(await store.list_runs(automation.id)) == 1


async def test_runs_on_days_off_are_left_out_with_one_event_per_range(
    automations: Automations, store: SqliteStore, clock: FakeClock, runner: Runner
) -> None:
    clock.set(at("2026-12-18T08:00"))
    automations = Automations(
        store, clock, runner.tasks, terms, str, calendars={"holidays": ["2026-12-24..2027-01-02"]}
    )
    automation = await automations.create(
        "look", cron="0 9,15 * * *", zone="UTC", days_off=("sat", "sun", "holidays"), on_crash="fail"
    )
    shown = await automations.describe(automation)
    assert shown["next_runs"][:3] == [f"2026-12-{day}:00+00:00" for day in ("18T09:00", "18T15:00", "21T09:00")]
    preview = automations.preview(cron="0 9 * * *", zone="UTC", days_off=["12-19", "sun"], count=2)
    assert [run[:10] for run in preview["next_runs"]] == ["2026-12-18", "2026-12-21"]
    while (due := (await automations.get(automation.id)).next_run_at or 0) < at("2027-01-01T00:00"):
        await runner.go_to(due)
        await runner.scheduler.look()
        if await store.find_open_run(automation.id):
            await runner.end(await runner.begin())
    assert len(await store.list_runs(automation.id)) == 8
    missed = await list_events(store, "automation_missed")
    assert [(event["reason"], event["scheduled_for"][:10], event["count"]) for event in missed] == [
        ("day_off", "2026-12-19", 4),
        ("day_off", "2026-12-24", 22),
    ]
    (day,) = await automations.day([automation.id])
    assert [run[:13] for run in day["next_runs"]] == []
    with pytest.raises(InvalidInput, match="there is no calendar 'holiday'"):
        await automations.patch(automation.id, {"days_off": ("holiday",)})
    with pytest.raises(InvalidInput, match="all its runs would be on days off"):
        await automations.patch(automation.id, {"cron": "0 9 * * 6"})
    with pytest.raises(InvalidInput, match="all seven weekdays"):
        await automations.patch(automation.id, {"days_off": ("mon", "tue", "wed", "thu", "fri", "sat", "sun")})


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("hours", "due", "until"),
    [
        (["22:00-07:00"], "2026-07-01T21:59:59+02:00", None),
        (["22:00-07:00"], "2026-07-01T22:00:00+02:00", "2026-07-02T07:00:00+02:00"),
        (["22:00-07:00"], "2026-07-02T07:00:00+02:00", None),
        (["12:00-13:00", "13:00-14:30"], "2026-07-01T12:10:00+02:00", "2026-07-01T14:30:00+02:00"),
        (["23:00-24:00", "0:00-1:00"], "2026-07-01T23:10:00+02:00", "2026-07-02T01:00:00+02:00"),
        # the clock skips 02:00 to 03:00
        (["22:00-07:00"], "2026-03-28T23:00:00+01:00", "2026-03-29T07:00:00+02:00"),
        (["22:00-02:30"], "2026-03-29T01:10:00+01:00", "2026-03-29T03:00:00+02:00"),
        (["02:15-04:00"], "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"),
        # the clock shows 02:00 to 03:00 twice
        (["22:00-07:00"], "2026-10-25T02:30:00+01:00", "2026-10-25T07:00:00+01:00"),
        (["22:00-02:30"], "2026-10-25T02:10:00+02:00", "2026-10-25T02:30:00+02:00"),
        (["22:00-02:30"], "2026-10-25T02:10:00+01:00", "2026-10-25T02:30:00+01:00"),
        (["22:00-02:30"], "2026-10-25T02:40:00+02:00", None),
        (["02:00-03:00"], "2026-10-25T02:59:00+02:00", "2026-10-25T03:00:00+01:00"),
    ],
)
def test_quiet_hours_end_on_the_wall_clock(hours: list[str], due: str, until: str | None) -> None:
    block = Timetable.make(Schedule.make(zone=BERLIN, cron="* * * * *"), (), hours).find_block(at(due))
    assert (None if block is None else local_iso(block.until, BERLIN)) == until


def test_no_planned_run_is_on_a_day_off_or_in_quiet_hours_and_none_is_lost() -> None:
    """Each run of the schedule is planned, or on a day off, or moved to the first planned run after it."""
    chance = random.Random(7)
    for _ in range(40):
        cron = chance.choice(["*/20 * * * *", "7 * * * *", "30 2 * * *", "0 */3 * * *", "15 23 * * *"])
        begin, length = chance.randrange(24), chance.randint(1, 11)
        hours = [f"{begin:02}:30-{(begin + length) % 24:02}:{chance.choice((0, 15, 45)):02}"]
        days = chance.sample(["sat", "sun", "03-29", "2026-10-24..2026-10-26", "wed"], chance.randint(0, 2))
        schedule = Schedule.make(zone=chance.choice([BERLIN, "America/New_York", "UTC"]), cron=cron)
        timetable = Timetable.make(schedule, days, hours)
        start = at(chance.choice(["2026-03-27T00:00", "2026-10-23T00:00", "2026-11-01T00:00"]))
        planned = [run for run in timetable.upcoming(start, 600) if run < start + 96 * HOUR]
        assert planned == sorted(set(planned)) and not any(timetable.find_block(run) for run in planned)
        run = start
        while (run := next_run_at(schedule, run) or 0) < start + 72 * HOUR:
            block = timetable.find_block(run)
            if block is None or (block.reason == "quiet_hours" and timetable.find_block(block.until) is None):
                assert (run if block is None else block.until) in planned


@pytest.mark.parametrize("day", ["2026-03-28T21:00", "2026-10-24T21:00", "2026-07-01T21:00"])
async def test_runs_in_quiet_hours_become_one_run_at_their_end(
    automations: Automations, store: SqliteStore, clock: FakeClock, runner: Runner, day: str
) -> None:
    clock.set(at(day, BERLIN))
    automation = await automations.create("look", cron="30 * * * *", zone=BERLIN, quiet_hours=("22:00-07:00",))
    shown = await automations.describe(automation)
    assert [run[11:16] for run in shown["next_runs"][:3]] == ["21:30", "07:00", "07:30"]
    for hours in (1, 2):
        await runner.go_to(clock.now() + hours * HOUR)
        await runner.scheduler.look()
        if await store.find_open_run(automation.id):
            await runner.end(await runner.begin())
    (moved,) = await list_events(store, "automation_missed")
    quiet = {"2026-03-28T21:00": 8, "2026-10-24T21:00": 10, "2026-07-01T21:00": 9}[day]
    assert (moved["reason"], moved["count"]) == ("quiet_hours", quiet)
    after = await automations.describe(await automations.get(automation.id))
    assert after["next_runs"][:2] == shown["next_runs"][1:3]
    await runner.go_to(at(after["next_run_at"]))
    await runner.scheduler.look()
    assert len(await store.list_runs(automation.id)) == 2
    for wrong in ("22-07", "25:00-07:00", "22:00-22:00", "22:60-07:00", "24:00-07:00", "late"):
        with pytest.raises(InvalidInput, match="are no quiet hours"):
            await automations.patch(automation.id, {"quiet_hours": (wrong,)})
    with pytest.raises(InvalidInput, match="all day"):
        await automations.patch(automation.id, {"quiet_hours": ("00:00-12:00", "12:00-24:00")})


async def test_jitter_is_stable_and_ends_before_the_next_run_and_before_quiet_hours(clock: FakeClock) -> None:
    starts: list[float] = []  # in seconds; the clock stands at 20 seconds of a minute
    for number in range(60):
        due = clock.now() + number * 60 * SECOND
        record = an_automation(
            due, id="am_1", jitter_seconds=86400.0, next_run_at=due, quiet_hours=("22:30-22:40",),
            schedule=Schedule.make(cron="* * * * *", zone="UTC").snapshot(),
        )  # fmt: skip
        first, second = (steps.fire(record, due, AgentTerms(), runs=False).records for _ in range(2))
        delays = [task.due_at - due for task in first if isinstance(task, Task)]
        assert delays == [task.due_at - due for task in second if isinstance(task, Task)]
        assert not any(22 * 60 + 30 <= (due + delay) // (60 * SECOND) % 1440 < 22 * 60 + 40 for delay in delays)
        starts += [delay / SECOND for delay in delays]
    assert len(starts) == 50 and 0 <= min(starts) < 15 and 30 < max(starts) < 40


@pytest.mark.parametrize(
    ("quiet", "answer", "expected"),
    [
        ("OK", "ok.", True), ("OK", " **OK** \n", True), ("ok", "`OK`", True), ("OK", "> OK!", True),
        ("All  is well.", "all is well", True), ("OK", "OK, but the disk is full", False), ("OK", "not ok", False),
        ("...", "...", True), ("...", "", False), ("OK", "", False), (None, "OK", False),
        ("/^(OK|nothing new)/", "Nothing new since Monday", True), ("/^(OK|nothing new)/", "Not OK", False),
        ("/OK$/", "OK" + "x" * 5000, False), ("/OK.*/", "  ok then", True), ("/(?:no )?news/", "News", True),
        ("/.*/", "x" * 5000, False),
    ],
)  # fmt: skip
def test_a_quiet_answer_is_compared_leniently(quiet: str | None, answer: str, expected: bool) -> None:
    check_quiet(quiet)
    assert is_quiet(quiet, answer) == expected


def test_a_quiet_pattern_that_could_take_long_is_refused() -> None:
    for wrong in (
        "/(a+)+/",
        "/(a|a)*/",
        "/(a?){50}/",
        r"/(a)\1/",
        "/a(?=b)/",
        "/(/",
        "/a*a*a*a*a*b/",
        "/(?i)a/",
        "/[/",
    ):
        with pytest.raises(InvalidInput) as refused:
            check_quiet(wrong)
        assert refused.value.field == "quiet" and "\n" not in str(refused.value)
    began = time.monotonic()
    for slow in ("/a*b/", "/a*a*b/", "/a*a*a*b/", "/(a|a)(a|a)(a|a)(a|a)a*a*b/", "/a?a?a?a?a?a?a?aaaaaaaa*b/"):
        check_quiet(slow)
        assert not is_quiet(slow, "a" * 100_000)
    assert time.monotonic() - began < 2


async def test_a_quiet_run_sends_no_notice_of_its_start(
    automations: Automations, store: SqliteStore, clock: FakeClock, runner: Runner
) -> None:
    for quiet in (None, "OK"):
        about = {"route": "console", "notices": "all"}
        automation = await automations.create("look", every="1h", zone="UTC", quiet=quiet, **about)
        await automations.run(automation.id)
        task = await runner.begin()
        notices = [notice.notice for notice in await store.list_deliveries(task_id=task.id)]
        assert notices == ([] if quiet else ["started"])
        await runner.end(task)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_pause_can_stop_the_open_run(
    automations: Automations, store: SqliteStore, runner: Runner, begun: bool
) -> None:
    automation = await automations.create("look", every="1h", zone="UTC")
    task = await automations.run(automation.id)
    if begun:
        await runner.begin()
    assert (await automations.pause(automation.id)).status == "paused"
    assert (await store.get_task(task.id)).stop_requested is None  # type: ignore[union-attr]
    paused = await automations.pause(automation.id, stop=True)
    stopped = await store.get_task(task.id)
    assert stopped is not None
    assert (stopped.stop_requested, stopped.open) == ("cancel", True) if begun else (None, False)
    assert (paused.status, paused.run_count) == ("paused", int(begun))
    again = await automations.create("look", every="1h", zone="UTC")
    other = await automations.run(again.id)
    assert (await automations.pause(again.id, stop=True)).run_count == 0
    assert (await store.get_task(other.id)).outcome == "cancelled"  # type: ignore[union-attr]


async def test_a_record_that_cannot_be_read_here_breaks_no_list(
    automations: Automations, store: SqliteStore, clock: FakeClock, runner: Runner
) -> None:
    """The rows were written by a host with other zones and calendars, or by a person."""
    due, notes = clock.now(), {"route": "console"}
    zone = {"cron": "0 9 * * *", "zone": "Mars/Olympus"}
    rows: tuple[Any, ...] = (
        an_automation(due, schedule=zone, next_run_at=due, **notes),
        an_automation(due, days_off=("elsewhere",), next_run_at=due, **notes),
        an_automation(due, quiet_hours=("soon",), next_run_at=due, **notes),
        an_automation(due, schedule={"cron": "x"}, next_run_at=due, **notes),
        an_automation(due, schedule=["x"], next_run_at=due, **notes),
    )
    await store.apply(Changes(records=rows))
    good = await automations.create("look", every="1h", zone="UTC")
    shown = [await automations.describe(automation) for automation in await automations.list()]
    assert [bool(one["problem"]) for one in shown] == [one["id"] != good.id for one in shown]
    assert all(bool(one["when"]) for one in await automations.day())
    await runner.scheduler.look()
    for row in rows:
        after = await automations.get(row.id)
        assert after.status == "paused" and "cannot be read" in (after.paused_why or "")
        assert [notice.notice[:17] for notice in await store.list_deliveries(task_id=row.id)] == ["automation_paused"]
        await automations.patch(row.id, {"title": "still editable"})

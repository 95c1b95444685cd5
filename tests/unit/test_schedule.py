"""Test schedules: refusals, run times over clock changes and restarts, and times as people write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.base.schedule import (
    ALIASES,
    FORMS,
    MAX_EVERY,
    Schedule,
    count_missed,
    find_zone,
    host_zone,
    local_iso,
    next_run_at,
    parse_moment,
    upcoming,
)
from midwatch.cli.main import execute

HOUR, DAY = 3600 * SECOND, 86400 * SECOND
BERLIN, NEW_YORK, LORD_HOWE, SANTIAGO = (
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago",
)  # fmt: skip
CHANGES = {
    BERLIN: (date(2026, 3, 29), date(2026, 10, 25)),
    NEW_YORK: (date(2026, 3, 8), date(2026, 11, 1)),
    LORD_HOWE: (date(2026, 4, 5), date(2026, 10, 4)),  # the clock changes by half an hour
    SANTIAGO: (date(2026, 4, 5), date(2026, 9, 6)),  # the clock changes at midnight
}
"""The days on which the clocks change in 2026."""


def moment(text: str) -> int:
    """Return the instant of an ISO 8601 text; without an offset it is in UTC."""
    read = datetime.fromisoformat(text)
    read = read if read.tzinfo else read.replace(tzinfo=UTC)
    return int(read.timestamp()) * SECOND + read.microsecond


def cron(expression: str, zone: str = "UTC") -> Schedule:
    return Schedule.make(cron=expression, zone=zone)


def list_runs(schedule: Schedule, after: str, count: int) -> list[str]:
    return [local_iso(run, schedule.zone) for run in upcoming(schedule, moment(after), count)]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "field", "says"),
    [
        ({}, "schedule", "exactly one of `at`, `every` and `cron`; got none"),
        ({"at": 1, "cron": "@daily"}, "schedule", "got at and cron"),
        ({"every": 60, "cron": "bad"}, "schedule", "got every and cron"),
        ({"every": 59}, "every", "must be from one minute"),
        ({"every": "59s"}, "every", "one minute to ten years"),
        ({"every": 0}, "every", "one minute to ten years"),
        ({"every": -86400}, "every", "one minute to ten years"),
        ({"every": 90.5}, "every", "in whole seconds"),
        ({"every": MAX_EVERY + 1}, "every", "one minute to ten years"),
        ({"every": "soon"}, "every", "90m or 7d"),
        ({"every": float("inf")}, "every", "90m or 7d"),
        ({"every": 10**400}, "every", "90m or 7d"),
        ({"every": True}, "every", "90m or 7d"),
        ({"every": 60, "anchor": None}, "anchor", "needs an `anchor`"),
        ({"at": -1}, "at", "between the years 1970 and 9998"),
        ({"at": 2**63}, "at", "between the years 1970 and 9998"),
        ({"cron": "@daily", "zone": "Europe/Berln"}, "zone", "did you mean Europe/Berlin"),
        ({"cron": "@daily", "zone": "europe/berlin"}, "zone", "did you mean Europe/Berlin?"),
        ({"cron": "@daily", "zone": "new york"}, "zone", "did you mean America/New_York?"),
        ({"cron": "@daily", "zone": ""}, "zone", "Europe/Berlin or UTC"),
        ({"cron": "@daily", "zone": "Europe"}, "zone", "no time zone 'Europe'"),
        ({"cron": "@daily", "zone": "../../etc/passwd"}, "zone", "no time zone"),
        ({"cron": "@daily", "zone": "/etc/localtime"}, "zone", "no time zone"),
        ({"cron": "@daily", "zone": "localtime"}, "zone", "no time zone"),
        ({"cron": "@daily", "zone": "right/Europe/Berlin"}, "zone", "no time zone"),
        ({"cron": "@daily", "zone": "zone.tab"}, "zone", "no time zone"),
        ({"cron": "@daily", "zone": "a\0b"}, "zone", "no time zone"),
        ({"cron": "@daily", "zone": "ü" * 5000}, "zone", "no time zone"),
        ({"cron": ""}, "cron", "has 0 fields; write five"),
        ({"cron": "5"}, "cron", "has 1 field; write five"),
        ({"cron": "* * * *"}, "cron", "has 4 fields; write five"),
        ({"cron": "*/10 * * * * *"}, "cron", "six fields; write five: minute hour day month weekday. There is no"),
        ({"cron": "* * * * * * *"}, "cron", "has 7 fields"),
        ({"cron": "@every 1s"}, "cron", "set `every` to at least 60s"),
        ({"cron": "@reboot"}, "cron", "use one of @yearly"),
        ({"cron": "@fortnightly"}, "cron", "no alias '@fortnightly'; use one of @yearly"),
        ({"cron": "@daily 5"}, "cron", "use one of @yearly"),
        ({"cron": "TZ=UTC"}, "cron", "set the field `zone` instead"),
        ({"cron": "CRON_TZ=Europe/Berlin 0 9 * * *"}, "cron", "set the field `zone` instead"),
        ({"cron": "60 * * * *"}, "cron", "bad minute"),
        ({"cron": "0 24 * * *"}, "cron", "bad hour"),
        ({"cron": "0 0 32 * *"}, "cron", "bad day-of-month"),
        ({"cron": "0 0 * 13 *"}, "cron", "bad month"),
        ({"cron": "0 0 * * 8"}, "cron", "bad day-of-week"),
        ({"cron": "0 0 ? * *"}, "cron", "bad day-of-month"),
        ({"cron": "*/0 * * * *"}, "cron", "bad minute"),
        ({"cron": "30-10 * * * *"}, "cron", "bad minute"),
        ({"cron": "9" * 990 + " * * * *"}, "cron", "bad minute"),
        ({"cron": "9" * 5000 + " * * * *"}, "cron", "at most 1000 characters"),
        ({"cron": "0 0 30 2 *"}, "cron", "never runs"),
        ({"cron": "0 0 31 4,6,9,11 *"}, "cron", "never runs"),
        ({"cron": "* * */20 * 1L"}, "cron", "never runs"),
    ],
)
def test_invalid_schedules_are_refused_with_a_remedy(said: dict, field: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Schedule.make(**{"zone": "UTC", "anchor": 0, **said})
    assert caught.value.field == field
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize(
    "said", [{"every": 60}, {"every": "24h"}, {"every": 120.0}, {"at": 0}, {"cron": " 0  9 * * * "}]
)
def test_valid_schedules_are_kept(said: dict) -> None:
    schedule = Schedule.make(zone=BERLIN, anchor=5, **said)
    times = {"every": schedule.every, "at": schedule.at, "cron": schedule.cron}
    expected = {"every": {"24h": 86400, 120.0: 120, 60: 60}, "at": {0: 0}, "cron": {" 0  9 * * * ": "0 9 * * *"}}
    ((name, value),) = said.items()
    assert times == {**dict.fromkeys(times), name: expected[name][value]}
    assert schedule.anchor == (5 if name == "every" else None)


def test_an_alias_is_replaced_by_its_expression() -> None:
    for alias, fields in ALIASES.items():
        after = moment("2026-05-05T05:05")
        assert upcoming(cron(alias.upper(), BERLIN), after, 30) == upcoming(cron(fields, BERLIN), after, 30)


@given(st.lists(st.text("0123456789*/,-#LWMONJAF?@ ", max_size=6), min_size=5, max_size=5).map(" ".join))
@example("0 0 L * *")
@example("0 0 LW/2 * *")
@example("0 0 * * 1#2,5L")
@settings(max_examples=300, deadline=None)
def test_an_expression_is_refused_or_has_runs_and_a_description(expression: str) -> None:
    try:
        schedule = cron(expression, BERLIN)
    except InvalidInput:
        return
    assert next_run_at(schedule, moment("2026-01-01")) is not None
    assert schedule.describe().endswith("(Europe/Berlin)")


# -- JSON and descriptions ---------------------------------------------------------------------------------------------

MOMENTS = st.integers(0, moment("2200-01-01"))
SCHEDULES = st.one_of(
    st.builds(lambda at: Schedule.make(at=at, zone=BERLIN), MOMENTS),
    st.builds(lambda n, at: Schedule.make(every=n, anchor=at, zone="UTC"), st.integers(60, MAX_EVERY), MOMENTS),
    st.sampled_from([cron("@daily", NEW_YORK), cron("*/5 9-17 * * 1-5", LORD_HOWE)]),
)


@given(SCHEDULES)
def test_json_is_read_back_unchanged(made: Schedule) -> None:
    assert Schedule.from_data(json.loads(json.dumps(made.snapshot()))) == made


def test_json_omits_missing_values() -> None:
    assert cron("@daily", BERLIN).snapshot() == {"cron": "@daily", "zone": BERLIN}
    every = Schedule.make(every=3600, anchor=moment("2026-01-01"), zone="UTC")
    assert every.snapshot() == {"every": 3600, "anchor": "2026-01-01T00:00:00.000000Z", "zone": "UTC"}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"cron": "@daily"}, "zone"),
        ({"cron": "@daily", "zone": None}, "zone"),
        ({"cron": "@daily", "zone": 5}, "zone"),
        ({"cron": 5, "zone": "UTC"}, "cron"),
        ({"every": [60], "anchor": "2026-01-01", "zone": "UTC"}, "every"),
        ({"every": 60, "zone": "UTC"}, "anchor"),
        ({"at": 5, "zone": "UTC"}, "at"),
        ({"at": "in 20m", "zone": "UTC"}, "at"),
        ({"at": "2026-01-01T00:00Z", "every": 60, "zone": "UTC"}, "schedule"),
        ({"cron_expr": "@daily", "zone": "UTC"}, "schedule"),
    ],
)
def test_invalid_json_data_is_refused(data: dict, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Schedule.from_data(data)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (cron("0 9 * * *", BERLIN), "at 09:00 every day (Europe/Berlin)"),
        (cron("0 9 * * 1-5"), "at 09:00 on Monday through Friday (UTC)"),
        (cron("@hourly"), "at the start of every hour (UTC)"),
        (Schedule.make(every="90m", anchor=0, zone="UTC"), "every 1h30m"),
        (Schedule.make(every="24h", anchor=0, zone="UTC"), "every 1d"),
        (Schedule.make(at=moment("2026-03-29T07:00"), zone=BERLIN), "once, 2026-03-29 09:00 (Europe/Berlin)"),
        (Schedule.make(at=moment("2026-03-29T07:00:05"), zone=BERLIN), "once, 2026-03-29 09:00:05 (Europe/Berlin)"),
    ],
)
def test_schedules_are_described_in_words(made: Schedule, words: str) -> None:
    assert made.describe() == words


# -- run times ---------------------------------------------------------------------------------------------------------


def test_a_single_time_runs_once() -> None:
    schedule = Schedule.make(at=1000, zone="UTC")
    assert [next_run_at(schedule, after) for after in (0, 999, 1000, 1001)] == [1000, 1000, None, None]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "runs"),
    [
        # strictly after, to the microsecond
        ("0 9 * * *", "UTC", "2026-01-01T08:59:59.999999", ["2026-01-01T09:00:00+00:00"]),
        ("0 9 * * *", "UTC", "2026-01-01T09:00:00", ["2026-01-02T09:00:00+00:00"]),
        ("0 9 * * *", "UTC", "2026-01-01T09:00:00.000001", ["2026-01-02T09:00:00+00:00"]),
        # of day and weekday one match is enough, unless one begins with a star
        ("0 0 13 * 5", "UTC", "2026-11-01", ["2026-11-06T00:00:00+00:00", "2026-11-13T00:00:00+00:00"]),
        ("0 0 10 * 5", "UTC", "2026-11-06", ["2026-11-10T00:00:00+00:00", "2026-11-13T00:00:00+00:00"]),
        ("0 0 */2 * 1", "UTC", "2026-11-01", ["2026-11-09T00:00:00+00:00", "2026-11-23T00:00:00+00:00"]),
        ("0 0 * * 0", "UTC", "2026-11-01", ["2026-11-08T00:00:00+00:00"]),
        ("0 0 * * 7", "UTC", "2026-11-01", ["2026-11-08T00:00:00+00:00"]),
        # rare dates
        ("0 0 29 2 *", "UTC", "2026-01-01", ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]),
        ("0 0 L * *", "UTC", "2026-02-01", ["2026-02-28T00:00:00+00:00", "2026-03-31T00:00:00+00:00"]),
        ("0 0 * * MON#1", "UTC", "2026-11-03", ["2026-12-07T00:00:00+00:00"]),
        ("* 0 29 2 *", BERLIN, "2026-11-01", ["2028-02-29T00:00:00+01:00", "2028-02-29T00:01:00+01:00"]),
        # the clock skips 02:00 to 03:00
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("0,30 2,3 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]),
        ("30 2 * * *", BERLIN, "2026-03-29T01:00", ["2026-03-30T02:30:00+02:00"]),
        ("30 2 * * *", NEW_YORK, "2026-03-08T00:00", ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]),
        ("@daily", SANTIAGO, "2026-09-05T12:00", ["2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"]),
        ("*/30 2 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-30T02:00:00+02:00"]),
        ("0 */2 * * *", BERLIN, "2026-03-28T22:30", ["2026-03-29T00:00:00+01:00", "2026-03-29T04:00:00+02:00"]),
        ("*/10 5 * * *", LORD_HOWE, "2026-10-03T12:00", ["2026-10-04T05:00:00+11:00", "2026-10-04T05:10:00+11:00"]),
        ("*/30 0 * * *", SANTIAGO, "2026-09-05T12:00", ["2026-09-07T00:00:00-03:00"]),
        # a whole day that did not exist
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T20:00", ["2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"]),
        ("*/30 6 31 12 *", "Pacific/Apia", "2011-12-28T21:00-10:00", ["2011-12-31T06:00:00+14:00"]),
        # the clock shows 02:00 to 03:00 twice
        ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        ("30 2 * * *", BERLIN, "2026-10-25T01:10", ["2026-10-26T02:30:00+01:00"]),
        ("30 1 * * *", NEW_YORK, "2026-11-01T00:00", ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"]),
        ("30 2-3 * * *", BERLIN, "2026-10-24T23:00", ["2026-10-25T02:30:00+02:00", "2026-10-25T03:30:00+01:00"]),
        ("30 * * * *", BERLIN, "2026-10-25T00:00", ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]),
        ("*/30 1 * * *", LORD_HOWE, "2026-04-04T14:10", ["2026-04-05T01:30:00+11:00", "2026-04-05T01:30:00+10:30"]),
        ("*/30 2 * * *", LORD_HOWE, "2026-04-04T14:10", ["2026-04-05T02:00:00+10:30", "2026-04-05T02:30:00+10:30"]),
        # the clock is set forward by half an hour; 00:00 of a certain day is skipped; one wall time comes again
        ("26 */3 * * *", "Asia/Pyongyang", "2018-05-04T14:00", ["2018-05-05T00:26:00+09:00"]),
        ("*/30 0 6 9 *", SANTIAGO, "2026-09-01", ["2027-09-06T00:00:00-03:00"]),
        ("* 2 * * *", BERLIN, "2026-10-25T00:58", ["2026-10-25T02:59:00+02:00", "2026-10-25T02:00:00+01:00"]),
        # far in the future
        ("30 2 * * *", BERLIN, "2199-03-30T12:00", ["2199-03-31T03:00:00+02:00", "2199-04-01T02:30:00+02:00"]),
        ("0 0 29 2 *", LORD_HOWE, "2096-03-01", ["2104-02-29T00:00:00+11:00"]),
        ("0 0 30 12 *", NEW_YORK, "9997-12-31", ["9998-12-30T00:00:00-05:00"]),
    ],
)  # fmt: skip
def test_cron_runs_are_computed(expression: str, zone: str, after: str, runs: list[str]) -> None:
    assert list_runs(cron(expression, zone), after, len(runs)) == runs


@pytest.mark.parametrize(
    "made", [cron("@yearly", BERLIN), cron("* * * * *"), Schedule.make(every=MAX_EVERY, anchor=0, zone="UTC")]
)
def test_there_is_no_run_after_the_last_date(made: Schedule) -> None:
    assert next_run_at(made, moment("9998-12-31T23:59:59")) is None
    assert next_run_at(made, 2**62) is None


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE])
@pytest.mark.parametrize("at", ["00:00", "01:30", "01:45", "02:00", "02:15", "02:30", "03:00", "09:00", "23:59"])
def test_a_daily_run_happens_once_a_day_at_its_wall_time(zone: str, at: str) -> None:
    tz, due = ZoneInfo(zone), time.fromisoformat(at)
    schedule = cron(f"{due.minute} {due.hour} * * *", zone)
    run, runs = int(datetime(2026, 1, 1, tzinfo=tz).timestamp() * SECOND) - 1, []
    for _ in range(365):  # each computed from the previous one, as after a restart
        next_run = next_run_at(schedule, run)
        assert next_run is not None
        run = next_run
        runs.append(datetime.fromtimestamp(run // SECOND, tz))
    assert [wall.date() for wall in runs] == [date(2026, 1, 1) + timedelta(days=n) for n in range(365)]
    late = [wall for wall in runs if wall.time() != due]
    assert all(wall.fold == 0 for wall in runs)
    assert {wall.date() for wall in late} <= set(CHANGES[zone])
    for wall in late:  # the clock jumped over the time to this instant
        just_before = (wall.astimezone(UTC) - timedelta(seconds=1)).astimezone(tz)
        assert just_before.time() < due < wall.time()


@given(st.integers(60, 10 * 86400), MOMENTS, st.lists(st.integers(0, 40 * DAY), max_size=20))
def test_an_interval_keeps_its_phase_over_late_runs_and_restarts(every: int, anchor: int, late: list[int]) -> None:
    schedule, now = Schedule.make(every=every, anchor=anchor, zone=BERLIN), anchor
    for delay in late:
        next_run = next_run_at(Schedule.from_data(schedule.snapshot()), now)
        assert next_run is not None
        assert now < next_run <= now + every * SECOND
        assert (next_run - anchor) % (every * SECOND) == 0
        now = next_run + delay


def test_24_hours_are_24_hours_over_clock_changes() -> None:
    schedule = Schedule.make(every="24h", anchor=moment("2026-03-27T08:00"), zone=BERLIN)
    runs = upcoming(schedule, moment("2026-03-27T08:00"), 365)
    assert {later - run for run, later in pairwise(runs)} == {DAY}
    assert local_iso(runs[0], BERLIN) == "2026-03-28T09:00:00+01:00"
    assert local_iso(runs[1], BERLIN) == "2026-03-29T10:00:00+02:00"


def test_an_interval_can_start_at_a_later_time() -> None:
    schedule = Schedule.make(every=60, anchor=DAY, zone="UTC")
    assert upcoming(schedule, 0, 2) == [DAY, DAY + 60 * SECOND]


# -- against a slow oracle ---------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A field of an expression: its text and the values it matches."""

    text: str
    means: frozenset[int]


@st.composite
def parts(draw: Callable, low: int, high: int, *, star: bool = True) -> Part:
    everything = range(low, high + 1)
    form = draw(st.sampled_from(["any", "steps"] * star + ["one", "range", "list", "range with steps"]))
    if form == "any":
        return Part("*", frozenset(everything))
    if form == "steps":
        step = draw(st.integers(1, high))
        return Part(f"*/{step}", frozenset(everything[::step]))
    if form == "one":
        number = draw(st.sampled_from(everything))
        return Part(f"{number}", frozenset({number}))
    if form == "list":
        some = draw(st.sets(st.sampled_from(everything), min_size=2, max_size=4))
        return Part(",".join(map(str, some)), frozenset(some))
    first = draw(st.integers(low, high - 1))
    last = draw(st.integers(first + 1, high))
    step = draw(st.integers(1, 10)) if form == "range with steps" else 1
    return Part(f"{first}-{last}" + f"/{step}" * (step > 1), frozenset(range(first, last + 1, step)))


class Expression(NamedTuple):
    minute: Part
    hour: Part
    day: Part
    month: Part
    weekday: Part

    def __str__(self) -> str:
        return " ".join(part.text for part in self)

    def matches(self, wall: datetime) -> bool:
        days = (wall.day in self.day.means, wall.isoweekday() % 7 in self.weekday.means)
        needs_both = self.day.text.startswith("*") or self.weekday.text.startswith("*")
        on_day = all(days) if needs_both else any(days)
        return (
            wall.minute in self.minute.means and wall.hour in self.hour.means and wall.month in self.month.means
        ) and on_day

    def runs(self, zone: ZoneInfo, after: int, until: int) -> Iterator[int]:
        """Check every minute in UTC against the wall clock."""
        once = not self.minute.text.startswith("*") and not self.hour.text.startswith("*")
        stamp = after // SECOND // 60 * 60
        before = datetime.fromtimestamp(stamp, zone).replace(tzinfo=None)
        while (stamp := stamp + 60) * SECOND <= until:
            there = datetime.fromtimestamp(stamp, zone)
            wall = there.replace(tzinfo=None, fold=0)
            skipped = (before + timedelta(minutes=n) for n in range(1, int((wall - before).total_seconds()) // 60))
            if once:
                runs = (self.matches(wall) and there.fold == 0) or any(self.matches(minute) for minute in skipped)
            else:
                runs = self.matches(wall)
            if runs:
                yield stamp * SECOND
            before = wall


EVERY_MONTH = Part("*", frozenset(range(1, 13)))
EVERY_DAY, EVERY_WEEKDAY = Part("*", frozenset(range(1, 32))), Part("*", frozenset(range(7)))
EXPRESSIONS = st.builds(
    Expression,
    parts(0, 59),
    st.one_of(parts(0, 23), parts(0, 3, star=False)),
    st.one_of(st.just(EVERY_DAY), parts(1, 31)),
    st.one_of(st.just(EVERY_MONTH), st.just(EVERY_MONTH), parts(1, 12)),
    st.one_of(st.just(EVERY_WEEKDAY), parts(0, 6)),
)


@st.composite
def windows(draw: Callable) -> tuple[str, int, int]:
    """Return a zone and up to three days in it, mostly around a change of its clock."""
    zone = draw(st.sampled_from(sorted(CHANGES)))
    days = st.dates(date(2026, 1, 1), date(2026, 12, 31))
    day = draw(st.one_of(st.sampled_from(CHANGES[zone]), st.sampled_from(CHANGES[zone]), days))
    middle = int(datetime.combine(day, time(2), ZoneInfo(zone)).timestamp())
    after = middle * SECOND - draw(st.integers(0, 36 * HOUR))
    return zone, after, after + draw(st.integers(HOUR, 72 * HOUR))


@given(EXPRESSIONS, windows())
@settings(max_examples=300, deadline=None)
def test_cron_runs_match_a_search_minute_by_minute(expression: Expression, window: tuple[str, int, int]) -> None:
    zone, after, until = window
    try:
        schedule = cron(str(expression), zone)
    except InvalidInput as error:
        assert "never runs" in str(error)
        assume(False)
    expected = list(expression.runs(ZoneInfo(zone), after, until))
    assert [run for run in upcoming(schedule, after, len(expected) + 1) if run <= until] == expected
    for run, later in list(zip([after, *expected], expected, strict=False))[
        :50
    ]:  # and each run computed from the previous one, as after a restart
        assert next_run_at(schedule, run) == later
        assert next_run_at(schedule, later - 1) == later


# -- missed runs -------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from([
        cron("*/20 * * * *", BERLIN), cron("30 2 * * *", BERLIN), cron("* 2 * * *", LORD_HOWE), cron("@yearly"),
        Schedule.make(every=3600, anchor=moment("2026-03-28T00:10"), zone="UTC"),
        Schedule.make(at=moment("2026-03-29T00:10"), zone="UTC"),
    ]),
    st.integers(0, 4 * DAY), st.integers(-HOUR, 4 * DAY), st.integers(1, 80),
)  # fmt: skip
@settings(deadline=None)
def test_missed_runs_are_counted_up_to_a_limit(made: Schedule, begin: int, span: int, limit: int) -> None:
    since = moment("2026-03-27") + begin
    runs = [run for run in upcoming(made, since, 4 * 24 * 4) if run <= since + span]
    assert count_missed(made, since, since + span, limit) == min(len(runs), limit)


def test_years_of_missed_minutes_are_computed_quickly() -> None:
    until = moment("2029-06-01T00:00:30")
    assert count_missed(cron("* * * * *", BERLIN), moment("2026-01-01"), until) == 1000
    assert count_missed(cron("* 3 1 1 *"), moment("2006-01-01"), until) == 1000


# -- times that people write -------------------------------------------------------------------------------------------

NOW = "2026-03-27T12:00:00.5+01:00"  # a Friday; the clock changes on Sunday


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-03-29T09:00:00+02:00", "2026-03-29T09:00:00+02:00"),
        ("2026-03-29T07:00Z", "2026-03-29T09:00:00+02:00"),
        ("2026-03-29t07:00z", "2026-03-29T09:00:00+02:00"),
        ("2026-03-29T09:00", "2026-03-29T09:00:00+02:00"),
        ("  2026-03-29  09:00:01.25 ", "2026-03-29T09:00:01.250000+02:00"),
        ("2026-03-29", "2026-03-29T00:00:00+01:00"),
        ("1999-12-31T23:59", "1999-12-31T23:59:00+01:00"),
        ("2026-03-29T02:30", "2026-03-29T03:00:00+02:00"),
        ("2026-10-25T02:30", "2026-10-25T02:30:00+02:00"),
        ("2026-10-25T02:30+01:00", "2026-10-25T02:30:00+01:00"),
        ("in 20m", "2026-03-27T12:20:00.500000+01:00"),
        ("in 1h30m", "2026-03-27T13:30:00.500000+01:00"),
        ("In  2d", "2026-03-29T13:00:00.500000+02:00"),
        ("in 1h 30m", "2026-03-27T13:30:00.500000+01:00"),
        ("tomorrow 09:00", "2026-03-28T09:00:00+01:00"),
        ("today 18:30", "2026-03-27T18:30:00+01:00"),
        ("today 06:00", "2026-03-27T06:00:00+01:00"),
        ("12:00", "2026-03-28T12:00:00+01:00"),
        ("12:01", "2026-03-27T12:01:00+01:00"),
        ("9:00", "2026-03-28T09:00:00+01:00"),
        ("23:59:59", "2026-03-27T23:59:59+01:00"),
        ("fri 12:01", "2026-03-27T12:01:00+01:00"),
        ("fri 09:00", "2026-04-03T09:00:00+02:00"),
        ("Friday 09:00", "2026-04-03T09:00:00+02:00"),
        ("sun 02:30", "2026-03-29T03:00:00+02:00"),
        ("thursday 00:00", "2026-04-02T00:00:00+02:00"),
    ],
)
def test_times_are_parsed(text: str, meant: str) -> None:
    assert local_iso(parse_moment(text, moment(NOW), BERLIN), BERLIN) == meant


def test_an_ambiguous_time_is_the_first() -> None:
    between = moment("2026-10-25T02:40:00+02:00")
    assert local_iso(parse_moment("02:50", between, BERLIN), BERLIN) == "2026-10-25T02:50:00+02:00"
    assert local_iso(parse_moment("02:30", between, BERLIN), BERLIN) == "2026-10-26T02:30:00+01:00"


@pytest.mark.parametrize(
    "text",
    [
        "", "soon", "in", "in 20", "in -5m", "in inf", "in 5 minutes", "tomorrow", "yesterday 09:00", "24:00", "09:60",
        "9", "frid 09:00", "f 09:00", "09:00 fri", "2026-02-30T09:00", "2026-13-01", "1774771200", "0001-01-01",
        "2026-03-29T09:00+25:00", "\0", "\ud800", "x" * 10_000, "\u0660\u0669:\u0660\u0660",
    ],
)  # fmt: skip
def test_an_invalid_time_is_refused_with_the_known_formats(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_moment(text, moment(NOW), BERLIN)
    assert caught.value.field == "at"
    assert FORMS in str(caught.value) or "between the years 1970 and 9998" in str(caught.value)


@pytest.mark.parametrize("text", ["in 9999999d", "9999-12-31T23:59", "1969-12-31T23:00Z", "0001-01-01T00:00+14:00"])
def test_times_beyond_the_calendar_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="between the years 1970 and 9998"):
        parse_moment(text, moment(NOW), BERLIN)


@pytest.mark.parametrize("text", FORMS.split(", "))
def test_the_documented_formats_are_parsed(text: str) -> None:
    parse_moment(text, moment(NOW), BERLIN)


@given(st.text(st.sampled_from("0123456789:-+.TZW infrdaymow½\ud800\0"), max_size=20))
@settings(max_examples=300)
def test_any_text_is_a_time_or_is_refused(text: str) -> None:
    try:
        read = parse_moment(text, moment(NOW), BERLIN)
    except InvalidInput:
        return
    assert 0 <= read < moment("9999-01-01")


# -- zones -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "timezone", "link", "zone"),
    [
        ({"TZ": "Asia/Tokyo"}, BERLIN, NEW_YORK, "Asia/Tokyo"),
        ({"TZ": ":Asia/Tokyo"}, BERLIN, None, "Asia/Tokyo"),
        ({"TZ": ":/usr/share/zoneinfo/Asia/Tokyo"}, BERLIN, None, "Asia/Tokyo"),
        ({"TZ": ""}, BERLIN, None, "UTC"),
        ({"TZ": "CET-1CEST"}, BERLIN, None, BERLIN),
        ({}, f"{BERLIN}\n", NEW_YORK, BERLIN),
        ({}, "nonsense", NEW_YORK, NEW_YORK),
        ({}, "", NEW_YORK, NEW_YORK),
        ({}, None, f"posix/{NEW_YORK}", NEW_YORK),
        ({}, None, None, "UTC"),
    ],
)
def test_the_zone_of_the_machine_is_found(
    environ: dict, timezone: str | None, link: str | None, zone: str, tmp_path: Path
) -> None:
    if timezone is not None:
        (tmp_path / "timezone").write_text(timezone)
    if link is not None:
        (tmp_path / "localtime").symlink_to(f"/usr/share/zoneinfo/{link}")
    assert host_zone(environ, tmp_path) == zone


def test_this_machine_has_a_zone() -> None:
    assert find_zone(host_zone()).key == host_zone()


# -- on the command line -----------------------------------------------------------------------------------------------


def preview(capsys, *arguments: str) -> list[str]:
    assert execute(["automation", "preview", *arguments, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert list(output) == ["next_runs"]
    return output["next_runs"]


@pytest.mark.parametrize(
    ("said", "runs"),
    [
        (["--cron", "0 9 * * *", "--count", "1"], ["2026-03-29T09:00:00+02:00"]),
        (["--every", "24h", "--count", "2"], ["2026-03-29T13:00:00+02:00", "2026-03-30T13:00:00+02:00"]),
        (["--every", "90m", "--count", "1"], ["2026-03-28T13:30:00+01:00"]),
        (["--at", "tomorrow 02:30"], ["2026-03-29T03:00:00+02:00"]),
        (["--at", "2026-03-28T11:59"], []),
    ],
)
def test_a_preview_needs_no_home(said: list[str], runs: list[str], capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIDWATCH_HOME", str(tmp_path / "none"))
    assert preview(capsys, *said, "--tz", BERLIN, "--after", "2026-03-28T12:00+01:00") == runs
    assert list(tmp_path.iterdir()) == []


def test_a_preview_begins_now_in_the_zone_of_the_machine(capsys, monkeypatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    runs = [datetime.fromisoformat(run) for run in preview(capsys, "--cron", "*/5 * * * *")]
    assert len(runs) == 5
    assert runs[0].utcoffset() == timedelta(hours=9)
    assert timedelta(0) < runs[4] - datetime.now(UTC) <= timedelta(minutes=25)


def test_a_preview_is_formatted_for_people(capsys) -> None:
    options = ["--tz", BERLIN, "--after", "2026-03-28T12:00"]
    assert execute(["automation", "preview", "--cron", "30 2 * * *", "--count", "1", *options]) == 0
    assert capsys.readouterr().out == "at 02:30 every day (Europe/Berlin)\n  2026-03-29T03:00:00+02:00\n"
    assert execute(["automation", "preview", "--at", "2026-03-28T11:00", *options]) == 0
    assert "no run after 2026-03-28T12:00:00+01:00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([], "exactly one of `at`, `every` and `cron`"),
        (["--cron", "@daily", "--every", "1h"], "got every and cron"),
        (["--every", "59s"], "must be from one minute"),
        (["--cron", "0 0 30 2 *"], "never runs"),
        (["--cron", "@daily", "--tz", "Berlin"], "did you mean Europe/Berlin?"),
        (["--cron", "@daily", "--after", "soon"], "in 20m"),
        (["--cron", "@daily", "--count", "1001"], "--count"),
        (["--cron", "@daily", "--count", "0"], "--count"),
    ],
)
def test_a_preview_of_an_invalid_schedule_prints_one_line(said: list[str], says: str, capsys) -> None:
    assert execute(["automation", "preview", *said]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert says in output.err

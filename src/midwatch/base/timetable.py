"""Timetables: a schedule without the runs on days off, and with the runs in quiet hours moved to their end.

Days off and quiet hours are those of the clock in the schedule's zone. A moved run that would start on a day off is
left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from functools import lru_cache
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Literal, NamedTuple

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.base.schedule import (
    COUNTED,
    LAST,
    WEEKDAYS,
    Schedule,
    count_missed,
    find_moments,
    next_run_at,
    read_wall,
    upcoming,
)

Calendars = Mapping[str, Sequence[str]]
"""The calendars of the settings: days off by name."""
NO_CALENDARS: Calendars = MappingProxyType({})
DAY_FORMS = "2026-12-24, 2026-12-24..2027-01-02, 12-25 (each year), sat"
HOUR_FORMS = "22:00-07:00"
MAX_ITEMS = 400
SEARCHED_DAYS = 5 * 366
"""A timetable whose runs all fall on days off for this time has no next run."""

_ONE_DAY, _DAY_SECONDS = timedelta(days=1), 86400
_YEARLY = re.compile(r"(?:--)?(\d\d)-(\d\d)", re.ASCII)
_HOURS = re.compile(r"(\d{1,2}):(\d\d) ?- ?(\d{1,2}):(\d\d)", re.ASCII)
_CALENDAR = re.compile(r"[a-z][a-z0-9_-]{0,59}", re.ASCII)
_NAMES = {name[:size]: number for number, name in enumerate(WEEKDAYS) for size in (3, 9)}
Reason = Literal["day_off", "quiet_hours"]


def is_calendar_name(text: str) -> bool:
    """Return whether a text may be the name of a calendar."""
    return _CALENDAR.fullmatch(text) is not None and text not in _NAMES


class Block(NamedTuple):
    """Why no run starts at a moment, and the first moment at which a run may start again."""

    reason: Reason
    until: int


@dataclass(frozen=True, slots=True)
class DaysOff:
    """Days without runs: single dates, ranges of dates, days of each year, and weekdays. Use `parse`."""

    dates: frozenset[date] = frozenset()
    ranges: tuple[tuple[date, date], ...] = ()
    yearly: frozenset[tuple[int, int]] = frozenset()
    weekdays: frozenset[int] = frozenset()

    @staticmethod
    def parse(items: Sequence[str], calendars: Calendars = NO_CALENDARS) -> DaysOff:
        """Read days off as people write them. An item that is no day is the name of a calendar."""
        days: list[str] = []
        for item in items:
            name = item.strip()
            if not is_calendar_name(name):
                days.append(item)
            elif name in calendars:
                days += calendars[name]
            else:
                known = ", ".join(sorted(calendars)) or "none"
                raise InvalidInput(
                    f"there is no calendar {name!r}; calendars of the settings: {known}; or write {DAY_FORMS}.",
                    field="days_off",
                )
        return _parse_days(tuple(days))

    def has(self, day: date) -> bool:
        """Return whether a day is off."""
        return (
            day.weekday() in self.weekdays
            or day in self.dates
            or (day.month, day.day) in self.yearly
            or any(first <= day <= last for first, last in self.ranges)
        )

    def find_end(self, day: date) -> date | None:
        """Return the first day after the day off `day` that is not off, or None if there is none for years."""
        for _ in range(SEARCHED_DAYS):
            if day >= date.max:
                return None
            day += _ONE_DAY
            if not self.has(day):
                return day
        return None


@lru_cache(maxsize=256)
def _parse_days(items: tuple[str, ...]) -> DaysOff:
    dates, yearly, weekdays = set[date](), set[tuple[int, int]](), set[int]()
    ranges = []
    for item in items:
        text = item.strip().lower()
        try:
            if text in _NAMES:
                weekdays.add(_NAMES[text])
            elif match := _YEARLY.fullmatch(text):
                leap_day = date(2000, int(match[1]), int(match[2]))
                yearly.add((leap_day.month, leap_day.day))
            elif ".." in text:
                first, last = map(_read_date, text.split(".."))
                if last < first:
                    raise ValueError(text)
                ranges.append((first, last))
            else:
                dates.add(_read_date(text))
        except ValueError:
            raise InvalidInput(f"{item[:80]!r} is not a day; write one of: {DAY_FORMS}.", field="days_off") from None
    if len(weekdays) == len(WEEKDAYS):
        raise InvalidInput("all seven weekdays are off, so it would never run; leave one out.", field="days_off")
    return DaysOff(frozenset(dates), tuple(ranges), frozenset(yearly), frozenset(weekdays))


def _read_date(text: str) -> date:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip(), re.ASCII):
        raise ValueError(text)
    return date.fromisoformat(text.strip())


class QuietHours(NamedTuple):
    """A part of each day in which no run starts, in minutes since midnight. It may pass midnight. `end` is excluded."""

    begin: int
    end: int

    def has(self, minute: int) -> bool:
        """Return whether a minute of the day is quiet."""
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


@lru_cache(maxsize=256)
def parse_quiet_hours(items: tuple[str, ...]) -> tuple[QuietHours, ...]:
    """Read quiet hours such as 22:00-07:00."""
    hours = []
    for item in items:
        begin = end = -1
        if match := _HOURS.fullmatch(item.strip()):
            begin, end = _minute(match[1], match[2]), _minute(match[3], match[4])
        if min(begin, end) < 0 or begin == 1440 or begin == end % 1440:
            raise InvalidInput(
                f"{item[:80]!r} are no quiet hours; write begin and end like {HOUR_FORMS}.", field="quiet_hours"
            )
        hours.append(QuietHours(begin, end % 1440))
    if hours and all(any(part.has(minute) for part in hours) for minute in range(1440)):
        raise InvalidInput("the quiet hours last all day, so it would never run; shorten them.", field="quiet_hours")
    return tuple(hours)


def _minute(hour: str, minute: str) -> int:
    """Return the minute of the day, at most 1440; -1 if there is no such minute."""
    total = int(hour) * 60 + int(minute)
    return total if int(minute) < 60 and total <= 1440 else -1


@dataclass(frozen=True, slots=True)
class Timetable:
    """A schedule with days off and quiet hours."""

    schedule: Schedule
    days: DaysOff = DaysOff()
    hours: tuple[QuietHours, ...] = ()

    @classmethod
    def make(
        cls,
        schedule: Schedule,
        days: Sequence[str] = (),
        hours: Sequence[str] = (),
        calendars: Calendars = NO_CALENDARS,
    ) -> Timetable:
        """Build a timetable from texts; raise InvalidInput if one of them is not valid."""
        for field, items in (("days_off", days), ("quiet_hours", hours)):
            if len(items) > MAX_ITEMS or not all(isinstance(item, str) for item in items):
                raise InvalidInput(f"`{field}` must be a list of at most {MAX_ITEMS} texts.", field=field)
        return cls(schedule, DaysOff.parse(days, calendars), parse_quiet_hours(tuple(hours)))

    @property
    def plain(self) -> bool:
        """Return whether the timetable has neither days off nor quiet hours."""
        return not self.hours and self.days == DaysOff()

    def find_block(self, moment: int) -> Block | None:
        """Return why no run starts at a moment, or None if a run may start."""
        zone = self.schedule.zone
        wall = read_wall(moment, zone)
        if self.days.has(wall.date()):
            end = self.days.find_end(wall.date())
            return Block("day_off", LAST if end is None else find_moments(datetime.combine(end, clock_time()), zone)[0])
        until = moment
        for _ in range(2 * len(self.hours) + 2):  # the end of one part may be in another part
            minute = wall.hour * 60 + wall.minute
            quiet = next((part for part in self.hours if part.has(minute)), None)
            if quiet is None:
                break
            until = _find_clock(quiet.end, until, wall, zone)
            wall = read_wall(until, zone)
        return Block("quiet_hours", until) if until > moment else None

    def next_run(self, after: int) -> int | None:
        """Return the first run after the moment `after`, or None if there is none."""
        return next(iter(self.upcoming(after, 1)), None)

    def upcoming(self, after: int, count: int) -> list[int]:
        """Return the next runs after a moment, at most `count`."""
        if self.plain:
            return upcoming(self.schedule, after, count)
        return list(islice(self._runs(after), count))

    def follow(self, planned: int | None, count: int) -> list[int]:
        """Return the planned run, or where it is moved to, and the runs after it: at most `count`."""
        if planned is None:
            return []
        block = self.find_block(planned)
        if block is None or (block.reason == "quiet_hours" and self.find_block(block.until) is None):
            first = planned if block is None else block.until
            return [first, *self.upcoming(first, count - 1)]
        return self.upcoming(block.until - 1, count)

    def count(self, since: int, until: int, limit: int = COUNTED) -> int:
        """Count the runs after `since` up to and including `until`, but no more than `limit`."""
        if self.plain:
            return count_missed(self.schedule, since, until, limit)
        runs = takewhile(lambda run: run <= until, self._runs(since))
        return sum(1 for _ in islice(runs, limit))

    def _runs(self, after: int) -> Iterator[int]:
        first_blocked: int | None = None
        while (run := next_run_at(self.schedule, after)) is not None:
            block = self.find_block(run)
            if block is not None and block.reason == "quiet_hours":
                run = block.until
                block = self.find_block(run)
            if block is None:
                first_blocked, after = None, run
                yield run
                continue
            first_blocked = run if first_blocked is None else first_blocked
            if block.until - first_blocked > SEARCHED_DAYS * _DAY_SECONDS * SECOND:
                return
            after = block.until - 1


def _find_clock(minute: int, after: int, wall: datetime, zone: str) -> int:
    """Return the first moment after `after`, whose wall time is `wall`, at which the clock shows this minute."""
    shown = wall.replace(hour=minute // 60, minute=minute % 60, second=0, microsecond=0)
    moments = (*find_moments(shown, zone), *find_moments(shown + _ONE_DAY, zone))
    return min(moment for moment in moments if moment > after)

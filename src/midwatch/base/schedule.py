"""Schedules: when an automation runs. A schedule is one moment, an interval, or a cron expression in a time zone.

Moments are integer microseconds since the epoch. cronsim reads cron expressions and lists wall times without a
zone: with a zone it misses runs after clock changes by half an hour or at midnight. This module decides what a clock
change means (see docs/schedules.md):

- A time of day (neither minute nor hour begins with `*`) runs once: at the jump when the clock skips it, the first time
  when the clock repeats it.
- Anything more frequent runs at every real minute whose wall time matches.
- An interval is elapsed time; clock changes do not matter.
"""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from midwatch.base.clock import SECOND, iso
from midwatch.base.durations import seconds
from midwatch.base.errors import InvalidInput

MIN_EVERY, MAX_EVERY = 60, 3650 * 86400
"""Limits of an interval, in seconds: one minute to ten years."""
MAX_CRON = 1000
COUNTED = 1000
"""Missed runs are counted only up to this number."""

ALIASES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
FORMS = "2026-03-29T09:00, 2026-03-29T09:00+02:00, in 20m, in 1h30m, 09:00, today 18:30, tomorrow 09:00, fri 09:00"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND, _DAY = timedelta(microseconds=1), timedelta(days=1)
LAST = (datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_NO_ZONE = re.compile(r"(posix|right)/|(localtime|posixrules|Factory)$")
"""Names of files in the zone directory that are not time zones, or that count leap seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times of an automation: exactly one of `at`, `every` and `cron`. Use `make`, which checks the values.

    A schedule that has only a zone has no runs: its automation is started by triggers.

    `zone` is the IANA name of the zone for cron expressions and for times that are shown. `at` is one moment. `every`
    is in seconds: a run is at `anchor` + n * `every`, so late runs and restarts do not shift later runs. `cron` is five
    fields or an alias such as @daily.
    """

    zone: str
    at: int | None = None
    every: int | None = None
    cron: str | None = None
    anchor: int | None = None

    @classmethod
    def make(
        cls,
        *,
        zone: str,
        at: int | None = None,
        every: float | str | None = None,
        cron: str | None = None,
        anchor: int | None = None,
    ) -> Schedule:
        """Check the values and return the schedule. A moment may be in the past; the schedule then has no next run."""
        names = [name for name, value in (("at", at), ("every", every), ("cron", cron)) if value is not None]
        if len(names) != 1:
            got = " and ".join(names) or "none; only an automation with triggers needs no time"
            raise InvalidInput(f"set exactly one of `at`, `every` and `cron`; got {got}.", field="schedule")
        find_zone(zone)
        if at is not None:
            return cls(zone=zone, at=_check_moment(at, "at"))
        if cron is not None:
            return cls(zone=zone, cron=_check_cron(cron))
        assert every is not None
        if anchor is None:
            raise InvalidInput("an interval needs an `anchor`: the moment it is counted from.", field="anchor")
        return cls(zone=zone, every=_check_interval(every), anchor=_check_moment(anchor, "anchor"))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Schedule:
        """Read a schedule as `snapshot` writes it."""
        names = ("zone", "at", "every", "cron", "anchor")
        if wrong := [name for name in data if name not in names]:
            raise InvalidInput(f"a schedule has no {wrong[0]!r}; its fields are {', '.join(names)}.", field="schedule")
        for name in ("zone", "cron"):
            if not isinstance(data.get(name, ""), str | None):
                raise InvalidInput(f"`{name}` of a schedule must be text; got {data[name]!r}.", field=name)
        if not data.get("zone"):
            raise InvalidInput("a schedule needs a `zone`, such as Europe/Berlin or UTC.", field="zone")
        zone = str(data["zone"])
        if all(data.get(name) is None for name in ("at", "every", "cron")):
            return cls(zone=find_zone(zone).key)
        at, anchor = (_moment_of(data.get(name), zone, name) for name in ("at", "anchor"))
        return cls.make(zone=zone, at=at, every=data.get("every"), cron=data.get("cron"), anchor=anchor)

    def snapshot(self) -> dict[str, Any]:
        """Return the schedule as JSON shows it, without empty fields."""
        times = {"at": iso(self.at), "every": self.every, "anchor": iso(self.anchor), "cron": self.cron}
        return {**{name: value for name, value in times.items() if value is not None}, "zone": self.zone}

    def describe(self) -> str:
        """Return the schedule as one short line for people."""
        if self.at is not None:
            wall = _wall(self.at, find_zone(self.zone))
            return f"once, {wall.isoformat(' ', 'seconds').removesuffix(':00')} ({self.zone})"
        if self.every is not None:
            return f"every {_span(self.every)}"
        if self.cron is None:
            return "when it is triggered"
        words: str = CronSim(_fields(self.cron), _EPOCH).explain()
        return f"{words[0].lower()}{words[1:]} ({self.zone})"


# -- when it runs ------------------------------------------------------------------------------------------------------


def next_run_at(schedule: Schedule, after: int) -> int | None:
    """Return the first run after the moment `after`, or None if the schedule has no more runs."""
    return next(_runs(schedule, after), None)


def upcoming(schedule: Schedule, after: int, count: int) -> list[int]:
    """Return the next runs after a moment, at most `count`."""
    return list(islice(_runs(schedule, after), count))


def count_missed(schedule: Schedule, since: int, until: int, limit: int = COUNTED) -> int:
    """Count the runs after `since` up to and including `until`, but no more than `limit`."""
    runs = takewhile(lambda run: run <= until, _runs(schedule, since))
    return sum(1 for _ in islice(runs, limit))


def _runs(schedule: Schedule, after: int) -> Iterator[int]:
    """Yield all runs after a moment, in order."""
    if schedule.at is not None:
        if schedule.at > after:
            yield schedule.at
    elif schedule.every is not None:
        assert schedule.anchor is not None
        step = schedule.every * SECOND
        first = schedule.anchor + max(0, (after - schedule.anchor) // step + 1) * step
        yield from range(first, LAST, step)
    elif schedule.cron is not None:
        yield from _cron_runs(_fields(schedule.cron), find_zone(schedule.zone), min(after, LAST))


def _cron_runs(fields: str, zone: ZoneInfo, after: int) -> Iterator[int]:
    """Yield the runs of a cron expression after a moment, in order."""
    minute, hour = fields.split()[:2]
    walk = _real_minutes if minute.startswith("*") or hour.startswith("*") else _times_of_day
    # If the clock is set back within a day, some wall times before the present one are still to come.
    begin = min(_wall(after, zone), _wall(after + _DAY // _MICROSECOND, zone) - _DAY)
    with contextlib.suppress(OverflowError):  # the calendar ends with the year 9999
        for run in walk(CronSim(fields, begin), zone):
            if run >= LAST:
                return
            if run > after:
                after = run
                yield run


def _times_of_day(walls: Iterable[datetime], zone: ZoneInfo) -> Iterator[int]:
    """Yield one run for each wall time, even if the clock skips or repeats this wall time."""
    return (_resolve(wall, zone) for wall in walls)


def _real_minutes(walls: Iterable[datetime], zone: ZoneInfo) -> Iterator[int]:
    """Yield a run for each real minute: a repeated wall time yields two runs, a skipped wall time yields none."""
    repeated: deque[int] = deque()
    for wall in walls:
        first, second = _readings(wall, zone)
        if first > second:
            continue
        while repeated and repeated[0] < first:
            yield repeated.popleft()
        yield first
        if second > first:
            repeated.append(second)
    yield from repeated


def _fields(cron: str) -> str:
    return ALIASES.get(cron, cron)


# -- wall time ---------------------------------------------------------------------------------------------------------


def read_wall(moment: int, zone: str) -> datetime:
    """Return the wall time that a clock in the zone shows at this moment, without zone information."""
    return _wall(moment, find_zone(zone))


def find_moments(wall: datetime, zone: str) -> tuple[int, ...]:
    """Return the moments at which a clock in the zone shows `wall`: one or two.

    If the clock skips `wall`, return the moment of the jump.
    """
    first, second = _readings(wall, find_zone(zone))
    return (first, second) if first < second else (_resolve(wall, find_zone(zone)),)


def _moment(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _local(moment: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + moment * _MICROSECOND).astimezone(zone)


def _wall(moment: int, zone: ZoneInfo) -> datetime:
    """Return the wall time that a clock in the zone shows at this moment, without zone information."""
    return _local(moment, zone).replace(tzinfo=None, fold=0)


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """Return the two moments at which a clock in the zone shows `wall`; usually both are equal.

    If the clock skips `wall`, the first moment is later than the second.
    """
    return _moment(wall.replace(tzinfo=zone)), _moment(wall.replace(tzinfo=zone, fold=1))


def _resolve(wall: datetime, zone: ZoneInfo) -> int:
    """Return the moment when a clock in the zone shows `wall`.

    If the clock shows `wall` twice, this is the first time. If the clock skips `wall`, it is the moment of the jump.
    """
    first, second = _readings(wall, zone)
    if first <= second:
        return first
    after_jump = _local(first, zone).utcoffset()
    moments = range(second, first)
    return second + bisect_left(moments, True, key=lambda moment: _local(moment, zone).utcoffset() == after_jump)


def local_iso(moment: int, zone: str) -> str:
    """Return a moment as ISO 8601 in a zone, with the zone's offset from UTC."""
    return _local(moment, find_zone(zone)).isoformat()


# -- moments that people write -----------------------------------------------------------------------------------------

_CLOCK = re.compile(r"(?:([a-z]+) )?(\d{1,2}):(\d\d)(?::(\d\d))?", re.ASCII)
_IN = re.compile(r"in (.*[a-z])")


def parse_moment(text: str, now: int, zone: str) -> int:
    """Read a moment as people write it; text without a zone is in `zone`. The moment may be in the past."""
    zone_info = find_zone(zone)
    compact = " ".join(text.lower().split())
    try:
        if match := _IN.fullmatch(compact):
            moment = now + round(seconds(match[1]) * SECOND)
        elif match := _CLOCK.fullmatch(compact):
            moment = _at_clock(match, now, zone_info)
        else:
            date = datetime.fromisoformat(compact.upper())
            moment = _moment(date) if date.tzinfo else _resolve(date, zone_info)
    except (ValueError, OverflowError, InvalidInput):
        raise InvalidInput(f"{text[:80]!r} is not a time; write one of: {FORMS}.", field="at") from None
    return _check_moment(moment, "at")


def _at_clock(match: re.Match[str], now: int, zone: ZoneInfo) -> int:
    """Return the moment of a time of day: on the day that the text names, or else the next time it occurs."""
    day, hour, minute, second = match[1], int(match[2]), int(match[3]), int(match[4] or 0)
    first = _wall(now, zone).replace(hour=hour, minute=minute, second=second, microsecond=0)
    if day in ("today", "tomorrow"):
        return _resolve(first + (day == "tomorrow") * _DAY, zone)
    if day is not None and day not in {name[:size] for name in WEEKDAYS for size in (3, 9)}:
        raise ValueError(day)
    for days in range(9):
        wall = first + days * _DAY
        moment = _resolve(wall, zone)
        if moment > now and (day is None or WEEKDAYS[wall.weekday()].startswith(day)):
            return moment
    raise AssertionError("every weekday comes within a week")


# -- zones -------------------------------------------------------------------------------------------------------------


def find_zone(name: str) -> ZoneInfo:
    """Return the zone with an IANA name."""
    if zone := _zone(name):
        return zone
    close = _close_zones(name)
    hint = f"did you mean {' or '.join(close)}?" if close else "write an IANA name such as Europe/Berlin or UTC."
    raise InvalidInput(f"there is no time zone {name[:80]!r}; {hint}", field="zone")


def _zone(name: str) -> ZoneInfo | None:
    try:
        return None if _NO_ZONE.match(name) else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _close_zones(name: str) -> list[str]:
    """Return names of zones that are similar to `name`.

    These are the same name in upper or lower case, names of the same city, and names that `name` may be misspelt from.
    """
    typed = name[:80].strip().lower().replace(" ", "_")
    zones = {zone.lower(): zone for zone in sorted(_zones())}
    if same := [zone for low, zone in zones.items() if typed in (low, low.rpartition("/")[2])]:
        return same[:3]
    import difflib

    return [zones[low] for low in difflib.get_close_matches(typed, zones, n=3, cutoff=0.7)]


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def host_zone(environ: Mapping[str, str] = os.environ, etc: Path = Path("/etc")) -> str:
    """Return the time zone of this machine.

    It is taken from the variable TZ, from /etc/timezone, or from the link /etc/localtime; without these it is UTC.
    """
    return next((name for name in _host_names(environ, etc) if _zone(name)), "UTC")


def _host_names(environ: Mapping[str, str], etc: Path) -> Iterator[str]:
    if "TZ" in environ:
        yield _below_zoneinfo(environ["TZ"].removeprefix(":")) or "UTC"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        yield (etc / "timezone").read_text().strip()
    yield _below_zoneinfo(os.path.realpath(etc / "localtime"))


def _below_zoneinfo(path: str) -> str:
    """Return the name of a zone from the path of the zone's file; a text that is no such path is returned as it is."""
    return re.sub(r"^.*/zoneinfo/(?:(?:posix|right)/)?", "", path)


# -- checks ---------------------------------------------------------------------------------------------------


def _check_moment(moment: int, field: str) -> int:
    if isinstance(moment, bool) or not isinstance(moment, int) or not 0 <= moment < LAST:
        raise InvalidInput(f"`{field}` must be between the years 1970 and 9998; got {moment!r}.", field=field)
    return moment


def _moment_of(text: Any, zone: str, field: str) -> int | None:
    if text is None:
        return None
    try:
        datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidInput(f"`{field}` must be a time like 2026-03-29T09:00Z; got {text!r}.", field=field) from None
    return parse_moment(text, 0, zone)


def _check_interval(length: float | str) -> int:
    try:
        every = seconds(str(length) if isinstance(length, bool) else length)
    except (InvalidInput, OverflowError, TypeError):
        raise InvalidInput(f"`every` must be a duration such as 90m or 7d; got {length!r}.", field="every") from None
    if not MIN_EVERY <= every <= MAX_EVERY or every != int(every):
        raise InvalidInput(
            f"`every` must be from one minute to ten years, in whole seconds; got {length!r}.", field="every"
        )
    return int(every)


def _check_cron(text: str) -> str:
    """Return a cron expression with single spaces; raise InvalidInput if it is not valid."""
    cron = " ".join(text.split())
    if len(cron) > MAX_CRON:
        raise InvalidInput(f"a cron expression must have at most {MAX_CRON} characters.", field="cron")
    if cron.startswith("@"):
        cron = cron.lower()
        if cron not in ALIASES:
            raise InvalidInput(_alias_remedy(cron), field="cron")
        return cron
    if fault := _find_cron_fault(cron):
        raise InvalidInput(f"cron {cron!r} {fault}", field="cron")
    return cron


def _alias_remedy(cron: str) -> str:
    aliases = ", ".join(ALIASES)
    if cron.startswith("@every"):
        return "cron has no @every; use an interval instead: set `every` to at least 60s."
    if cron.startswith("@reboot"):
        return f"cron has no @reboot here, because a schedule depends on time only; use one of {aliases}."
    return f"cron has no alias {cron[:80]!r}; use one of {aliases}, or five fields."


@lru_cache(maxsize=1024)
def _find_cron_fault(cron: str) -> str | None:
    fields = cron.split()
    if "=" in cron:
        return "names a zone; set the field `zone` instead, and write only five fields here."
    if len(fields) == 6:
        return "has six fields; write five: minute hour day month weekday. There is no field for seconds."
    if len(fields) != 5:
        return f"has {len(fields)} field{'s' * (len(fields) != 1)}; write five: minute hour day month weekday."
    never = "never runs: no date fits within 50 years; check day, month and weekday."
    try:
        return None if next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)), None) else never
    except CronSimError as error:
        if _reads(" ".join((*fields[:3], "*", fields[4]))) and _reads(" ".join((*fields[:2], "*", *fields[3:]))):
            return never  # each field is valid, but no month has such a day
        part = str(error).lower().removeprefix("bad ")
        return f"has a bad {part}; write five fields: minute hour day month weekday, such as 0 9 * * 1-5."


def _reads(cron: str) -> bool:
    try:
        CronSim(cron, _EPOCH)
    except CronSimError:
        return False
    return True


def _span(every: int) -> str:
    """Return a number of seconds as text that `seconds` can read again, such as 1d or 1h30m."""
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, every = divmod(every, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)

"""Schedules: when an automation runs. One moment, a fixed interval, or a cron expression in a time zone.

Moments are integer microseconds since the epoch. cronsim reads cron expressions and walks over wall times without a
zone: with one it misses runs after the clock changes by half an hour or at midnight. What a clock change means is
decided here (see docs/schedules.md):

- A time of day (neither minute nor hour begins with `*`) runs once: at the jump when the clock skips it, the first time
  when the clock repeats it.
- Anything more frequent runs at every real minute whose wall time matches.
- An interval is elapsed time and knows no clock change.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from midwatch.base.clock import SECOND, iso
from midwatch.base.durations import seconds
from midwatch.base.errors import InvalidInput

MIN_EVERY, MAX_EVERY = 60, 3650 * 86400
"""Seconds: one minute to ten years."""
MAX_CRON = 1000
COUNTED = 1000
"""Missed runs are counted up to here."""

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
"""Files beside the zones that are none, or count leap seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When something runs: exactly one of `at`, `every` and `cron`. `make` makes it and refuses what has no sense."""

    zone: str
    """IANA name; cron expressions are read in it, and times are shown in it."""
    at: int | None = None
    """One moment."""
    every: int | None = None
    """Seconds; runs at `anchor` + n * `every`, so late runs and restarts shift nothing."""
    cron: str | None = None
    """Five fields or an alias such as @daily."""
    anchor: int | None = None
    """The moment that `every` is counted from."""

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
        """Check and make one. A moment that has passed is a schedule, too: it has no next run."""
        given = [name for name, value in (("at", at), ("every", every), ("cron", cron)) if value is not None]
        if len(given) != 1:
            said = f"got {' and '.join(given)}" if given else "got none"
            raise InvalidInput(f"a schedule is exactly one of at, every and cron; {said}.", field="schedule")
        find_zone(zone)
        if at is not None:
            return cls(zone=zone, at=_checked_moment(at, "at"))
        if cron is not None:
            return cls(zone=zone, cron=_checked_cron(cron))
        assert every is not None
        if anchor is None:
            raise InvalidInput("an interval needs an anchor, the moment it is counted from.", field="anchor")
        return cls(zone=zone, every=_checked_interval(every), anchor=_checked_moment(anchor, "anchor"))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Schedule:
        """Read what `snapshot` wrote, or what somebody wrote like it."""
        known = ("zone", "at", "every", "cron", "anchor")
        if wrong := [name for name in data if name not in known]:
            raise InvalidInput(f"a schedule has no {wrong[0]!r}; it has {', '.join(known)}.", field="schedule")
        for name in ("zone", "cron"):
            if not isinstance(data.get(name, ""), str | None):
                raise InvalidInput(f"{name} of a schedule is text; got {data[name]!r}.", field=name)
        if not data.get("zone"):
            raise InvalidInput("a schedule needs a zone, such as Europe/Berlin or UTC.", field="zone")
        zone = str(data["zone"])
        at, anchor = (_moment_of(data.get(name), zone, name) for name in ("at", "anchor"))
        return cls.make(zone=zone, at=at, every=data.get("every"), cron=data.get("cron"), anchor=anchor)

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it: the zone, and what there is of the rest."""
        every = {"every": self.every, "anchor": iso(self.anchor)} if self.every is not None else {}
        at = {"at": iso(self.at)} if self.at is not None else {}
        cron = {"cron": self.cron} if self.cron is not None else {}
        return {**at, **every, **cron, "zone": self.zone}

    def describe(self) -> str:
        """One short line for people."""
        if self.at is not None:
            wall = _wall(self.at, find_zone(self.zone))
            return f"once, {wall.isoformat(' ', 'seconds').removesuffix(':00')} ({self.zone})"
        if self.every is not None:
            return f"every {_span(self.every)}"
        assert self.cron is not None
        words: str = CronSim(_fields(self.cron), _EPOCH).explain()
        return f"{words[0].lower()}{words[1:]} ({self.zone})"


# -- when it runs ------------------------------------------------------------------------------------------------------


def next_run_at(schedule: Schedule, after: int) -> int | None:
    """The first run strictly after a moment. None means never."""
    return next(_runs(schedule, after), None)


def upcoming(schedule: Schedule, after: int, count: int) -> list[int]:
    """The next runs strictly after a moment, `count` at most."""
    return list(islice(_runs(schedule, after), count))


class Missed(NamedTuple):
    """Runs that should have been: how many, counted up to a limit, and the latest of them."""

    runs: int
    latest: int | None


def missed(schedule: Schedule, since: int, until: int, limit: int = COUNTED) -> Missed:
    """The runs after `since` up to and with `until`."""
    if schedule.every is not None:
        assert schedule.anchor is not None
        step = schedule.every * SECOND
        last = (until - schedule.anchor) // step
        count = last - max(-1, (since - schedule.anchor) // step)
        return Missed(min(count, limit), schedule.anchor + last * step) if count > 0 else Missed(0, None)
    count, latest = 0, None
    for latest_so_far in _runs(schedule, since):
        if latest_so_far > until:
            return Missed(count, latest)
        if count == limit:
            return Missed(count, _latest(schedule, since, until))
        count, latest = count + 1, latest_so_far
    return Missed(count, latest)


def _latest(schedule: Schedule, since: int, until: int) -> int:
    """The last run up to `until`, given that there is one after `since`: looked for further and further back."""
    back = 60 * SECOND
    while True:
        found = None
        for run in _runs(schedule, max(since, until - back)):
            if run > until:
                break
            found = run
        if found is not None:
            return found
        back *= 4


def _runs(schedule: Schedule, after: int) -> Iterator[int]:
    """All runs strictly after a moment, in order."""
    if schedule.at is not None:
        if schedule.at > after:
            yield schedule.at
    elif schedule.every is not None:
        assert schedule.anchor is not None
        step = schedule.every * SECOND
        first = schedule.anchor + max(0, (after - schedule.anchor) // step + 1) * step
        yield from range(first, LAST, step)
    else:
        assert schedule.cron is not None
        yield from _cron_runs(_fields(schedule.cron), find_zone(schedule.zone), min(after, LAST))


def _cron_runs(fields: str, zone: ZoneInfo, after: int) -> Iterator[int]:
    """Yield the runs of a cron expression strictly after a moment, in order."""
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
    """Yield one run for each wall time, whatever the clock does."""
    return (_resolve(wall, zone) for wall in walls)


def _real_minutes(walls: Iterable[datetime], zone: ZoneInfo) -> Iterator[int]:
    """Yield a run for each real minute: a repeated wall time counts twice, a skipped one not at all."""
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


def _moment(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _local(moment: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + moment * _MICROSECOND).astimezone(zone)


def _wall(moment: int, zone: ZoneInfo) -> datetime:
    """Return what the zone's clock shows, without the zone."""
    return _local(moment, zone).replace(tzinfo=None, fold=0)


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """Return the moments at which the zone's clock shows `wall`; the first is the later one if it never does."""
    return _moment(wall.replace(tzinfo=zone)), _moment(wall.replace(tzinfo=zone, fold=1))


def _resolve(wall: datetime, zone: ZoneInfo) -> int:
    """Return when the zone's clock shows `wall`: the first time if twice, the moment of the jump if never."""
    first, second = _readings(wall, zone)
    if first <= second:
        return first
    after_jump = _local(first, zone).utcoffset()
    moments = range(second, first)
    return second + bisect_left(moments, True, key=lambda moment: _local(moment, zone).utcoffset() == after_jump)


def local_iso(moment: int, zone: str) -> str:
    """A moment as ISO 8601 in a zone, with its offset."""
    return _local(moment, find_zone(zone)).isoformat()


# -- moments that people write -----------------------------------------------------------------------------------------

_CLOCK = re.compile(r"(?:([a-z]+) )?(\d{1,2}):(\d\d)(?::(\d\d))?", re.ASCII)
_IN = re.compile(r"in (.*[a-z])")


def parse_moment(text: str, now: int, zone: str) -> int:
    """Read a moment as people write it, without a zone of its own in `zone`. It may have passed."""
    place = find_zone(zone)
    said = " ".join(text.lower().split())
    try:
        if found := _IN.fullmatch(said):
            moment = now + round(seconds(found[1]) * SECOND)
        elif found := _CLOCK.fullmatch(said):
            moment = _at_clock(found, now, place)
        else:
            moment = _at_date(datetime.fromisoformat(said.upper()), place)
    except (ValueError, OverflowError, InvalidInput):
        raise InvalidInput(f"{text[:80]!r} is no time; write one of: {FORMS}.", field="at") from None
    return _checked_moment(moment, "at")


def _at_date(read: datetime, zone: ZoneInfo) -> int:
    return _moment(read) if read.tzinfo else _resolve(read, zone)


def _at_clock(found: re.Match[str], now: int, zone: ZoneInfo) -> int:
    """A time of day: on the day that is named, else the next one to come."""
    day, hour, minute, second = found[1], int(found[2]), int(found[3]), int(found[4] or 0)
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
    """The zone of an IANA name."""
    if found := _zone(name):
        return found
    close = _close_zones(name)
    hint = f"did you mean {' or '.join(close)}?" if close else "write an IANA name such as Europe/Berlin or UTC."
    raise InvalidInput(f"there is no time zone {name[:80]!r}; {hint}", field="zone")


def _zone(name: str) -> ZoneInfo | None:
    try:
        return None if _NO_ZONE.match(name) else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _close_zones(name: str) -> list[str]:
    """Names somebody may have meant: the same in other letters, a city, else a slip."""
    wanted = name[:80].strip().lower().replace(" ", "_")
    known = {zone.lower(): zone for zone in sorted(_zones())}
    if same := [zone for low, zone in known.items() if wanted in (low, low.rpartition("/")[2])]:
        return same[:3]
    return [known[low] for low in difflib.get_close_matches(wanted, known, n=3, cutoff=0.7)]


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def host_zone(environ: Mapping[str, str] = os.environ, etc: Path = Path("/etc")) -> str:
    """The zone of this machine: the variable TZ, /etc/timezone, the link /etc/localtime, else UTC."""
    return next((name for name in _host_names(environ, etc) if _zone(name)), "UTC")


def _host_names(environ: Mapping[str, str], etc: Path) -> Iterator[str]:
    if "TZ" in environ:
        yield _below_zoneinfo(environ["TZ"].removeprefix(":")) or "UTC"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        yield (etc / "timezone").read_text().strip()
    yield _below_zoneinfo(os.path.realpath(etc / "localtime"))


def _below_zoneinfo(path: str) -> str:
    """The name of the zone whose file this is; what is not such a path stays as it is."""
    return re.sub(r"^.*/zoneinfo/(?:(?:posix|right)/)?", "", path)


# -- what is refused ---------------------------------------------------------------------------------------------------


def _checked_moment(moment: int, field: str) -> int:
    if isinstance(moment, bool) or not isinstance(moment, int) or not 0 <= moment < LAST:
        raise InvalidInput(f"{field} is a moment between the years 1970 and 9998; got {moment!r}.", field=field)
    return moment


def _moment_of(said: object, zone: str, field: str) -> int | None:
    if said is None:
        return None
    if not isinstance(said, str):
        raise InvalidInput(f"{field} is a time such as 2026-03-29T09:00+02:00; got {said!r}.", field=field)
    try:
        datetime.fromisoformat(said)
    except ValueError:
        raise InvalidInput(f"{field} is a time such as 2026-03-29T09:00+02:00; got {said!r}.", field=field) from None
    return parse_moment(said, 0, zone)


def _checked_interval(said: float | str) -> int:
    try:
        if isinstance(said, bool) or not isinstance(said, int | float | str):
            raise InvalidInput("no duration")
        every = seconds(said)
    except (InvalidInput, OverflowError):
        raise InvalidInput(f"every is a duration such as 90m, 24h or 7d; got {said!r}.", field="every") from None
    if not MIN_EVERY <= every <= MAX_EVERY or every != int(every):
        raise InvalidInput(
            f"every is one minute to ten years, in whole seconds; got {said!r}. The shortest is 60s.", field="every"
        )
    return int(every)


def _checked_cron(said: str) -> str:
    """The expression with single spaces, or what is wrong with it."""
    cron = " ".join(said.split())
    if len(cron) > MAX_CRON:
        raise InvalidInput(f"a cron expression has {MAX_CRON} characters at most.", field="cron")
    if cron.startswith("@"):
        cron = cron.lower()
        if cron not in ALIASES:
            raise InvalidInput(_alias_remedy(cron), field="cron")
        return cron
    if wrong := _wrong_cron(cron):
        raise InvalidInput(f"cron {cron!r} {wrong}", field="cron")
    return cron


def _alias_remedy(cron: str) -> str:
    known = ", ".join(ALIASES)
    if cron.startswith("@every"):
        return "cron has no @every; use an interval instead: every, of at least 60s."
    if cron.startswith("@reboot"):
        return f"cron has no @reboot here, a schedule is a matter of time; use one of {known}."
    return f"cron has no alias {cron[:80]!r}; use one of {known}, or five fields."


@lru_cache(maxsize=1024)
def _wrong_cron(cron: str) -> str | None:
    fields = cron.split()
    if "=" in cron:
        return "names a zone; say the zone beside the expression, and five fields here."
    if len(fields) == 6:
        return "has six fields; write five, minute hour day month weekday. There are no seconds."
    if len(fields) != 5:
        return f"has {len(fields)} field{'s' * (len(fields) != 1)}; write five: minute hour day month weekday."
    never = "never runs: no date fits within 50 years; check day, month and weekday."
    try:
        return None if next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)), None) else never
    except CronSimError as error:
        if _reads(" ".join((*fields[:3], "*", fields[4]))) and _reads(" ".join((*fields[:2], "*", *fields[3:]))):
            return never  # each part makes sense, but no such month has such a day
        told = str(error).lower().removeprefix("bad ")
        return f"has a bad {told}; write five fields, minute hour day month weekday, such as 0 9 * * 1-5."


def _reads(cron: str) -> bool:
    try:
        CronSim(cron, _EPOCH)
    except CronSimError:
        return False
    return True


def _span(every: int) -> str:
    """Seconds as a duration that can be read again: 1d, 1h30m."""
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, every = divmod(every, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)

"""Time, as a port: wall time for records, monotonic time for timeouts, and timers.

Wall times are integer microseconds since the epoch, UTC, everywhere. Timeouts and grace periods are measured on the
monotonic clock, which stands still while the machine is suspended.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from midwatch.errors import InvalidInput

SECOND = 1_000_000
LONGEST_NAP = 30.0
"""A sleeper looks at the wall clock at least this often (seconds), so a changed clock or a wake-up is noticed."""


_random = random.Random()  # noqa: S311 - ids are no secrets; a system call for each would cost more than the rest
os.register_at_fork(after_in_child=_random.seed)


class Timer(Protocol):
    """A pending call; `cancel` makes it never happen."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What time it is, and how to be called later."""

    def now(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back and do not count suspension."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the event loop after `seconds` of monotonic time."""
        ...

    async def sleep_until(self, when: int) -> None:
        """Return once `now()` is at least `when`; notices a clock that was set within 30 s."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep_until(self, when: int) -> None:
        while (left := when - self.now()) > 0:  # noqa: ASYNC110 - waits for the wall clock
            await asyncio.sleep(min(left / SECOND, LONGEST_NAP))


_last = (0, 0)
"""The millisecond and the rest of the last id."""


def new_id(prefix: str, now: int) -> str:
    """A short id that sorts by time of creation: 11 hex digits of milliseconds, 12 random ones, which grow by random
    steps within a millisecond, so that what one process makes keeps its order. Not a secret."""
    global _last
    at, (before, rest) = now // 1000, _last
    rest = rest + 1 + _random.getrandbits(24) if at == before else _random.getrandbits(47)
    _last = at, rest
    return f"{prefix}_{at:011x}{rest:012x}"


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")


def seconds(text: str | float) -> float:
    """Read a duration: a number of seconds, or text such as 90s, 10m, 1h30m, 2d."""
    if isinstance(text, int | float):
        return _finite(float(text), text)
    compact = text.strip().lower().replace(" ", "")
    parts = _PART.findall(compact)
    if parts and "".join(number + unit for number, unit in parts) == compact:
        return _finite(float(sum(float(number) * _UNITS[unit] for number, unit in parts)), text)
    try:
        return _finite(float(compact), text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a duration; write 90s, 10m, 1h30m or 2d.") from None


def _finite(number: float, said: str | float) -> float:
    if not math.isfinite(number):
        raise InvalidInput(f"{said!r} is not a duration; write 90s, 10m, 1h30m or 2d.")
    return number


def duration(length: float) -> str:
    """A length of time for people: 45s, 12m, 2h05m, 3d4h."""
    whole = max(0, round(length))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m" + (f"{whole % 60:02}s" if whole % 60 else "")
    if whole < 86400:
        return f"{whole // 3600}h" + (f"{whole % 3600 // 60:02}m" if whole % 3600 >= 60 else "")
    return f"{whole // 86400}d" + (f"{whole % 86400 // 3600}h" if whole % 86400 >= 3600 else "")


def iso(when: int | None) -> str | None:
    """`when` as ISO 8601 in UTC, for people and JSON."""
    if when is None:
        return None
    moment = datetime.fromtimestamp(when // SECOND, UTC).replace(microsecond=when % SECOND)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

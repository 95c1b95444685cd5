"""Time, as a port: wall time for records, monotonic time for timeouts, and timers.

Every wall time is a number of microseconds since the epoch, in UTC. Timeouts and grace periods are measured on the
monotonic clock, which stands still while the machine is suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

SECOND = 1_000_000
LONGEST_NAP = 30.0
"""Seconds after which a waiting loop reads the wall clock again, in case the clock was changed."""

SHORTEST_SLEEP = 5.0
"""Seconds of difference between the clocks that count as a suspended machine."""
MOST_SLEEPS = 500


class Timer(Protocol):
    """A call that is planned for later; `cancel` prevents the call."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Port: the current time, and a way to call a function later."""

    def now(self) -> int:
        """Return the microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back and stand still while the machine is suspended."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the event loop after `seconds` of monotonic time."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        import asyncio  # here, because commands that need no event loop read times, too

        return asyncio.get_running_loop().call_later(seconds, callback)


class Stopwatch:
    """Measures monotonic time in seconds. It runs from the beginning, and can be stopped and started again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._earlier = 0.0
        self._since: float | None = clock.monotonic()

    def read(self) -> float:
        """Return for how many seconds the stopwatch has run."""
        return self._earlier + (self._clock.monotonic() - self._since if self._since is not None else 0.0)

    def stop(self) -> None:
        """Stop measuring."""
        self._earlier, self._since = self.read(), None

    def start(self) -> None:
        """Continue to measure."""
        self._earlier, self._since = self.read(), self._clock.monotonic()


class SleepLog:
    """Remembers when the machine was suspended: then the wall time goes on, but the monotonic time stands still.

    A wall clock that is set forward looks the same. Call `observe` often, because the log knows only that the machine
    was suspended between two calls, and takes the time just before the second one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = clock.now(), clock.monotonic()
        self._sleeps: list[tuple[int, int]] = []

    def observe(self) -> int:
        """Look at both clocks, and return the wall time."""
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        slept = wall - self._seen[0] - int((monotonic - self._seen[1]) * SECOND)
        if slept > SHORTEST_SLEEP * SECOND:
            self._sleeps = [*self._sleeps[1 - MOST_SLEEPS :], (wall - slept, wall)]
        self._seen = wall, monotonic
        return wall

    def age(self, since: int) -> float:
        """Return how many seconds have passed since a time, without the time in which the machine was suspended."""
        now = self._seen[0]
        slept = sum(max(0, end - max(begin, since)) for begin, end in self._sleeps)
        return (now - since - slept) / SECOND


def iso(when: int | None) -> str | None:
    """Return the time `when` as ISO 8601 in UTC, for people and JSON; None if `when` is None."""
    if when is None:
        return None
    moment = datetime.fromtimestamp(when // SECOND, UTC).replace(microsecond=when % SECOND)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

"""A clock that is moved by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from midwatch.base.clock import SECOND, Timer


class FakeTimer:
    """A planned call, which is made when the clock is moved past the time of the call."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None


class FakeClock:
    """A clock that stands still until `advance` moves it."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self._now = now
        self._monotonic = 1000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()

    def now(self) -> int:
        """Return microseconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._monotonic

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` when the clock has been moved by `seconds`."""
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self._monotonic + max(0.0, seconds), next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Move the clock forward, and make the calls that are due, in order.

        Asyncio tasks that a call wakes up run before the next call.
        """
        end, end_now = self._monotonic + seconds, self._now + round(seconds * SECOND)
        await settle()
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._monotonic = max(self._monotonic, due)
                self._now = max(self._now, end_now - round((end - due) * SECOND))
                timer.callback()
                await settle()
        self._monotonic, self._now = end, end_now
        await settle()

    def set(self, now: int) -> None:
        """Set the wall clock to `now`, as a person or a time server may do; timers are not affected."""
        self._now = now


async def settle(turns: int = 20) -> None:
    """Let the asyncio tasks run that are ready now."""
    for _ in range(turns):
        await asyncio.sleep(0)

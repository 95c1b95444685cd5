"""The leader loop: the base of the loops that check for due work on the leader.

Between two checks a loop sleeps until the wall clock reaches the next due time, or until `wake` is called.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock, Timer
from midwatch.base.errors import StoreError

PAUSE_SECONDS = 1.0
"""Seconds between a failed check and the next check."""


class LeaderLoop(ABC):
    """A loop that checks for due work while this process leads. A check that fails does not end the loop."""

    def __init__(
        self, clock: Clock, leads: Callable[[], bool], log: logging.Logger, *, nap: float = LONGEST_NAP
    ) -> None:
        self._clock = clock
        self._leads = leads
        self._log = log
        self._longest_nap = nap
        self._bell = asyncio.Event()
        self._timer: Timer | None = None
        self._loop: asyncio.Task[None] | None = None

    @abstractmethod
    async def look(self) -> int | None:
        """Do all due work. Return the time of the next check, or None if the next check is only after `wake`."""

    async def start(self) -> None:
        """Start the loop, unless it runs already."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the loop, if it runs."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop

    def wake(self) -> None:
        """Check now, because a record changed or this process became the leader."""
        self._bell.set()

    async def _run(self) -> None:
        while True:
            self._bell.clear()
            try:
                wake_at = await self.look() if self._leads() else None
            except Exception as problem:
                traceback = None if isinstance(problem, StoreError) else problem
                self._log.warning("a check for due work failed and will be repeated: %s", problem, exc_info=traceback)
                wake_at = self._clock.now() + int(PAUSE_SECONDS * SECOND)
            if wake_at is not None:
                self._nap(wake_at)
            try:
                await self._bell.wait()
            finally:
                if self._timer is not None:
                    self._timer.cancel()

    def _nap(self, wake_at: int) -> None:
        """Wake the loop when the wall clock reaches `wake_at`.

        If the wall clock is changed or the machine sleeps, the loop wakes too late, but at most by the longest nap.
        """
        seconds = (wake_at - self._clock.now()) / SECOND
        if seconds <= 0:
            self._bell.set()
        else:
            self._timer = self._clock.call_later(min(seconds, self._longest_nap), lambda: self._nap(wake_at))

"""The leader loop: how a loop of the leader waits for its next look.

It sleeps until the wall clock reaches the next time, or until something wakes it.
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
"""Before the next look after a look that failed."""


class LeaderLoop(ABC):
    """Looks for due work while this process leads. A look that fails is tried again and ends nothing."""

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
        """Do what is due. Return when to look again; None for only when it is woken."""

    async def start(self) -> None:
        """Begin. Harmless when it runs."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more. Safe twice."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop

    def wake(self) -> None:
        """Look now: something changed, or this process leads now."""
        self._bell.set()

    async def _run(self) -> None:
        while True:
            self._bell.clear()
            try:
                wake_at = await self.look() if self._leads() else None
            except Exception as problem:
                traceback = None if isinstance(problem, StoreError) else problem
                self._log.warning("a look failed and is tried again: %s", problem, exc_info=traceback)
                wake_at = self._clock.now() + int(PAUSE_SECONDS * SECOND)
            if wake_at is not None:
                self._nap(wake_at)
            try:
                await self._bell.wait()
            finally:
                if self._timer is not None:
                    self._timer.cancel()

    def _nap(self, wake_at: int) -> None:
        """Wake when the wall clock says so.

        A clock that was set, or a machine that slept, is noticed within the longest nap.
        """
        left = (wake_at - self._clock.now()) / SECOND
        if left <= 0:
            self._bell.set()
        else:
            self._timer = self._clock.call_later(min(left, self._longest_nap), lambda: self._nap(wake_at))

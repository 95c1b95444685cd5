"""Routines: functions that run at intervals.

Routines run on the leader. A routine does not start again while it still runs. If a routine fails, the other routines
are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from midwatch.base.clock import Clock, Timer
from midwatch.base.errors import Conflict, InvalidInput, MidwatchError
from midwatch.base.foreign import ContainExit
from midwatch.domain.fields import Hidden, to_json

log = logging.getLogger("midwatch.routines")

Work = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Routine:
    """One routine and the statistics of its runs."""

    name: str
    seconds: float
    work: Hidden[Work]
    runs: int = 0
    failures: int = 0
    skipped: int = 0
    last_at: int | None = None
    last_error: str | None = None
    last_result: str | None = None
    """The text that the last successful run returned, if it returned a text."""
    timer: Hidden[Timer | None] = None
    running: Hidden[asyncio.Task[None] | None] = None

    def snapshot(self) -> dict[str, Any]:
        """Return the routine as JSON."""
        return to_json(self)


class Routines:
    """All routines of a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leads: Callable[[], bool] | None = None
        """A function that returns whether this process leads, or None while the routines are stopped."""
        self._known: dict[str, Routine] = {}

    def register(self, name: str, seconds: float, work: Work) -> Routine:
        """Add a routine that calls `work` every `seconds`, for the first time after one interval."""
        if not name.strip():
            raise InvalidInput("a routine needs a name.", field="name")
        if seconds <= 0:
            raise InvalidInput("the interval of a routine must be more than 0 seconds.", field="seconds")
        if name in self._known:
            raise Conflict(f"the name {name!r} is taken by another routine; choose another name.")
        routine = self._known[name] = Routine(name, seconds, work)
        if self._leads is not None:
            self._arm(routine)
        return routine

    def list(self) -> list[Routine]:
        """Return all routines, sorted by name."""
        return [self._known[name] for name in sorted(self._known)]

    async def start(self, leads: Callable[[], bool]) -> None:
        """Start to run all routines at their intervals. A routine is skipped while `leads` returns False."""
        self._leads = leads
        for routine in self._known.values():
            self._arm(routine)

    async def stop(self) -> None:
        """Stop all routines and cancel the routines that run now. A second call does nothing."""
        self._leads = None
        for routine in self._known.values():
            if routine.timer is not None:
                routine.timer.cancel()
            if routine.running is not None:
                routine.running.cancel()
                with suppress(asyncio.CancelledError):
                    await routine.running

    def _arm(self, routine: Routine) -> None:
        routine.timer = self._clock.call_later(routine.seconds, lambda: self._fire(routine))

    def _fire(self, routine: Routine) -> None:
        if self._leads is None:
            return
        self._arm(routine)
        if not self._leads():
            return
        if routine.running is not None:
            routine.skipped += 1
            return
        routine.running = asyncio.get_running_loop().create_task(self.run(routine))
        routine.running.add_done_callback(lambda _: setattr(routine, "running", None))

    async def run(self, routine: Routine) -> None:
        """Run a routine once. A failure is recorded, not raised."""
        routine.last_at = self._clock.now()
        try:
            with ContainExit(f"routine {routine.name}"):
                result = await routine.work()
            routine.last_error, routine.last_result = None, result if isinstance(result, str) else None
        except Exception as problem:
            routine.failures += 1
            routine.last_error = f"{type(problem).__name__}: {problem}"
            traceback = None if isinstance(problem, MidwatchError) else problem
            log.warning("routine %s failed: %s", routine.name, problem, exc_info=traceback)
        finally:
            routine.runs += 1

"""Routines: midwatch's own work at intervals. Each runs on the leader, never overlaps itself, and harms nobody when it
fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from midwatch.base.clock import Clock, Timer
from midwatch.base.errors import Conflict, InvalidInput, StoreError
from midwatch.domain.fields import Hidden, to_json

log = logging.getLogger("midwatch.routines")

Work = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Routine:
    """One of them, and how it went."""

    name: str
    seconds: float
    work: Hidden[Work]
    runs: int = 0
    failures: int = 0
    skipped: int = 0
    last_at: int | None = None
    last_error: str | None = None
    timer: Hidden[Timer | None] = None
    running: Hidden[asyncio.Task[None] | None] = None

    def snapshot(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return to_json(self)


class Routines:
    """All routines of a process."""

    def __init__(self, clock: Clock, leads: Callable[[], bool]) -> None:
        self._clock = clock
        self._leads = leads
        self._known: dict[str, Routine] = {}
        self._started = False

    def register(self, name: str, seconds: float, work: Work) -> Routine:
        """Have `work` done every so many seconds, first after one interval."""
        if not name.strip():
            raise InvalidInput("a routine has a name.", field="name")
        if seconds <= 0:
            raise InvalidInput("a routine's interval is more than 0 seconds.", field="seconds")
        if name in self._known:
            raise Conflict(f"a routine is called {name!r} already.")
        made = self._known[name] = Routine(name, seconds, work)
        if self._started:
            self._arm(made)
        return made

    def list(self) -> list[Routine]:
        """All of them, by name."""
        return [self._known[name] for name in sorted(self._known)]

    async def start(self) -> None:
        """Begin to count the intervals."""
        self._started = True
        for one in self._known.values():
            self._arm(one)

    async def stop(self) -> None:
        """End what runs. Safe twice."""
        self._started = False
        for one in self._known.values():
            if one.timer is not None:
                one.timer.cancel()
            if one.running is not None:
                one.running.cancel()
                with suppress(asyncio.CancelledError):
                    await one.running

    def _arm(self, one: Routine) -> None:
        one.timer = self._clock.call_later(one.seconds, lambda: self._fire(one))

    def _fire(self, one: Routine) -> None:
        if not self._started:
            return
        self._arm(one)
        if not self._leads():
            return
        if one.running is not None:
            one.skipped += 1
            return
        one.running = asyncio.get_running_loop().create_task(self.run(one))
        one.running.add_done_callback(lambda _: setattr(one, "running", None))

    async def run(self, one: Routine) -> None:
        """Do it once; a failure is noted and goes no further."""
        one.last_at = self._clock.now()
        try:
            await one.work()
            one.last_error = None
        except Exception as problem:
            one.failures += 1
            one.last_error = f"{type(problem).__name__}: {problem}"
            odd = None if isinstance(problem, StoreError) else problem
            log.warning("routine %s failed: %s", one.name, problem, exc_info=odd)
        finally:
            one.runs += 1

"""The pruner: removes old tasks, events and deleted automations, once an hour."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock
from midwatch.domain.store import Store
from midwatch.loops.leader_loop import LeaderLoop
from midwatch.services.automations import compute_retention_start

T = TypeVar("T")
log = logging.getLogger("midwatch.pruner")

PRUNE_SECONDS = 3600.0
FIRST_PRUNE_SECONDS = 60.0
PAUSE_FACTOR = 1.0
"""Seconds of pause for each second that a step took."""


class Retention(NamedTuple):
    """How many ended tasks and how many events are kept, and for how many seconds."""

    tasks: int
    task_age: float
    events: int
    event_age: float


class Pruner(LeaderLoop):
    """Loop: removes old records while this process leads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        leads: Callable[[], bool],
        retention: Retention,
        *,
        every: float = PRUNE_SECONDS,
        nap: float = LONGEST_NAP,
        pause_factor: float = PAUSE_FACTOR,
    ) -> None:
        super().__init__(clock, leads, log, nap=nap)
        self._store = store
        self._retention = retention
        self._every = every
        self._pause_factor = pause_factor
        self._prune_at = clock.now() + int(FIRST_PRUNE_SECONDS * SECOND)

    async def look(self) -> int:
        """Prune if pruning is due, and return when it is due next.

        After the start it is first due a minute later, so that the start is quick.
        """
        now = self._clock.now()
        if now >= self._prune_at:
            await self.prune()
            self._prune_at = now + int(self._every * SECOND)
        return self._prune_at

    async def prune(self) -> tuple[int, int]:
        """Remove ended tasks and events that are too old or too many. Return how many tasks and events were removed.

        This works in short steps with a pause after each, so that others can write in between.
        """
        retention, now = self._retention, self._clock.now()
        await self._store.prune_automations(compute_retention_start(now))
        tasks = events = 0
        task_limits = now - int(retention.task_age * SECOND), retention.tasks
        while removed := await self._step(self._store.prune_tasks(*task_limits)):
            tasks += removed
        event_limits = now - int(retention.event_age * SECOND), retention.events
        after: int | None = 0
        while after is not None:
            removed, after = await self._step(self._store.prune_events(*event_limits, after))
            events += removed
        while await self._step(self._store.shrink()):
            pass
        return tasks, events

    async def _step(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step, then pause. A step that took long, because others use the store, is followed by a long pause."""
        began = time.monotonic()
        result = await step
        await asyncio.sleep((time.monotonic() - began) * self._pause_factor)
        return result

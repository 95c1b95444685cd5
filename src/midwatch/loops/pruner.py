"""The pruner: removes old tasks, events and deleted automations, once an hour."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock
from midwatch.domain.store import Store
from midwatch.loops.leader_loop import LeaderLoop
from midwatch.services.automations import compute_retention_start

log = logging.getLogger("midwatch.pruner")

PRUNE_SECONDS = 3600.0
FIRST_PRUNE_SECONDS = 60.0


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
    ) -> None:
        super().__init__(clock, leads, log, nap=nap)
        self._store = store
        self._retention = retention
        self._every = every
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
        """Remove ended tasks and events that are too old or too many. Return how many tasks and events were removed."""
        retention, now = self._retention, self._clock.now()
        await self._store.prune_automations(compute_retention_start(now))
        tasks = events = 0
        while removed := await self._store.prune_tasks(now - int(retention.task_age * SECOND), retention.tasks):
            tasks += removed
        begins = -1
        while (
            oldest := (await self._store.read_log_bounds()).oldest_seq
        ) != begins:  # one step may find only events that are kept
            begins = oldest
            events += await self._store.prune_events(now - int(retention.event_age * SECOND), retention.events)
        return tasks, events

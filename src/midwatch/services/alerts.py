"""The alert service: looks for what is overdue, stuck or silent, and tells of it. What that means stands in
`midwatch.domain.alert`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from midwatch.base.clock import SECOND, Clock
from midwatch.domain import alert as rules
from midwatch.domain.alert import SILENT_SECONDS, Alert
from midwatch.domain.store import Store
from midwatch.domain.task import TaskFilter

log = logging.getLogger("midwatch.watchdog")

LOOKED_AT = 500
"""Of each kind, when something wrong is looked for."""


class Alerts:
    """Service: nothing stops silently."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        live: Callable[[], Awaitable[frozenset[str]]],
        silent: Callable[[str], float] = lambda agent: SILENT_SECONDS,
    ) -> None:
        """`silent` says after how many seconds without an event a task of an agent is told of."""
        self._store = store
        self._clock = clock
        self._live = live
        self._silent = silent

    async def tell(self) -> list[Alert]:
        """Tell what is overdue, stuck or silent, unless it was told lately. Returns what was told."""
        now = self._clock.now()
        found = await self.look()
        lately = (
            await self._store.list_sent_alerts(now - int(rules.COOL_DOWN_SECONDS * SECOND)) if found else frozenset()
        )
        fresh = [one for one in found if one.id not in lately]
        if fresh:
            await self._store.record_alerts(*rules.write_alerts(fresh, now))
            log.warning("told of %s", ", ".join(one.id for one in fresh))
        return fresh

    async def look(self) -> list[Alert]:
        """Everything that is wrong now."""
        now = self._clock.now()
        late = now - int(rules.GRACE_SECONDS * SECOND)
        found: list[Alert] = []
        for task, last in (await self._store.read_desk_state()).running:
            found += rules.check_running(task, last, now, self._silent(task.agent))
        waiting = await self._store.list_tasks(TaskFilter(statuses=("pending",), limit=LOOKED_AT))
        live = await self._live() if waiting else frozenset()
        for task in waiting:
            found += rules.check_pending(task, now, task.agent in live)
        for automation in await self._store.list_due_automations(late, LOOKED_AT):
            found += rules.check_automation(automation, now)
        for goal in await self._store.list_due_goals(late, LOOKED_AT):
            found += rules.check_goal(goal, now)
        return found

"""The alert service: finds work that is overdue, stuck or silent, and sends alerts.

The conditions are in `midwatch.domain.alert`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from midwatch.base.clock import SECOND, Clock
from midwatch.domain import alert as rules
from midwatch.domain.alert import SILENT_SECONDS, Alert
from midwatch.domain.identity import AnyActor
from midwatch.domain.notice import PlanNotices, keep_policy
from midwatch.domain.store import Store
from midwatch.domain.task_store import TaskFilter
from midwatch.services.authorization import authorize

log = logging.getLogger("midwatch.watchdog")

PAGE = 500


class Alerts:
    """Service: alerts about work that is overdue, stuck or silent."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        live: Callable[[], Awaitable[frozenset[str]]],
        silent: Callable[[str], float] = lambda agent: SILENT_SECONDS,
        plan: PlanNotices = keep_policy,
    ) -> None:
        """Build the service. `live` returns the names of the agents that a live process offers.

        `silent` returns after how many seconds without an event a running task of an agent is reported.
        """
        self._store = store
        self._clock = clock
        self._live = live
        self._silent = silent
        self._plan = plan

    async def send(self, *, actor: AnyActor = None) -> list[Alert]:
        """Send an alert for each problem, except for alerts that were sent a short time ago. Return the sent alerts."""
        authorize(actor, "operate")
        now = self._clock.now()
        alerts = await self.find()
        since = now - int(rules.COOL_DOWN_SECONDS * SECOND)
        sent = await self._store.list_sent_alerts(since) if alerts else frozenset()
        fresh = [alert for alert in alerts if alert.id not in sent]
        if fresh:
            planned = [alert._replace(notices=self._plan_notices(alert)) for alert in fresh]
            await self._store.record_alerts(*rules.write_alerts(planned, now))
            log.warning("sent alerts: %s", ", ".join(alert.id for alert in fresh))
        return fresh

    def _plan_notices(self, alert: Alert) -> str | None:
        return alert.notices if alert.task_id else self._plan(alert.route, alert.notices)  # a task has its plan already

    async def find(self, *, actor: AnyActor = None) -> list[Alert]:
        """Return an alert for each problem that exists now, and send no alerts."""
        authorize(actor, "oversee")
        now = self._clock.now()
        late = now - int(rules.GRACE_SECONDS * SECOND)
        alerts: list[Alert] = []
        for task, last in (await self._store.read_desk_state()).running:
            alerts += rules.check_running(task, last, now, self._silent(task.agent))
        waiting = await self._store.list_tasks(TaskFilter(statuses=("pending",), limit=PAGE))
        live = await self._live() if waiting else frozenset()
        for task in waiting:
            alerts += rules.check_pending(task, now, task.agent in live)
        for automation in await self._store.list_due_automations(late, PAGE):
            alerts += rules.check_automation(automation, now)
        for goal in await self._store.list_due_goals(late, PAGE):
            alerts += rules.check_goal(goal, now)
        return alerts

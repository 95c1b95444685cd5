"""The alert service: finds problems, raises an alert about each, and escalates, acknowledges and withdraws alerts.

The conditions and the life of an alert are in `midwatch.domain.alert`. The command `status`, `midwatch doctor`, the
console and the watchdog all list what `Alerts.list` returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from midwatch.base.clock import SECOND, Clock, SleepLog
from midwatch.base.errors import Conflict, NotFound
from midwatch.base.ids import new_id
from midwatch.domain import alert as rules
from midwatch.domain.alert import DEFAULT_GRACES, ESCALATE_SECONDS, KEPT_SECONDS, SILENT_SECONDS, Alert, Graces, Group
from midwatch.domain.changes import Changes
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.instance import Instance
from midwatch.domain.notice import PlanNotices, keep_policy
from midwatch.domain.store import Store
from midwatch.services.authorization import authorize

log = logging.getLogger("midwatch.watchdog")

MOST = 200
"""How many records of one kind are checked, the oldest first. Waiting tasks are counted by what they wait for."""


class Report(NamedTuple):
    """What the watchdog did: `told` are alerts with a notice now, `known` other open alerts, `over` withdrawn ones."""

    told: Sequence[Alert]
    known: Sequence[Alert]
    over: Sequence[Alert]


class Alerts:
    """Service: alerts about work that is late or does not continue."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        living: Callable[[], Awaitable[Sequence[Instance]]],
        silent: Callable[[str], float] = lambda agent: SILENT_SECONDS,
        *,
        graces: Graces = DEFAULT_GRACES,
        escalate_after: float = ESCALATE_SECONDS,
        route: str | None = None,
        worked: Callable[[str, int], float | None] = lambda task_id, attempt: None,
        plan: PlanNotices = keep_policy,
    ) -> None:
        """Build the service. `living` returns the live processes.

        `silent` returns after how many seconds without an event a running task of an agent is reported. `route` is for
        alerts about records without a route. `worked` returns for how many seconds an attempt that runs in this process
        has worked.
        """
        self._store = store
        self._clock = clock
        self._living = living
        self._silent = silent
        self._graces = graces
        self._escalate_after = escalate_after
        self._route = route
        self._worked = worked
        self._plan = plan
        self._sleeps = SleepLog(clock)
        self._sending = asyncio.Lock()

    async def list(self, *, actor: AnyActor = None) -> Sequence[Alert]:
        """Return the problems that exist now, with the state of their alerts, the oldest first. Nothing is sent."""
        authorize(actor, "oversee")
        found = await self.find()
        stored = {alert.key: alert for alert in await self._store.list_open_alerts()}
        merged = [replace(stored[a.key], text=a.text) if a.key in stored else a for a in found]
        return sorted(merged, key=lambda alert: (alert.since, alert.key))

    async def look(
        self,
        *,
        overdue_grace: float | None = None,
        running_grace: float | None = None,
        waiting_grace: float | None = None,
        actor: AnyActor = None,
    ) -> Report:
        """Call `send`. With a grace, only find the problems that exist with this grace instead, and send nothing."""
        authorize(actor, "operate")
        given = {"overdue": overdue_grace, "running": running_grace, "waiting": waiting_grace}
        other = {name: seconds for name, seconds in given.items() if seconds is not None}
        if not other:
            return await self.send(actor=actor)
        return Report([], await self.find(self._graces._replace(**other)), [])

    async def list_loud(self) -> Sequence[Alert]:
        """Return the raised alerts that nobody has acknowledged and that are not over."""
        return [alert for alert in await self.list() if alert.loud and alert.id]

    async def acknowledge(self, alert_id: str, *, actor: AnyActor = None) -> Alert:
        """Acknowledge an alert, so that there are no more notices until it is over. A second call changes nothing."""
        authorize(actor, "operate")
        while True:
            alert = await self._store.get_alert(alert_id)
            if alert is None:
                raise NotFound("alert", alert_id)
            if alert.status == "withdrawn":
                raise Conflict(f"alert {alert_id} is over already; list the open ones with `midwatch watchdog`.")
            if alert.status == "acknowledged":
                return alert
            with suppress(Conflict):  # it was escalated or withdrawn meanwhile
                await self._store.apply(rules.acknowledge(alert, actor_name(actor), self._clock.now()))

    async def send(self, *, actor: AnyActor = None) -> Report:
        """Raise an alert for each new problem, escalate old alerts, and withdraw alerts whose problem is over."""
        authorize(actor, "operate")
        async with self._sending:
            now = self._sleeps.observe()
            found = {alert.key: alert for alert in await self.find()}
            stored = {alert.key: alert for alert in await self._store.list_open_alerts()}
            told = [alert for key in found.keys() - stored.keys() if (alert := await self._raise(found[key], now))]
            over, known = [], []
            all_checked = not any(alert.kind == "unchecked" for alert in found.values())
            for key, alert in stored.items():
                if key not in found:
                    if all_checked and await self._apply(rules.withdraw(alert, now)):
                        over.append(alert)
                elif self._is_due(alert) and await self._apply(rules.escalate(alert, found[key].text, now)):
                    told.append(replace(alert, status="escalated", escalated_at=now, text=found[key].text))
                else:
                    known.append(replace(alert, text=found[key].text))
            await self._store.prune_alerts(now - int(KEPT_SECONDS * SECOND))
        if told:
            log.warning("sent alerts: %s", ", ".join(f"{alert.kind} {alert.subject}" for alert in told))
        return Report(told, known, over)

    def _is_due(self, alert: Alert) -> bool:
        """Return whether an alert must be escalated now."""
        old = alert.raised_at is not None and self._sleeps.age(alert.raised_at) >= self._escalate_after
        return alert.status == "raised" and self._escalate_after > 0 and old

    async def _raise(self, found: Alert, now: int) -> Alert | None:
        """Raise an alert. Return None if another process has raised it meanwhile."""
        route = rules.find_route(found, self._route)
        plan = found.notices if found.task_id else self._plan(route, found.notices)  # a task has its plan already
        alert, changes = rules.raise_alert(found, new_id("al", now), now, route, plan)
        return alert if await self._store.raise_alert(alert, changes) else None

    async def _apply(self, changes: Changes) -> bool:
        """Write a step. Return False if the alert was changed meanwhile; the next look decides again."""
        try:
            await self._store.apply(changes)
        except Conflict:
            return False
        return True

    async def find(self, graces: Graces | None = None, *, actor: AnyActor = None) -> Sequence[Alert]:
        """Return the problems that exist now. Nothing is stored or sent.

        If one check fails, this is a problem of its own, and the others are still made.
        """
        authorize(actor, "oversee")
        now, graces = self._sleeps.observe(), graces or self._graces
        found: dict[object, Alert] = {}
        checks = {
            "running tasks": self._check_running(now, graces),
            "waiting tasks": self._check_waiting(now, graces),
            "questions": self._check_questions(now, graces),
            "automations": self._check_automations(now, graces),
            "triggers": self._check_triggers(now, graces),
            "goals": self._check_goals(now, graces),
            "notices": self._check_deliveries(now),
            "processes": self._check_processes(now),
        }
        for name, check in checks.items():
            try:
                async for alert in check:
                    found.setdefault(alert.key, alert)
            except Exception as problem:
                log.exception("the watchdog could not check %s", name)
                alert = rules.report_unchecked(name, problem, now)
                found[alert.key] = alert
        return list(found.values())

    async def _check_running(self, now: int, graces: Graces) -> AsyncIterator[Alert]:
        age = self._sleeps.age
        for task, last in await self._store.list_signs():
            worked = self._worked(task.id, task.attempt)
            if worked is None:
                worked = age(task.started_at or task.created_at)
                if rules.check_stuck(task, worked, graces.running):
                    worked = rules.count_work(task, await self._store.list_waits(task), now, age)
            for alert in rules.check_stuck(task, worked, graces.running):
                yield alert
            for alert in rules.check_silent(task, last, age, self._silent(task.agent)):
                yield alert

    async def _check_waiting(self, now: int, graces: Graces) -> AsyncIterator[Alert]:
        age, store = self._sleeps.age, self._store
        before = now - int(graces.waiting * SECOND)
        counts = await store.list_late_agents(now - int(min(graces.overdue, graces.waiting) * SECOND))
        living = await self._living() if counts else []
        live = {name for instance in living for name in instance.agents}
        for agent, count in counts.items() if living else ():  # without any process, work is `stopped`
            limit = before if agent in live else now - int(graces.overdue * SECOND)
            oldest = await store.find_oldest_late(agent, limit, free=agent in live)
            if oldest is not None:
                for alert in rules.check_late(Group(oldest, count), agent in live, age, graces):
                    yield alert
        for group in await store.list_behind_sessions(before, MOST):
            for alert in rules.check_behind(group, "session", age, graces.waiting):
                yield alert
        for group in await store.list_behind_directories(before, MOST):
            for alert in rules.check_behind(group, "directory", age, graces.waiting):
                yield alert

    async def _check_questions(self, now: int, graces: Graces) -> AsyncIterator[Alert]:
        for approval in await self._store.list_unanswered(now - int(graces.waiting * SECOND), MOST):
            task = await self._store.get_task(approval.task_id)
            route = task.route if task is not None else None
            for alert in rules.check_unanswered(approval, route, self._sleeps.age, graces.waiting):
                yield alert

    async def _check_automations(self, now: int, graces: Graces) -> AsyncIterator[Alert]:
        for automation in await self._store.list_due_automations(now - int(graces.overdue * SECOND), MOST):
            for alert in rules.check_automation(automation, self._sleeps.age, graces.overdue):
                yield alert
        for automation in await self._store.list_paused_automations(rules.PAUSED_BY_PEOPLE, MOST):
            for alert in rules.check_paused(automation):
                yield alert

    async def _check_triggers(self, now: int, graces: Graces) -> AsyncIterator[Alert]:
        age, store = self._sleeps.age, self._store
        for late in await store.list_late_firings(now - int(graces.waiting * SECOND), MOST):
            automation = await store.get_automation(late.automation_id)
            for alert in rules.check_firings(late, automation, age, graces.waiting):
                yield alert
        for trigger in await store.list_unread_triggers(MOST):
            automation = await store.get_automation(trigger.automation_id)
            for alert in rules.check_trigger(trigger, automation, age, graces.waiting):
                yield alert

    async def _check_goals(self, now: int, graces: Graces) -> AsyncIterator[Alert]:
        for goal in await self._store.list_due_goals(now - int(graces.overdue * SECOND), MOST):
            for alert in rules.check_goal(goal, self._sleeps.age, graces.overdue):
                yield alert
        for goal in await self._store.list_paused_goals(rules.PAUSED_BY_PEOPLE, MOST):
            for alert in rules.check_paused(goal):
                yield alert

    async def _check_deliveries(self, now: int) -> AsyncIterator[Alert]:
        for failed in await self._store.list_undelivered(now - int(rules.UNDELIVERED_SECONDS * SECOND)):
            for alert in rules.check_deliveries(failed):
                yield alert

    async def _check_processes(self, now: int) -> AsyncIterator[Alert]:
        if not any(instance.role != "run" for instance in await self._living()):
            for alert in rules.check_plans(await self._store.count_plans(), now):
                yield alert

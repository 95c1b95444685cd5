"""The scheduler: starts runs of due automations and steps of due goals, and expires handoffs past their deadline.

The scheduler runs on the leader and sleeps until the next due time. It keeps nothing in memory: it reads due records
from the store, and a write fails if another process has changed the record. So two schedulers at the same time do no
harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock
from midwatch.base.errors import Conflict, StoreError
from midwatch.base.timetable import NO_CALENDARS, Calendars
from midwatch.domain import automation as automations
from midwatch.domain import automation_step as automations_step
from midwatch.domain import goal as goals
from midwatch.domain import goal_step as goals_step
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation, Hold
from midwatch.domain.changes import Changes
from midwatch.domain.goal import Goal, Templates
from midwatch.domain.goal_pace import STEPS_PER_MINUTE
from midwatch.domain.handoff import Handoff
from midwatch.domain.notice import PlanNotices, keep_policy
from midwatch.domain.store import Store
from midwatch.domain.trigger import Firing, end_firing
from midwatch.loops.leader_loop import LeaderLoop
from midwatch.services.task_stops import stop_task

log = logging.getLogger("midwatch.scheduler")

BATCH = 128
PAUSE_SECONDS = 1.0
REMOVED = "its automation was removed"


class Scheduler(LeaderLoop):
    """Loop: starts due work while this process leads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        leads: Callable[[], bool],
        terms: Callable[[str], Awaitable[AgentTerms]],
        cancel: Callable[[str], Awaitable[object]],
        templates: Templates | None = None,
        expire: Callable[[Handoff], Awaitable[None]] | None = None,
        calendars: Calendars = NO_CALENDARS,
        plan: PlanNotices = keep_policy,
        *,
        nap: float = LONGEST_NAP,
        steps_per_minute: int = STEPS_PER_MINUTE,
    ) -> None:
        super().__init__(clock, leads, log, nap=nap)
        self._store = store
        self._terms = terms
        self._cancel = cancel
        self._templates = templates or Templates()
        self._expire = expire
        self._calendars = calendars
        self._plan = plan
        self._steps_per_minute = steps_per_minute

    async def look(self) -> int | None:
        """Start all due work, and return the time of the next check.

        After most commits nothing is due. Then three cheap queries are enough, and nothing is written. If the work of
        one record fails, it is tried again later, and the other records do not wait for it.
        """
        tried: set[tuple[str, int]] = set()
        while True:
            now, store = self._clock.now(), self._store
            automation_at = await store.find_next_automation_at()
            firing_at = await store.find_next_firing_at(now)
            handoff_at = await store.find_next_handoff_at() if self._expire else None
            has_goals = await store.has_open_goals()  # not only time decides when a goal is due
            due = await store.list_due_automations(now, BATCH) if _has_come(automation_at, now) else []
            woken = await store.list_due_goals(now, BATCH) if has_goals else []
            fired = await store.list_due_firings(now, BATCH + len(tried))  # some wait for an open run
            over = await store.list_due_handoffs(now, BATCH) if _has_come(handoff_at, now) else []
            if not (due or woken or over or fired):
                times = (automation_at, firing_at, handoff_at, await store.find_next_goal_at() if has_goals else None)
                return min((at for at in times if at is not None), default=None)
            held = await store.find_held_automations([automation.id for automation in due]) if due else {}
            work: list[tuple[Any, Callable[[Any], Awaitable[None]]]] = [
                *((automation, partial(self._fire, held=held.get(automation.id, frozenset()))) for automation in due),
                *((firing, self._start_firing) for firing in fired),
                *((goal, self._wake_goal) for goal in woken),
                *((handoff, self._end) for handoff in over),
            ]
            fresh = [(record, step) for record, step in work if (record.id, record.revision) not in tried]
            if not fresh:
                return now + int(PAUSE_SECONDS * SECOND)
            tried |= {(record.id, record.revision) for record, _ in fresh}
            await asyncio.gather(*(step(record) for record, step in fresh))

    async def _fire(self, automation: Automation, held: frozenset[Hold] = frozenset()) -> None:
        stored, automation = automation, replace(automation, notices=self._plan(automation.route, automation.notices))
        try:
            if "closed" in held:
                await self._store.apply(automations_step.pause_for_closed_session(automation, self._clock.now()))
                return
            open_run = await self._store.find_open_run(automation.id) if "runs" in held else None
            terms, now = await self._terms(automation.agent), self._clock.now()
            fire = partial(
                automations_step.fire, automation, now, terms, runs=open_run is not None, calendars=self._calendars,
                open_task=open_run.id if open_run else None,
            )  # fmt: skip
            step = fire()
            replaced = open_run if automations_step.find_replaced(step) else None
            if replaced is not None and replaced.status == "running":
                step = step.plus(stop_task(replaced, now)[1])
            try:
                await self._store.apply(step)
            except Conflict:
                if replaced is not None or await self._store.get_automation(automation.id) != stored:
                    return  # another process has fired or changed it, or its open run has ended
                # It was retried just now, or a clock was set back and this time had its run: go to the next time.
                await self._store.apply(fire(taken=True))
            if replaced is not None and replaced.status == "pending":
                await self._cancel(replaced.id)
        except Conflict:
            log.debug("automation %s was started or changed by another process", automation.id)
        except StoreError as problem:
            log.warning("automation %s could not be started; trying again later: %s", automation.id, problem)
        except Exception:
            log.exception("automation %s could not be started", automation.id)

    async def _start_firing(self, firing: Firing) -> None:
        try:
            now, automation = self._clock.now(), await self._store.get_automation(firing.automation_id)
            if automation is None:
                await self._store.apply(Changes(updates=(end_firing(firing, now, reason=REMOVED),)))
                return
            if reason := await self._refuse_firing(automation):
                await self._store.apply(automations_step.skip_firing(automation, firing, now, reason))
            elif await self._has_closed_session(automation):  # the firing is skipped next, with the reason
                planned = replace(automation, notices=self._plan(automation.route, automation.notices))
                await self._store.apply(automations_step.pause_for_closed_session(planned, now))
            else:
                await self._start_run_of(automation, firing, now)
        except Conflict:
            log.debug("firing %s was started or its automation was changed by another process", firing.id)
        except StoreError as problem:
            log.warning("firing %s could not be started; trying again later: %s", firing.id, problem)
        except Exception:
            log.exception("firing %s could not be started", firing.id)

    async def _start_run_of(self, automation: Automation, firing: Firing, now: int) -> None:
        """Start the run of a firing, or decide what becomes of it; an open run that it replaces is cancelled."""
        open_run, terms = await self._store.find_open_run(automation.id), await self._terms(automation.agent)
        planned = replace(automation, notices=self._plan(automation.route, automation.notices))
        step = automations_step.start_firing(
            planned, firing, now, terms, open_run=open_run is not None, calendars=self._calendars
        )
        if step != Changes():
            await self._store.apply(step)
        elif open_run is not None and automation.overlap == "replace":
            await self._cancel(open_run.id)

    async def _has_closed_session(self, automation: Automation) -> bool:
        session = await self._store.get_session(automation.session_key)
        return session is not None and session.status == "closed"

    async def _refuse_firing(self, automation: Automation) -> str | None:
        """Return why an automation starts no run for a firing, or None."""
        if automation.status != "active":
            return f"its automation is {automation.status}"
        if automation.exhausted:
            return automations.SPENT
        return None

    async def _wake_goal(self, goal: Goal) -> None:
        try:
            late = goal.status in ("active", "paused") and goal.deadline_at <= self._clock.now()
            if late and (step := await self._store.find_open_step(goal.id)) is not None:
                if await self._store.get_goal(goal.id) == goal:  # the end of the step decides how the goal continues
                    await self._cancel(step.id)
                if goal.status == "active":
                    return
            means = await goals.means_of(goal, self._terms, self._templates, self._steps_per_minute)
            session = await self._store.get_session(goal.session_key)
            thread = session.thread_id if session else None
            planned = replace(goal, notices=self._plan(goal.route, goal.notices))
            await self._store.apply(goals_step.wake(planned, self._clock.now(), means, thread))
        except Conflict:
            log.debug("goal %s was continued or changed by another process", goal.id)
        except StoreError as problem:
            log.warning("goal %s could not be continued; trying again later: %s", goal.id, problem)
        except Exception:
            log.exception("goal %s could not be continued", goal.id)

    async def _end(self, handoff: Handoff) -> None:
        assert self._expire is not None
        try:
            await self._expire(handoff)
        except Conflict:
            log.debug("handoff %s changed before it could expire", handoff.id)
        except StoreError as problem:
            log.warning("handoff %s could not expire; trying again later: %s", handoff.id, problem)


def _has_come(at: int | None, now: int) -> bool:
    """Return whether a time has come."""
    return at is not None and at <= now

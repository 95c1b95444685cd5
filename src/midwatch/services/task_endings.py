"""Task endings: what the end of a task means for the automation or goal it belongs to, and for unread messages.

Unread messages are those that people have sent into its turn. All of it is written with the end of the task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from midwatch.base.clock import Clock
from midwatch.domain import automation, goal, handoff
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes
from midwatch.domain.goal import Templates
from midwatch.domain.steering import passed_on
from midwatch.domain.store import Store
from midwatch.domain.task import Ended, Task

Settle = Callable[[Ended], Awaitable[Changes]]
"""What is to be written with the end of a task."""


async def nothing(ended: Ended) -> Changes:
    """For tasks that belong to nothing."""
    return Changes()


async def settled(
    settle: Settle, task: Task, step: Changes, *, tools: int = 0, thread_id: str | None = None
) -> Changes:
    """A step whose first update is the task's, with what it means for what the task belongs to, if it ends it or has
    it tried again."""
    after = task._replace(**step.updates[0].fields)
    again = task.cause == "handoff" and after.wait == "backoff"
    if (after.open and not again) or (task.cause_id is None and not task.steers):
        return step
    why = step.events[0].payload["reason"] if again else None
    return step.plus(await settle(Ended(after, tools, thread_id, why)))


class TaskEndings:
    """Service: follows a task's cause."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        terms: Callable[[str], Awaitable[AgentTerms]],
        templates: Templates | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._terms = terms
        self._templates = templates or Templates()

    async def after(self, ended: Ended) -> Changes:
        """What is to be written with the end of `ended.task`; it is refused, and asked for again, when the automation
        or goal changed meanwhile."""
        task: Task = ended.task
        left = await self._left(task) if task.steers and not task.open else Changes()
        return left.plus(await self._of_cause(ended))

    async def _left(self, task: Task) -> Changes:
        queued = await self._store.queued_steers(task.id)
        session = await self._store.get_session(task.session_key) if queued else None
        closed = session is not None and session.status == "closed"
        return passed_on(task, queued, self._clock.now(), closed=closed)

    async def _of_handoff(self, passed: handoff.Handoff, ended: Ended, now: int) -> Changes:
        """Who goes on with a task's work answers for it: what that belongs to hears it from the last."""
        task = ended.task
        step = handoff.settle(passed, task, now, ended.why)
        source = await self._store.get_task(passed.source_task) if passed.source_task and not task.open else None
        if source is None or source.transferred_to != task.id:
            return step
        answered = {name: getattr(task, name) for name in ("status", "outcome", "result", "error", "completed_at")}
        return step.plus(await self._of_cause(ended._replace(task=source._replace(**answered))))

    async def _of_cause(self, ended: Ended) -> Changes:
        task: Task = ended.task
        if task.cause_id is None or task.outcome == "transferred":
            return Changes()
        now = self._clock.now()
        if task.cause == "handoff":
            passed = await self._store.get_handoff(task.cause_id)
            return await self._of_handoff(passed, ended, now) if passed else Changes()
        if task.open:
            return Changes()
        if task.cause == "automation":
            found = await self._store.get_automation(task.cause_id)
            return automation.settle(found, task, now, ended.thread_id) if found else Changes()
        if task.cause == "goal":
            aim = await self._store.get_goal(task.cause_id)
            if aim is not None:
                return goal.advance(aim, ended, now, await goal.means_of(aim, self._terms, self._templates))
        return Changes()

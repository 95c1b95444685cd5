"""Task endings: what the end of a task changes in its automation, goal or handoff, and in unread messages.

An unread message is a message that a person sent into the turn and that the agent did not receive. All these changes
are written together with the task's end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from midwatch.base.clock import Clock
from midwatch.domain import automation_step, goal, goal_step, handoff
from midwatch.domain.agent import AgentTerms
from midwatch.domain.approval import resolve
from midwatch.domain.budget import Spending
from midwatch.domain.changes import Changes, Charge, Fence
from midwatch.domain.channel import Delivery
from midwatch.domain.goal import Templates
from midwatch.domain.goal_pace import STEPS_PER_MINUTE
from midwatch.domain.notice import PlanNotices, is_repeated, keep_policy
from midwatch.domain.probe import CommandResult
from midwatch.domain.steering import requeue_steers
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.domain.task_step import EndedAttempt, TaskStep
from midwatch.services.task_stops import goal_of


class TaskEndings:
    """Service: computes the changes of other records when a task ends."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        terms: Callable[[str], Awaitable[AgentTerms]],
        templates: Templates | None = None,
        plan: PlanNotices = keep_policy,
        steps_per_minute: int = STEPS_PER_MINUTE,
    ) -> None:
        self._store = store
        self._clock = clock
        self._terms = terms
        self._templates = templates or Templates()
        self._plan = plan
        self._steps_per_minute = steps_per_minute

    async def end_attempt(
        self,
        before: Task,
        step: TaskStep,
        *,
        asked: Fence | None = None,
        why: str | None = None,
        tools: int = 0,
        thread_id: str | None = None,
        charges: Sequence[Charge] = (),
        check: CommandResult | None = None,
        actor: str | None = None,
    ) -> Changes:
        """Return all changes that are written when an attempt ends.

        These are the changes of the task itself, of the automation, goal or handoff that the task belongs to, and of
        open questions, which expire. Pass `asked` if the attempt may have open questions; `why` is the reason why they
        expire. `charges` is what the attempt charges at its end. `check` is the result of the goal's command. `actor`
        is the person who cancelled the task. If another process changes one of these records meanwhile, writing the
        changes raises Conflict; then call this method again.
        """
        if before.cause == "automation" and before.cause_id and step.task.outcome == "cancelled":
            owner = await self._store.get_automation(before.cause_id)
            fired = await self._store.count_waiting_firings(before.cause_id) > 0
            if owner is not None and automation_step.is_replaced(owner, step.task, fired):
                step = automation_step.explain_replaced(step, owner)
        after, now, changes = step.task, self._clock.now(), step.changes
        why = why or ("the task was interrupted" if after.open else "the task has ended")
        approvals = await self._store.list_pending_approvals(asked) if asked else []
        for approval in reversed(approvals):  # each goes to the front
            expired = resolve(approval, "expired", now, why=why)
            both = changes.plus(expired._replace(events=()))
            changes = both._replace(events=expired.events + changes.events)
        tried_again = before.cause == "handoff" and after.wait == "backoff"
        if (after.open and not tried_again) or (before.cause_id is None and not before.steers):
            return changes
        unread = await self._requeue_steers(after) if after.steers and not after.open else Changes()
        if before.cause == "automation":
            changes = changes._replace(deliveries=await self._leave_out_repeated(after, changes.deliveries))
        why_again = step.reason if tried_again else None
        ended = EndedAttempt(after, tools, thread_id, why_again, check=check, actor=actor)
        return changes.plus(unread).plus(await self._update_cause(ended, charges))

    async def _leave_out_repeated(self, run: Task, deliveries: tuple[Delivery, ...]) -> tuple[Delivery, ...]:
        """Return the notices of a run without those of a result that was told before, where only changes are told."""
        told = []
        for delivery in deliveries:
            if delivery.policy == "changes" and delivery.notice == "done":
                about = run.cause_id or "", delivery.channel, delivery.target
                if (last := await self._store.find_told_run(*about)) and is_repeated(run, *last):
                    continue
            told.append(delivery)
        return tuple(told)

    async def pause_goal(self, task: Task, why: str, actor: str | None, *, keeps_step: bool = False) -> Changes:
        """Return the changes that pause the goal that a running task works on, because a person stops the task.

        `why` says what the person did. With `keeps_step` the task goes on to its end.
        """
        goal_id, now = await goal_of(self._store, task), self._clock.now()
        aim = await self._store.get_goal(goal_id) if goal_id else None
        if aim is None or aim.status != "active" or now >= aim.deadline_at:
            return Changes()
        if task.cause == "goal" and aim.task_id != task.id:
            return Changes()
        why = f"{actor or 'a person'} {why} {task.id}"
        aim = replace(aim, notices=self._plan(aim.route, aim.notices))
        return goal_step.pause_goal(aim, now, why, actor=actor, keeps_step=keeps_step)

    async def _requeue_steers(self, task: Task) -> Changes:
        queued = await self._store.list_queued_steers(task.id)
        session = await self._store.get_session(task.session_key) if queued else None
        closed = session is not None and session.status == "closed"
        return requeue_steers(task, queued, self._clock.now(), closed=closed)

    async def _update_handoff(
        self, record: handoff.Handoff, ended: EndedAttempt, now: int, charges: Sequence[Charge]
    ) -> Changes:
        """Return the changes of a handoff when its task ends.

        After a transfer, add the changes of the automation, goal or handoff that the source task belongs to.
        """
        task = ended.task
        step = handoff.settle(record, task, now, ended.why)
        source = await self._store.get_task(record.source_task) if record.source_task and not task.open else None
        if source is None or source.transferred_to != task.id:
            return step
        end = {name: getattr(task, name) for name in ("status", "outcome", "result", "error", "completed_at")}
        return step.plus(await self._update_cause(ended._replace(task=source._replace(**end)), charges))

    async def _update_cause(self, ended: EndedAttempt, charges: Sequence[Charge]) -> Changes:
        """Return the changes of the handoff, automation or goal that the task belongs to."""
        task: Task = ended.task
        if task.cause_id is None or task.outcome == "transferred":
            return Changes()
        now = self._clock.now()
        if task.cause == "handoff":
            record = await self._store.get_handoff(task.cause_id)
            return await self._update_handoff(record, ended, now, charges) if record else Changes()
        if task.open:
            return Changes()
        if task.cause == "automation":
            owner = await self._store.get_automation(task.cause_id)
            if owner is None:
                return Changes()
            owner = replace(owner, notices=self._plan(owner.route, owner.notices))
            return automation_step.settle(owner, task, now, ended.thread_id)
        if task.cause == "goal":
            aim = await self._store.get_goal(task.cause_id)
            if aim is not None:
                aim = replace(aim, notices=self._plan(aim.route, aim.notices))
                ended = await self._add_account(ended, aim.id, charges)
                means = await goal.means_of(aim, self._terms, self._templates, self._steps_per_minute)
                return goal_step.advance(aim, ended, now, means)
        return Changes()

    async def _add_account(self, ended: EndedAttempt, account_id: str, charges: Sequence[Charge]) -> EndedAttempt:
        """Return the ended attempt with what its account has spent, together with the charges of its end."""
        account = next(iter(await self._store.read_accounts([account_id])), None)
        if account is None:
            return ended
        spent = account.spent
        for charge in charges:
            if charge.account_id == account_id:
                spent = spent.plus(Spending(*charge[1:]))
        return ended._replace(spent=spent, asks=account.on_budget == "ask")

"""The approval service: list, answer and expire the questions of agents."""

from __future__ import annotations

from contextlib import suppress

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.domain.agent import Choice
from midwatch.domain.approval import ALWAYS, Approval, Status, choose, make_rule, resolve
from midwatch.domain.budget_question import UNANSWERED, answer_question
from midwatch.domain.changes import Changes
from midwatch.domain.goal_step import raise_goal
from midwatch.domain.identity import Actor, AnyActor, actor_name
from midwatch.domain.rule import Judge, leave_to_people
from midwatch.domain.store import Store
from midwatch.services.agent_registry import Living
from midwatch.services.authorization import Authorization, Owner, authorize
from midwatch.services.records import require

MOST_LISTED = 500


class Approvals:
    """Service: the questions of agents and their answers."""

    def __init__(
        self, store: Store, clock: Clock, living: Living | None = None, judge: Judge = leave_to_people,
        authorization: Authorization | None = None,
    ) -> None:  # fmt: skip
        self.judge = judge
        """Answers a question by rules, if possible, so that no person must be asked."""
        self._store = store
        self._clock = clock
        self._living = living
        self._authorization = authorization or Authorization(store)

    async def list(
        self, status: Status | None = "pending", limit: int = 50, *, task_id: str | None = None, actor: AnyActor = None
    ) -> list[Approval]:
        """Return the questions with this status, newest first. With the status None, return all questions.

        An actor that may use only some work gets only the questions of this work, out of the newest 500.
        """
        authorize(actor, "read")
        work = actor.work if isinstance(actor, Actor) else None
        if work is None:
            return await self._store.list_approvals(status, limit, task_id)
        newest = await self._store.list_approvals(status, MOST_LISTED, task_id)
        return [approval for approval in newest if work & _list_work(approval)][:limit]

    async def get(self, approval_id: str, *, actor: AnyActor = None) -> Approval:
        """Return the approval, or raise NotFound."""
        approval = require(await self._store.get_approval(approval_id), "approval", approval_id)
        authorize(actor, "read", Owner(None, work=_list_work(approval)))
        return approval

    async def answer(
        self,
        approval_id: str,
        choice: str | None = None,
        *,
        grant: bool | None = None,
        always: bool = False,
        why: str | None = None,
        actor: AnyActor = None,
    ) -> Approval:
        """Answer a question with the name of a `choice`, or with yes (`grant=True`) or no (`grant=False`).

        With `always`, a rule is created that gives the same answer later. Only the first answer to a question counts; a
        later answer raises Conflict. Only an actor that may manage the task may answer: an answer decides what the task
        does.
        """
        authorize(actor, "manage")
        approval = await self.get(approval_id)
        await self._authorization.check_task(actor, "manage", approval.task_id)
        if approval.status != "pending":
            raise Conflict(f"approval {approval.id} is already {approval.status}; {_explain_end(approval)}.")
        await self._check_asker(approval)
        chosen = _find_choice(approval, choice, grant, always)
        now, name = self._clock.now(), actor_name(actor)
        rule = make_rule(approval, chosen, now, name)
        status: Status = "granted" if chosen.allows else "denied"
        step = resolve(approval, status, now, answer=chosen.name, why=why, actor=name, rule=rule)
        step = step.plus(await self._change_budget(approval, chosen.name, now))
        try:
            await self._store.apply(step)
        except Conflict as conflict:
            raise Conflict(f"approval {approval.id} was answered meanwhile; the first answer counts.") from conflict
        return await self.get(approval_id)

    async def _change_budget(self, approval: Approval, answer: str, now: int) -> Changes:
        """Return what an answer changes in the account that the question asks for; nothing for other questions."""
        account = await self._store.find_account(approval.id)
        if account is None:
            return Changes()
        limits, update = answer_question(account, answer)
        goal = await self._store.get_goal(account.id) if account.scope == "goal" else None
        raised = (raise_goal(goal, limits, now),) if goal is not None and limits != account.budget else ()
        return Changes(updates=(update, *raised))

    async def _check_asker(self, approval: Approval) -> None:
        """Raise Conflict if the agent that asked the question no longer waits, because the answer would be lost."""
        task = await self._store.get_task(approval.task_id)
        waits = task is not None and task.status == "running" and task.attempt == approval.attempt
        if waits and self._living is not None:
            waits = task is not None and task.lease_owner in {instance.id for instance in await self._living()}
        if not waits:
            raise Conflict(
                f"the agent of question {approval.id} no longer runs; it will ask again when its task runs again."
            )

    async def expire(self) -> int:
        """Mark all questions that nobody answered in time as expired, and return how many these were."""
        now, expired = self._clock.now(), 0
        while overdue := await self._store.list_overdue_approvals(now):
            for approval in overdue:
                with suppress(Conflict):  # it was answered just now
                    await self._store.apply(resolve(approval, "expired", now, why=UNANSWERED))
                    expired += 1
        return expired


def _explain_end(approval: Approval) -> str:
    """Return why a question that is no longer open takes no answer."""
    if approval.status != "expired":
        return "the first answer counts"
    return f"{approval.why or 'nobody answered in time'}. List the open questions with `midwatch approvals`"


def _list_work(approval: Approval) -> frozenset[str]:
    return frozenset(name for name in (approval.task_id, approval.session_key) if name)


def _find_choice(approval: Approval, name: str | None, grant: bool | None, always: bool) -> Choice:
    """Return the choice that an answer means. Raise InvalidInput if there is no such choice."""
    names = ", ".join(choice.name for choice in approval.choices)
    if name is not None:
        chosen = next((choice for choice in approval.choices if choice.name == name), None)
        if chosen is None:
            raise InvalidInput(f"the question has no choice {name!r}; answer with one of: {names}.", field="choice")
        if (grant is False and chosen.allows) or (always and chosen.kind not in ALWAYS):
            raise InvalidInput(
                f"the choice {name!r} contradicts `grant` or `always`; leave out these fields.", field="choice"
            )
        return chosen
    if grant is None:
        raise InvalidInput(f"the answer is missing; answer yes, no, or one of: {names}.", field="choice")
    if always and approval.always is None:
        raise InvalidInput("no rule can be created from this question; answer without `always`.", field="always")
    chosen = choose(approval.choices, grant, always)
    if chosen is None and always:
        raise InvalidInput(
            "a rule that allows this would have no effect, because a rule of another level asks each time; answer "
            "without `always`.", field="always",
        )  # fmt: skip
    if chosen is None and grant:
        raise InvalidInput(f"no choice of this question means yes; answer with one of: {names}.", field="choice")
    return chosen or Choice("no", "reject_once")

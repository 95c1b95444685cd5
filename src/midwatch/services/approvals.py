"""The approval service: list questions, answer them, wait for an answer."""

from __future__ import annotations

from contextlib import suppress

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.agent import Choice
from midwatch.domain.approval import ALWAYS, Approval, Status, choose, make_rule, resolve
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.rule import Judge, leave_to_people
from midwatch.domain.store import Store
from midwatch.services.agent_registry import Living
from midwatch.services.authorization import refuse_agent


class Approvals:
    """Service: the inbox."""

    def __init__(
        self, store: Store, clock: Clock, living: Living | None = None, judge: Judge = leave_to_people
    ) -> None:
        self.judge = judge
        """Who is asked before a person is."""
        self._store = store
        self._clock = clock
        self._living = living

    async def list(
        self, status: Status | None = "pending", limit: int = 50, *, task_id: str | None = None
    ) -> list[Approval]:
        """Open questions, or those with another status; None lists all. Newest first."""
        return await self._store.list_approvals(status, limit, task_id)

    async def get(self, approval_id: str) -> Approval:
        """The approval, or NotFound."""
        found = await self._store.get_approval(approval_id)
        if found is None:
            raise NotFound("approval", approval_id)
        return found

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
        """Answer with one of the choices, or simply yes or no; `always` makes a rule of it. The first answer counts; a
        later one is a Conflict. Only people answer."""
        refuse_agent(actor, "an agent does not answer questions; a person does.")
        found = await self.get(approval_id)
        if found.status != "pending":
            raise Conflict(f"approval {found.id} is already {found.status}; the first answer counts.")
        await self._check_asker(found)
        made = _choice(found, choice, grant, always)
        now = self._clock.now()
        name = actor_name(actor)
        rule = make_rule(found, made, now, name)
        step = resolve(
            found, "granted" if made.allows else "denied", now, answer=made.name, why=why, actor=name, rule=rule
        )
        try:
            await self._store.apply(step)
        except Conflict as conflict:
            raise Conflict(f"approval {found.id} was answered meanwhile; the first answer counts.") from conflict
        return await self.get(approval_id)

    async def _check_asker(self, approval: Approval) -> None:
        """An answer nobody hears must not look like one that was heard."""
        task = await self._store.get_task(approval.task_id)
        waits = task is not None and task.status == "running" and task.attempt == approval.attempt
        if waits and self._living is not None:
            waits = task is not None and task.lease_owner in {one.id for one in await self._living()}
        if not waits:
            raise Conflict(
                f"the agent that asked {approval.id} does not run any more; it asks again when it is run again."
            )

    async def expire(self) -> int:
        """Expire what nobody answered in time. Returns how many."""
        now, expired = self._clock.now(), 0
        while overdue := await self._store.list_overdue_approvals(now):
            for approval in overdue:
                with suppress(Conflict):  # somebody answered in the last moment
                    await self._store.apply(resolve(approval, "expired", now, why="nobody answered in time"))
                    expired += 1
        return expired


def _choice(found: Approval, name: str | None, grant: bool | None, always: bool) -> Choice:
    """Which of its choices somebody means, or InvalidInput."""
    names = ", ".join(choice.name for choice in found.choices)
    if name is not None:
        made = next((choice for choice in found.choices if choice.name == name), None)
        if made is None:
            raise InvalidInput(f"answer with one of: {names}.", field="choice")
        if (grant is False and made.allows) or (always and made.kind not in ALWAYS):
            raise InvalidInput(f"{name!r} says something else; leave the choice out, or the rest.", field="choice")
        return made
    if grant is None:
        raise InvalidInput(f"say yes or no, or one of: {names}.", field="choice")
    if always and found.always is None:
        raise InvalidInput("no rule can be made of this; answer it once, without always.", field="always")
    made = choose(found.choices, grant, always)
    if made is None and grant:
        raise InvalidInput(f"none of the choices is a yes; answer with one of: {names}.", field="choice")
    return made or Choice("no", "reject_once")

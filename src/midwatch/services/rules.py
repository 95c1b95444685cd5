"""The service of rules: look at them, revoke them; and the judge, who asks them before a person is asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.agent import Question
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import RuleRevoked, event
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.rule import ASK, Policy, Rule, Ruling
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.services.authorization import refuse_agent
from midwatch.services.rule_decision import decide

ALL = 1_000_000


class Rules:
    """Service: what answers "always" have made."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list(
        self, agent: str | None = None, *, revoked: bool = False, limit: int = 500, actor: AnyActor = None
    ) -> list[Rule]:
        """Return rules, newest first; with `revoked` also those that hold no more. Not for agents of running tasks."""
        refuse_agent(actor, "an agent is not told by which rules its questions are answered.")
        return await self._store.list_rules(agent, revoked=revoked, limit=limit)

    async def get(self, rule_id: str) -> Rule:
        """The rule, revoked ones too, or NotFound."""
        found = await self._store.get_rule(rule_id)
        if found is None:
            raise NotFound("rule", rule_id)
        return found

    async def revoke(self, rule_id: str, *, actor: AnyActor = None) -> Rule:
        """Have it hold no more; what it answered stays answered. Conflict when it was revoked before."""
        found = await self.get(rule_id)
        now, name = self._clock.now(), actor_name(actor)
        revoked = RuleRevoked(rule_id=found.id, effect=found.effect, for_agent=found.agent)
        update = Update("rule", found.id, {"revoked_at": now, "revoked_by": name}, {"revoked_at": None})
        try:
            await self._store.apply(Changes(updates=(update,), events=(event(revoked, now, actor=name),)))
        except Conflict as conflict:
            raise Conflict(f"rule {found.id} was revoked before.") from conflict
        return await self.get(rule_id)


class Policies:
    """A judge: asks the agent's policy, that of the automation that runs, and the rules that answers have made."""

    def __init__(self, store: Store, of_agent: Callable[[str], Policy]) -> None:
        self._store = store
        self._of_agent = cache(of_agent)

    async def __call__(self, task: Task, asked: Question) -> Ruling:
        policies, until = [("config", self._of_agent(task.agent))], None
        if task.cause == "automation" and task.cause_id is not None:
            policies.append(("automation", await self._of_automation(task.cause_id)))
        if task.cause == "goal" and task.cause_id is not None:
            goal = await self._store.get_goal(task.cause_id)
            until = goal.deadline_at if goal else None
        rules = await self._store.list_rules(task.agent, limit=ALL) if asked.kind != "choice" else []
        expires = next((one.expires for _, one in reversed(policies) if one.expires), None)
        return Ruling(decide(asked, asked.root or task.workdir, policies, rules), expires, until)

    async def _of_automation(self, automation_id: str) -> Policy:
        found = await self._store.get_automation(automation_id)
        if found is None or found.approvals is None:
            return ASK
        try:
            return Policy.from_data(found.approvals)
        except InvalidInput:  # it was written by another version: people are asked
            return ASK

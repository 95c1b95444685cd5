"""The rule service, which lists and revokes rules, and the policies, which decide before a person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.domain.agent import Question
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import RuleRevoked, event
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.rule import ASK, Policy, Rule, Ruling
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.services.authorization import authorize
from midwatch.services.records import require
from midwatch.services.rule_decision import decide

ALL = 1_000_000


class Rules:
    """Service: the rules that were created by answers with "always"."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list(
        self, agent: str | None = None, *, revoked: bool = False, limit: int = 500, actor: AnyActor = None
    ) -> list[Rule]:
        """Return the rules, or only those for an agent, newest first. With `revoked`, also return revoked rules.

        An agent may not read the rules that answer its questions.
        """
        authorize(actor, "oversee")
        return await self._store.list_rules(agent, revoked=revoked, limit=limit)

    async def get(self, rule_id: str) -> Rule:
        """Return the rule, even if it is revoked, or raise NotFound."""
        return require(await self._store.get_rule(rule_id), "rule", rule_id)

    async def revoke(self, rule_id: str, *, actor: AnyActor = None) -> Rule:
        """Revoke a rule. Answers that the rule has given stay valid. Raise Conflict if the rule is revoked already."""
        authorize(actor, "operate")
        rule = await self.get(rule_id)
        now, name = self._clock.now(), actor_name(actor)
        revoked = RuleRevoked(rule_id=rule.id, effect=rule.effect, for_agent=rule.agent)
        update = Update("rule", rule.id, {"revoked_at": now, "revoked_by": name}, {"revoked_at": None})
        try:
            await self._store.apply(Changes(updates=(update,), events=(event(revoked, now, actor=name),)))
        except Conflict as conflict:
            raise Conflict(f"rule {rule.id} is revoked already.") from conflict
        return await self.get(rule_id)


class Policies:
    """Decides on a question by the policy of the agent, the policy of the automation, and the rules of the store."""

    def __init__(self, store: Store, of_agent: Callable[[str], Policy]) -> None:
        self._store = store
        self._of_agent = cache(of_agent)

    async def __call__(self, task: Task, question: Question) -> Ruling:
        policies, until = [("config", self._of_agent(task.agent))], None
        if task.cause == "automation" and task.cause_id is not None:
            policies.append(("automation", await self._of_automation(task.cause_id)))
        if task.cause == "goal" and task.cause_id is not None:
            goal = await self._store.get_goal(task.cause_id)
            until = goal.deadline_at if goal else None
        rules = await self._store.list_rules(task.agent, limit=ALL) if question.kind != "choice" else []
        expires = next((policy.expires for _, policy in reversed(policies) if policy.expires), None)
        root = question.root or task.workdir
        decision = await asyncio.to_thread(decide, question, root, policies, rules)  # it reads links, and may take long
        return Ruling(decision, expires, until)

    async def _of_automation(self, automation_id: str) -> Policy:
        automation = await self._store.get_automation(automation_id)
        if automation is None or automation.approvals is None:
            return ASK
        try:
            return Policy.from_data(automation.approvals)
        except InvalidInput:  # another version has written it; ask a person
            return ASK

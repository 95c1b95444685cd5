"""The rule service, which lists, tests and revokes rules, and the policies, which decide on the use of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Unpack, cast

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.domain.agent import Question, QuestionKind
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import RuleRevoked, event
from midwatch.domain.host_name import find_hosts, has_unclear_address
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.requests import is_plain
from midwatch.domain.rule import (
    EFFECTS,
    NO_RULES,
    TOOLS,
    Decision,
    Level,
    Opinion,
    Policy,
    Rule,
    RuleTest,
    RuleTrial,
    Ruling,
    Source,
    WrittenRule,
    list_work_levels,
    work_source,
)
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.domain.tool_name import canonical, find_own_kind, guess_kind
from midwatch.services.authorization import authorize
from midwatch.services.records import require
from midwatch.services.rule_decision import decide_and_look_ahead, decide_by_level, strictest
from midwatch.services.rule_levels import read_sessions

ALL = 1_000_000


class Policies:
    """Decides on the use of tools by the rules of the desk, of the agent, and of the work."""

    def __init__(self, store: Store, desk: Policy = NO_RULES, of_agents: Mapping[str, Policy] | None = None) -> None:
        self._store = store
        self._desk = desk
        self._of_agents = of_agents or {}

    async def __call__(self, task: Task, question: Question) -> Ruling:
        levels, root = await self.list_levels(task.agent, task), question.root or task.workdir
        expires = next((level.policy.expires for level in reversed(levels) if level.policy.expires), None)
        until = None
        if task.cause == "goal" and task.cause_id is not None:
            goal = await self._store.get_goal(task.cause_id)
            until = goal.deadline_at if goal else None
        # it reads links, and may take long
        decision, keeps = await asyncio.to_thread(decide_and_look_ahead, question, root, levels, task.agent)
        return Ruling(decision, expires, until, keeps)

    async def list_levels(self, agent: str, task: Task | None = None, session_key: str | None = None) -> list[Level]:
        """Return all rules that hold for an agent, and for its task or session, the highest level first."""
        stored = tuple(await self._store.list_rules(agent, limit=ALL))
        levels = [Level("desk", self._desk), Level("agent", self._of_agents.get(agent, NO_RULES), stored)]
        for key, approvals in await read_sessions(self._store, task.session_key if task else session_key):
            levels += [level._replace(name=key) for level in list_work_levels("session", approvals)]
        if task is not None:
            levels += list_work_levels(work_source(task), task.approvals)
        return levels

    def list_written(self) -> list[WrittenRule]:
        """Return the rules of the settings: those of the desk first, then those of each agent."""
        policies: list[tuple[Source, str | None, Policy]] = [("desk", None, self._desk)]
        policies += [("agent", name, policy) for name, policy in self._of_agents.items()]
        written = []
        for source, agent, policy in policies:
            for effect in reversed(EFFECTS):
                for pattern in policy.patterns(effect):
                    text = f"{effect} {pattern.words()}"
                    written.append(WrittenRule(source=source, of=agent, effect=effect, text=text, **pattern.data()))
            if policy.default is not None:
                text = f"default: {policy.default}"
                written.append(WrittenRule(source=source, of=agent, effect=policy.default, text=text))
        return written


class Rules:
    """Service: the rules of the settings, and those that were created by answers with "always"."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        policies: Policies | None = None,
        default_agent: str = "demo",
        find_terms: Callable[[str], Awaitable[object | None]] | None = None,
    ) -> None:
        """Build the service. `find_terms` returns None for an agent that does not exist."""
        self._store = store
        self._clock = clock
        self.policies = policies or Policies(store)
        self._default_agent = default_agent
        self._find_terms = find_terms

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

    def list_written(self, *, actor: AnyActor = None) -> Sequence[WrittenRule]:
        """Return the rules of the settings."""
        authorize(actor, "oversee")
        return self.policies.list_written()

    async def test(self, *, actor: AnyActor = None, **use: Unpack[RuleTest]) -> RuleTrial:
        """Return what the rules would decide on the use of a tool, and what each level says."""
        authorize(actor, "oversee")
        for field, value in use.items():
            if isinstance(value, str) and not is_plain(value):
                raise InvalidInput(f"`{field}` has a NUL or an incomplete character; send plain UTF-8.", field=field)
        task_id, key = use.get("task"), use.get("session")
        task = require(await self._store.get_task(task_id), "task", task_id) if task_id else None
        if key and task is None:
            require(await self._store.get_session(key), "session", key)
        agent = use.get("agent") or (task.agent if task else self._default_agent)
        levels = await self.policies.list_levels(agent, task, key)
        (question, guessed), root = _read_use(use), use.get("workdir") or (task.workdir if task else None)
        decisions = await asyncio.to_thread(decide_by_level, question, root, levels, agent)
        decision = strictest(decisions)
        levels_and_decisions = zip(levels, decisions, strict=True)
        text = _describe(decision)
        if guessed:
            unknown = await asyncio.to_thread(decide_by_level, replace(question, kind="other"), root, levels, agent)
            if strictest(unknown).effect != decision.effect:
                text += f" (if its kind is {question.kind}, as its name suggests)"
        text += await self._warn_of_unknown(agent)
        return RuleTrial(
            effect=decision.effect, text=text, kind=question.kind, source=decision.source, rule=decision.rule,
            by=decision.by,
            levels=tuple(
                Opinion(level.source, level.name, opinion.effect, opinion.rule)
                for level, opinion in levels_and_decisions if opinion.effect
            ),
        )  # fmt: skip

    async def _warn_of_unknown(self, agent: str) -> str:
        """Return a warning if there is no such agent, because a misspelt name has no rules of its own."""
        if self._find_terms is None or await self._find_terms(agent) is not None:
            return ""
        return f" (there is no agent {agent!r}, so no rules of an agent were tested)"


TOLD = {"allow": "allowed", "ask": "a person is asked", "deny": "denied"}
TYPICAL: Mapping[str, str] = {"command": "run_command", "path": "write_file", "host": "fetch_url"}
"""The tool that is tested, if only its command, path or host is named."""


def _describe(decision: Decision) -> str:
    if decision.effect is None:
        return "the tool decides whether it asks, because no rule applies"
    return f"{TOLD[decision.effect]} by a rule of the {decision.source}: {decision.rule}"


def _read_use(use: RuleTest) -> tuple[Question, bool]:
    """Return the question that a tool would ask, and whether its kind is only guessed from the name of the tool."""
    tool = use.get("tool") or next((name for field, name in TYPICAL.items() if use.get(field)), None)
    if not tool and not use.get("kind"):
        raise InvalidInput("nothing is tested; name a tool, a kind, a command, a path or a host.", field="tool")
    known = use.get("kind") or (find_own_kind(tool) if tool else None)
    kind = known or (guess_kind(tool) if tool and "/" not in canonical(tool) else "other")
    if kind not in TOOLS:
        raise InvalidInput(f"{kind!r} is not a kind of tool; the kinds are: {', '.join(TOOLS)}.", field="kind")
    path, host, workdir = use.get("path"), use.get("host"), use.get("workdir")
    if workdir and not workdir.startswith("/"):
        raise InvalidInput("`workdir` must be an absolute path, such as /srv/project.", field="workdir")
    question = Question(
        text="May I?", kind=cast(QuestionKind, kind), tool=tool, command=use.get("command") or None,
        paths=(path,) if path else (), hosts=_read_hosts(host) if host else (),
    )  # fmt: skip
    return question, known is None


def _read_hosts(text: str) -> tuple[str, ...]:
    """Return the host of an address such as `https://example.org/x`, `example.org:80/x` or `example.org`."""
    if (text.count(":") > 1 and "/" not in text) or has_unclear_address(text):
        return (text,)  # an address of IPv6, or one that is not clear
    hosts = tuple(find_hosts(text if "://" in text else f"any://{text.lstrip('/')}"))
    if not hosts:
        raise InvalidInput(f"{text!r} has no host; write a name such as example.org, or an address.", field="host")
    return hosts

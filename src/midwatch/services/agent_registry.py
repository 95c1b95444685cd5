"""The agent registry: the agents of this process, configured or registered, and the agents of other live processes.

Agents may be registered and removed while tasks run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from midwatch.base.errors import BadConfig, Conflict, InvalidInput, UnknownAgent
from midwatch.base.foreign import ContainExit
from midwatch.domain.agent import Agent, AgentCapability, AgentTerms, check_name
from midwatch.domain.changes import Changes, Update
from midwatch.domain.instance import Instance
from midwatch.domain.requests import OnBudget
from midwatch.domain.store import Store

Living = Callable[[], Awaitable[list[Instance]]]
"""A function that returns the live processes."""
PARTS = ("name", "kind", "terms", "description", "capabilities", "open", "describe")
"""The attributes that every agent must have."""


class AgentRegistry:
    """The agents of this process and of other live processes."""

    def __init__(
        self,
        store: Store,
        instance_id: str,
        agents: dict[str, Agent],
        default: str,
        living: Living,
        advice: Callable[[str], str | None] = lambda agent: None,
        on_budget: OnBudget | None = None,
    ) -> None:
        """Build the registry. `on_budget` is for agents without this setting."""
        self.default = default
        self.agents = agents
        self.serving = dict(agents)
        """The agents of this process and those that were unregistered, because their running tasks continue."""
        self.advice = advice
        self._store = store
        self._instance_id = instance_id
        self._living = living
        self._on_budget = on_budget
        self._listeners: list[Callable[[], None]] = []
        self._changing = asyncio.Lock()

    def terms(self, agent: str) -> AgentTerms | None:
        """Return the terms of an agent of this process, or None."""
        return self._complete(self.agents[agent].terms) if agent in self.agents else None

    def _complete(self, terms: AgentTerms) -> AgentTerms:
        if self._on_budget is None or terms.on_budget is not None:
            return terms
        return terms._replace(on_budget=self._on_budget)

    async def terms_of(self, agent: str) -> AgentTerms:
        """Return the terms of an agent in any process, or default terms if no process offers the agent."""
        return await self.terms_or_none(agent) or AgentTerms()

    async def terms_or_none(self, agent: str) -> AgentTerms | None:
        """Return the terms of an agent in any process, or None if no process offers the agent."""
        return self.terms(agent) or await self.find_advertised(agent)

    def local_names(self) -> frozenset[str]:
        """Return the names of the agents of this process."""
        return frozenset(self.agents)

    async def find_advertised(self, agent: str) -> AgentTerms | None:
        """Return the terms of an agent from a live process that offers it, or None."""
        for instance in await self._living():
            if agent in instance.agents:
                return self._complete(AgentTerms(*instance.terms.get(agent, ())))
        return None

    async def live(self) -> frozenset[str]:
        """Return the names of the agents that some live process can run now."""
        return frozenset(name for instance in await self._living() for name in instance.agents)

    async def describe(self, may_receive: Callable[[str], bool]) -> Sequence[dict[str, Any]]:
        """Return the agents of this process and of other live processes as JSON, sorted by name.

        `may_receive` returns whether work may be handed over to an agent.
        """
        live = await self.live()
        known = {
            name: {
                "name": agent.name,
                "kind": agent.kind,
                "why": getattr(agent, "why", None),
                "description": agent.description,
                "capabilities": [asdict(capability) for capability in agent.capabilities],
                "handoffs": may_receive(name),
                "slots": agent.terms.slots,
                "timeout": agent.terms.timeout_seconds,
                "on_crash": agent.terms.on_crash,
                "steerable": agent.terms.steerable,
                "live": name in live,
                "problem": None,
                **_describe(agent),
            }
            for name, agent in self.agents.items()
        }
        for name in live - known.keys():
            known[name] = {"name": name, "live": True, "steerable": (await self.terms_of(name)).steerable}
        return [known[name] for name in sorted(known)]

    # -- register and unregister ---------------------------------------------------------------------------------

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of this process's agents."""
        self._listeners.append(listener)

    async def register(self, agent: Agent) -> None:
        """Add an agent to this process. Raise Conflict if another agent of this process has the same name."""
        if missing := [part for part in PARTS if not hasattr(agent, part)]:
            raise InvalidInput(f"an agent must have `{missing[0]}`; see the class `midwatch.Agent`.", field="agent")
        check_name(agent.name)
        if not all(isinstance(capability, AgentCapability) for capability in agent.capabilities):
            raise InvalidInput("`capabilities` must contain only `AgentCapability` objects.", field="capabilities")
        async with self._changing:
            if agent.name in self.agents:
                raise Conflict(f"there is an agent {agent.name!r} already; unregister it, or choose another name.")
            for to in hands_to(agent):
                if await self.terms_or_none(to) is None:
                    raise UnknownAgent(to, sorted(self.agents), "Register it first.")
            await self._announce({**self.agents, agent.name: agent})
            self.agents[agent.name] = self.serving[agent.name] = agent
            for listener in self._listeners:
                listener()

    async def unregister(self, name: str) -> None:
        """Remove an agent from this process. Its running tasks continue; its pending tasks wait for another process."""
        async with self._changing:
            if name not in self.agents:
                raise UnknownAgent(name, sorted(self.agents), "Only agents of this process can be unregistered.")
            await self._announce({other: agent for other, agent in self.agents.items() if other != name})
            del self.agents[name]
            for listener in self._listeners:
                listener()

    async def _announce(self, agents: Mapping[str, Agent]) -> None:
        """Write to the store which agents this process offers, so that other processes know them."""
        if not self._listeners:
            raise Conflict("this desk was opened with `work=False` and runs no tasks; open it without `work=False`.")
        update = Update("instance", self._instance_id, describe_offer(agents))
        with suppress(Conflict):  # this process was declared dead; it publishes its agents when it registers again
            await self._store.apply(Changes(updates=(update,)))


def hands_to(agent: Agent) -> Mapping[str, str]:
    """Return the agents to which `agent` may hand work over, each with the name of the option that lists it."""
    targets: Mapping[str, str] = getattr(agent, "hands_to", {})
    return targets


def check_targets(agents: Mapping[str, Agent]) -> None:
    """Raise BadConfig for an agent that may hand work over to itself or to an unknown agent."""
    for name, agent in agents.items():
        for to, option in hands_to(agent).items():
            if to == name:
                raise BadConfig(f"agents.{name}.{option}: an agent cannot hand over to itself; name another agent.")
            if to not in agents:
                other_names = ", ".join(sorted(agents.keys() - {name})) or "none"
                raise BadConfig(
                    f"agents.{name}.{option}: there is no agent {to!r}; correct the name, or add [agents.{to}]. "
                    f"Other agents: {other_names}."
                )


def _describe(agent: Agent) -> Mapping[str, Any]:
    with ContainExit(f"agent {agent.name}"):
        return agent.describe()


def describe_offer(agents: Mapping[str, Agent]) -> dict[str, Any]:
    """Return the fields of the record of a process that list the agents it offers, and their terms."""
    return {"agents": tuple(sorted(agents)), "terms": {name: tuple(agent.terms) for name, agent in agents.items()}}

"""Claiming: the request of a process that claims tasks, and how free slots are shared among actors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar


class Claimable(Protocol):
    """The fields of a task that decide who gets a slot."""

    @property
    def agent(self) -> str:
        """Return the name of the task's agent."""

    @property
    def actor(self) -> str:
        """Return the actor that the task's slot is counted for."""


T = TypeVar("T", bound=Claimable)


class Shares(NamedTuple):
    """The use of a process's slots, by agent and actor. A task without a creator has the actor ''."""

    held: Mapping[tuple[str, str], int] = MappingProxyType({})
    """The number of slots in use now."""
    started: Mapping[tuple[str, str], int] = MappingProxyType({})
    """The number of the actor's latest start with the agent; the process numbers all its starts."""
    spare: int = 0
    """The number of free slots that the process has in addition to the requested slots."""
    most: int | None = None
    """The most slots that one actor may use, even if no other actor waits; None means no such limit."""


class ClaimRequest(NamedTuple):
    """A request for tasks: at most `free` tasks in all, and for each agent at most its number in `agents`."""

    owner: str
    host: str
    free: int
    agents: Mapping[str, int]
    own_only: bool = False
    leave: frozenset[str] = frozenset()
    """Agents that another live process serves: for them, only tasks that `owner` submitted are claimed."""
    shares: Shares = Shares()


class FreeSlots:
    """The slots that are still free while a claim takes one task after the other.

    This class decides which task gets the next slot.
    """

    def __init__(self, request: ClaimRequest) -> None:
        self._free = request.free
        self._free_by_agent = dict(request.agents)
        self._shares = request.shares
        self._used = Counter(request.shares.held)

    def agents(self) -> list[str]:
        """Return the agents that have a free slot."""
        return [agent for agent, free in self._free_by_agent.items() if free > 0] if self._free > 0 else []

    def agents_with_last_slot(self) -> list[str]:
        """Return the agents that have one free slot left while other slots are in use.

        Goals leave this last slot to other work.
        """
        free = self._free_by_agent
        if self._slots(None) == 1 and any(self._used.values()):
            return list(free)
        return [agent for agent in free if free[agent] == 1 and count_slots(self._used, agent=agent)]

    def take(self, task: Claimable) -> None:
        """Use a slot for a task."""
        self._free -= 1
        self._free_by_agent[task.agent] -= 1
        self._used[task.agent, task.actor] += 1

    def full(self, actor: str) -> bool:
        """Return whether the actor may not have another slot, even if nobody else waits."""
        return self._shares.most is not None and count_slots(self._used, actor=actor) >= self._shares.most

    def scarce(self, agent: str | None, actors: int) -> bool:
        """Return whether the agent has at most one free slot for each waiting actor.

        If `agent` is None, the slots of the whole process are compared.
        """
        return self._slots(agent) <= actors

    def choose_fairest(self, heads: Sequence[T]) -> T | None:
        """Choose the task to claim next.

        `heads` has the first task of each pair of actor and agent, in the order of claims.
        """
        heads = [task for task in heads if self._slots(task.agent) > 0 and not self.full(task.actor)]
        if self._free <= 0 or not heads:
            return None
        agents = (None, *self._free_by_agent)
        scarce = {agent for agent in agents if self.scarce(agent, self._count_waiting(agent, heads))}
        if None not in scarce:
            heads = [task for task in heads if task.agent == heads[0].agent]

        def place(task: Claimable) -> list[tuple[bool, int]]:
            return [self._place(agent, task.actor) if agent in scarce else (False, 0) for agent in (None, task.agent)]

        return min(heads, key=place)

    def _slots(self, agent: str | None) -> int:
        return self._free + self._shares.spare if agent is None else self._free_by_agent.get(agent, 0)

    def _count_waiting(self, agent: str | None, heads: Sequence[Claimable]) -> int:
        """Return the number of actors who wait and have no slot of the agent.

        If `agent` is None, count the actors who have no slot at all.
        """
        waiting = {task.actor for task in heads if agent in (None, task.agent)}
        return sum(1 for actor in waiting if not count_slots(self._used, agent=agent, actor=actor))

    def _place(self, agent: str | None, actor: str) -> tuple[bool, int]:
        """Return a key that sorts waiting actors; the lowest key gets the next slot.

        Actors without a slot come first. Among them, the actor whose last start is the longest ago is the first.
        """
        if count_slots(self._used, agent=agent, actor=actor):
            return True, 0
        starts = (
            start for (starter, who), start in self._shares.started.items() if who == actor and agent in (None, starter)
        )
        return False, max(starts, default=0)


def count_slots(held: Mapping[tuple[str, str], int], *, agent: str | None = None, actor: str | None = None) -> int:
    """Count the slots in use: of an agent, of an actor, or of an agent and an actor together."""
    return sum(
        count
        for (holder_agent, holder), count in held.items()
        if (agent is None or holder_agent == agent) and (actor is None or holder == actor)
    )

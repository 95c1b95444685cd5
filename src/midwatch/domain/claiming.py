"""Claiming: what a process asks for when it takes tasks, and how free slots are shared among actors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar


class Claimable(Protocol):
    """A task, as far as sharing slots is concerned."""

    @property
    def agent(self) -> str:
        """Return its agent."""

    @property
    def actor(self) -> str:
        """Return its actor."""


T = TypeVar("T", bound=Claimable)


class Shares(NamedTuple):
    """Who has the slots of a process, by agent and actor; work nobody asked for by name is the actor ''."""

    held: Mapping[tuple[str, str], int] = MappingProxyType({})
    """How many now."""
    started: Mapping[tuple[str, str], int] = MappingProxyType({})
    """Which start was the latest, in a count of all starts."""
    spare: int = 0
    """Slots that are free besides those that are asked for."""
    most: int | None = None
    """How many an actor may have, whoever else waits."""


class ClaimRequest(NamedTuple):
    """What a process can take now: `free` slots in all, and per agent."""

    owner: str
    host: str
    free: int
    agents: Mapping[str, int]
    own_only: bool = False
    leave: frozenset[str] = frozenset()
    """Agents another live process serves: of these only what `owner` itself submitted is taken."""
    shares: Shares = Shares()


class Room:
    """What is left of a claim's slots while it takes one task after the other, and whose turn it is."""

    def __init__(self, request: ClaimRequest) -> None:
        self._free = request.free
        self._left = dict(request.agents)
        self._shares = request.shares
        self._held = Counter(request.shares.held)

    def agents(self) -> list[str]:
        """Return those a task could be taken of."""
        return [agent for agent, left in self._left.items() if left > 0] if self._free > 0 else []

    def last(self) -> list[str]:
        """Return agents with one slot left of several; a goal leaves it to other work."""
        held, left = sum(self._held.values()), self._slots(None)
        if left == 1 and held:
            return list(self._left)
        return [agent for agent, left in self._left.items() if left == 1 and sum_held(self._held, agent=agent)]

    def take(self, task: Claimable) -> None:
        """Use a slot."""
        self._free -= 1
        self._left[task.agent] -= 1
        self._held[task.agent, task.actor] += 1

    def full(self, actor: str) -> bool:
        """Return whether the actor may have no more, whoever else waits."""
        return self._shares.most is not None and sum_held(self._held, actor=actor) >= self._shares.most

    def scarce(self, agent: str | None, actors: int) -> bool:
        """Return whether an agent, or the process, has no more free slots than actors who wait."""
        return self._slots(agent) <= actors

    def fairest(self, heads: Sequence[T]) -> T | None:
        """Choose which of the first tasks of each actor and agent, in claim order, is taken now."""
        heads = [task for task in heads if self._slots(task.agent) > 0 and not self.full(task.actor)]
        if self._free <= 0 or not heads:
            return None
        kept = {agent for agent in (None, *self._left) if self.scarce(agent, self._without(agent, heads))}
        if None not in kept:
            heads = [task for task in heads if task.agent == heads[0].agent]

        def place(task: Claimable) -> list[tuple[bool, int]]:
            return [self._turn(agent, task.actor) if agent in kept else (False, 0) for agent in (None, task.agent)]

        return min(heads, key=place)

    def _slots(self, agent: str | None) -> int:
        return self._free + self._shares.spare if agent is None else self._left.get(agent, 0)

    def _without(self, agent: str | None, heads: Sequence[Claimable]) -> int:
        """Return how many actors wait and have no slot of the agent, or none at all."""
        waiting = {task.actor for task in heads if agent in (None, task.agent)}
        return sum(1 for actor in waiting if not sum_held(self._held, agent=agent, actor=actor))

    def _turn(self, agent: str | None, actor: str) -> tuple[bool, int]:
        """Return the place of an actor who waits: first those without a slot, by the time of their last start."""
        if sum_held(self._held, agent=agent, actor=actor):
            return True, 0
        starts = (
            start for (starter, who), start in self._shares.started.items() if who == actor and agent in (None, starter)
        )
        return False, max(starts, default=0)


def sum_held(held: Mapping[tuple[str, str], int], *, agent: str | None = None, actor: str | None = None) -> int:
    """Count the slots in use by an agent, by an actor, or by both together."""
    return sum(
        count
        for (holder_agent, holder), count in held.items()
        if (agent is None or holder_agent == agent) and (actor is None or holder == actor)
    )

"""Slots: how many turns may run at once in this process, in all and per agent, and how actors share them.

Free slots are given in claim order, but one is kept for each actor who waits and has none, of the process and of each
agent; where they are too few, for those who had one longest ago. What is kept is for somebody who can use it now: an
actor alone on the desk has every slot, none stays empty, and nobody's one task waits behind another's five hundred.
Only goals, which would use whatever there is for days, leave the last slot of several to everything else.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from midwatch.task import ClaimRequest, Shares, Task

REMEMBERED = 1000
"""Pairs of agent and actor whose latest start is known."""


class Waiting(NamedTuple):
    """A turn that wants its slot back."""

    agent: str
    actor: str
    future: asyncio.Future[None]


class Slots:
    """Counts turns. A turn that waits for a person gives its slot back and takes one again later."""

    def __init__(self, total: int, per_agent: Mapping[str, int], per_actor: int | None = None) -> None:
        self.total = total
        self._per_agent = dict(per_agent)
        self._offered = frozenset(per_agent)
        self._per_actor = per_actor
        self._used: Counter[str] = Counter()
        self._in_use = 0
        self._held: Counter[tuple[str, str]] = Counter()
        self._started: dict[tuple[str, str], int] = {}
        self._starts = 0
        self._returning: deque[Waiting] = deque()

    def free(self) -> int:
        """Slots for new tasks. A turn that wants its own back is never kept from one it could use."""
        return max(0, self.total - self._in_use)

    def free_by_agent(self) -> dict[str, int]:
        """Slots for new tasks of each agent."""
        return {agent: self._room(agent) for agent in self._per_agent if agent in self._offered}

    def offer(self, per_agent: Mapping[str, int]) -> None:
        """The agents that new tasks are taken of from now on. What runs of others may still have its slot back."""
        self._offered = frozenset(per_agent)
        self._per_agent |= per_agent

    def shares(self, asked: int) -> Shares:
        """Who has them now, for a claim that asks for some of the free ones."""
        return Shares(dict(self._held), dict(self._started), self.free() - asked, self._per_actor)

    def take(self, agent: str, actor: str = "") -> None:
        """Use one."""
        pair = (agent, actor)
        self._in_use += 1
        self._used[agent] += 1
        self._held[pair] += 1
        self._starts += 1
        self._started.pop(pair, None)
        self._started[pair] = self._starts
        if len(self._started) > REMEMBERED:
            del self._started[next(iter(self._started))]

    def give(self, agent: str, actor: str = "") -> None:
        """Give one back, to a turn that waits for it if there is one."""
        pair = (agent, actor)
        self._in_use -= 1
        self._used[agent] -= 1
        self._held[pair] -= 1
        if not self._held[pair]:
            del self._held[pair]
        for waiting in list(self._returning):
            if not waiting.future.done() and self._fits(waiting.agent, waiting.actor):
                self._returning.remove(waiting)
                self.take(waiting.agent, waiting.actor)
                waiting.future.set_result(None)

    async def take_back(self, agent: str, actor: str = "") -> None:
        """Wait for a slot and use it; before any new task."""
        if self._fits(agent, actor):
            self.take(agent, actor)
            return
        waiting = Waiting(agent, actor, asyncio.get_running_loop().create_future())
        self._returning.append(waiting)
        try:
            await waiting.future
        except asyncio.CancelledError:
            if waiting in self._returning:
                self._returning.remove(waiting)
            else:  # it was given one in the same moment
                self.give(agent, actor)
            raise

    def _fits(self, agent: str, actor: str) -> bool:
        if self._per_actor is not None and _sum(self._held, actor=actor) >= self._per_actor:
            return False
        return self._in_use < self.total and self._room(agent) > 0

    def _room(self, agent: str) -> int:
        return max(0, self._per_agent.get(agent, 0) - self._used[agent])


class Room:
    """What is left of a claim's slots while it takes one task after the other, and whose turn it is."""

    def __init__(self, request: ClaimRequest) -> None:
        self._free = request.free
        self._left = dict(request.agents)
        self._shares = request.shares
        self._held = Counter(request.shares.held)

    def agents(self) -> list[str]:
        """Those a task could be taken of."""
        return [agent for agent, left in self._left.items() if left > 0] if self._free > 0 else []

    def last(self) -> list[str]:
        """Agents that have one slot left of several; a goal leaves it to other work."""
        held, left = sum(self._held.values()), self._slots(None)
        if left == 1 and held:
            return list(self._left)
        return [agent for agent, left in self._left.items() if left == 1 and _sum(self._held, agent=agent)]

    def take(self, task: Task) -> None:
        """Use a slot."""
        self._free -= 1
        self._left[task.agent] -= 1
        self._held[task.agent, task.actor] += 1

    def full(self, actor: str) -> bool:
        """Whether the actor may have no more, whoever else waits."""
        return self._shares.most is not None and _sum(self._held, actor=actor) >= self._shares.most

    def scarce(self, agent: str | None, actors: int) -> bool:
        """Whether each of so many actors who wait could want one of the agent's slots, or of all, and none be left."""
        return self._slots(agent) <= actors

    def fairest(self, heads: Sequence[Task]) -> Task | None:
        """Of the first tasks of actors for agents, in claim order, the one that is to be taken now."""
        heads = [task for task in heads if self._slots(task.agent) > 0 and not self.full(task.actor)]
        if self._free <= 0 or not heads:
            return None
        kept = {agent for agent in (None, *self._left) if self.scarce(agent, self._without(agent, heads))}
        if None not in kept:
            heads = [task for task in heads if task.agent == heads[0].agent]

        def place(task: Task) -> list[tuple[bool, int]]:
            return [self._turn(agent, task.actor) if agent in kept else (False, 0) for agent in (None, task.agent)]

        return min(heads, key=place)

    def _slots(self, agent: str | None) -> int:
        return self._free + self._shares.spare if agent is None else self._left.get(agent, 0)

    def _without(self, agent: str | None, heads: Sequence[Task]) -> int:
        """How many actors wait and have no slot of the agent, or none at all."""
        waiting = {task.actor for task in heads if agent in (None, task.agent)}
        return sum(1 for actor in waiting if not _sum(self._held, agent=agent, actor=actor))

    def _turn(self, agent: str | None, actor: str) -> tuple[bool, int]:
        """An actor's place among those who wait: first whoever has none, and of these who had one longest ago."""
        if _sum(self._held, agent=agent, actor=actor):
            return True, 0
        starts = (start for (one, who), start in self._shares.started.items() if who == actor and agent in (None, one))
        return False, max(starts, default=0)


def _sum(held: Mapping[tuple[str, str], int], *, agent: str | None = None, actor: str | None = None) -> int:
    """Slots in use by an agent, by an actor, or by both together."""
    return sum(
        count
        for (one, other), count in held.items()
        if (agent is None or one == agent) and (actor is None or other == actor)
    )

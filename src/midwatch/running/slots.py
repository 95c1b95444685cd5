"""Slots: how many turns may run at once in this process, in all and per agent, and how actors share them.

Free slots are given in claim order, but one is kept for each actor who waits and has none, of the process and of each
agent; where they are too few, for those who had one longest ago. What is kept is for somebody who can use it now: an
actor alone on the desk has every slot, none stays empty, and nobody's one task waits behind another's five hundred.
Only goals, which would use whatever there is for days, leave the last slot of several to everything else.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from midwatch.domain.claiming import Shares, sum_held

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
        if self._per_actor is not None and sum_held(self._held, actor=actor) >= self._per_actor:
            return False
        return self._in_use < self.total and self._room(agent) > 0

    def _room(self, agent: str) -> int:
        return max(0, self._per_agent.get(agent, 0) - self._used[agent])

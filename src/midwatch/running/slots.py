"""Slots: how many turns may run at once in this process, in all and per agent, and how actors share them.

Free slots are given in the order of the claims. But one is reserved for each actor who waits and has none, both in the
process and for each agent. If there are too few, the actor whose last turn is longest ago comes first. A slot is only
reserved for an actor who can use it now, so no slot stays empty: an actor alone on the desk may use all of them, and a
single task never waits behind another actor's five hundred. Goals, which could use every slot for days, leave the last
one to other work.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from midwatch.base.errors import LimitReached
from midwatch.domain.claiming import Shares, count_slots

REMEMBERED = 1000
"""Pairs of agent and actor whose last start is remembered."""


class Waiting(NamedTuple):
    """A turn that wants its slot back."""

    agent: str
    actor: str
    future: asyncio.Future[None]


class Slots:
    """Counts turns. A turn that waits for a person gives its slot back and takes one again later."""

    def __init__(
        self, total: int, per_agent: Mapping[str, int], per_actor: int | None = None, max_paused: int = 1000
    ) -> None:
        self.total = total
        self.freed = asyncio.Event()
        """Set whenever a slot is given back. Whoever takes new tasks waits for it and clears it."""
        self._per_agent = dict(per_agent)
        self._offered = frozenset(per_agent)
        self._per_actor = per_actor
        self._used: Counter[str] = Counter()
        self._in_use = 0
        self._held: Counter[tuple[str, str]] = Counter()
        self._started: dict[tuple[str, str], int] = {}
        self._starts = 0
        self._returning: deque[Waiting] = deque()
        self._paused = 0
        self._max_paused = max_paused

    def free(self) -> int:
        """Return the number of slots for new tasks."""
        return max(0, self.total - self._in_use)

    def free_by_agent(self) -> dict[str, int]:
        """Return the number of slots for new tasks of each agent."""
        return {agent: self._room(agent) for agent in self._per_agent if agent in self._offered}

    def offer(self, per_agent: Mapping[str, int]) -> None:
        """Take new tasks of these agents only from now on. Running turns of others may still take their slot back."""
        self._offered = frozenset(per_agent)
        self._per_agent |= per_agent

    def shares(self, asked: int) -> Shares:
        """Return who has slots now, for a claim that wants some of the free ones."""
        return Shares(dict(self._held), dict(self._started), self.free() - asked, self._per_actor)

    def take(self, agent: str, actor: str = "") -> None:
        """Take a slot."""
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
        """Give a slot back, to a turn that waits for one if there is any."""
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
        self.freed.set()

    def pause(self, agent: str, actor: str = "") -> None:
        """Give a slot back while its turn waits. LimitReached when too many turns wait already."""
        if self._paused >= self._max_paused:
            raise LimitReached(f"{self._max_paused} tasks wait for answers already; answer some first.")
        self._paused += 1
        self.give(agent, actor)

    async def resume(self, agent: str, actor: str = "", *, at_once: bool = False) -> None:
        """Take a slot for a turn that goes on: at once if the turn only has to end, else when one is free."""
        if at_once:
            self.take(agent, actor)
        else:
            await self.take_back(agent, actor)
        self._paused -= 1

    def end_paused(self) -> None:
        """Forget a turn that ended while it waited."""
        self._paused -= 1

    async def take_back(self, agent: str, actor: str = "") -> None:
        """Wait for a slot and take it, before any new task does."""
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
            else:  # it got one in the same moment
                self.give(agent, actor)
            raise

    def _fits(self, agent: str, actor: str) -> bool:
        if self._per_actor is not None and count_slots(self._held, actor=actor) >= self._per_actor:
            return False
        return self._in_use < self.total and self._room(agent) > 0

    def _room(self, agent: str) -> int:
        return max(0, self._per_agent.get(agent, 0) - self._used[agent])

"""Slots: how many turns may run at once in this process, in total and per agent, and how actors share them.

Free slots are assigned in the order of the claims. But one slot is reserved for each actor who waits and has no slot,
both in the process and for each agent. If there are too few slots for all such actors, the actor whose last turn began
longest ago comes first. A slot is reserved only for an actor who can use it now, so no slot stays empty: a single actor
may use all slots, and one task never waits behind five hundred tasks of another actor. Goals could use every slot for
days, so they leave the last slot to other work.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from midwatch.base.errors import LimitReached
from midwatch.domain.claiming import Shares, count_slots

REMEMBERED = 1000
"""For how many pairs of agent and actor the order of their last starts is kept in memory."""


class WaitingTurn(NamedTuple):
    """A paused turn that waits for a slot."""

    agent: str
    actor: str
    future: asyncio.Future[None]


class Slots:
    """The slots of a process. A turn that waits for a person or a handoff has no slot, and takes a slot again later."""

    def __init__(
        self, total: int, per_agent: Mapping[str, int], per_actor: int | None = None, max_paused: int = 1000
    ) -> None:
        self.total = total
        self.freed = asyncio.Event()
        """Set whenever a slot is released. The engine waits for it and clears it."""
        self._per_agent = dict(per_agent)
        self._offered = frozenset(per_agent)
        self._per_actor = per_actor
        self._used: Counter[str] = Counter()
        self._in_use = 0
        self._held: Counter[tuple[str, str]] = Counter()
        self._started: dict[tuple[str, str], int] = {}
        self._starts = 0
        self._returning: deque[WaitingTurn] = deque()
        self._paused = 0
        self._max_paused = max_paused

    def free(self) -> int:
        """Return the number of free slots in the process."""
        return max(0, self.total - self._in_use)

    def free_by_agent(self) -> dict[str, int]:
        """Return the number of free slots of each agent."""
        return {agent: self._room(agent) for agent in self._per_agent if agent in self._offered}

    def offer(self, per_agent: Mapping[str, int]) -> None:
        """Set the agents whose tasks get slots from now on, with the number of slots of each agent.

        Turns of other agents that wait for a person or a handoff may still take a slot again.
        """
        self._offered = frozenset(per_agent)
        self._per_agent |= per_agent

    def shares(self, asked: int) -> Shares:
        """Return which actors use the slots now, for a claim of `asked` tasks."""
        return Shares(dict(self._held), dict(self._started), self.free() - asked, self._per_actor)

    def take(self, agent: str, actor: str = "") -> None:
        """Take a slot for a turn of this agent and actor, even if none is free."""
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
        """Release the slot of a turn, and give it to a paused turn that waits for a slot."""
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
        """Release the slot of a turn that begins to wait; raise LimitReached if too many turns wait already."""
        if self._paused >= self._max_paused:
            raise LimitReached(f"{self._max_paused} tasks wait for people or handoffs already; answer questions first.")
        self._paused += 1
        self.give(agent, actor)

    async def resume(self, agent: str, actor: str = "", *, at_once: bool = False) -> None:
        """Take a slot for a paused turn that continues. Wait until a slot is free, except if `at_once` is True."""
        if at_once:
            self.take(agent, actor)
        else:
            await self.take_back(agent, actor)
        self._paused -= 1

    def end_paused(self) -> None:
        """Subtract a turn that has ended while it was paused from the number of paused turns."""
        self._paused -= 1

    async def take_back(self, agent: str, actor: str = "") -> None:
        """Wait until a slot is free and take it. Turns that wait here get slots before new tasks do."""
        if self._fits(agent, actor):
            self.take(agent, actor)
            return
        waiting = WaitingTurn(agent, actor, asyncio.get_running_loop().create_future())
        self._returning.append(waiting)
        try:
            await waiting.future
        except asyncio.CancelledError:
            if waiting in self._returning:
                self._returning.remove(waiting)
            else:  # the slot was assigned just now
                self.give(agent, actor)
            raise

    def _fits(self, agent: str, actor: str) -> bool:
        if self._per_actor is not None and count_slots(self._held, actor=actor) >= self._per_actor:
            return False
        return self._in_use < self.total and self._room(agent) > 0

    def _room(self, agent: str) -> int:
        return max(0, self._per_agent.get(agent, 0) - self._used[agent])

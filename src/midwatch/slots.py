"""Slots: how many turns may run at once in this process, in all and per agent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping


class Slots:
    """Counts turns. A turn that waits for a person gives its slot back and takes one again later."""

    def __init__(self, total: int, per_agent: Mapping[str, int]) -> None:
        self.total = total
        self._per_agent = dict(per_agent)
        self._used: dict[str, int] = {}
        self._in_use = 0
        self._returning: deque[tuple[str, asyncio.Future[None]]] = deque()

    def free(self) -> int:
        """Slots for new tasks; turns that want theirs back, and could use one, come first."""
        wanted: dict[str, int] = {}
        for agent, future in self._returning:
            if not future.done():
                wanted[agent] = wanted.get(agent, 0) + 1
        usable = sum(min(count, self._room(agent)) for agent, count in wanted.items())
        return max(0, self.total - self._in_use - usable)

    def free_by_agent(self) -> dict[str, int]:
        """Slots for new tasks of each agent."""
        return {agent: self._room(agent) for agent in self._per_agent}

    def take(self, agent: str) -> None:
        """Use one."""
        self._used[agent] = self._used.get(agent, 0) + 1
        self._in_use += 1

    def give(self, agent: str) -> None:
        """Give one back, to a turn that waits for it if there is one."""
        self._used[agent] -= 1
        self._in_use -= 1
        for waiting in list(self._returning):
            name, future = waiting
            if not future.done() and self._room(name) > 0 and self._in_use < self.total:
                self._returning.remove(waiting)
                self.take(name)
                future.set_result(None)
                return

    async def take_back(self, agent: str) -> None:
        """Wait for a slot and use it; before any new task."""
        if self._in_use < self.total and self._room(agent) > 0:
            self.take(agent)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (agent, future)
        self._returning.append(waiting)
        try:
            await future
        except asyncio.CancelledError:
            if waiting in self._returning:
                self._returning.remove(waiting)
            else:  # it was given one in the same moment
                self.give(agent)
            raise

    def _room(self, agent: str) -> int:
        return max(0, self._per_agent.get(agent, 0) - self._used.get(agent, 0))

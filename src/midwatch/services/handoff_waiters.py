"""Who waits for handoffs: hears of their end, and sees to their deadline.

The scheduler ends what is overdue, too, but it does not run where a process does only its own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, StoreError
from midwatch.domain.handoff import Handoff, remaining

PAUSE_SECONDS = 0.5


class HandoffWaiters:
    """Everybody in this process who waits."""

    def __init__(
        self, get: Callable[[str], Awaitable[Handoff]], expire: Callable[[Handoff], Awaitable[None]], clock: Clock
    ) -> None:
        self._get = get
        self._expire = expire
        self._clock = clock
        self._waiting: dict[str, list[asyncio.Future[Handoff]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._changed = False

    async def end(self, handoff_id: str) -> Handoff:
        """The handoff once it has ended."""
        future: asyncio.Future[Handoff] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(handoff_id, []).append(future)
        try:
            found = await self._get(handoff_id)
            while found.open:
                await asyncio.wait({future}, timeout=remaining(found, self._clock.now()))
                found = future.result() if future.done() else await self._in_time(found)
            return found
        finally:
            waiting = self._waiting[handoff_id]
            waiting.remove(future)
            if not waiting:
                del self._waiting[handoff_id]

    async def _in_time(self, found: Handoff) -> Handoff:
        """As it is now; ended when its deadline has passed."""
        try:
            if not remaining(found, self._clock.now()):
                await self._expire(found)
            return await self._get(found.id)
        except Conflict:  # it changed just now
            return await self._get(found.id)
        except StoreError:
            await asyncio.sleep(PAUSE_SECONDS)
            return found

    def heard(self) -> None:
        """Handoffs have changed; some may be waited for."""
        self._changed = True
        if self._waiting and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while self._changed:
            self._changed = False
            for handoff_id in list(self._waiting):
                try:
                    found = await self._get(handoff_id)
                except StoreError:
                    self._changed = True
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                for future in self._waiting.get(handoff_id, ()) if not found.open else ():
                    if not future.done():
                        future.set_result(found)

"""The deadlines of handoffs: whether a handoff is due, and a time limit for the code that prepares it.

A deadline stands still while people are asked about a budget of the handoff's work. The store knows whether it does:
nothing is written when the question opens, and the end of the question moves the deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from midwatch.base.clock import Clock
from midwatch.base.errors import StoreError
from midwatch.domain.handoff import Handoff, HandoffStore, remaining

log = logging.getLogger("midwatch.handoffs")

CHECK_SECONDS = 1.0
"""Seconds between two checks of a handoff whose deadline has passed, but stands still."""


class HandoffDeadlines:
    """Decides when a handoff is due. The scheduler uses the same rule, in the queries of the store."""

    def __init__(self, store: HandoffStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get_patience(self, handoff: Handoff) -> float:
        """Return the seconds until the next check whether the handoff is due."""
        return remaining(handoff, self._clock.now()) or CHECK_SECONDS

    async def find_due(self, handoff: Handoff) -> Handoff | None:
        """Return the handoff as it is stored now if it is due, or None."""
        now = self._clock.now()
        if not handoff.open or remaining(handoff, now):
            return None
        return await self._store.find_due_handoff(handoff.id, now)

    @asynccontextmanager
    async def limit(self, handoff: Handoff, *, stored: bool) -> AsyncIterator[asyncio.Timeout]:
        """Interrupt the `async with` block with TimeoutError when the handoff is due.

        Before a handoff is stored no other code runs, and its deadline does not stand still.
        """
        async with asyncio.timeout(None if stored else remaining(handoff, self._clock.now())) as timeout:
            if not stored:
                yield timeout
                return
            watching = asyncio.get_running_loop().create_task(self._watch(handoff, timeout))
            try:
                yield timeout
            finally:
                watching.cancel()

    async def _watch(self, handoff: Handoff, timeout: asyncio.Timeout) -> None:
        """Let the timeout expire when the handoff is due, or at the last known deadline after an unexpected error."""
        try:
            while not await self._is_over(handoff):
                await asyncio.sleep(self.get_patience(handoff))
                with suppress(StoreError):
                    handoff = await self._store.get_handoff(handoff.id) or handoff
        except Exception:
            log.exception("whether handoff %s is due cannot be read any more", handoff.id)
            await asyncio.sleep(remaining(handoff, self._clock.now()))
        timeout.reschedule(asyncio.get_running_loop().time())

    async def _is_over(self, handoff: Handoff) -> bool:
        """Return whether the time for a handoff is over. Another process may have ended the handoff already."""
        if not handoff.open:
            return not remaining(handoff, self._clock.now())
        with suppress(StoreError):
            return await self.find_due(handoff) is not None
        return False

"""The inbox of a running turn: the messages that people send during the turn, and whether results have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from midwatch.domain.steering import Mode, Steer


class Inbox:
    """The messages that the turn has not used yet, oldest first."""

    def __init__(self, *, results: bool = False) -> None:
        self.may_have_results = results
        """Whether results of background work may wait in the store. If not, the turn need not look."""
        self._steers: list[Steer] = []
        self._taken: set[str] = set()
        self._arrived = asyncio.Event()

    def list(self, *modes: Mode) -> tuple[Steer, ...]:
        """Return the messages with one of these modes. Without modes, return all messages."""
        return tuple(steer for steer in self._steers if not modes or steer.mode in modes)

    def fill(self, queued: Sequence[Steer]) -> None:
        """Replace the messages by `queued`, which was read from the store, without messages that were taken already."""
        earlier_ids = {steer.id for steer in self._steers}
        self._steers = [steer for steer in queued if steer.id not in self._taken]  # `queued` may be outdated
        if any(steer.id not in earlier_ids for steer in self._steers):
            self._arrived.set()

    async def wait(self) -> None:
        """Wait until a new message arrives."""
        self._arrived.clear()
        await self._arrived.wait()

    def take(self, ids: Sequence[str]) -> None:
        """Remove the messages with these ids, because the turn uses them now."""
        self._taken.update(ids)
        self._steers = [steer for steer in self._steers if steer.id not in self._taken]

    def put_back(self, steer: Steer) -> None:
        """Put back a message that was taken but not used."""
        self._taken.discard(steer.id)
        self.fill(sorted((*self._steers, steer), key=lambda queued: queued.number))

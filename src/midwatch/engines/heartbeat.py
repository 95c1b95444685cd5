"""The heartbeat of a process on a shared database, sent from a Python thread until the last agent has ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, StoreError
from midwatch.domain.changes import Fence
from midwatch.domain.instance import DEAD_SECONDS, Beat, Pulse
from midwatch.running.worker import Worker

log = logging.getLogger("midwatch.engine")

BEAT_SECONDS = 2.0
SOUND_SECONDS = 2 * BEAT_SECONDS
"""A process claims no tasks if its last heartbeat is older than this, nor for this time after others thought that it
is dead."""


class Heartbeat:
    """Sends heartbeats to the database in a Python thread, and handles the answers in the event loop."""

    def __init__(
        self,
        pulse: Pulse,
        clock: Clock,
        worker: Worker,
        on_lead: Callable[[], None],
        introduce: Callable[[], Awaitable[None]],
    ) -> None:
        self._pulse = pulse
        self._clock = clock
        self._worker = worker
        self._on_lead = on_lead
        self._introduce = introduce
        self._beat: Beat | None = None
        self._beaten_at = self._sound_from = clock.monotonic()
        self._connected_since: float | None = None
        self._begun = self._number = 0
        self._first_asked: dict[str, int] = {}
        self._bell = threading.Event()
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="midwatch-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the heartbeats. Before this call, the process must add its record to the store."""
        self._beaten_at = self._clock.monotonic()
        self._thread.start()

    async def stop(self) -> None:
        """Stop the heartbeats. If this process is the leader, it stops leading."""
        self._ended = True
        self._bell.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        if self._beat is not None:
            with suppress(StoreError):
                await asyncio.to_thread(self._pulse.resign)
        self._pulse.close()

    def leads(self) -> bool:
        """Return whether this process was the leader at its last heartbeat."""
        return self._beat is not None and self._beat.leads

    def is_connected(self) -> bool:
        """Return whether the last heartbeat reached the database."""
        return self._beat is not None

    def is_sound(self) -> bool:
        """Return whether all other processes know that this process is alive, so that it may claim tasks.

        Otherwise another process could soon rescue the tasks that this process claims now.
        """
        now = self._clock.monotonic()
        return now - self._beaten_at < SOUND_SECONDS and now >= self._sound_from

    def dead(self, owners: Iterable[str]) -> set[str]:
        """Return the owners whose last heartbeat is too old.

        An owner that is checked for the first time may be new. So an owner counts as dead only if it is still missing
        after the next heartbeat of this process. The result is empty if this process itself was disconnected recently.
        """
        before, self._first_asked = self._first_asked, {}
        alive = self._beat.alive if self._beat is not None else frozenset()
        for owner in owners:
            self._first_asked[owner] = before.get(owner, self._begun)
            if owner not in alive and owner not in before:
                self._bell.set()  # send the next heartbeat now
        now, since = self._clock.monotonic(), self._connected_since
        if self._beat is None or since is None or now - since < DEAD_SECONDS or now - self._beaten_at > SOUND_SECONDS:
            return set()
        return {owner for owner, number in self._first_asked.items() if owner not in alive and number < self._number}

    def _run(self) -> None:
        while not self._ended:
            self._bell.clear()
            self._begun += 1
            began = self._clock.monotonic()
            owned = {run.fence for run in list(self._worker.running.values())}
            try:
                beat: Beat | None = self._pulse.beat()
            except StoreError as problem:
                log.warning("the heartbeat of this process failed; trying again: %s", problem)
                beat = None
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._record, beat, owned, self._begun, began)
            self._bell.wait(BEAT_SECONDS)

    def _record(self, beat: Beat | None, owned: set[Fence], number: int, began: float) -> None:
        """Record the answer to a heartbeat, or None if the heartbeat failed.

        `owned` are the attempts that ran here when the heartbeat began. If the database says that this process has lost
        the lease of such an attempt, the attempt is interrupted.
        """
        before = self._beat
        self._beat, self._number = beat, number
        if beat is None:
            self._connected_since = None
            return
        if self._connected_since is None or began - self._beaten_at > DEAD_SECONDS:
            self._connected_since = began
        self._beaten_at = began
        if beat.leads and (before is None or not before.leads or before.alive - beat.alive):
            self._on_lead()
        if not beat.known and not self._ended:
            log.warning("other processes thought that this process is dead; it adds itself to the store again")
            self._sound_from = self._clock.monotonic() + SOUND_SECONDS
            asyncio.ensure_future(self._introduce_again()).add_done_callback(_log_failure)
        for fence in owned - beat.leases:
            run = self._worker.running.get(fence.task_id)
            if run is not None and run.task.attempt == fence.attempt and not run.ended.done():
                run.interrupt("lost")

    async def _introduce_again(self) -> None:
        with suppress(StoreError, Conflict):  # the next heartbeat tries again, or the record still exists
            await self._introduce()


def _log_failure(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (problem := done.exception()):
        log.error("this process could not add itself to the store", exc_info=problem)

"""The heart of a process on a shared database: it beats in a thread of its own until the last agent has ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from midwatch.change import Fence
from midwatch.clock import Clock
from midwatch.engine import DEAD_SECONDS, Beat, Pulse
from midwatch.errors import StoreError
from midwatch.worker import Worker

log = logging.getLogger("midwatch.engine")

BEAT_SECONDS = 2.0


class Heart:
    """Beats, and tells the event loop what each beat found out."""

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
        self._connected_since: float | None = None
        self._ended = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="midwatch-heart", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    async def stop(self) -> None:
        """End, and leave the lead to others."""
        self._ended.set()
        await asyncio.to_thread(self._thread.join)
        with suppress(StoreError):
            await asyncio.to_thread(self._pulse.resign)
        self._pulse.close()

    def leads(self) -> bool:
        """Whether the last beat found this process in the lead."""
        return self._beat is not None and self._beat.leads

    def dead(self, owners: Iterable[str]) -> set[str]:
        """Those whose heartbeat is too old. Who was cut off itself cannot tell, and says nobody."""
        since = self._connected_since
        if self._beat is None or since is None or self._clock.monotonic() - since < DEAD_SECONDS:
            return set()
        return {owner for owner in owners if owner not in self._beat.alive}

    def _run(self) -> None:
        while True:
            owned = {run.turn.fence for run in list(self._worker.running.values()) if run.turn is not None}
            try:
                beat: Beat | None = self._pulse.beat()
            except StoreError as problem:
                log.warning("no heartbeat: %s", problem)
                beat = None
            with suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(self._beaten, beat, owned)
            if self._ended.wait(BEAT_SECONDS):
                return

    def _beaten(self, beat: Beat | None, owned: set[Fence]) -> None:
        """`owned` is what ran here before the beat: what is not leased any more is somebody else's."""
        led = self.leads()
        self._beat = beat
        if beat is None:
            self._connected_since = None
            return
        self._connected_since = self._connected_since or self._clock.monotonic()
        if beat.leads and not led:
            self._on_lead()
        if not beat.known and not self._ended.is_set():
            log.warning("this process was taken for dead; it makes itself known again")
            again = asyncio.ensure_future(self._introduce())
            again.add_done_callback(lambda done: done.cancelled() or done.exception())
        for fence in owned - beat.leases:
            run = self._worker.running.get(fence.task_id)
            if run is not None and run.task.attempt == fence.attempt:
                self._worker.interrupt(run, "lost")

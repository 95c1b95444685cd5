"""Subscriptions: functions of this process that are called with events.

Each subscription has a name and its own asyncio task. A subscription that follows the log loses no events, because the
log is its queue; if it is durable, it continues after a restart. A live subscription has a limited queue; events that
do not fit into the queue are dropped and counted. A slow or broken subscription does not affect other subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any

from midwatch.base.clock import Clock
from midwatch.base.errors import InvalidInput, StoreError, StoreUnavailable
from midwatch.base.foreign import ContainExit
from midwatch.domain.event import EVERYTHING, Event, EventFilter, EventLog, Gap
from midwatch.domain.event import event as new_event
from midwatch.live.bus import Bus

log = logging.getLogger("midwatch.subscriptions")

Handler = Callable[[Event], Awaitable[object]]

HANDLER_SECONDS = 60.0
MOST_WAITING = 1000
PAUSE_SECONDS = 1.0
"""The pause before a subscription continues after an error of the store."""
SAVE_SECONDS = 0.05
"""How often the position of a durable subscription is saved."""
STOP_SECONDS = 5.0
"""How many seconds a cancelled handler has until it must have ended."""


class _Limit:
    """The timeout of a handler.

    One timer serves many calls, because a new timer for each call would cost more than most handlers do.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def call(self, handler: Handler, event: Event) -> None:
        """Call the handler; raise TimeoutError if it took too long."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._until = loop.time() + self._seconds
        if self._timer is None and task is not None:
            self._timer = loop.call_at(self._until, self._look, task, loop)
        try:
            await handler(event)
        except asyncio.CancelledError:
            if not self._check_expiry():
                raise
        else:
            if not self._check_expiry():
                return
        finally:
            self._until = None
        raise TimeoutError(f"the handler took longer than {self._seconds:g} s")

    def _look(self, task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._until is None:
            return
        if loop.time() >= self._until:
            self._over = True
            task.cancel()
        else:
            self._timer = loop.call_at(self._until, self._look, task, loop)

    def _check_expiry(self) -> bool:
        """Return whether the asyncio task was cancelled by the timer, and by nothing else."""
        over, self._over = self._over, False
        task = asyncio.current_task()
        return over and task is not None and task.uncancel() == 0


class Subscription:
    """A subscription with its counters. A `gap` event tells the handler that events are missing.

    `failed` counts events whose handler raised an error or took too long; these events are not repeated. `dropped`
    counts events that did not fit into the queue of a live subscription, or that were removed from the log before a
    slow subscription had read them.
    """

    def __init__(
        self, name: str, handler: Handler, which: EventFilter, clock: Clock, seconds: float, bus: Bus, pause: float
    ) -> None:
        self._bus = bus
        self._pause = pause
        self.name = name
        self.which = which
        self.received = 0
        self.handled = 0
        self.failed = 0
        self.dropped = 0
        self._handler = handler
        self._clock = clock
        self._limit = _Limit(seconds)
        self._contain_exit = ContainExit(f"subscription {name}")
        self._logged_at = -PAUSE_SECONDS

    @property
    def lag(self) -> int:
        """Return how many events wait to be handled."""
        return 0

    async def call_handler(self, event: Event) -> None:
        """Call the handler with an event; errors of the handler are counted and logged."""
        try:
            with self._contain_exit:
                await self._limit.call(self._handler, event)
            self.handled += 1
        except StoreUnavailable:
            raise
        except Exception as problem:
            self.failed += 1
            now = self._clock.monotonic()
            if now - self._logged_at >= PAUSE_SECONDS:  # not a line for each of many events
                self._logged_at = now
                log.warning(
                    "subscription %s failed at event %s; failures so far: %d", self.name, event.kind, self.failed,
                    exc_info=problem,
                )  # fmt: skip

    async def finish(self) -> None:
        """Save the position of the last handled event, if the subscription is durable."""


class _Following(Subscription):
    """A subscription that follows the log, from the event after `position` on."""

    def __init__(self, *args: Any, store: EventLog, position: int, durable: bool) -> None:
        super().__init__(*args)
        self._store = store
        self._position = self._saved_position = position
        self._durable = durable
        self._busy = False
        self._saved_at = 0.0

    @property
    def lag(self) -> int:
        return max(0, self._bus.shown_seq - self._position) if self._busy else 0

    async def run(self, leads: Callable[[], bool]) -> None:
        """Call the handler with all events until the desk is closed."""
        while True:
            try:
                if self._durable:  # another process may have moved the cursor
                    self._position = max(self._position, await self._store.get_cursor(self.name) or 0)
                async with aclosing(self._bus.batches(self._position, self.which)) as batches:
                    if await self._each(batches, leads):
                        return
            except StoreError as problem:
                log.warning("subscription %s waits for the store: %s", self.name, problem)
            except Exception:
                log.exception("subscription %s failed and starts again", self.name)
            self._busy = False
            await asyncio.sleep(self._pause)

    async def _each(self, batches: AsyncGenerator[Sequence[Event], None], leads: Callable[[], bool]) -> bool:
        """Call the handler with each event; return False if this process does not lead any more, True at the end."""
        async for batch in batches:
            self._busy = True
            for event in batch:
                if not leads():
                    return False
                self.received += 1
                await self.call_handler(event)
                self._advance(event)
                if self._durable and self._clock.monotonic() - self._saved_at >= SAVE_SECONDS:
                    await self.save()
            await self.save()
            self._busy = False
        return True

    def _advance(self, event: Event) -> None:
        if event.kind == "gap":
            missed = (event.payload["oldest_seq"] or 0) - 1 - self._position
            self.dropped += max(0, missed)
            self._position += max(0, missed)
        else:
            self._position = event.seq

    async def save(self) -> None:
        """Save the position of a durable subscription."""
        if self._durable and self._position != self._saved_position:
            position = self._position
            await self._store.set_cursor(self.name, position)
            self._saved_position, self._saved_at = position, self._clock.monotonic()

    async def finish(self) -> None:
        with suppress(StoreError):  # some events are delivered again then
            await self.save()


class _Tapping(Subscription):
    """A live subscription: it receives new events, stored or live, while there is space in its queue."""

    def __init__(self, *args: Any, most: int) -> None:
        super().__init__(*args)
        self._most = most
        self._queue: deque[Event] = deque()
        self._missing = 0
        self._news = asyncio.Event()

    @property
    def lag(self) -> int:
        return len(self._queue)

    async def take(self, position: int) -> None:
        """Put new events into the queue, without waiting for the handler."""
        while True:
            try:
                async with aclosing(self._bus.batches(position, self.which, live=True)) as batches:
                    async for batch in batches:
                        for event in batch:
                            position = event.seq or position
                            self._offer(event)
                        self._news.set()
                    return
            except StoreError as problem:
                log.warning("subscription %s waits for the store: %s", self.name, problem)
                await asyncio.sleep(self._pause)

    def _offer(self, event: Event) -> None:
        if event.kind == "gap":  # counted, and reported later with other missing events
            self._missing += event.payload["dropped"] or 1
            return
        self.received += 1
        if len(self._queue) >= self._most:
            self._missing += 1
            return
        self._mark()
        self._queue.append(event)

    def _mark(self) -> None:
        if self._missing:
            self._queue.append(new_event(Gap(dropped=self._missing), self._clock.now()))
            self.dropped, self._missing = self.dropped + self._missing, 0

    async def run(self) -> None:
        """Call the handler with the events of the queue."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue or self._missing:
                if not self._queue:
                    self._mark()
                with suppress(StoreUnavailable):
                    await self.call_handler(self._queue.popleft())


class Subscriptions:
    """All subscriptions of this process."""

    def __init__(
        self,
        store: EventLog,
        bus: Bus,
        clock: Clock,
        *,
        pause_seconds: float = PAUSE_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._pause = pause_seconds
        self._stop_seconds = stop_seconds
        self._subscriptions: dict[str, Subscription] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def list(self) -> list[Subscription]:
        """Return the subscriptions, sorted by name."""
        return [self._subscriptions[name] for name in sorted(self._subscriptions)]

    async def add(
        self,
        name: str,
        handler: Handler,
        which: EventFilter = EVERYTHING,
        *,
        durable: bool = False,
        live: bool = False,
        most: int = MOST_WAITING,
        seconds: float = HANDLER_SECONDS,
        leads: Callable[[], bool] = lambda: True,
    ) -> Subscription:
        """Call `handler` with every event that happens from now on; each call may take `seconds`.

        With `durable`, continue after the last event that a subscription with this name has handled; some events may be
        repeated. With `live`, also pass events that are never stored; if the handler is slow, up to `most` events wait
        in a queue and the others are dropped.
        """
        if not name or name in self._subscriptions:
            raise InvalidInput(f"the name {name!r} is empty or in use; choose another name.", field="name")
        if durable and live:
            raise InvalidInput(
                "live events are not stored, so they cannot be repeated; choose `durable` or `live`.", field="live"
            )
        position = (await self._store.read_log_bounds()).last_seq
        about = (name, handler, which, self._clock, seconds, self._bus, self._pause)
        if live:
            tap = self._subscriptions[name] = _Tapping(*about, most=most)
            self._spawn(name, tap.take(position), tap.run())
            return tap
        if durable:
            position = await self._cursor(name, position)
        follower = self._subscriptions[name] = _Following(*about, store=self._store, position=position, durable=durable)
        self._spawn(name, follower.run(leads))
        return follower

    async def _cursor(self, name: str, position: int) -> int:
        saved = await self._store.get_cursor(name)
        if saved is None:
            await self._store.set_cursor(name, position)
        return position if saved is None else saved

    def _spawn(self, name: str, *loops: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = [asyncio.get_running_loop().create_task(loop) for loop in loops]

    async def remove(self, name: str) -> None:
        """Remove a subscription. If it is durable, it continues when a subscription with this name is added again."""
        if name not in self._subscriptions:
            return
        tasks = self._tasks.pop(name)
        for task in tasks:
            task.cancel()
        _, running = await asyncio.wait(tasks, timeout=self._stop_seconds)
        if running:
            log.warning("subscription %s does not end: its handler ignores the cancellation", name)
        await self._subscriptions.pop(name).finish()

    async def stop(self) -> None:
        """Remove all subscriptions. A second call does nothing."""
        await asyncio.gather(*(self.remove(name) for name in list(self._subscriptions)))

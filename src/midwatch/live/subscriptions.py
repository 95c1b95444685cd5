"""Subscriptions: functions of this process that are called with events.

Each subscription has a name and its own asyncio task. A subscription that follows the log loses no events, because the
log is its queue; if it is durable, it continues after a restart. A live subscription has a limited queue; events that
do not fit into the queue are dropped and counted. A slow or broken subscription does not affect other subscriptions.
Whatever a handler raises, its subscription goes on with the next event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from math import inf
from typing import Any, NamedTuple

from midwatch.base.clock import Clock
from midwatch.base.errors import InvalidInput, StoreError, StoreUnavailable
from midwatch.base.foreign import ContainExit
from midwatch.domain.event import EVERYTHING, Event, EventFilter, EventLog, Gap
from midwatch.domain.event import event as new_event
from midwatch.live.bus import Bus

log = logging.getLogger("midwatch.subscriptions")

Handler = Callable[[Any], Awaitable[object]]
"""A function that is called with an event or, if it takes batches, with a list of events."""

HANDLER_SECONDS = 60.0
MOST_WAITING = 1000
PAUSE_SECONDS = 1.0
"""The pause before a subscription continues after an error of the store."""
SAVE_SECONDS = 0.05
"""How often the position of a durable subscription is saved."""
STOP_SECONDS = 5.0
"""How many seconds a cancelled handler has until it must have ended."""
REMIND_SECONDS = 60.0
"""How often the log repeats that a subscription waits."""
DONE = "once:{}"
"""The name of the cursor that marks a durable subscription with `once` as done."""

_current: ContextVar[Subscription | None] = ContextVar("subscription", default=None)
"""The subscription that the running code belongs to: its handler, and asyncio tasks that the handler has started."""


class TryAgain(Exception):
    """Raised by a handler of midwatch itself, so that it gets the same events again after a pause.

    What the handler needs cannot be used now: the database, or the file of an event log.
    """


@contextmanager
def try_again() -> Iterator[None]:
    """Raise TryAgain if the database cannot be used in the `with` block."""
    try:
        yield
    except StoreUnavailable as problem:
        raise TryAgain(str(problem)) from problem


class _Place(NamedTuple):
    """What all subscriptions of a process share. `pause` is the pause after an error of the store, in seconds."""

    store: EventLog
    bus: Bus
    clock: Clock
    pause: float


class _Options(NamedTuple):
    """The options of a subscription; see `Subscriptions.add`."""

    durable: bool
    batches: bool
    once: bool
    most: int
    seconds: float
    leads: Callable[[], bool]


class _LoopTask(asyncio.Task[None]):
    """The asyncio task of a subscription. A handler runs in it, so the task cannot be cancelled from inside.

    Only asyncio tasks of the handler can interrupt the handler: a TaskGroup does so when one of its tasks fails, and
    Python 3.11 does not always take this back. `ended` is whether anybody else has cancelled the task.
    """

    owner: Subscription | None = None
    ended = False

    def cancel(self, msg: object = None) -> bool:
        """Cancel the task, unless the handler itself is the caller."""
        if _runs_here(self):
            return False
        self.ended |= _current.get() is not self.owner
        return super().cancel(msg)

    def forget_cancels(self) -> None:
        """Undo the cancels that tasks of the handler have caused."""
        while not self.ended and self.cancelling():
            self.uncancel()


class _Limit:
    """The timeout of a handler.

    One timer serves many calls, because a new timer for each call would cost more than most handlers do.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def call(self, handler: Handler, argument: Any) -> None:
        """Call the handler; raise TimeoutError if it took too long."""
        if self._seconds < inf:
            loop = asyncio.get_running_loop()
            self._until = loop.time() + self._seconds
            if self._timer is None and (task := asyncio.current_task()) is not None:
                self._timer = loop.call_at(self._until, self._look, task, loop)
        try:
            await handler(argument)
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

    def __init__(self, name: str, handler: Handler, which: EventFilter, place: _Place, options: _Options) -> None:
        self._bus = place.bus
        self._pause = place.pause
        self._clock = place.clock
        self.name = name
        self.which = which
        self.received = 0
        self.handled = 0
        self.failed = 0
        self.dropped = 0
        self.leaving = False
        """Whether the subscription is being removed; it gets no further events."""
        self.running = False
        """Whether the handler is running."""
        self.task: _LoopTask | None = None
        """The asyncio task that calls the handler."""
        self._handler = handler
        self._options = options
        self._limit = _Limit(options.seconds)
        self._contain_exit = ContainExit(f"subscription {name}")
        self._logged_at = -PAUSE_SECONDS

    @property
    def lag(self) -> int:
        """Return how many events wait to be handled."""
        return 0

    async def call_handler(self, events: Sequence[Event]) -> None:
        """Call the handler with one event, or with all events of a batch. Its errors are counted and logged.

        Only two things are raised: TryAgain, after which the same events are passed again, and the cancellation of the
        subscription.
        """
        self.running = True
        try:
            with self._contain_exit:
                await self._limit.call(self._handler, events if self._options.batches else events[0])
            self.handled += len(events)
        except TryAgain:
            raise
        except BaseException as problem:
            task = self.task
            if task is None or not _runs_here(task):  # the event loop is closed, and this coroutine with it
                raise
            if task.ended:
                raise asyncio.CancelledError from problem
            self._count_failure(events, problem)
        finally:
            self.running = False
            if self.task is not None:
                self.task.forget_cancels()
        if self._options.once:
            self.leaving = True

    def _count_failure(self, events: Sequence[Event], problem: BaseException) -> None:
        self.failed += len(events)
        now = self._clock.monotonic()
        if now - self._logged_at >= PAUSE_SECONDS:  # not a line for each of many events
            self._logged_at = now
            log.warning(
                "subscription %s failed at event %s; failures so far: %d", self.name, events[0].kind, self.failed,
                exc_info=problem,
            )  # fmt: skip

    async def finish(self) -> None:
        """Save the position of the last handled event, if the subscription is durable."""


def _runs_here(task: asyncio.Task[Any]) -> bool:
    """Return whether `task` is the running asyncio task."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


class _Following(Subscription):
    """A subscription that follows the log, from the event after `position` on."""

    def __init__(self, *args: Any, store: EventLog, position: int) -> None:
        super().__init__(*args)
        self._store = store
        self._position = self._saved_position = position
        self._busy = False
        self._saved_at = 0.0
        self._reminded_at = -REMIND_SECONDS

    @property
    def lag(self) -> int:
        return max(0, self._bus.shown_seq - self._position) if self._busy else 0

    async def run(self) -> None:
        """Call the handler with all events until the desk is closed, or until the handler needs no more events."""
        _current.set(self)
        while True:
            if await self._follow():
                return
            await asyncio.sleep(self._pause)

    async def _follow(self) -> bool:
        """Call the handler with all events; return whether the subscription has ended, and False after an error."""
        try:
            if self._options.durable:  # another process may have moved the cursor
                self._position = max(self._position, await self._store.get_cursor(self.name) or 0)
            if not self.leaving:
                async with aclosing(self._bus.batches(self._position, self.which)) as batches:
                    if not await self._each(batches):
                        return False
            await self.save()
            return True
        except (StoreError, TryAgain) as problem:
            self._report_wait(problem)
        except Exception:
            log.exception("subscription %s failed and starts again", self.name)
        return False

    def _report_wait(self, problem: Exception) -> None:
        now = self._clock.monotonic()
        if now - self._reminded_at >= REMIND_SECONDS:
            self._reminded_at = now
            log.warning("subscription %s waits and tries again: %s", self.name, problem)

    async def _each(self, batches: AsyncGenerator[Sequence[Event], None]) -> bool:
        """Call the handler with each event, until the desk is closed or the handler needs no more events.

        Return False if this process does not lead any more.
        """
        once, leads, durable = self._options.once, self._options.leads, self._options.durable
        async for batch in batches:
            self._busy = True
            for events in (batch,) if self._options.batches else zip(batch):
                if self.leaving:
                    return True
                if not leads():
                    self._busy = False
                    return False
                if not once or events[0].kind != "gap":
                    self.received += len(events)
                    await self.call_handler(events)
                self._advance(events[-1])
                if durable and self._clock.monotonic() - self._saved_at >= SAVE_SECONDS:
                    await self.save()
            if self.leaving:
                return True
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
        """Save the position of a durable subscription, and whether it has had the only call that it wants."""
        if not self._options.durable or self._position == self._saved_position:
            return
        position = self._position
        if self._options.once and self.handled + self.failed:
            await self._store.set_cursor(DONE.format(self.name), position)
        await self._store.set_cursor(self.name, position)
        self._saved_position, self._saved_at = position, self._clock.monotonic()

    async def finish(self) -> None:
        with suppress(StoreError):  # some events are delivered again then
            await self.save()


class _Tapping(Subscription):
    """A live subscription: it receives new events, stored or live, while there is space in its queue."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
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
        if len(self._queue) >= self._options.most:
            self._missing += 1
            return
        self._mark()
        self._queue.append(event)

    def _mark(self) -> None:
        if self._missing:
            self._queue.append(new_event(Gap(dropped=self._missing), self._clock.now()))
            self.dropped, self._missing = self.dropped + self._missing, 0

    async def run(self) -> None:
        """Call the handler with the events of the queue, until the handler needs no more events."""
        _current.set(self)
        while not self.leaving:
            await self._news.wait()
            self._news.clear()
            while (self._queue or self._missing) and not self.leaving:
                if not self._queue:
                    self._mark()
                event = self._queue.popleft()
                if self._options.once and event.kind == "gap":
                    continue
                with suppress(TryAgain):
                    await self.call_handler((event,))


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
        self._place = _Place(store, bus, clock, pause_seconds)
        self._store = store
        self._stop_seconds = stop_seconds
        self._subscriptions: dict[str, Subscription] = {}
        self._tasks: dict[Subscription, list[_LoopTask]] = {}

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
        once: bool = False,
        batches: bool = False,
        most: int = MOST_WAITING,
        seconds: float = HANDLER_SECONDS,
        leads: Callable[[], bool] = lambda: True,
    ) -> Subscription:
        """Call `handler` with every event that happens from now on; each call may take `seconds`.

        With `durable`, continue after the last event that a subscription with this name has handled; some events may be
        repeated. With `live`, also pass events that are never stored; if the handler is slow, up to `most` events wait
        in a queue and the others are dropped. With `once`, remove the subscription after the first call; if it is also
        durable, a later subscription with this name gets no event. With `batches`, pass lists of events; this is not
        possible with `live` or `once`.
        """
        if (durable or batches) and live:
            raise InvalidInput(
                "live events are not stored, so they cannot be repeated or collected; leave out `live`.", field="live"
            )
        if once and batches:
            raise InvalidInput("`once` passes one event, `batches` passes many; choose one.", field="once")
        about = (name, handler, which, self._place, _Options(durable, batches, once, most, seconds, leads))
        position = (await self._store.read_log_bounds()).last_seq
        if durable:
            position = await self._cursor(name, position)
        called = durable and once and await self._store.get_cursor(DONE.format(name)) is not None
        if not name or name in self._subscriptions:
            raise InvalidInput(f"the name {name!r} is empty or in use; choose another name.", field="name")
        if called:
            return Subscription(*about)
        if live:
            tap = self._subscriptions[name] = _Tapping(*about)
            self._spawn(tap, tap.run(), tap.take(position))
            return tap
        follower = self._subscriptions[name] = _Following(*about, store=self._store, position=position)
        self._spawn(follower, follower.run())
        return follower

    async def _cursor(self, name: str, position: int) -> int:
        saved = await self._store.get_cursor(name)
        if saved is None:
            await self._store.set_cursor(name, position)
        return position if saved is None else saved

    def _spawn(self, subscription: Subscription, *loops: Coroutine[Any, Any, None]) -> None:
        """Start the asyncio tasks of a subscription; the first of them calls the handler."""
        running = asyncio.get_running_loop()
        tasks = self._tasks[subscription] = [_LoopTask(loop, loop=running) for loop in loops]
        subscription.task = tasks[0]
        for task in tasks:
            task.owner = subscription
        tasks[0].add_done_callback(lambda task: self._forget(subscription, task))

    def _forget(self, subscription: Subscription, ended: asyncio.Task[None]) -> None:
        """Forget a subscription whose handler needs no more events."""
        if subscription.leaving and not ended.cancelled():
            for task in self._tasks.pop(subscription, ()):
                task.cancel()
            if self._subscriptions.get(subscription.name) is subscription:
                del self._subscriptions[subscription.name]

    async def remove(self, name: str) -> None:
        """Remove a subscription. If it is durable, it continues when a subscription with this name is added again.

        A handler may remove its own subscription: it is not called again, and its position is saved when it returns.
        """
        subscription = self._subscriptions.get(name)
        if subscription is None:
            return
        subscription.leaving = True
        if subscription.running and _current.get() is subscription:
            del self._subscriptions[name]
            return
        await self._end(subscription)
        if self._subscriptions.get(name) is subscription:
            del self._subscriptions[name]

    async def _end(self, subscription: Subscription) -> None:
        tasks = self._tasks.pop(subscription, [])
        for task in tasks:
            task.cancel()
        if tasks and (await asyncio.wait(tasks, timeout=self._stop_seconds))[1]:
            log.warning("subscription %s does not end: its handler ignores the cancellation", subscription.name)
        await subscription.finish()

    async def stop(self) -> None:
        """Remove all subscriptions. A second call does nothing."""
        await asyncio.gather(*(self.remove(name) for name in list(self._subscriptions)))
        leaving = [each for each in self._tasks if each is not _current.get()]
        await asyncio.gather(*(self._end(each) for each in leaving))

"""The bus: follows the log for all readers in this process, and shows live events to watchers.

Stored events are never lost: a follower that falls behind reads the log. Live events are dropped for a slow watcher,
and the watcher gets a `gap` event instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from midwatch.base.clock import Clock
from midwatch.base.errors import StoreError
from midwatch.domain.event import EVERYTHING, Event, EventFilter, Gap, Page
from midwatch.domain.event import event as new_event
from midwatch.domain.relay import Relay
from midwatch.domain.store import Commit, Store
from midwatch.domain.watch_state import State
from midwatch.live.drafts import ENDS, Draft, Drafts, join_deltas
from midwatch.live.exchange import Exchange
from midwatch.services.waiter import AWAITED, Waiter

log = logging.getLogger("midwatch.bus")

LARGE = 64 * 1024
TEXTS = {
    "task_submitted": "prompt", "turn_start": "user_message", "task_finished": "result", "message_update": "message",
    "tool_exec_end": "result", "task_late": "result",
}  # fmt: skip
"""For each kind of event whose text may be long, the field of the payload that holds the text."""


class Limits(NamedTuple):
    """The limits of a bus: how many events it keeps in memory, and how it reads the log.

    `tail` recent events are kept, so that a fast follower never reads the database. `page` events are read at once, or
    fewer if they have more than `page_text` characters, because each follower that is slow holds a page.
    `live_waiting` live events with `live_text` characters are kept for a slow watcher. At most `readers` followers read
    the log at the same time. If the log cannot be read, the bus tries again after `pause_seconds`.
    """

    tail: int = 4096
    page: int = 500
    page_text: int = 64 * 1024
    live_waiting: int = 1000
    live_text: int = 128 * 1024
    readers: int = 4
    pause_seconds: float = 0.5


LIMITS = Limits()

Take = Callable[[Sequence[Event]], bool]
"""A function that gets new events of a follower that waits for them, and returns whether it has passed them on."""


class InitialView(NamedTuple):
    """The first data for a new watcher: the stored state, the unfinished messages, and the screen of the terminal."""

    state: State
    partial: tuple[Draft, ...]
    screen: str | None


class Bus:
    """Follows the log and shows live events; each process has one bus.

    The store calls `receive_commit` after every commit, in order. A relay exchanges live events with other processes.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        waiter: Waiter | None = None,
        relay: Relay | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """Build the bus. The bus passes every stored event to `waiter`."""
        self._store = store
        self._clock = clock
        self._waiter = waiter or Waiter()
        self._limits = limits
        self._tail: deque[Event] = deque(maxlen=limits.tail)
        self._head = 0
        self._target_seq = 0
        self._news = asyncio.Event()
        self._fresh: list[Event] = []
        """The events that were published since the waiting followers last got some."""
        self._waiting: dict[EventFilter, set[_Follower]] = {}
        """The followers that have read everything and wait, by their filter."""
        self._watchers: set[_Follower] = set()
        self._live = Drafts()
        self._exchange = Exchange(relay, clock, self._live, self) if relay is not None else None
        self._pump: asyncio.Task[None] | None = None
        self._foreign = False
        self._reading = asyncio.Semaphore(limits.readers)

    async def start(self) -> None:
        """Start to follow the log at its end: only events that are stored from now on are published."""
        self._head = self._target_seq = (await self._store.read_log_bounds()).last_seq

    async def stop(self) -> None:
        """Stop the bus; this ends all followers."""
        if self._exchange is not None:
            await self._exchange.stop()
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump
        self._head = -1
        self._wake_readers()
        self._waiter.close()

    # -- events that come in ---------------------------------------------------------------------------------------

    def receive_commit(self, commit: Commit) -> None:
        """Publish the events of a commit. If other processes committed events before it, read these first."""
        if self._head < 0:
            return
        if commit.events and self._pump is None and commit.events[0].seq == self._head + 1:
            self._publish(commit.events)
            return
        if commit.events:
            self._target_seq = max(self._target_seq, commit.events[-1].seq)
        if commit.events or commit.foreign:
            self._foreign = True
            self._start_pump()

    def show(self, live: Event) -> None:
        """Show a live event, which is not stored, to all watchers in this process and in other processes."""
        self.show_from(None, live)
        if self._exchange is not None:
            self._exchange.share(live)

    def _publish(self, events: Sequence[Event]) -> None:
        self._remember(events)
        self._head = events[-1].seq
        for event in events:
            if event.kind in ENDS:
                self._live.forget(event)
                if self._exchange is not None:
                    self._exchange.drop_ended(event)
            if event.kind in AWAITED:
                self._waiter.notify(event)
        if self._exchange is not None:
            self._exchange.show_waiting()
        self._announce_head()
        if not self._fresh:  # not at once: the callers whose commit this is come first
            asyncio.get_running_loop().call_soon(self._deliver)
        self._fresh.extend(events)

    def _remember(self, events: Sequence[Event]) -> None:
        """Keep recent events in memory, in the tail.

        The tail must have no holes: if a pruned log has a hole before an event, the earlier events are dropped.
        """
        whole = events[-1].seq - events[0].seq + 1 == len(events)
        if whole and (not self._tail or events[0].seq == self._tail[-1].seq + 1):
            self._tail.extend(events)
        else:
            for event in events:
                if self._tail and event.seq != self._tail[-1].seq + 1:
                    self._tail.clear()
                self._tail.append(event)
        if any(event.kind in TEXTS and _is_large(event) for event in events):
            self._tail.clear()  # long texts must not fill the memory; followers read them from the log

    def _deliver(self) -> None:
        """Pass new events to the followers that wait. Only a follower that has to do something more is woken.

        The events are filtered once for all followers with the same filter, and these get the same list.
        """
        fresh, self._fresh = self._fresh, []
        before, last = fresh[0].seq - 1, fresh[-1].seq
        whole = last - before == len(fresh)
        for which, followers in self._waiting.items():
            found = [event for event in fresh if which.matches(event)]
            for follower in followers:
                if follower.position >= last or follower.woken:
                    continue
                if whole and follower.position == before and (not found or follower.pass_on(found)):
                    follower.position = last
                else:
                    follower.wake()

    def _wake_readers(self) -> None:
        self._announce_head()
        for followers in self._waiting.values():
            for follower in followers:
                follower.wake()

    def _announce_head(self) -> None:
        previous, self._news = self._news, asyncio.Event()
        previous.set()

    async def _fetch(self) -> None:
        most = self._limits.page
        while self._foreign or self._head < self._target_seq:
            self._foreign, target_seq = False, self._target_seq
            try:
                page = await self._store.read_events(self._head, EVERYTHING, most)
            except StoreError as problem:
                log.warning("the event log cannot be read, trying again: %s", problem)
                self._foreign = True
                await asyncio.sleep(self._limits.pause_seconds)
                continue
            if page:
                self._publish(page)
                self._foreign = self._foreign or page.next is not None
            else:
                self._head = max(self._head, target_seq)  # the announced events were pruned
                self._tail.clear()
                self._wake_readers()

    def _end_fetch(self, pump: asyncio.Task[None]) -> None:
        self._pump = None
        if not pump.cancelled() and pump.exception() is not None:
            log.error("following the event log failed", exc_info=pump.exception())
        elif (self._foreign or self._head < self._target_seq) and self._head >= 0 and not pump.cancelled():
            self._start_pump()

    def _start_pump(self) -> None:
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._fetch())
            self._pump.add_done_callback(self._end_fetch)

    # -- live events of other processes; see `midwatch.domain.relay.LiveReaders` -------------------------------------

    @property
    def shown_seq(self) -> int:
        return self._head

    @property
    def known_seq(self) -> int:
        return max(self._head, self._target_seq)

    def seek(self, seq: int) -> None:
        if 0 <= self._head < seq:
            self._foreign = True
            self._start_pump()

    def show_from(self, source: str | None, live: Event) -> None:
        self._live.note(live)
        size = sum(len(value) for value in live.payload.values() if isinstance(value, str))
        for watcher in self._watchers:
            if watcher.offer(live, source, size):
                watcher.wake()

    def report_loss(self, source: str, dropped: int) -> None:
        for watcher in self._watchers:
            if source in watcher.sources:
                watcher.waiting.append(new_event(Gap(dropped=dropped), self._clock.now()))
                watcher.wake()

    # -- events for followers and watchers -------------------------------------------------------------------------

    async def follow(
        self, after: int, which: EventFilter = EVERYTHING, *, live: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield all matching events with seq > `after`, then every new event, each once and in order, for ever.

        With `live`, also yield events that are never stored (seq 0). A slow reader may lose some live events; the
        reader then gets a `gap` event.
        """
        async with aclosing(self.batches(after, which, live=live)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def batches(
        self, after: int, which: EventFilter = EVERYTHING, *, live: bool = False, take: Take | None = None
    ) -> AsyncGenerator[list[Event], None]:
        """Yield the events of `follow` in lists; each list has all events that are available at that moment.

        The caller may remove events from a list. While it waits for the next list, new events are first offered to
        `take`. The events that `take` passes on are not yielded.
        """
        with self._watching(which, live, take) as watcher:
            async with aclosing(self._follow(after, watcher)) as batches:
                async for batch in batches:
                    yield batch

    async def watch(
        self,
        which: EventFilter,
        look: Callable[[], Awaitable[State]],
        after: int | None = None,
        take: Take | None = None,
    ) -> AsyncGenerator[list[Any], None]:
        """Yield the state that `look` returns, then every event after this state, stored or live, each once.

        With `after`, first yield the events since `after`. If events were removed before this reader read them, yield a
        `gap` event and then the new state. `take` is used as in `batches`.
        """
        with self._watching(which, True, take) as watcher:
            while self._head >= 0:
                state = await look()
                async with aclosing(self._read_missed(after, state.as_of_seq, which)) as missed:
                    async for batch in missed:
                        yield batch
                await self._reach(state.as_of_seq)
                watcher.take(0)  # the texts below include these events
                yield [InitialView(state, self._live.texts(which), self._live.screen(which.session_key))]
                async with aclosing(self._follow(state.as_of_seq, watcher)) as batches:
                    async for batch in batches:
                        is_gap = batch[0].kind == "gap" and batch[0].payload["oldest_seq"] is not None
                        yield batch
                        if is_gap:
                            break
                after = None

    @contextmanager
    def _watching(self, which: EventFilter, live: bool, take: Take | None) -> Iterator[_Follower]:
        """Build a follower. With `live`, it watches live events until the end of the block."""
        watcher = _Follower(which, take, self._limits)
        if live:
            self._watchers.add(watcher)
            if self._exchange is not None:
                self._exchange.add_filter(which)
        try:
            yield watcher
        finally:
            if watcher in self._watchers:
                self._watchers.discard(watcher)
                if self._exchange is not None:
                    self._exchange.remove_filter(which)

    async def _read_missed(self, after: int | None, upto: int, which: EventFilter) -> AsyncGenerator[list[Event], None]:
        """Yield the stored events after `after` up to `upto`; yield a `gap` event if some of them were removed."""
        if after is None:
            return
        oldest = (await self._store.read_log_bounds()).oldest_seq
        if (0 < after < oldest - 1 and which.task_id is None) or after > upto:
            yield [new_event(Gap(oldest_seq=oldest), self._clock.now())]
            return
        while after is not None and after < upto:
            page = await self._read(after, which)
            if due := [event for event in page if event.seq <= upto]:
                yield due
            after = page.next

    async def _read(self, after: int, which: EventFilter) -> Page:
        """Return a page of the log. Followers that are far behind take turns, so that they delay nobody else."""
        async with self._reading:
            return await self._store.read_events(after, which, self._limits.page, self._limits.page_text)

    async def _reach(self, seq: int) -> None:
        """Wait until this process has published all events up to `seq`."""
        while 0 <= self._head < seq:
            news = self._news
            self._target_seq = max(self._target_seq, seq)
            self._start_pump()
            await news.wait()

    async def _follow(self, after: int, follower: _Follower) -> AsyncGenerator[list[Event], None]:
        follower.position, began = after, False
        while self._head >= 0:
            if not began or not self._covers(follower.position):
                began = True
                oldest, last = await self._store.read_log_bounds()
                if not oldest - 1 <= follower.position <= last:  # pruned, or a log that was restored from a backup
                    yield [new_event(Gap(oldest_seq=oldest), self._clock.now())]
                    follower.position = oldest - 1 if follower.position < oldest else last
            batch, follower.position = await self._next(follower.position, follower.which)
            if follower.waiting:
                batch = list(merge(batch, follower.take(self._clock.now()), key=attrgetter("time")))
            if batch:
                yield batch
            elif follower.position >= self._head:
                await self._wait_for_news(follower)
            if follower.position < self._head:
                await asyncio.sleep(0)  # a follower that is far behind must not stop the loop

    async def _wait_for_news(self, follower: _Follower) -> None:
        """Wait until a follower that has read everything is woken."""
        if self._head < 0:
            return
        same_filter = self._waiting.setdefault(follower.which, set())
        same_filter.add(follower)
        try:
            await follower.wait()
        finally:
            same_filter.discard(follower)
            if not same_filter:
                self._waiting.pop(follower.which, None)

    def _covers(self, position: int) -> bool:
        """Return whether the events after `position` are in memory."""
        return bool(self._tail) and self._tail[0].seq <= position + 1

    async def _next(self, position: int, which: EventFilter) -> tuple[list[Event], int]:
        """Return the next matching events after `position`, and the seq up to which the log was read."""
        if position >= self._head:
            return [], position
        tail, most = self._tail, self._limits.page
        if self._covers(position):
            start = position + 1 - tail[0].seq
            part = list(islice(tail, start, start + most))
            return [event for event in part if which.matches(event)], part[-1].seq
        head = self._head
        page = await self._read(position, which)
        return page, max(head, page[-1].seq if page else position) if page.next is None else page.next


def _is_large(event: Event) -> bool:
    """Return whether the text of an event is too long to be kept in memory."""
    return len(event.payload.get(TEXTS[event.kind]) or "") > LARGE


class _Follower:
    """The place of one reader in the log, and the live events that it has not read yet."""

    def __init__(self, which: EventFilter, take: Take | None, limits: Limits) -> None:
        self.which = which
        self.position = 0
        self.waiting: deque[Event] = deque()
        self.sources: set[str] = set()
        self._take_now = take
        self._most = limits.live_waiting
        self._most_text = limits.live_text
        self._text = 0
        self._dropped = 0
        self._news: asyncio.Future[None] | None = None

    @property
    def woken(self) -> bool:
        """Whether the follower does not wait, or will continue soon."""
        return self._news is None or self._news.done()

    async def wait(self) -> None:
        """Wait for `wake`."""
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def pass_on(self, events: Sequence[Event]) -> bool:
        """Pass on new events without waking the follower; return False if this is not possible."""
        if self._take_now is None or self.waiting:
            return False
        try:
            return self._take_now(events)
        except Exception:  # the follower reads the events itself and gets the error; the others get their events
            return False

    def offer(self, live: Event, source: str | None, size: int) -> bool:
        """Add a live event if it matches the filter; return whether the follower has something new to read.

        `size` is the number of characters of the event. One event of any size fits into an empty queue.
        """
        if not self.which.matches(live):
            return False
        if source is not None:
            self.sources.add(source)
        if len(self.waiting) >= self._most or (self.waiting and self._text + size > self._most_text):
            self._dropped += 1
            return False
        self.waiting.append(live)
        self._text += size
        return True

    def take(self, now: int) -> list[Event]:
        events = join_deltas(self.waiting)
        self.waiting.clear()
        self._text = 0
        if self._dropped:
            events.append(new_event(Gap(dropped=self._dropped), now))
            self._dropped = 0
        return events

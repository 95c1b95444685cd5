"""The bus: follows the log for everybody in this process, and shows live events to whoever watches.

Stored events are never lost: a follower that falls behind reads the log. Live events are dropped for a slow watcher,
and a `gap` event tells it so.
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
from typing import NamedTuple

from midwatch.base.clock import Clock
from midwatch.base.errors import StoreError
from midwatch.domain.event import EVERYTHING, Event, EventFilter, Gap, event
from midwatch.domain.relay import Relay
from midwatch.domain.store import Commit, Store
from midwatch.domain.watch_state import State
from midwatch.live.drafts import ENDS, Drafts, Written, joined
from midwatch.live.exchange import Exchange
from midwatch.services.waiter import Waiter

log = logging.getLogger("midwatch.bus")

LARGE = 64 * 1024
TEXTS = {
    "task_submitted": "prompt", "turn_start": "user_message", "task_finished": "result", "message_update": "message",
    "tool_exec_end": "result", "task_late": "result",
}  # fmt: skip
"""Where an event may hold a long text."""


class Limits(NamedTuple):
    """How much a bus keeps in memory, and how it reads the log."""

    tail: int = 4096
    """Recent events kept, so that followers who keep up never touch the database."""
    page: int = 500
    """Events read at once."""
    live_waiting: int = 1000
    """Live events kept for a watcher that is slow."""
    pause_seconds: float = 0.5
    """Before the log is tried again when it could not be read."""


LIMITS = Limits()


class Shown(NamedTuple):
    """What somebody who begins to watch is shown first: a moment of the store, and what is being written."""

    state: State
    partial: tuple[Written, ...]
    screen: str | None


class Bus:
    """One per process. `heard` is given every commit, in order. By a relay it shows live events of other processes, and
    they those of this one."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        waiter: Waiter | None = None,
        relay: Relay | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """`waiter` is told of every event."""
        self._store = store
        self._clock = clock
        self._waiter = waiter or Waiter()
        self._limits = limits
        self._tail: deque[Event] = deque(maxlen=limits.tail)
        self._head = 0
        self._wanted = 0
        self._news = asyncio.Event()
        self._watchers: set[_Watcher] = set()
        self._live = Drafts()
        self._exchange = Exchange(relay, clock, self._live, self) if relay is not None else None
        self._pump: asyncio.Task[None] | None = None
        self._foreign = False

    async def start(self) -> None:
        """Begin at the end of the log."""
        self._head = self._wanted = (await self._store.read_log_bounds()).last_seq

    async def stop(self) -> None:
        """Let go; followers end."""
        if self._exchange is not None:
            await self._exchange.stop()
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump
        self._head = -1
        self._ring()
        self._waiter.close()

    # -- what comes in -------------------------------------------------------------------------------------------

    def heard(self, commit: Commit) -> None:
        """Pass on what was committed; fetch what another process committed before it."""
        if self._head < 0:
            return
        if commit.events and self._pump is None and commit.events[0].seq == self._head + 1:
            self._publish(commit.events)
            return
        if commit.events:
            self._wanted = max(self._wanted, commit.events[-1].seq)
        if commit.events or commit.foreign:
            self._foreign = True
            self._pump_on()

    def show(self, live: Event) -> None:
        """Show an event that is not stored to those who watch now, here or elsewhere."""
        self.show_from(None, live)
        if self._exchange is not None:
            self._exchange.share(live)

    def _publish(self, events: Sequence[Event]) -> None:
        self._remember(events)
        self._head = events[-1].seq
        for made in events:
            if made.kind in ENDS:
                self._live.forget(made)
                if self._exchange is not None:
                    self._exchange.ended(made)
            self._waiter.note(made)
        if self._exchange is not None:
            self._exchange.reached()
        self._ring()

    def _remember(self, events: Sequence[Event]) -> None:
        """Keep them in the tail, which has no holes; a log that was pruned may have some."""
        whole = events[-1].seq - events[0].seq + 1 == len(events)
        if whole and (not self._tail or events[0].seq == self._tail[-1].seq + 1):
            self._tail.extend(events)
        else:
            for made in events:
                if self._tail and made.seq != self._tail[-1].seq + 1:
                    self._tail.clear()
                self._tail.append(made)
        if any(_large(made) for made in events):
            self._tail.clear()  # a few long texts must not fill the memory; followers read the log for them

    def _ring(self) -> None:
        ringing, self._news = self._news, asyncio.Event()
        ringing.set()

    async def _fetch(self) -> None:
        most = self._limits.page
        while self._foreign or self._head < self._wanted:
            self._foreign, wanted = False, self._wanted
            try:
                page = await self._store.read_events(self._head, EVERYTHING, most)
            except StoreError as problem:
                log.warning("the log cannot be read: %s", problem)
                self._foreign = True
                await asyncio.sleep(self._limits.pause_seconds)
                continue
            if page:
                self._publish(page)
                self._foreign = self._foreign or page.cut or len(page) == most
            else:
                self._head = max(self._head, wanted)  # what it was told of has been pruned
                self._tail.clear()
                self._ring()

    def _fetched(self, pump: asyncio.Task[None]) -> None:
        self._pump = None
        if not pump.cancelled() and pump.exception() is not None:
            log.error("following the log failed", exc_info=pump.exception())
        elif (self._foreign or self._head < self._wanted) and self._head >= 0 and not pump.cancelled():
            self._pump_on()

    def _pump_on(self) -> None:
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._fetch())
            self._pump.add_done_callback(self._fetched)

    # -- what other processes show; see `midwatch.domain.relay.LiveReaders` -------------------------------------------

    @property
    def shown_seq(self) -> int:
        return self._head

    @property
    def known_seq(self) -> int:
        return max(self._head, self._wanted)

    def seek(self, seq: int) -> None:
        if 0 <= self._head < seq:
            self._foreign = True
            self._pump_on()

    def show_from(self, source: str | None, live: Event) -> None:
        self._live.note(live)
        taken = [watcher.offer(live, source) for watcher in self._watchers]
        if any(taken):
            self._ring()

    def lost_from(self, source: str, dropped: int) -> None:
        for watcher in self._watchers:
            if source in watcher.sources:
                watcher.waiting.append(event(Gap(dropped=dropped), self._clock.now()))
        self._ring()

    # -- what goes out -------------------------------------------------------------------------------------------

    async def follow(
        self, after: int, which: EventFilter = EVERYTHING, *, live: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield all matching events with seq > `after`, then every new one, each once and in order, for ever. With
        `live` also those that are never stored (seq 0), which a slow reader may lose: a `gap` event says so."""
        async with aclosing(self.batches(after, which, live=live)) as batches:
            async for batch in batches:
                for made in batch:
                    yield made

    async def batches(
        self, after: int, which: EventFilter = EVERYTHING, *, live: bool = False
    ) -> AsyncGenerator[Sequence[Event], None]:
        """What `follow` gives, as many at a time as there are."""
        with self._watching(which, live) as watcher:
            async with aclosing(self._follow(after, which, watcher)) as found:
                async for batch in found:
                    yield batch

    async def watch(
        self, which: EventFilter, look: Callable[[], Awaitable[State]], after: int | None = None
    ) -> AsyncGenerator[Sequence[Event | Shown], None]:
        """The state `look` finds, then every event after it, live ones too. From `after` on what was missed comes
        first. When events are gone that were not seen, a `gap` and the state again. No gap, no duplicate."""
        with self._watching(which) as watcher:
            while self._head >= 0:
                state = await look()
                async with aclosing(self._missed(after, state.as_of_seq, which)) as missed:
                    async for batch in missed:
                        yield batch
                await self._reach(state.as_of_seq)
                watcher.take(0)  # what it holds is part of the texts shown now
                yield [Shown(state, self._live.texts(which), self._live.screen(which.session_key))]
                async with aclosing(self._follow(state.as_of_seq, which, watcher)) as found:
                    async for batch in found:
                        yield batch
                        if batch[0].kind == "gap" and batch[0].payload["oldest_seq"] is not None:
                            break
                after = None

    @contextmanager
    def _watching(self, which: EventFilter, live: bool = True) -> Iterator[_Watcher]:
        """Somebody who is offered live events for as long as this lasts."""
        watcher = _Watcher(which, self._limits.live_waiting)
        if live:
            self._watchers.add(watcher)
            if self._exchange is not None:
                self._exchange.want(which)
        try:
            yield watcher
        finally:
            if watcher in self._watchers:
                self._watchers.discard(watcher)
                if self._exchange is not None:
                    self._exchange.unwant(which)

    async def _missed(self, after: int | None, upto: int, which: EventFilter) -> AsyncGenerator[list[Event], None]:
        """The stored events between what a reader saw last and a state; a `gap` when some are gone."""
        if after is None:
            return
        oldest = (await self._store.read_log_bounds()).oldest_seq
        if (0 < after < oldest - 1 and which.task_id is None) or after > upto:
            yield [event(Gap(oldest_seq=oldest), self._clock.now())]
            return
        most = self._limits.page
        while after < upto:
            page = await self._store.read_events(after, which, most)
            if due := [made for made in page if made.seq <= upto]:
                yield due
            if len(due) < len(page) or not (page.cut or len(page) == most):
                return
            after = page[-1].seq

    async def _reach(self, seq: int) -> None:
        """Wait until this process has heard of everything up to `seq`."""
        while 0 <= self._head < seq:
            news = self._news
            self._wanted = max(self._wanted, seq)
            self._pump_on()
            await news.wait()

    async def _follow(self, after: int, which: EventFilter, watcher: _Watcher) -> AsyncGenerator[list[Event], None]:
        position, began = after, False
        while self._head >= 0:
            news = self._news
            if not began or not self._covers(position):
                began = True
                oldest, last = await self._store.read_log_bounds()
                if not oldest - 1 <= position <= last:  # pruned, or a log that was restored from a backup
                    yield [event(Gap(oldest_seq=oldest), self._clock.now())]
                    position = oldest - 1 if position < oldest else last
            found, position = await self._next(position, which)
            if watcher.waiting:
                found = list(merge(found, watcher.take(self._clock.now()), key=attrgetter("time")))
            if found:
                yield found
            elif position >= self._head:
                await news.wait()

    def _covers(self, position: int) -> bool:
        """Whether what follows `position` is in memory."""
        return bool(self._tail) and self._tail[0].seq <= position + 1

    async def _next(self, position: int, which: EventFilter) -> tuple[list[Event], int]:
        """The next matching events after `position`, and how far that looked."""
        if position >= self._head:
            return [], position
        tail, most = self._tail, self._limits.page
        if self._covers(position):
            start = position + 1 - tail[0].seq
            part = list(islice(tail, start, start + most))
            return [made for made in part if which.matches(made)], part[-1].seq
        head = self._head
        page = await self._store.read_events(position, which, most)
        more = page.cut or len(page) == most
        return page, page[-1].seq if more else max(head, page[-1].seq if page else position)


def _large(made: Event) -> bool:
    """Whether it holds a text that is too long to be kept in memory."""
    return made.kind in TEXTS and len(made.payload.get(TEXTS[made.kind]) or "") > LARGE


class _Watcher:
    """Live events one follower has not taken yet."""

    def __init__(self, which: EventFilter, most: int) -> None:
        self.waiting: deque[Event] = deque()
        self.sources: set[str] = set()
        """Other processes whose live events it was offered."""
        self._which = which
        self._most = most
        self._dropped = 0

    def offer(self, live: Event, source: str | None) -> bool:
        """Whether there is something new to take."""
        if not self._which.matches(live):
            return False
        if source is not None:
            self.sources.add(source)
        if len(self.waiting) >= self._most:
            self._dropped += 1
            return False
        self.waiting.append(live)
        return True

    def take(self, now: int) -> list[Event]:
        taken = joined(self.waiting)
        self.waiting.clear()
        if self._dropped:
            taken.append(event(Gap(dropped=self._dropped), now))
            self._dropped = 0
        return taken

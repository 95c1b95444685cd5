"""The exchange: sends live events to the watchers in other processes of one desk.

A process with watchers sends their filters to the other processes, and repeats them from time to time. It withdraws a
filter when the watcher ends; the filters of a dead process expire. A live event is sent only to processes with a
matching filter. A process that sends a new filter first gets the unfinished texts so far, so that the pieces that
follow fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from midwatch.base.clock import Clock
from midwatch.domain.event import KINDS, Event, EventFilter, parse_kinds
from midwatch.domain.relay import EVERYBODY, LiveReaders, Relay
from midwatch.live.drafts import Drafts, EndedDrafts, ends, join_deltas

log = logging.getLogger("midwatch.relay")

FILTERS_TOPIC, EVENTS_TOPIC = "wish", "live"
RENEW_SECONDS = 10.0
FILTERS_SECONDS = 35.0
"""Filters that were not repeated for this long have expired."""
MOST_PENDING = 1_000_000
"""How many characters may wait for one process on a slow connection; if there are more, all are dropped."""
MOST_SO_FAR = 4_000_000
LARGE = 250_000
MOST_BATCHES = 1000


class _Peer:
    """Another process that has sent its filters to this process."""

    def __init__(self) -> None:
        self.filters: frozenset[EventFilter] = frozenset()
        self.until = 0.0
        self.fresh = True
        """Whether the next message to this process repeats all unfinished texts from their start."""
        self.pending: list[Event] = []
        self.dropped = 0
        self._size = 0

    def matches(self, live: Event) -> bool:
        return any(which.matches(live) for which in self.filters)

    def add(self, live: Event) -> None:
        """Queue a live event for this process. A screen replaces an older screen of the same session.

        If too many characters wait, all waiting events are dropped.
        """
        if live.kind == "screen_update":
            self.pending = [e for e in self.pending if e.kind != live.kind or e.session_key != live.session_key]
        self._size += _length(live)
        if self.dropped or self._size > MOST_PENDING:
            self.dropped += len(self.pending) + 1
            self.pending.clear()
        else:
            self.pending.append(live)

    def take(self) -> list[Event]:
        events = join_deltas(self.pending)
        self.pending, self.dropped, self._size = [], 0, 0
        return events


class _Batch(NamedTuple):
    """Live events of another process. `seq` was the last stored event that this process knew when it sent them."""

    seq: int
    dropped: int
    events: list[Event]


class Exchange:
    """Exchanges live events with the buses of other processes while watchers need them."""

    def __init__(self, relay: Relay, clock: Clock, live: Drafts, audience: LiveReaders) -> None:
        self._relay = relay
        self._clock = clock
        self._live = live
        self._ended = EndedDrafts()
        self._audience = audience
        self._filters: Counter[EventFilter] = Counter()
        self._changed = asyncio.Event()
        self._peers: dict[str, _Peer] = {}
        self._sources: dict[str, deque[_Batch]] = {}
        """Processes whose live events can be shown here, with batches that wait for stored events."""
        self._online = self._stopped = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        relay.on_connect(self._handle_connect)
        relay.on_loss(self._handle_loss)
        relay.on_message(FILTERS_TOPIC, self._handle_filters)
        relay.on_message(EVENTS_TOPIC, self._handle_events)

    async def stop(self) -> None:
        """Stop the exchange, and tell the other processes that this process has no filters any more."""
        self._stopped = True
        for task in list(self._tasks.values()):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._filters:
            self._filters.clear()
            self._send_filters(EVERYBODY)

    # -- filters of this process -----------------------------------------------------------------------------------

    def add_filter(self, which: EventFilter) -> None:
        """Announce the filter of a new watcher in this process to the other processes."""
        no_live_kinds = which.kinds and not any(
            kind.live and parse_kinds(which.kinds).has(name) for name, kind in KINDS.items()
        )
        if no_live_kinds or self._stopped:
            return
        self._filters[which] += 1
        if self._filters[which] == 1:
            self._relay.open()
            self._announce_soon()

    def remove_filter(self, which: EventFilter) -> None:
        """Withdraw the filter of a watcher that has ended from the other processes."""
        if which in self._filters:
            self._filters[which] -= 1
            if not self._filters[which]:
                del self._filters[which]
                self._announce_soon()

    def _announce_soon(self) -> None:
        self._changed.set()
        self._run("announce", self._announce)

    async def _announce(self) -> None:
        while self._filters:
            self._changed.clear()
            self._send_filters(EVERYBODY)
            await self._relay.flush()
            renewal = self._clock.call_later(RENEW_SECONDS, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                renewal.cancel()
        self._sources.clear()
        self._send_filters(EVERYBODY)

    def _send_filters(self, to: str, *, fresh: bool = False, ask: bool = False) -> None:
        """Send the filters of this process to the process `to`.

        `fresh` asks that process to send its unfinished texts from their start. `ask` asks it to send its own filters.
        """
        if self._online:
            filters = [{k: v for k, v in asdict(which).items() if v} for which in self._filters]
            self._relay.send(to, FILTERS_TOPIC, {"wants": filters, "fresh": fresh, "ask": ask})

    def _handle_events(self, sender: str, data: Mapping[str, Any]) -> None:
        """Receive live events of another process."""
        if data["fresh"]:
            self._sources[sender] = deque()
        batches = self._sources.get(sender)
        if batches is None:
            return  # an earlier message was lost, and the sender was asked to begin from the start
        batches.append(_Batch(data["seq"], data["dropped"], [_event(plain) for plain in data["events"]]))
        if len(batches) > MOST_BATCHES:
            self._handle_loss(sender)
        else:
            self._audience.seek(data["seq"])
            self._release(sender, batches)

    def show_waiting(self) -> None:
        """Show those live events of other processes that no longer have to wait for stored events."""
        for sender, batches in list(self._sources.items()):
            self._release(sender, batches)

    def _release(self, sender: str, batches: deque[_Batch]) -> None:
        while batches and batches[0].seq <= self._audience.shown_seq:
            batch = batches.popleft()
            if batch.dropped:
                self._audience.report_loss(sender, batch.dropped)
            for live in batch.events:
                if not self._ended.has_ended(live, batch.seq):
                    self._audience.show_from(sender, live)

    def _handle_loss(self, sender: str) -> None:
        self._sources.pop(sender, None)
        self._audience.report_loss(sender, 1)
        if self._filters:
            self._send_filters(sender, fresh=True)

    def _handle_connect(self) -> None:
        """Begin again after a new connection: all processes send their filters and their unfinished texts again."""
        self._online = True
        self._peers.clear()
        for sender in list(self._sources):
            del self._sources[sender]
            self._audience.report_loss(sender, 1)
        self._send_filters(EVERYBODY, fresh=True, ask=True)

    # -- filters of other processes --------------------------------------------------------------------------------

    def share(self, live: Event) -> None:
        """Send a live event of this process to the processes with a matching filter."""
        for name, peer in list(self._peers.items()):
            if peer.until < self._clock.monotonic():
                del self._peers[name]
            elif peer.matches(live):
                peer.add(live)
                self._run("send", self._send)

    def drop_ended(self, event: Event) -> None:
        """Drop the pieces of a text that are queued or arrive later, because the stored event `event` ends the text."""
        self._ended.add(event)
        for peer in self._peers.values():
            if peer.pending:
                peer.pending = [live for live in peer.pending if not ends(event, live)]

    def _handle_filters(self, sender: str, data: Mapping[str, Any]) -> None:
        """Receive the filters of another process, or its request for the filters of this one after it connected."""
        if data["ask"]:
            if sender in self._sources:
                self._handle_loss(sender)
            elif self._filters:
                self._send_filters(sender, fresh=True)
        filters = frozenset(_filter(plain) for plain in data["wants"])
        peer = self._peers.pop(sender, None)
        if not filters:
            return
        if peer is None or data["fresh"] or peer.until < self._clock.monotonic():
            peer = _Peer()
        before = peer.filters
        self._peers[sender] = peer
        peer.until = self._clock.monotonic() + FILTERS_SECONDS
        peer.filters = filters
        if filters - before:
            peer.pending.extend(self._so_far(filters - before, before))
            self._run("send", self._send)

    def _so_far(self, filters: Iterable[EventFilter], earlier: Iterable[EventFilter] = ()) -> Iterator[Event]:
        remaining = MOST_SO_FAR
        for live in self._live.so_far():
            if any(which.matches(live) for which in filters) and not any(which.matches(live) for which in earlier):
                remaining -= _length(live)
                if remaining >= 0:
                    yield live

    async def _send(self) -> None:
        """Send the queued events until none are left.

        Pieces of one text that are queued meanwhile are joined, so a slow connection gets fewer messages.
        """
        while due := [(name, peer) for name, peer in self._peers.items() if peer.pending or peer.dropped]:
            for name, peer in due:
                dropped = peer.dropped
                events = peer.take()
                if dropped:
                    events, peer.fresh = list(self._so_far(peer.filters)), True
                if not self._send_to(name, peer, dropped, events):
                    self._peers.pop(name, None)  # it sends its filters again when it can be reached
            await self._relay.flush()

    def _send_to(self, name: str, peer: _Peer, dropped: int, events: list[Event]) -> bool:
        for group in _groups(events):
            header = {"seq": self._audience.known_seq, "dropped": dropped, "fresh": peer.fresh}
            if not self._relay.send(name, EVENTS_TOPIC, {**header, "events": [_plain(live) for live in group]}):
                return False
            dropped, peer.fresh = 0, False
        return True

    def _run(self, name: str, work: Callable[[], Any]) -> None:
        if name not in self._tasks or self._tasks[name].done():
            self._tasks[name] = asyncio.get_running_loop().create_task(work())
            self._tasks[name].add_done_callback(_log_failure)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("live events are not exchanged with other processes: %r", task.exception())


def _groups(events: list[Event]) -> Iterator[list[Event]]:
    """Yield the events in order, in groups of limited size; yield at least one group, even if there are no events."""
    group: list[Event] = []
    size = 0
    for live in events:
        if group and size + _length(live) > LARGE:
            yield group
            group, size = [], 0
        group.append(live)
        size += _length(live)
    yield group


def _length(live: Event) -> int:
    return sum(len(value) for value in live.payload.values() if isinstance(value, str))


def _plain(live: Event) -> dict[str, Any]:
    return {name: value for name, value in live._asdict().items() if value is not None}


def _event(plain: Mapping[str, Any]) -> Event:
    """Return an event from the data of a message, without fields that only a newer version of midwatch knows."""
    return Event(**{name: plain[name] for name in Event._fields if name in plain})


FILTER_FIELDS = tuple(field.name for field in fields(EventFilter))


def _filter(plain: Mapping[str, Any]) -> EventFilter:
    values = {name: plain[name] for name in FILTER_FIELDS if name in plain}
    return EventFilter(**{**values, "kinds": tuple(values.get("kinds", ()))})

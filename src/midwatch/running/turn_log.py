"""The log of a turn: events, messages and sessions of the turn, written in order with the fence of the attempt.

They are written in batches in the background while the agent works. The last of them are written with the end of the
task. Live events are shown after all earlier events are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from midwatch.base.clock import Clock
from midwatch.base.errors import LeaseLost, StoreUnavailable
from midwatch.domain.changes import Changes, Charge, Fence
from midwatch.domain.event import Event, Payload, event
from midwatch.domain.session import Message, Session
from midwatch.running.host import ObservedTurn

MOST_UNWRITTEN = 500
PAUSE_SECONDS = 0.5
"""Seconds between a write of events that failed and the next try."""


class Writes(Protocol):
    """The part of the store that the log needs."""

    async def apply(self, changes: Changes) -> None:
        """Write a step completely, or raise LeaseLost or Conflict if its fence or a guard fails."""


class TurnLog:
    """The events, messages and sessions of one turn that are not written yet."""

    pause_seconds = PAUSE_SECONDS

    def __init__(self, store: Writes, fence: Fence, show: Callable[[Event], None], lose: Callable[[], None]) -> None:
        """Build an empty log. `show` shows a live event; `lose` is called if another process owns the task now."""
        self.ended = False
        self.lost = False
        """Whether another process owns the task now."""
        self._store = store
        self._fence = fence
        self._show = show
        self._lose = lose
        self._events: list[Event] = []
        self._messages: list[Message] = []
        self._sessions: list[Session] = []
        self._charges: list[Charge] = []
        self._held: list[Event] = []
        """Live events that wait until all earlier events are stored; then they are shown."""
        self._flushing: asyncio.Task[None] | None = None

    def add(self, *events: Event) -> None:
        """Add events that are stored later, in this order."""
        self._events.extend(events)

    def add_message(self, message: Message) -> None:
        """Add a message of the conversation."""
        self._messages.append(message)

    def add_session(self, session: Session) -> None:
        """Add the session, with the fields that have changed."""
        self._sessions.append(session)

    def add_charges(self, charges: tuple[Charge, ...]) -> None:
        """Add what the events so far have spent. It is written in the transaction that writes the last of them."""
        self._charges.extend(charges)

    def show_live(self, live: Event) -> None:
        """Show a live event, after all earlier events are stored."""
        if self._events or self._flushing is not None:
            self._held.append(live)
        else:
            self._show(live)

    def flush_soon(self) -> None:
        """Begin to write all events that are not written yet, in the background."""
        if self._flushing is None and not self.ended and not self.lost and self._has_more():
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def wait_for_room(self) -> None:
        """Wait while too many events are not written yet."""
        while len(self._events) > MOST_UNWRITTEN and self._flushing is not None:
            await asyncio.shield(self._flushing)

    def _has_more(self) -> bool:
        return bool(self._events or self._messages or self._charges)

    async def drain(self) -> None:
        """Write all events that were added before, and wait until they are stored."""
        self.flush_soon()
        while self._flushing is not None:  # another write may have begun meanwhile
            await asyncio.shield(self._flushing)
            self.flush_soon()

    async def write(self, changes: Changes) -> None:
        """Write changes to the store, after all events that were added before."""
        await self.drain()
        try:
            await self._store.apply(changes)
        except LeaseLost:
            self._lose()
            raise

    async def end(self) -> None:
        """Mark the log as ended: nothing more is written in the background. Wait for the write that runs now."""
        self.ended = True
        if self._flushing is not None:
            await asyncio.shield(self._flushing)
        self._show_held()

    def unwritten(self) -> Changes:
        """Return everything that is not written yet."""
        return Changes(
            events=tuple(self._events), messages=tuple(self._messages), sessions=tuple(self._sessions),
            charges=tuple(self._charges),
        )  # fmt: skip

    async def _flush(self) -> None:
        try:
            while self._has_more():
                step = self.unwritten()._replace(fence=self._fence)
                try:
                    await self._store.apply(step)
                except StoreUnavailable:
                    self._show_held()  # show live text although earlier events are not stored yet
                    await asyncio.sleep(self.pause_seconds)
                    if self.ended:
                        return
                    continue
                except LeaseLost:
                    self.lost = True
                    self._lose()
                    return
                del self._events[: len(step.events)]
                del self._messages[: len(step.messages)]
                del self._sessions[: len(step.sessions)]
                del self._charges[: len(step.charges)]
        finally:
            self._flushing = None
            self._show_held()

    def _show_held(self) -> None:
        held, self._held = self._held, []
        for live in held:
            self._show(live)


def report_event(
    clock: Clock, about: Mapping[str, Any], observed: ObservedTurn | None, log: TurnLog, payload: Payload
) -> None:
    """Add an event of midwatch itself to the log of a turn."""
    record = event(payload, clock.now(), **about)
    if observed is not None:
        observed.record(record)
    log.add(record)


def lose_turn(clock: Clock, interrupt: Callable[[Literal["lost"]], None], observed: ObservedTurn | None) -> None:
    """Interrupt the turn, because another process owns its task now."""
    if observed is not None:
        observed.lose(clock.now())
    interrupt("lost")

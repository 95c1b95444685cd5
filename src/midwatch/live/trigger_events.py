"""Events for triggers: follows the kinds of events that some trigger waits for, and no others.

The position in the log is stored, so that events are not missed while no process runs. Without such triggers nothing is
followed, and an event costs nothing more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf

from midwatch.base.errors import Conflict, StoreError
from midwatch.domain.event import Event, EventFilter, EventLog
from midwatch.live.subscriptions import Subscriptions, TryAgain

NAME = "triggers"


class TriggerEvents:
    """The subscription of the triggers of this process."""

    def __init__(
        self,
        store: EventLog,
        subscriptions: Subscriptions,
        find_kinds: Callable[[], Awaitable[tuple[str, ...]]],
        take: Callable[[Sequence[Event]], Awaitable[None]],
        leads: Callable[[], bool],
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._find_kinds = find_kinds
        self._take = take
        self._leads = leads
        self._kinds: tuple[str, ...] = ()
        self._idle_seq: int | None = None
        """The last seq of the log when no trigger waited for events."""

    async def follow(self) -> None:
        """Follow the kinds of events that some trigger waits for now."""
        kinds = await self._find_kinds()
        if not kinds:
            self._idle_seq = (await self._store.read_log_bounds()).last_seq
        if kinds == self._kinds:
            return
        await self._subscriptions.remove(NAME)
        self._kinds = ()
        if not kinds:
            return
        if self._idle_seq is not None:  # what happened before concerns no trigger
            saved = await self._store.get_cursor(NAME) or 0
            await self._store.set_cursor(NAME, max(saved, self._idle_seq))
            self._idle_seq = None
        await self._subscriptions.add(
            NAME, self._pass_on, EventFilter(kinds=kinds), durable=True, batches=True, seconds=inf, leads=self._leads
        )
        self._kinds = kinds

    async def _pass_on(self, events: Sequence[Event]) -> None:
        try:
            await self._take(events)
        except (StoreError, Conflict) as problem:
            raise TryAgain(str(problem)) from problem

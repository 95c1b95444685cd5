"""The waiter: lets callers wait for the end of a task, a handoff or a question.

The bus passes every published event to the waiter. An event about a record wakes the callers that wait for this record,
and the callers read the record again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from midwatch.base.errors import StoreError, StoreUnavailable
from midwatch.domain.event import KINDS, Event
from midwatch.domain.task import Task

T = TypeVar("T")

PAUSE_SECONDS = 0.5
ID_FIELDS = {
    kind: f"{noun}_id" for kind in KINDS if (noun := kind.partition("_")[0]) in ("handoff", "approval")
}  # fmt: skip
"""The kinds of events about handoffs and approvals, each with the payload field that contains the record's id."""
AWAITED = frozenset({"task_submitted", "task_finished", *ID_FIELDS})
"""The kinds of events that a waiter must be notified of."""


class Waiter:
    """Lets callers in this process wait for records."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        """For each record, a future of each caller. The result of the future means that the record may have changed."""
        self._open_tasks: set[str] = set()
        """Tasks that are known to be open from their events, so that a wait need not read the store first."""
        self._ended: dict[str, Any] = {}
        """Tasks that ended in this process and that somebody waits for, so that the wait need not read the store."""
        self._closed = False

    async def wait(
        self,
        record_id: str,
        read: Callable[[], Awaitable[T]],
        is_over: Callable[[T], bool],
        patience: Callable[[T], float] | None = None,
    ) -> T:
        """Wait until `is_over` returns True for a record, and return the record.

        The record is read with `read`, again after each event about the record, and after the seconds that `patience`
        returns. Raise StoreUnavailable if the desk is closed before.
        """
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(record_id, set())
        changed = loop.create_future()
        waiting.add(changed)
        try:
            record = None if record_id in self._open_tasks else await read()
            while record is None or not is_over(record):
                if self._closed:
                    raise StoreUnavailable(f"the desk was closed before {record_id} ended; open it and wait again.")
                seconds = None if patience is None or record is None else patience(record)
                if seconds is None:
                    await changed
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):  # `wait_for` loses a cancel that comes with the event
                            await changed
                waiting.discard(changed)
                changed = loop.create_future()
                waiting.add(changed)
                try:
                    record = self._ended.get(record_id) or await read()
                except StoreError:
                    if not self._closed:
                        await asyncio.sleep(PAUSE_SECONDS)
                        _set(changed)
            return record
        finally:
            waiting.discard(changed)
            if not waiting:
                self._waiting.pop(record_id, None)
                self._ended.pop(record_id, None)

    def keep_ended(self, task: Task) -> None:
        """Keep a task for those who wait for it. Call this after the end of the task was stored."""
        if task.id in self._waiting:
            self._ended[task.id] = task

    def notify(self, event: Event) -> None:
        """Wake the callers that wait for the record that `event` is about."""
        if event.kind == "task_submitted" and event.task_id:
            self._open_tasks.add(event.task_id)
        elif event.kind == "task_finished" and event.task_id:
            self._open_tasks.discard(event.task_id)
            self.wake(event.task_id)
        elif event.kind in ID_FIELDS:
            self.wake(event.payload.get(ID_FIELDS[event.kind], ""))

    def wake(self, record_id: str) -> None:
        """Wake the callers that wait for the record, so that they read the record again."""
        for changed in self._waiting.get(record_id, ()):
            _set(changed)

    def close(self) -> None:
        """End every wait with StoreUnavailable."""
        self._closed = True
        for record_id in self._waiting:
            self.wake(record_id)


def _set(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)

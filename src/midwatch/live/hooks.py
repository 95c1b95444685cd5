"""Hooks: told of every task that has ended, after it was committed, at least once, also over a restart.

A hook is an async function of this process or a program. How far it has been told is kept, so that what ended while
nobody was there is told at the next start. A hook that fails or hangs harms nobody; it is not told again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from midwatch.domain.event import Event, EventFilter
from midwatch.domain.task import Task, TaskStore
from midwatch.live.subscriptions import Subscriptions

Hook = Callable[[Task], Awaitable[object]]

ENDED = EventFilter(kinds=("task_finished",))
HOOK_SECONDS = 60.0


class Hooks:
    """Each is a durable subscription."""

    def __init__(self, store: TaskStore, subscriptions: Subscriptions) -> None:
        self._store = store
        self._subscriptions = subscriptions

    async def add(self, name: str, hook: Hook, leads: Callable[[], bool] = lambda: True) -> None:
        """Tell `hook` of every task that ends from now on, or from where a hook of this name was told last. It is told
        while `leads` says so."""

        async def tell(ended: Event) -> None:
            task = await self._store.get_task(ended.task_id) if ended.task_id else None
            if task is not None:
                await hook(task)

        await self._subscriptions.add(name, tell, ENDED, durable=True, seconds=HOOK_SECONDS, leads=leads)

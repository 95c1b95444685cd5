"""Hooks: called with every task that has ended, after the commit, at least once, also across a restart.

A hook is an async function of this process or a program. Its position in the log is kept, so tasks that ended while no
process ran are delivered at the next start. A hook that fails or hangs does no harm; its call is not repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from midwatch.domain.event import Event, EventFilter
from midwatch.domain.task import Task, TaskStore
from midwatch.live.subscriptions import Subscriptions

Hook = Callable[[Task], Awaitable[object]]

TASK_ENDS = EventFilter(kinds=("task_finished",))
HOOK_SECONDS = 60.0


class Hooks:
    """Durable subscriptions to the end of tasks."""

    def __init__(self, store: TaskStore, subscriptions: Subscriptions) -> None:
        self._store = store
        self._subscriptions = subscriptions

    async def add(self, name: str, hook: Hook, leads: Callable[[], bool] = lambda: True) -> None:
        """Call `hook` with every task that ends, from now on or from the last position of a hook with this name.

        It is called only while `leads` returns true.
        """

        async def call_hook(ended: Event) -> None:
            task = await self._store.get_task(ended.task_id) if ended.task_id else None
            if task is not None:
                await hook(task)

        await self._subscriptions.add(name, call_hook, TASK_ENDS, durable=True, seconds=HOOK_SECONDS, leads=leads)

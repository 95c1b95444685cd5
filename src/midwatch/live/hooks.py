"""Hooks: functions or programs that are called with every task that has ended.

A hook is an async function of this process, or a program. It is called after the commit, and at least once for each
task, even if the process was restarted in between. Its position in the log is stored, so tasks that ended while no
process ran are delivered at the next start. A hook that fails or hangs does not affect the tasks; its call is not
repeated.
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
    """All hooks of this process, as durable subscriptions to the end of tasks."""

    def __init__(self, store: TaskStore, subscriptions: Subscriptions) -> None:
        self._store = store
        self._subscriptions = subscriptions

    async def add(self, name: str, hook: Hook, leads: Callable[[], bool] = lambda: True) -> None:
        """Call `hook` with every task that ends, but only while `leads` returns true.

        If a hook with this `name` was called before, continue at its last position; otherwise begin now.
        """

        async def call_hook(ended: Event) -> None:
            task = await self._store.get_task(ended.task_id) if ended.task_id else None
            if task is not None:
                await hook(task)

        await self._subscriptions.add(name, call_hook, TASK_ENDS, durable=True, seconds=HOOK_SECONDS, leads=leads)

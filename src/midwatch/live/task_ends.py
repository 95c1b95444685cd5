"""Ends of tasks: functions and programs that are called with every task that has ended.

A function is called after the commit, and at least once for each task, even if the process was restarted in between.
Its position in the log is stored, so tasks that ended while no process ran are delivered at the next start. A function
that fails or hangs does not affect the tasks; its call is not repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from midwatch.domain.event import Event, EventFilter
from midwatch.domain.task import Task
from midwatch.domain.task_store import TaskStore
from midwatch.live.subscriptions import Subscriptions, try_again

EndFunction = Callable[[Task], Awaitable[object]]

TASK_ENDS = EventFilter(kinds=("task_finished",))
FUNCTION_SECONDS = 60.0


class TaskEnds:
    """The functions of this process that are called with ended tasks, as durable subscriptions."""

    def __init__(self, store: TaskStore, subscriptions: Subscriptions) -> None:
        self._store = store
        self._subscriptions = subscriptions

    async def add(self, name: str, function: EndFunction, leads: Callable[[], bool] = lambda: True) -> None:
        """Call `function` with every task that ends, but only while `leads` returns true.

        If a function with this `name` was called before, continue at its last position; otherwise begin now.
        """

        async def call_function(ended: Event) -> None:
            with try_again():
                task = await self._store.get_task(ended.task_id) if ended.task_id else None
            if task is not None:
                await function(task)

        await self._subscriptions.add(
            name, call_function, TASK_ENDS, durable=True, seconds=FUNCTION_SECONDS, leads=leads
        )

"""Steps: the completed parts of a turn.

Each step is stored as soon as it is complete, so that a new attempt neither repeats the step nor pays for it again. A
step belongs to a task and to a thread; it becomes part of the history of the thread. The agent decides what the `data`
of a step contains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One completed step. `number` counts the steps of a task, from 1."""

    noun: ClassVar[str] = "step"

    task_id: str
    number: int
    thread_id: str | None
    created_at: int
    data: Any


class StepStore(Protocol):
    """Port: steps. They are written with `Changes`, under the fence of the attempt that completed them."""

    async def list_task_steps(self, task_id: str) -> list[Step]:
        """Return the steps of a task, in order."""

    async def list_earlier_steps(self, task_id: str) -> list[Step]:
        """Return the steps of the tasks that the task `task_id` retries, in order, from the first try on."""

    async def list_thread_steps(self, thread_id: str, without: str) -> list[Step]:
        """Return the steps of all turns of a thread, in order.

        Steps of the task `without` and of its retries are left out. Steps of a cancelled task are left out, too, unless
        a retry continued the task.
        """

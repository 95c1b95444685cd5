"""Steps: the completed parts of a turn, stored one by one, so that a new attempt does not repeat or pay for them.

A step belongs to a task and to the thread whose history it becomes part of. The agent decides what its data contains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One completed step. `number` counts within the task, from 1."""

    noun: ClassVar[str] = "step"

    task_id: str
    number: int
    thread_id: str | None
    created_at: int
    data: Any


class StepStore(Protocol):
    """Port: steps. They are written through `Changes`, under the fence of their attempt."""

    async def list_task_steps(self, task_id: str) -> list[Step]:
        """Return a task's steps, in order."""

    async def list_earlier_steps(self, task_id: str) -> list[Step]:
        """Return the steps of the tasks that this one retries, in order, from the first try on."""

    async def list_thread_steps(self, thread_id: str, without: str) -> list[Step]:
        """Return the steps of the turns of a thread, in order.

        The task `without` and its retries are left out, and so are cancelled turns that no retry continued.
        """

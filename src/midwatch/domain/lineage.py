"""Lineage: the work that a task grew out of.

A task that grew out of other work has three fields, which are set when it is created and never change: the turn that
caused it, the path from the first work to this task, and what made it. All its events carry them. A task that a person
or a program submitted has none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from midwatch.domain.task import Task, turn_of

Source = Literal["delegate", "transfer", "background", "retry", "goal", "automation", "steer", "wake"]
"""What made a task; see the page about events."""
LONGEST_PATH = 1000
"""The greatest length of a path, in characters."""
LEFT_OUT = "..."
"""Stands for the middle of a path that is too long."""


def derive(task: Task, parent: Task, source: Source) -> Task:
    """Return the new task `task` as work that grew out of the latest turn of `parent`, with the same account."""
    path = extend_path(parent.trace_path or parent.id, task.id)
    return task._replace(
        parent_turn_id=latest_turn(parent), trace_path=path, source=source, account_id=parent.account
    )  # fmt: skip


def own_budget(task: Task) -> Mapping[str, Any] | None:
    """Return the budget that a task has beside that of the work that it grew out of."""
    return task.budget if task.account_id is not None else None


def latest_turn(task: Task) -> str | None:
    """Return the id of the latest turn of a task, or None if the task has not begun."""
    return turn_of(task.id, task.attempt) if task.attempt else None


def extend_path(path: str, name: str) -> str:
    """Return the path with one more id at its end. A path that is too long keeps its first id and its last ids."""
    names = [*path.split("/"), name]
    length = len(path) + 1 + len(name)
    if length <= LONGEST_PATH:
        return "/".join(names)
    first, *rest = (each for each in names if each != LEFT_OUT)
    while len(rest) > 1 and len("/".join((first, LEFT_OUT, *rest))) > LONGEST_PATH:
        del rest[0]
    return "/".join((first, LEFT_OUT, *rest))

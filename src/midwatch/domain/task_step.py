"""Steps of tasks: an ended attempt, and the changes that it makes."""

from __future__ import annotations

from typing import NamedTuple

from midwatch.domain.budget import Spending
from midwatch.domain.changes import Changes
from midwatch.domain.probe import CommandResult
from midwatch.domain.task import Task


class EndedAttempt(NamedTuple):
    """An ended attempt: its task, the number of tool calls, and its thread.

    If the task is tried again, `why` is the reason. `check` is the result of the command that checks a goal, if it ran
    after the turn. `spent` is what the account of the task has spent, if it is known. `asks` is whether people are
    asked when this account is spent. `actor` is the person who cancelled the task.
    """

    task: Task
    tools: int = 0
    thread_id: str | None = None
    why: str | None = None
    spent: Spending | None = None
    asks: bool = False
    check: CommandResult | None = None
    actor: str | None = None


class TaskStep(NamedTuple):
    """A step that changes a task: the task after the step, and the changes to write.

    If the task is tried again, `reason` is the reason.
    """

    task: Task
    changes: Changes
    reason: str | None = None

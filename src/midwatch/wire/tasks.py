"""Tasks, their counts and their results as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.task import Task
from midwatch.domain.task_store import Summary
from midwatch.wire.approvals import ApprovalInfo
from midwatch.wire.budgets import BudgetInfo
from midwatch.wire.deliveries import DeliveryInfo
from midwatch.wire.handoffs import HandoffInfo
from midwatch.wire.shapes import shape_of
from midwatch.wire.worktrees import WorktreeNote

TASK: dict[str, Any] = {
    "status_text": Annotated[str, Example("done")],
    "tokens_used": Annotated[int | None, Example(None)],
    "worktree": WorktreeNote | None,
}


@shape_of(Task, **TASK)
class TaskInfo(dict[str, Any]):
    """A task as JSON; times are ISO 8601 in UTC."""


class TaskPage(TypedDict):
    """Some tasks; `next` is the value of `before` for the following page."""

    tasks: list[TaskInfo]
    next: str | None


@shape_of(Summary)
class Counts(dict[str, Any]):
    """The number of tasks by status."""


class TaskStateInfo(TypedDict):
    """The first data for a watcher of a task.

    The data are sent again after a lost connection. The client sets `kind` to `state`.
    """

    kind: str
    as_of_seq: int
    task: TaskInfo
    partial: DraftInfo | None


class RelatedTask(TypedDict):
    """A task that is related to the shown task.

    `relation` is root, parent, retry_of, retry, child, self or other.
    """

    id: str
    relation: str
    status: str
    outcome: str | None
    prompt: str
    agent: str
    created_at: str
    trace_path: str | None


class TaskView(TypedDict):
    """All data for a page about a task. The HTML in it is safe to show."""

    task: TaskInfo
    prompt_html: str
    result_html: str | None
    lineage: list[RelatedTask]
    handoffs: list[HandoffInfo]
    deliveries: list[DeliveryInfo]
    approvals: list[ApprovalInfo]
    account: BudgetInfo
    last_event_at: str | None


class ResultInfo(TypedDict):
    """The full result of a task that is done."""

    id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    result: Annotated[str, Example("Hello.")]


class DraftInfo(TypedDict):
    """The text so far of a message that is still being written."""

    message_id: str
    task_id: str | None
    text: str

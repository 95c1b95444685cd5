"""Tasks, their counts and their results as the HTTP interface shows them."""

from __future__ import annotations

from typing import (
    Any,  # pydantic reads these for the API's description, also on 3.11
)

from typing_extensions import TypedDict

from midwatch.wire.approvals import ApprovalInfo
from midwatch.wire.deliveries import DeliveryInfo
from midwatch.wire.handoffs import HandoffInfo
from midwatch.wire.worktrees import WorktreeNote


class TaskInfo(TypedDict):
    """A task as JSON; times are ISO 8601 in UTC."""

    id: str
    status: str
    status_text: str
    outcome: str | None
    prompt: str
    result: str | None
    error: str | None
    agent: str
    session_key: str
    origin_channel: str | None
    origin_session: str | None
    route: str | None
    workdir: str | None
    worktree: WorktreeNote | None
    cause: str
    cause_id: str | None
    priority: int
    creator: str | None
    timeout_seconds: float | None
    on_crash: str
    attempt: int
    failures: int
    rescues: int
    interruptions: int
    max_attempts: int
    stop_requested: str | None
    wait: str | None
    root_id: str | None
    parent_id: str | None
    retry_of: str | None
    transferred_to: str | None
    budget: dict[str, Any] | None
    usage: dict[str, Any] | None
    tokens_used: int | None
    created_at: str
    due_at: str
    started_at: str | None
    completed_at: str | None


class TaskPage(TypedDict):
    """Some tasks; `next` is the `before` of the following page."""

    tasks: list[TaskInfo]
    next: str | None


class Counts(TypedDict):
    """How many tasks there are, by status."""

    total: int
    pending: int
    running: int
    done: int
    failed: int
    cancelled: int


class TaskStateInfo(TypedDict):
    """What a watcher of a task is shown first, and after a break again. The client gives it its kind, `state`."""

    kind: str
    as_of_seq: int
    task: TaskInfo
    partial: WrittenInfo | None


class Kin(TypedDict):
    """A task that belongs to another: `relation` is root, parent, retry_of, retry, child, self or other."""

    id: str
    relation: str
    status: str
    outcome: str | None
    prompt: str
    agent: str
    created_at: str


class TaskView(TypedDict):
    """Everything a page about a task shows. The HTML is safe to show."""

    task: TaskInfo
    prompt_html: str
    result_html: str | None
    lineage: list[Kin]
    handoffs: list[HandoffInfo]
    deliveries: list[DeliveryInfo]
    approvals: list[ApprovalInfo]
    last_event_at: str | None


class ResultInfo(TypedDict):
    """The whole text of a task that is done."""

    id: str
    result: str


class WrittenInfo(TypedDict):
    """What has been written of a message that is not whole yet."""

    message_id: str
    task_id: str | None
    text: str

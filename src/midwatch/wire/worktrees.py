"""Worktrees as the HTTP interface shows them."""

from __future__ import annotations

from typing_extensions import TypedDict


class WorktreeNote(TypedDict):
    """A task's own worktree. Before the task has started `status` is planned and only the id is known; figures are
    those of its end, against `base`, with what is not committed."""

    id: str
    path: str | None
    branch: str | None
    base: str | None
    files: int | None
    added: int | None
    removed: int | None
    dirty: bool | None
    status: str


class WorktreeInfo(TypedDict):
    """A worktree as JSON. `status` is making, kept, merged or removed; `target` is the branch it is merged into."""

    id: str
    status: str
    branch: str
    path: str
    repository: str
    target: str | None
    base: str
    host: str
    task_id: str
    session_key: str | None
    creator: str | None
    files: int | None
    added: int | None
    removed: int | None
    dirty: bool | None
    note: str | None
    created_at: str
    updated_at: str


class WorktreePage(TypedDict):
    """Some worktrees; `next` is the `before` of the following page."""

    worktrees: list[WorktreeInfo]
    next: str | None


class WorktreeDiff(TypedDict):
    """What has changed in a worktree, as a unified diff; `truncated` when there is more."""

    id: str
    diff: str
    truncated: bool


class WorktreeMerged(TypedDict):
    """A merge: the commit the branch `into` has now. `how` is fast-forward, merge, or nothing when it had it all."""

    worktree: WorktreeInfo
    commit: str
    into: str
    how: str

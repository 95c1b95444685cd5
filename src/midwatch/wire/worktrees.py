"""Worktrees as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.worktree import Worktree
from midwatch.wire.shapes import shape_of


class WorktreeNote(TypedDict):
    """The worktree of a task. Before the task starts, `status` is planned and only the id is known.

    The figures compare the worktree at the end of the task with the commit `base`; uncommitted changes count, too.
    """

    id: str
    path: str | None
    branch: str | None
    base: str | None
    files: int | None
    added: int | None
    removed: int | None
    dirty: bool | None
    status: str


@shape_of(Worktree)
class WorktreeInfo(dict[str, Any]):
    """A worktree as JSON. `status` is making, kept, merged or removed.

    `target` is the branch that the worktree is merged into.
    """


class WorktreePage(TypedDict):
    """Some worktrees; `next` is the value of `before` for the following page."""

    worktrees: list[WorktreeInfo]
    next: str | None


class WorktreeCodeFile(TypedDict):
    """A changed file that runs code when somebody uses it, such as a git hook, and the reason."""

    path: Annotated[str, Example(".github/workflows/test.yml")]
    why: Annotated[str, Example("it runs on a server that builds or tests")]


class WorktreeDiff(TypedDict):
    """The changes in a worktree, as a unified diff; `truncated` is whether the diff was cut.

    `runs_code` has the changed files that run code, also those whose changes were cut away.
    """

    id: Annotated[str, Example("w_1a1deb33561a3f9a1c20b7d4")]
    diff: Annotated[str, Example("diff --git a/a.txt b/a.txt\\n...")]
    truncated: bool
    runs_code: list[WorktreeCodeFile]


class WorktreeMerge(TypedDict):
    """The result of a merge: `commit` is now the newest commit of the branch `into`.

    `how` is fast-forward, merge, or nothing. `runs_code` has the merged files that run code.
    """

    worktree: WorktreeInfo
    commit: str
    into: str
    how: str
    runs_code: list[WorktreeCodeFile]

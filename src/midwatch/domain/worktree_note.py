"""The note about its worktree in the record of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORKTREE_SHOWN = ("id", "path", "branch", "base", "files", "added", "removed", "dirty", "status")


def show_worktree(note: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a task's worktree as JSON shows it; unknown fields are null."""
    if note is None:
        return None
    return {**dict.fromkeys(WORKTREE_SHOWN), "status": "planned", **{n: note[n] for n in WORKTREE_SHOWN if n in note}}

"""Worktrees: read, list, prune. `changes.apply` writes worktrees."""

from __future__ import annotations

from midwatch.domain.worktree import Worktree, WorktreeFilter
from midwatch.stores.rows import dumps
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, worktree_id: str) -> Worktree | None:
    return tx.find(Worktree, "worktree.get", id=worktree_id)


def list_(tx: Tx, which: WorktreeFilter) -> list[Worktree]:
    return tx.find_all(
        Worktree, "worktree.list", statuses=dumps(which.statuses), before=which.before, limit=which.limit
    )


def prune(tx: Tx, before: int) -> int:
    return tx.run("worktree.prune", {"before": before})

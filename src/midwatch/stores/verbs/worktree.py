"""Worktrees: read, list, prune. `changes.apply` writes worktrees."""

from __future__ import annotations

from midwatch.domain.listing import Listing
from midwatch.domain.worktree import Worktree, WorktreeFilter
from midwatch.stores.rows import dumps
from midwatch.stores.verbs.listing import list_page
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, worktree_id: str) -> Worktree | None:
    return tx.find(Worktree, "worktree.get", id=worktree_id)


def list_(tx: Tx, which: WorktreeFilter) -> Listing[Worktree]:
    path = "worktree.all" if "removed" in which.statuses else "worktree.present"
    params = {"statuses": dumps(which.statuses)}
    return list_page(tx, Worktree, path, params, before=which.before, limit=which.limit, filtered=True)


def prune(tx: Tx, before: int) -> int:
    return tx.run("worktree.prune", {"before": before})

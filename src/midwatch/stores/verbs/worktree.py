"""Worktrees: look, list, forget; they are written by `changes.apply`."""

from __future__ import annotations

from midwatch.domain.worktree import Worktree, WorktreeFilter
from midwatch.stores.sql import RECORDS, dumps
from midwatch.stores.verbs.tx import Row, Tx


def _worktree(row: Row) -> Worktree:
    values = dict(zip(RECORDS["worktree"], row, strict=True))
    return Worktree(**{**values, "dirty": None if values["dirty"] is None else bool(values["dirty"])})


def get(tx: Tx, worktree_id: str) -> Worktree | None:
    row = tx.row("worktree.get", {"id": worktree_id})
    return None if row is None else _worktree(row)


def list_(tx: Tx, which: WorktreeFilter) -> list[Worktree]:
    params = {"statuses": dumps(list(which.statuses)), "before": which.before, "limit": which.limit}
    return [_worktree(row) for row in tx.rows("worktree.list", params)]


def prune(tx: Tx, before: int) -> int:
    return tx.run("worktree.prune", {"before": before})

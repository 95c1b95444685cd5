"""Approvals: look; they are written by `changes.apply`."""

from __future__ import annotations

from midwatch.domain.agent import Choice
from midwatch.domain.approval import Approval
from midwatch.domain.changes import Fence
from midwatch.stores.sql import RECORDS, loads
from midwatch.stores.verbs.tx import Row, Tx


def _approval(row: Row) -> Approval:
    values = dict(zip(RECORDS["approval"], row, strict=True))
    values |= {
        "choices": tuple(Choice(*one) for one in loads(values["choices"])),
        "paths": tuple(loads(values["paths"])),
        "always": None if values["always"] is None else loads(values["always"]),
    }
    return Approval(**values)


def approval(tx: Tx, approval_id: str) -> Approval | None:
    row = tx.row("approval.get", {"id": approval_id})
    return None if row is None else _approval(row)


def approvals(tx: Tx, status: str | None, limit: int, task_id: str | None) -> list[Approval]:
    params = {"status": status, "limit": limit, "task_id": task_id}
    return [_approval(row) for row in tx.rows("approval.list", params)]


def pending_approvals(tx: Tx, fence: Fence) -> list[Approval]:
    params = {"task_id": fence.task_id, "attempt": fence.attempt}
    return [_approval(row) for row in tx.rows("approval.pending_of", params)]


def overdue_approvals(tx: Tx, now: int, limit: int) -> list[Approval]:
    return [_approval(row) for row in tx.rows("approval.overdue", {"now": now, "limit": limit})]


def next_expiry(tx: Tx) -> int | None:
    row = tx.row("approval.next_expiry", {})
    return row[0] if row else None

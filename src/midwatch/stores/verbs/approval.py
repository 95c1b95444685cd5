"""Approvals: read, list. `changes.apply` writes approvals."""

from __future__ import annotations

from midwatch.domain.approval import Approval, Status
from midwatch.domain.changes import Fence
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, approval_id: str) -> Approval | None:
    return tx.find(Approval, "approval.get", id=approval_id)


def list_(tx: Tx, status: Status | None = None, limit: int = 50, task_id: str | None = None) -> list[Approval]:
    name = "list_task" if task_id is not None else "list" if status is None else "list_status"
    return tx.find_all(Approval, f"approval.{name}", task_id=task_id, status=status, limit=limit)


def list_pending(tx: Tx, fence: Fence) -> list[Approval]:
    return tx.find_all(Approval, "approval.pending_of", task_id=fence.task_id, attempt=fence.attempt)


def list_overdue(tx: Tx, now: int, limit: int = 100) -> list[Approval]:
    return tx.find_all(Approval, "approval.overdue", now=now, limit=limit)


def find_next_expiry(tx: Tx) -> int | None:
    return tx.value(int, "approval.next_expiry")

"""Look at sessions, deliveries, approvals and instances; they are written by `change.apply`."""

from __future__ import annotations

from collections.abc import Iterable

from midwatch.approval import Approval
from midwatch.change import Fence
from midwatch.channel import Delivery
from midwatch.engine import Instance
from midwatch.session import Message, Session
from midwatch.stores.sql import RECORDS, loads
from midwatch.stores.verbs.change import insert
from midwatch.stores.verbs.tx import Row, Tx


def _session(row: Row) -> Session:
    return Session(**dict(zip(RECORDS["session"], row, strict=True)))


def _delivery(row: Row) -> Delivery:
    return Delivery(**dict(zip(RECORDS["delivery"], row, strict=True)))


def _approval(row: Row) -> Approval:
    values = dict(zip(RECORDS["approval"], row, strict=True))
    return Approval(**{**values, "choices": tuple(loads(values["choices"]))})


def session(tx: Tx, key: str) -> Session | None:
    row = tx.row("session.get", {"key": key})
    return None if row is None else _session(row)


def sessions(tx: Tx, limit: int) -> list[Session]:
    return [_session(row) for row in tx.rows("session.list", {"limit": limit})]


def messages(tx: Tx, key: str, after: int, limit: int) -> list[Message]:
    found = tx.rows("session.messages", {"key": key, "after": after, "limit": limit})
    return [Message(**dict(zip(RECORDS["message"], row, strict=True))) for row in found]


def due_deliveries(tx: Tx, now: int, limit: int) -> list[Delivery]:
    return [_delivery(row) for row in tx.rows("channel.due", {"now": now, "limit": limit})]


def next_delivery_at(tx: Tx) -> int | None:
    row = tx.row("channel.next_due", {})
    return row[0] if row else None


def delivery(tx: Tx, delivery_id: str) -> Delivery | None:
    row = tx.row("channel.get", {"id": delivery_id})
    return None if row is None else _delivery(row)


def deliveries(tx: Tx, task_id: str | None, status: str | None, limit: int) -> list[Delivery]:
    params = {"task_id": task_id, "status": status, "limit": limit}
    return [_delivery(row) for row in tx.rows("channel.list", params)]


def approval(tx: Tx, approval_id: str) -> Approval | None:
    row = tx.row("approval.get", {"id": approval_id})
    return None if row is None else _approval(row)


def approvals(tx: Tx, status: str | None, limit: int) -> list[Approval]:
    return [_approval(row) for row in tx.rows("approval.list", {"status": status, "limit": limit})]


def pending_approvals(tx: Tx, fence: Fence) -> list[Approval]:
    params = {"task_id": fence.task_id, "attempt": fence.attempt}
    return [_approval(row) for row in tx.rows("approval.pending_of", params)]


def overdue_approvals(tx: Tx, now: int, limit: int) -> list[Approval]:
    return [_approval(row) for row in tx.rows("approval.overdue", {"now": now, "limit": limit})]


def next_expiry(tx: Tx) -> int | None:
    row = tx.row("approval.next_expiry", {})
    return row[0] if row else None


def add_instance(tx: Tx, instance: Instance) -> None:
    insert(tx, instance)


def remove_instances(tx: Tx, ids: Iterable[str]) -> None:
    tx.run_many("engine.remove", [{"id": one} for one in ids])


def instances(tx: Tx) -> list[Instance]:
    found = (dict(zip(RECORDS["instance"], row, strict=True)) for row in tx.rows("engine.list", {}))
    return [
        Instance(**{**values, "agents": tuple(loads(values["agents"])), "terms": loads(values["terms"])})
        for values in found
    ]

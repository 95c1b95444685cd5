"""Deliveries: look; they are written by `changes.apply`."""

from __future__ import annotations

from midwatch.domain.channel import Delivery
from midwatch.stores.sql import RECORDS
from midwatch.stores.verbs.tx import Row, Tx


def _delivery(row: Row) -> Delivery:
    return Delivery(**dict(zip(RECORDS["delivery"], row, strict=True)))


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

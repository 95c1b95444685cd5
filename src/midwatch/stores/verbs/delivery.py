"""Deliveries: read, list. `changes.apply` writes deliveries."""

from __future__ import annotations

from midwatch.domain.channel import Delivery, Status
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, delivery_id: str) -> Delivery | None:
    return tx.find(Delivery, "channel.get", id=delivery_id)


def list_(tx: Tx, *, task_id: str | None = None, status: Status | None = None, limit: int = 50) -> list[Delivery]:
    name = "list_task" if task_id is not None else "list" if status is None else "list_status"
    return tx.find_all(Delivery, f"channel.{name}", task_id=task_id, status=status, limit=limit)


def list_due(tx: Tx, now: int, limit: int = 50) -> list[Delivery]:
    return tx.find_all(Delivery, "channel.due", now=now, limit=limit)


def find_next_at(tx: Tx) -> int | None:
    return tx.value(int, "channel.next_due")

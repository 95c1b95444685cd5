"""Deliveries: read, list, gather digests. `changes.apply` writes deliveries."""

from __future__ import annotations

from midwatch.domain.channel import Delivery, Status
from midwatch.domain.notice import DIGESTED
from midwatch.stores.rows import dumps
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, delivery_id: str) -> Delivery | None:
    return tx.find(Delivery, "channel.get", id=delivery_id)


def list_(tx: Tx, *, task_id: str | None = None, status: Status | None = None, limit: int = 50) -> list[Delivery]:
    name = "list_task" if task_id is not None else "list" if status is None else "list_status"
    return tx.find_all(Delivery, f"channel.{name}", task_id=task_id, status=status, limit=limit)


def list_due(tx: Tx, now: int, limit: int = 50) -> list[Delivery]:
    return tx.find_all(Delivery, "channel.due", now=now, limit=limit)


def seal_digest(tx: Tx, delivery: Delivery, now: int) -> list[Delivery]:
    stored = get(tx, delivery.id)
    if stored is None or stored.status != "pending":
        return []
    digest_id = stored.digest_id
    if digest_id is None:
        digest_id, target = stored.id, stored.target or ""
        about = {"digest_id": digest_id, "now": now, "channel": stored.channel, "target": target}
        tx.run("channel.seal", {**about, "notices": dumps(DIGESTED)})
    return [part for part in list_digest(tx, digest_id) if part.status == "pending"]


def list_digest(tx: Tx, digest_id: str) -> list[Delivery]:
    return tx.find_all(Delivery, "channel.list_digest", digest_id=digest_id)


def find_told_run(tx: Tx, automation_id: str, channel: str, target: str | None) -> tuple[str, str | None] | None:
    row = tx.row("channel.told_run", {"automation_id": automation_id, "channel": channel, "target": target or ""})
    return None if row is None else (row[0], row[1])


def find_next_at(tx: Tx) -> int | None:
    return tx.value(int, "channel.next_due")

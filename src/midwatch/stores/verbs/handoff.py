"""Handoffs: look, list, find what is due or was left; they are written by `changes.apply`."""

from __future__ import annotations

from collections.abc import Sequence

from midwatch.domain.handoff import Handoff, HandoffFilter
from midwatch.stores.sql import JSON_COLUMNS, RECORDS, dumps, loads
from midwatch.stores.verbs.tx import Row, Tx


def _handoff(row: Row) -> Handoff:
    values = {
        name: loads(value) if (name in JSON_COLUMNS or name == "answer") and value is not None else value
        for name, value in zip(RECORDS["handoff"], row, strict=True)
    }
    chain = tuple((agent, handoff) for agent, handoff in values["chain"])
    values |= {"chain": chain, "awaited": bool(values["awaited"])}
    values |= {name: tuple(values[name]) for name in ("refusals", "tries")}
    return Handoff(**values)


def get(tx: Tx, handoff_id: str) -> Handoff | None:
    row = tx.row("handoff.get", {"id": handoff_id})
    return None if row is None else _handoff(row)


def find(tx: Tx, source_task: str | None, once: str) -> Handoff | None:
    row = tx.row("handoff.find", {"source_task": source_task or "", "once": once})
    return None if row is None else _handoff(row)


def list_(tx: Tx, which: HandoffFilter) -> list[Handoff]:
    params = {
        "before": which.before, "statuses": dumps(list(which.statuses)), "agent": which.agent,
        "root_id": which.root_id, "limit": which.limit,
    }  # fmt: skip
    return [_handoff(row) for row in tx.rows("handoff.list", params)]


def open_(tx: Tx) -> dict[str, int]:
    return {str(agent): int(count) for agent, count in tx.rows("handoff.open", {})}


def count(tx: Tx, root_id: str) -> int:
    row = tx.row("handoff.count", {"root_id": root_id})
    return int(row[0]) if row else 0


def due(tx: Tx, now: int, limit: int) -> list[Handoff]:
    return [_handoff(row) for row in tx.rows("handoff.due", {"now": now, "limit": limit})]


def next_at(tx: Tx) -> int | None:
    row = tx.row("handoff.next", {})
    return row[0] if row else None


def left(tx: Tx, living: Sequence[str]) -> list[Handoff]:
    return [_handoff(row) for row in tx.rows("handoff.left", {"living": dumps(list(living))})]


def orphaned(tx: Tx) -> list[Handoff]:
    return [_handoff(row) for row in tx.rows("handoff.orphaned", {})]


def prune(tx: Tx, before: int) -> int:
    return tx.run("handoff.prune", {"before": before})

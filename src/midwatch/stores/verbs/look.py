"""Look at sessions, deliveries, approvals, rules and instances; they are written by `change.apply`."""

from __future__ import annotations

from collections.abc import Iterable

from midwatch.agent import Choice
from midwatch.approval import Approval
from midwatch.change import Fence
from midwatch.channel import Delivery
from midwatch.engine import Instance
from midwatch.event import Event
from midwatch.rule import Rule
from midwatch.session import Message, Session, View
from midwatch.stores.sql import RECORDS, loads
from midwatch.stores.verbs.change import fields_of, insert
from midwatch.stores.verbs.tx import Row, Tx


def _session(row: Row) -> Session:
    return Session(**dict(zip(RECORDS["session"], row, strict=True)))


def _delivery(row: Row) -> Delivery:
    return Delivery(**dict(zip(RECORDS["delivery"], row, strict=True)))


def _approval(row: Row) -> Approval:
    values = dict(zip(RECORDS["approval"], row, strict=True))
    values |= {
        "choices": tuple(Choice(*one) for one in loads(values["choices"])),
        "paths": tuple(loads(values["paths"])),
        "always": None if values["always"] is None else loads(values["always"]),
    }
    return Approval(**values)


def _rule(row: Row) -> Rule:
    return Rule(**dict(zip(RECORDS["rule"], row, strict=True)))


def session(tx: Tx, key: str) -> Session | None:
    row = tx.row("session.get", {"key": key})
    return None if row is None else _session(row)


def view(tx: Tx, key: str) -> View | None:
    found = session(tx, key)
    return None if found is None else _view(tx, found)


def _view(tx: Tx, found: Session) -> View:
    running = tx.row("session.running", {"key": found.key, "gate": found.gate_key})
    queued = tx.row("session.queued", {"key": found.key})
    task_id, wait = running or (None, None)
    return View(found, task_id, wait == "approval", queued[0] if queued else 0)


def sessions(tx: Tx, limit: int, before: str | None) -> list[View]:
    found = [_session(row) for row in tx.rows("session.list", {"limit": limit, "before": before})]
    return [_view(tx, one) for one in found]


def open_session(tx: Tx, made: Session, events: tuple[Event, ...]) -> bool:
    """Of two who open it at once the second finds it open."""
    opened = tx.row("session.open", fields_of(made)) is not None
    if opened:
        tx.events.extend(events)
    return opened


def close_session(tx: Tx, key: str, now: int, events: tuple[Event, ...]) -> bool:
    closed = tx.run("session.close", {"key": key, "now": now}) == 1
    if closed:
        tx.events.extend(events)
        tx.topics.add("session")
    return closed


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


def approvals(tx: Tx, status: str | None, limit: int, task_id: str | None) -> list[Approval]:
    params = {"status": status, "limit": limit, "task_id": task_id}
    return [_approval(row) for row in tx.rows("approval.list", params)]


def pending_approvals(tx: Tx, fence: Fence) -> list[Approval]:
    params = {"task_id": fence.task_id, "attempt": fence.attempt}
    return [_approval(row) for row in tx.rows("approval.pending_of", params)]


def overdue_approvals(tx: Tx, now: int, limit: int) -> list[Approval]:
    return [_approval(row) for row in tx.rows("approval.overdue", {"now": now, "limit": limit})]


def rule(tx: Tx, rule_id: str) -> Rule | None:
    row = tx.row("rule.get", {"id": rule_id})
    return None if row is None else _rule(row)


def rules(tx: Tx, agent: str | None, revoked: bool, limit: int) -> list[Rule]:
    params = {"agent": agent, "revoked": int(revoked), "limit": limit}
    return [_rule(row) for row in tx.rows("rule.list", params)]


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

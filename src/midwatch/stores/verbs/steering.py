"""Messages for running turns: send, look. They are taken and passed on by `changes.apply`."""

from __future__ import annotations

from dataclasses import replace

from midwatch.base.errors import KeyReused, LimitReached
from midwatch.domain.changes import Changes
from midwatch.domain.session import gate_key
from midwatch.domain.steering import MOST_QUEUED, Sent, Steer, attached
from midwatch.domain.task import Task
from midwatch.stores.sql import RECORDS
from midwatch.stores.verbs import task
from midwatch.stores.verbs.changes import apply
from midwatch.stores.verbs.tx import Row, Tx


def send(
    tx: Tx,
    wanted: Steer,
    otherwise: tuple[Task, Changes] | None,
    max_open: int | None,
    max_of_actor: int | None,
) -> Sent | None:
    replay = False
    if wanted.idempotency_key is not None:
        if (first := _sent_before(tx, wanted)) is not None:
            return first
        asked = {"creator": wanted.actor or "", "key": wanted.idempotency_key}
        replay = tx.row("task.find_key", asked) is not None
    if not replay:
        task.check_open(tx, wanted.session_key)
        if (sent := _into_turn(tx, wanted)) is not None:
            return sent
    return Sent(task.submit(tx, *otherwise, max_open, max_of_actor).task) if otherwise else None


def queued(tx: Tx, task_id: str) -> list[Steer]:
    return [_steer(row) for row in tx.rows("steer.queued", {"task_id": task_id})]


def _steer(row: Row) -> Steer:
    return Steer(**dict(zip(RECORDS["steer"], row, strict=True)))


def _sent_before(tx: Tx, wanted: Steer) -> Sent | None:
    row = tx.row("steer.find_key", {"actor": wanted.actor or "", "key": wanted.idempotency_key})
    if row is None:
        return None
    first = _steer(row)
    if (first.session_key, first.mode, first.text) != (wanted.session_key, wanted.mode, wanted.text):
        raise KeyReused(wanted.idempotency_key or "", f"message {first.id}")
    found = task.get(tx, first.became or first.task_id)
    return Sent(found, first) if found else None


def _into_turn(tx: Tx, wanted: Steer) -> Sent | None:
    """Attached to what runs in the session now; None when nothing does."""
    key = wanted.session_key
    row = tx.row("session.running", {"gate": gate_key(key), "key": key})
    if row is None or (counted := tx.row("steer.count", {"id": row[0]})) is None:
        return None  # or it has ended just now
    running = task.get(tx, row[0])
    assert running is not None
    waiting = queued(tx, running.id)
    alike = [one for one in waiting if (one.mode == "stop") == (wanted.mode == "stop")]
    if len(alike) >= MOST_QUEUED:
        raise LimitReached(
            f"{MOST_QUEUED} messages wait for this turn already; send it after the turn, or when some are taken."
        )
    made = replace(wanted, task_id=running.id, number=counted[0])
    apply(tx, attached(made, running, len(waiting), made.created_at))
    return Sent(running, made)

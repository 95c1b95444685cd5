"""Messages for running turns: send, read. When the agent gets a message, `changes.apply` records this."""

from __future__ import annotations

from dataclasses import replace

from midwatch.base.errors import KeyReused, LimitReached
from midwatch.domain.session import gate_key
from midwatch.domain.steering import MOST_QUEUED, SendResult, Steer, attach_steer
from midwatch.domain.task import Task
from midwatch.stores.verbs import task
from midwatch.stores.verbs.changes import apply
from midwatch.stores.verbs.tx import Tx


def send(
    tx: Tx, wanted: Steer, otherwise: Task | None, max_open: int | None = None, max_of_actor: int | None = None
) -> SendResult | None:
    replay = False
    if wanted.idempotency_key is not None:
        if (first := _find_sent(tx, wanted)) is not None:
            return first
        replay = task.find_key(tx, wanted.actor, wanted.idempotency_key) is not None
    if not replay:
        sent = _attach(tx, wanted)  # first, because the end of a turn locks the task before the session, too
        task.check_open(tx, wanted.session_key)
        if sent is not None:
            return sent
    return SendResult(task.submit(tx, otherwise, max_open, max_of_actor).task) if otherwise else None


def list_queued(tx: Tx, task_id: str) -> list[Steer]:
    return tx.find_all(Steer, "steer.queued", task_id=task_id)


def _find_sent(tx: Tx, wanted: Steer) -> SendResult | None:
    """Return the result of the message that the actor sent before with the same idempotency key, or None."""
    first = tx.find(Steer, "steer.find_key", actor=wanted.actor or "", key=wanted.idempotency_key)
    if first is None:
        return None
    if (first.session_key, first.mode, first.text) != (wanted.session_key, wanted.mode, wanted.text):
        raise KeyReused(wanted.idempotency_key or "", f"message {first.id}")
    its_task = task.get(tx, first.became or first.task_id)
    return SendResult(its_task, first) if its_task else None


def _attach(tx: Tx, wanted: Steer) -> SendResult | None:
    """Attach a message to the running task of its session. Return None if no task is running."""
    key = wanted.session_key
    running_id = tx.value(str, "session.running", gate=gate_key(key), key=key)
    if running_id is None or (number := tx.value(int, "steer.count", id=running_id)) is None:
        return None  # the task may have ended meanwhile
    running = task.get(tx, running_id)
    assert running is not None
    waiting = list_queued(tx, running.id)
    alike = [steer for steer in waiting if (steer.mode == "stop") == (wanted.mode == "stop")]
    if len(alike) >= MOST_QUEUED:
        raise LimitReached(f"{MOST_QUEUED} messages already wait for the running turn; send this message later.")
    steer = replace(wanted, task_id=running.id, number=number)
    apply(tx, attach_steer(steer, running, len(waiting), steer.created_at))
    return SendResult(running, steer)

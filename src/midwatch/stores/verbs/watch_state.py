"""Whole moments: what somebody who begins to watch is shown first. To be run on one snapshot of the database."""

from __future__ import annotations

from midwatch.domain.session import MAX_ERRORS, Fault, Message
from midwatch.domain.watch_state import MESSAGES_SHOWN, DeskState, SessionState, TaskState
from midwatch.stores.sql import RECORDS, loads
from midwatch.stores.verbs import event, task
from midwatch.stores.verbs import session as session_verbs
from midwatch.stores.verbs import steering as steering_verbs
from midwatch.stores.verbs.tx import Tx


def of_task(tx: Tx, task_id: str) -> TaskState | None:
    found = task.get(tx, task_id)
    return None if found is None else TaskState(event.bounds(tx).last_seq, found, event.last_of_task(tx, task_id))


def of_session(tx: Tx, key: str) -> SessionState | None:
    view = session_verbs.view(tx, key)
    if view is None:
        return None
    last = tx.rows("session.last_messages", {"key": key, "limit": MESSAGES_SHOWN})
    messages = [Message(**dict(zip(RECORDS["message"], row, strict=True))) for row in last]
    faults = [_fault(row[0], loads(row[1])) for row in tx.rows("session.faults", {"key": key, "limit": MAX_ERRORS})]
    return SessionState(
        as_of_seq=event.bounds(tx).last_seq,
        view=view,
        messages=messages[::-1],
        running=task.get(tx, view.running_task) if view.running_task else None,
        queue=[task.task_of(row) for row in tx.rows("session.queue", {"key": key})],
        errors=faults[::-1],
        steers=steering_verbs.queued(tx, view.running_task) if view.running_task else [],
    )


def _fault(time: int, payload: dict[str, str]) -> Fault:
    return Fault(payload["message"], payload["level"], time)


def of_desk(tx: Tx) -> DeskState:
    running = [(one, event.last_of_task(tx, one.id)) for one in task.running(tx, None)]
    return DeskState(event.bounds(tx).last_seq, task.count(tx), running)

"""The state of a task, a session or the desk at the start of a stream. Each verb must run on one snapshot."""

from __future__ import annotations

from midwatch.domain.session import MAX_ERRORS, Fault
from midwatch.domain.task import Task
from midwatch.domain.watch_state import MESSAGES_SHOWN, DeskState, SessionState, TaskState
from midwatch.stores.rows import loads
from midwatch.stores.verbs import event, session, steering, task
from midwatch.stores.verbs.tx import Tx


def read_task(tx: Tx, task_id: str) -> TaskState | None:
    record = task.get(tx, task_id)
    return None if record is None else TaskState(event.read_bounds(tx).last_seq, record, event.find_last(tx, task_id))


def read_session(tx: Tx, key: str) -> SessionState | None:
    view = session.view(tx, key)
    if view is None:
        return None
    faults = [_fault(row[0], loads(row[1])) for row in tx.rows("session.faults", {"key": key, "limit": MAX_ERRORS})]
    return SessionState(
        as_of_seq=event.read_bounds(tx).last_seq,
        view=view,
        messages=session.list_last_messages(tx, key, MESSAGES_SHOWN),
        running=task.get(tx, view.running_task) if view.running_task else None,
        queue=tx.find_all(Task, "session.queue", key=key),
        errors=faults[::-1],
        steers=steering.list_queued(tx, view.running_task) if view.running_task else [],
    )


def _fault(time: int, payload: dict[str, str]) -> Fault:
    return Fault(payload["message"], payload["level"], time)


def read_desk(tx: Tx) -> DeskState:
    running = [(record, event.find_last(tx, record.id)) for record in task.list_running(tx)]
    return DeskState(event.read_bounds(tx).last_seq, task.count(tx), running)

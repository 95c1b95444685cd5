"""Results of background work: place a new one, read, and begin a turn for one. `changes.apply` records who took it."""

from __future__ import annotations

from dataclasses import replace

from midwatch.domain.changes import Changes
from midwatch.domain.context_item import MOST_TAKEN, ContextItem
from midwatch.domain.session import Session
from midwatch.domain.task import Task
from midwatch.domain.waking import MOST_WAKES, refuse_wake, wake_starter
from midwatch.stores.verbs.tx import Tx

MOST_TRANSFERS = 100


def list_(tx: Tx, session_key: str, task_id: str | None = None) -> list[ContextItem]:
    own = tx.find_all(ContextItem, "context_item.of_task", task_id=task_id) if task_id else []
    return own + tx.find_all(ContextItem, "context_item.queued", key=session_key, limit=MOST_TAKEN)


def place(tx: Tx, item: ContextItem) -> ContextItem | None:
    """Return the item with the session in which its starter works now; None if that task does not exist any more."""
    starter = find_starter(tx, item)
    return replace(item, session_key=starter.session_key) if starter else None


def find_starter(tx: Tx, item: ContextItem) -> Task | None:
    """Return the task that started the work, or the task to which the work of that task was transferred."""
    starter = tx.find(Task, "task.get", id=item.for_task)
    for _ in range(MOST_TRANSFERS):
        if starter is None or starter.transferred_to is None:
            break
        starter = tx.find(Task, "task.get", id=starter.transferred_to) or starter._replace(transferred_to=None)
    return starter


def wake_for_arrival(tx: Tx, item: ContextItem) -> Changes:
    """Return the step that begins a turn for a new item.

    It is empty if a turn of the session runs or is to go on: that turn takes the item, or its end begins a turn. The
    item is counted for that turn, so the turn cannot end at the same time without noticing.
    """
    starter = find_starter(tx, item)
    if starter is None:
        return Changes()
    session = {"gate": starter.gate_key, "key": starter.session_key}
    for name in ("running", "waiting", "running"):  # a waiting task may have begun to run meanwhile
        if tx.row(f"context_item.count_{name}", session) is not None:
            return Changes()
    return _wake(tx, starter, item, item.from_task, item.created_at)


def wake_after(tx: Tx, task_id: str, now: int) -> Changes:
    """Return the step that begins a turn for the items that an ended task has not taken; it may be empty.

    It is empty if the task was such a turn itself and failed before it took an item: the next one would fail, too.
    """
    ended = tx.find(Task, "task.get", id=task_id)
    if ended is None or (ended.cause == "result" and ended.status == "failed" and not _has_taken(tx, ended)):
        return Changes()
    left = tx.find(ContextItem, "context_item.waking", key=ended.session_key)
    starter = find_starter(tx, left) if left else None
    key = f"after:{ended.id}"  # the result of this task itself may begin a turn of its starter at the same time
    return _wake(tx, starter, left, key, now) if left and starter else Changes()


def _has_taken(tx: Tx, task: Task) -> bool:
    return tx.row("context_item.of_task", {"task_id": task.retry_of or task.id}) is not None


def _wake(tx: Tx, starter: Task, item: ContextItem, key: str, now: int) -> Changes:
    session = tx.find(Session, "session.get", key=starter.session_key)
    if starter.status == "cancelled" or (session is not None and session.status == "closed"):
        return Changes()  # a person has stopped this work
    wakes = tx.value(int, "context_item.wakes", root=starter.root_id or starter.id, most=MOST_WAKES) or 0
    if wakes >= MOST_WAKES:
        oldest = tx.find(ContextItem, "context_item.waking", key=item.session_key)
        refused_before = oldest is not None and oldest.id != item.id
        return Changes() if refused_before else refuse_wake(starter, item, now)
    return wake_starter(starter, session.agent if session else starter.agent, item, key, now)

"""Write a step: fence, guarded updates, new records, messages, deliveries, events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from midwatch.base.errors import Conflict, LeaseLost
from midwatch.domain import approval, automation, channel, goal, handoff, steering, task, worktree
from midwatch.domain.changes import Changes, Fence, Record, Update
from midwatch.domain.channel import Delivery
from midwatch.domain.event import Event
from midwatch.domain.session import Message, Session
from midwatch.domain.task import Task
from midwatch.stores.sql import INSERT_TASK, encode, insert_statement, task_row, update_statement
from midwatch.stores.verbs.tx import Tx


def apply(tx: Tx, changes: Changes) -> None:
    """Write all of it, or raise LeaseLost or Conflict and leave everything as it was."""
    fence = changes.fence
    if fence is not None and not any(_proves(update, fence) for update in changes.updates):
        hold(tx, fence)
    for update in changes.updates:
        _update(tx, update, fence)
        if fence is not None and _proves(update, fence):
            fence = None  # it held, and the task may have ended just now: what fails from here on is another's guard
    for record in changes.records:
        insert(tx, record)
    for session in changes.sessions:
        tx.run("session.touch", fields_of(session))
        if session.thread_id is not None:
            tx.topics.add("session")
    events: Iterable[Event] = changes.events
    if changes.messages:
        events = _numbered(events, say(tx, changes.messages))
    add_deliveries(tx, changes.deliveries)
    tx.events.extend(made for made in events if made.kind != "status_change" or not _closed(tx, made.session_key))


def insert(tx: Tx, record: Record) -> None:
    """Store a new record."""
    tx.topics.add(record.noun)
    if isinstance(record, Task):
        tx.statement(INSERT_TASK, task_row(record))
        tx.hint(record.agent, record.due_at)
    else:
        tx.statement(insert_statement(record.noun), encode(fields_of(record)))


def add_deliveries(tx: Tx, deliveries: tuple[Delivery, ...]) -> None:
    """Store notices; one that exists already stays as it is."""
    for delivery in deliveries:
        tx.run("channel.add", fields_of(delivery))
        tx.topics.add("delivery")


def _proves(update: Update, fence: Fence) -> bool:
    """Whether the update's own guard already holds the fence."""
    guard = update.guard
    return update.id == fence.task_id and guard.get("status") == "running" and guard.get("attempt") == fence.attempt


def hold(tx: Tx, fence: Fence) -> None:
    """LeaseLost unless the attempt still owns its task."""
    if tx.row("task.fenced", {"id": fence.task_id, "attempt": fence.attempt}) is None:
        raise LeaseLost(fence.task_id, fence.attempt)


STATES: Mapping[str, Mapping[Any, frozenset[Any]]] = {
    "task": task.TRANSITIONS,
    "delivery": channel.TRANSITIONS,
    "approval": approval.TRANSITIONS,
    "automation": automation.TRANSITIONS,
    "goal": goal.TRANSITIONS,
    "worktree": worktree.TRANSITIONS,
    "steer": steering.TRANSITIONS,
    "handoff": handoff.TRANSITIONS,
}


def _check_transition(update: Update) -> None:
    """A change of state says from where, and only what the noun's table draws happens."""
    if "status" not in update.fields or update.noun not in STATES:
        return
    before, after = update.guard["status"], update.fields["status"]
    if after not in STATES[update.noun][before]:
        raise Conflict(f"{update.noun} {update.id} is {before} and cannot become {after}.")


def _update(tx: Tx, update: Update, fence: Fence | None) -> None:
    _check_transition(update)
    guard = update.guard
    sql = update_statement(update.noun, tuple(update.fields), tuple((k, v is None) for k, v in guard.items()))
    params = encode(update.fields)
    params["id"] = update.id
    for name, value in guard.items():
        if value is not None:
            params[f"guard_{name}"] = value
    if tx.statement(sql, params) != 1:
        if fence is not None:
            hold(tx, fence)
        raise Conflict(f"{update.noun} {update.id} changed meanwhile; look at it again.")
    _announce(tx, update)


def _announce(tx: Tx, update: Update) -> None:
    if update.noun == "task":
        if "stop_requested" in update.fields:
            tx.topics.add("stop")
        if "status" in update.fields:
            tx.topics.add("task")
            tx.unblocked(update.id)
    else:
        tx.topics.add(update.noun)


def say(tx: Tx, messages: tuple[Message, ...]) -> dict[str, list[tuple[str, int]]]:
    """Store messages; by the id of each the texts that were new, in order, with its number."""
    new: dict[str, list[tuple[str, int]]] = {}
    for message in messages:
        found = new.setdefault(message.id, [])
        if row := tx.row("session.say", fields_of(message)):
            found.append((message.text, row[0]))
    return new


def _numbered(events: Iterable[Event], new: Mapping[str, list[tuple[str, int]]]) -> Iterator[Event]:
    """The events; those of messages with the messages' numbers, and without those that say nothing new."""
    for made in events:
        name = made.payload.get("message_id") if made.kind == "message_update" else None
        if name is None or name not in new:
            yield made
        elif new[name] and new[name][0][0] == made.payload["message"]:
            yield made._replace(payload={**made.payload, "number": new[name].pop(0)[1]})


def _closed(tx: Tx, key: str | None) -> bool:
    """Whether a session is closed; a turn that ends after that does not change what it does."""
    row = tx.row("session.status", {"key": key})
    return row is not None and row[0] == "closed"


def fields_of(record: Any) -> dict[str, Any]:
    """A record as parameters."""
    return {name: getattr(record, name) for name in _names(type(record))}


_KNOWN: dict[type, tuple[str, ...]] = {Session: tuple(f.name for f in fields(Session))}


def _names(record: type) -> tuple[str, ...]:
    if record not in _KNOWN:
        _KNOWN[record] = tuple(f.name for f in fields(record))
    return _KNOWN[record]

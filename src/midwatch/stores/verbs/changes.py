"""Write the changes of a step: check the fence; write guarded updates, new records, messages, deliveries and events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from midwatch.base.errors import Conflict, LeaseLost
from midwatch.domain import (
    alert,
    approval,
    automation,
    channel,
    context_item,
    goal,
    handoff,
    steering,
    task,
    trigger,
    worktree,
)
from midwatch.domain.account import Account, open_account
from midwatch.domain.changes import Changes, Fence, Record, Removal, Update
from midwatch.domain.channel import Delivery
from midwatch.domain.context_item import ContextItem
from midwatch.domain.event import Event
from midwatch.domain.session import Message
from midwatch.domain.task import Task
from midwatch.stores.rows import dumps, encode, encode_task, get_values
from midwatch.stores.sql import INSERT_TASK, build_insert, build_update
from midwatch.stores.verbs import context_item as items
from midwatch.stores.verbs import handoff as handoffs
from midwatch.stores.verbs.tx import Move, Tx


def apply(tx: Tx, changes: Changes) -> None:
    """Write all changes, or raise LeaseLost or Conflict and change nothing."""
    fence = changes.fence
    checks = None if fence is None else next((u for u in changes.updates if _checks_fence(u, fence)), None)
    if fence is not None and checks is None:
        check_fence(tx, fence)
    for update in changes.updates:
        _update(tx, update, fence)
        if update is checks:
            fence = None  # checked; a later conflict comes from another guard, because this update may end the task
    for record in changes.records:
        insert(tx, record)
    for update in changes.updates:
        if update.noun == "task" and update.fields.get("completed_at"):
            _settle_items(tx, update)
    for removal in changes.removals:
        _remove(tx, removal)
    for session in changes.sessions:
        tx.run("session.touch", get_values(session))
        if session.thread_id is not None:
            tx.topics.add("session")
    if changes.sessions and "session" not in tx.topics and _ends_awaited_task(tx, changes):
        tx.topics.add("session")
    events: Iterable[Event] = changes.events
    if changes.messages:
        events = _number(events, add_messages(tx, changes.messages))
    add_deliveries(tx, changes.deliveries)
    for charge in sorted(changes.charges):  # always in this order, so that two transactions never wait for each other
        tx.run("account.charge", charge._asdict())
    events = [e for e in events if e.kind != "status_change" or not _is_closed(tx, e.session_key)]
    tx.events += _add_lineage(tx, events) if any(map(_lacks_lineage, events)) else events


def _ends_awaited_task(tx: Tx, changes: Changes) -> bool:
    """Return whether the changes end a task in a session whose thread a goal waits for.

    The goal goes on although the task reported no thread.
    """
    ends = any(update.noun == "task" and update.fields.get("status") == "done" for update in changes.updates)
    keys = {session.key for session in changes.sessions} if ends else ()
    return any(tx.row("goal.awaits", {"key": key}) is not None for key in keys)


WITHOUT_TASK = frozenset({"approval_resolved", "rule_added"})
"""Events that name an attempt, but are built without the record of its task."""


def _lacks_lineage(event: Event) -> bool:
    """Return whether an event names a task, but was built without the record of this task."""
    bare = event.attempt is None or event.kind in WITHOUT_TASK
    return bare and event.source is None and event.task_id is not None


def _add_lineage(tx: Tx, events: Iterable[Event]) -> list[Event]:
    """Return the events; those that were built without the record of their task get the lineage of this task."""
    ids = sorted({event.task_id for event in events if event.task_id is not None and _lacks_lineage(event)})
    lineages = {row[0]: row[1:] for row in tx.rows("task.lineages", {"ids": dumps(ids)})}
    return [
        event._replace(parent_turn_id=found[0], trace_path=found[1], source=found[2])
        if _lacks_lineage(event) and (found := lineages.get(event.task_id or ""))
        else event
        for event in events
    ]


def insert(tx: Tx, record: Record) -> None:
    """Store a new record."""
    tx.topics.add(record.noun)
    if tags := getattr(record, "tags", None):
        _add_tags(tx, record.noun, record.id, tags)  # type: ignore[attr-defined]  # such a record has an id
    if isinstance(record, Task):
        tx.statement(INSERT_TASK, encode_task(record))
        tx.moves.append(Move(record.id, None, record.status))
        tx.hint(record.agent, record.due_at)
        if record.budget is not None:
            for account in open_account(record):
                tx.statement(build_insert("account"), encode("account", get_values(account)))
    elif isinstance(record, ContextItem):
        _insert_item(tx, record)
    elif isinstance(record, Account):
        _insert_account(tx, record)
    else:
        tx.statement(build_insert(record.noun), encode(record.noun, get_values(record)))


def _add_tags(tx: Tx, noun: str, record_id: str, tags: Iterable[str]) -> None:
    tx.run_many("tag.add", [{"noun": noun, "tag": tag, "id": record_id} for tag in tags])


def _insert_account(tx: Tx, account: Account) -> None:
    """Store a new account, with what its tasks have spent.

    Running tasks are locked first, as by their fences: each charge is either added up or finds the account.
    """
    list(tx.rows("account.running", {"id": account.id}))
    tx.statement(build_insert(account.noun), encode(account.noun, get_values(account)))
    tx.run("account.add_up", {"id": account.id})


def _remove(tx: Tx, removal: Removal) -> None:
    """Remove a goal. Raise Conflict if it was changed meanwhile or does not exist any more."""
    if tx.run("goal.delete", {"id": removal.id, "revision": removal.revision}) != 1:
        raise Conflict(f"goal {removal.id} was changed meanwhile; read it again, then try again.")
    tx.run("goal.prune_tags", {"id": removal.id})
    tx.run("account.prune", {"ids": dumps([removal.id])})
    tx.topics.add("goal")


def _insert_item(tx: Tx, wanted: ContextItem) -> None:
    """Store the result of background work. Begin a turn for it, if its starter wants this and no turn can take it."""
    if (item := items.place(tx, wanted)) is None:
        return
    tx.statement(build_insert(item.noun), encode(item.noun, get_values(item)))
    if item.wake:
        apply(tx, items.wake_for_arrival(tx, item))


def _settle_items(tx: Tx, ends: Update) -> None:
    """After the end of a task, put back the results that it took if it was cancelled, and begin a turn if some wait.

    After a transfer they wait for the task that goes on.
    """
    if target := ends.fields.get("transferred_to"):
        tx.run("context_item.follow", {"id": ends.id, "target": target})
    if ends.fields["status"] == "cancelled":
        tx.run("context_item.put_back", {"id": ends.id})
    if ends.guard.get("steers"):
        apply(tx, items.wake_after(tx, ends.id, ends.fields["completed_at"]))


def add_deliveries(tx: Tx, deliveries: tuple[Delivery, ...]) -> None:
    """Store new deliveries. A delivery that is stored already is not changed."""
    for delivery in deliveries:
        tx.run("channel.add", get_values(delivery))
        tx.topics.add("delivery")


def _checks_fence(update: Update, fence: Fence) -> bool:
    """Return whether the guard of an update already checks that the attempt of the fence still runs."""
    guard = update.guard
    return update.id == fence.task_id and guard.get("status") == "running" and guard.get("attempt") == fence.attempt


def check_fence(tx: Tx, fence: Fence) -> None:
    """Raise LeaseLost unless the attempt that the fence names still runs."""
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
    "context_item": context_item.TRANSITIONS,
    "alert": alert.TRANSITIONS,
    "firing": trigger.TRANSITIONS,
}


def _check_transition(update: Update) -> None:
    """Raise Conflict if a record of this noun cannot change from its status to the new status."""
    if "status" not in update.fields or update.noun not in STATES:
        return
    before, after = update.guard["status"], update.fields["status"]
    if after not in STATES[update.noun][before]:
        raise Conflict(f"{update.noun} {update.id} is {before} and cannot become {after}.")


def _update(tx: Tx, update: Update, fence: Fence | None) -> None:
    _check_transition(update)
    guard = update.guard
    sql = build_update(update.noun, tuple(update.fields), tuple([(name, guard[name] is None) for name in guard]))
    values = encode(update.noun, update.fields).values()
    params = (*values, update.id, *[value for value in guard.values() if value is not None])
    if tx.statement(sql, params) != 1:
        if fence is not None:
            check_fence(tx, fence)
        raise Conflict(f"{update.noun} {update.id} was changed meanwhile; read it again, then try again.")
    if "tags" in update.fields:
        tx.run("tag.clear", {"noun": update.noun, "id": update.id})
        _add_tags(tx, update.noun, update.id, update.fields["tags"] or ())
    if update.noun != "task":
        tx.topics.add(update.noun)
        if update.noun == "approval":
            handoffs.move_deadlines(tx, update.id)  # an approval changes once: when it ends
        return
    if "stop_requested" in update.fields:
        tx.topics.add("stop")
    if "status" in update.fields:
        tx.topics.add("task")
        tx.moves.append(Move(update.id, guard["status"], update.fields["status"]))
        tx.unblock(update.id)


def add_messages(tx: Tx, messages: tuple[Message, ...]) -> dict[str, list[tuple[str, int]]]:
    """Store messages. Return, for each message id, the texts that are new, each with its number in the session."""
    new: dict[str, list[tuple[str, int]]] = {}
    for message in messages:
        texts = new.setdefault(message.id, [])
        if row := tx.row("session.add_message", get_values(message)):
            texts.append((message.text, row[0]))
    return new


def _number(events: Iterable[Event], new: Mapping[str, list[tuple[str, int]]]) -> Iterator[Event]:
    """Yield the events. An event about a message gets the message's number, or is skipped if its text is not new."""
    for event in events:
        name = event.payload.get("message_id") if event.kind == "message_update" else None
        if name is None or name not in new:
            yield event
        elif new[name] and new[name][0][0] == event.payload["message"]:
            yield event._replace(payload={**event.payload, "number": new[name].pop(0)[1]})


def _is_closed(tx: Tx, key: str | None) -> bool:
    """Return whether the session with this key is closed. A closed session gets no more events `status_change`."""
    return tx.value(str, "session.status", key=key) == "closed"

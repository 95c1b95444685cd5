"""Sessions and their messages: open, close, read. `changes.apply` writes messages and the changes that tasks make."""

from __future__ import annotations

from midwatch.domain.event import Event
from midwatch.domain.session import Message, Session, View
from midwatch.stores.rows import Row, decode, encode, get_values
from midwatch.stores.verbs.tx import Tx

ACTIVITY = 3
"""The number of columns after the columns of the session: id of the running task, its wait, number of waiting tasks."""


def get(tx: Tx, key: str) -> Session | None:
    return tx.find(Session, "session.get", key=key)


def list_managers(tx: Tx, key: str) -> list[tuple[str | None, str]]:
    base = key.rpartition("|message:")[0] or key  # the runs of an automation may have a session each
    return [(creator, mode) for creator, mode in tx.rows("session.managers", {"key": key, "base": base})]


def view(tx: Tx, key: str) -> View | None:
    row = tx.row("session.view", {"key": key})
    return None if row is None else _view(row)


def _view(row: Row) -> View:
    running, wait, queued = row[-ACTIVITY:]
    return View(decode(Session, row[:-ACTIVITY]), running, wait == "approval", queued)


def list_(tx: Tx, limit: int = 50, before: str | None = None) -> list[View]:
    name = "session.list" if before is None else "session.list_before"
    return [_view(row) for row in tx.rows(name, {"limit": limit, "before": before})]


def open_(tx: Tx, session: Session, events: tuple[Event, ...]) -> bool:
    """Open a session. Return False if it is open already, or if another request opens it at the same time."""
    opened = tx.row("session.open", encode("session", get_values(session))) is not None
    if opened:
        tx.events.extend(events)
    return opened


def close(tx: Tx, key: str, now: int, events: tuple[Event, ...]) -> bool:
    closed = tx.run("session.close", {"key": key, "now": now}) == 1
    if closed:
        tx.events.extend(events)
        tx.topics.add("session")
    return closed


def list_messages(tx: Tx, key: str, after: int = 0, limit: int = 500) -> list[Message]:
    return tx.find_all(Message, "session.messages", key=key, after=after, limit=limit)


def list_last_messages(tx: Tx, key: str, limit: int) -> list[Message]:
    return tx.find_all(Message, "session.last_messages", key=key, limit=limit)[::-1]

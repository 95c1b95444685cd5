"""Sessions and their messages: open, close, look; tasks and messages write them by `changes.apply`."""

from __future__ import annotations

from midwatch.domain.event import Event
from midwatch.domain.session import Message, Session, View
from midwatch.stores.sql import RECORDS
from midwatch.stores.verbs.changes import fields_of
from midwatch.stores.verbs.tx import Row, Tx


def _session(row: Row) -> Session:
    return Session(**dict(zip(RECORDS["session"], row, strict=True)))


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

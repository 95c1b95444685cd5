"""Events: append with consecutive numbers, read, prune."""

from __future__ import annotations

from typing import Any

from midwatch.domain.event import Event, EventFilter, LogBounds, Page, wanted
from midwatch.stores.sql import dumps, loads, tell
from midwatch.stores.verbs.tx import Row, Tx

PAYLOAD = Event._fields.index("payload")
MOST_READ = 4_000_000
"""Characters of payload in one page: a few long texts must not fill the memory of each reader."""
PRUNE_STEP = 10_000
"""Events removed in one transaction at most, so that pruning never holds up work for long."""


def event_of(row: Row) -> Event:
    """An event from its row."""
    return Event._make((*row[:PAYLOAD], loads(row[PAYLOAD]), *row[PAYLOAD + 1 :]))


def append(tx: Tx, events: list[Event]) -> tuple[Event, ...]:
    """Store `events` and return them with their seqs. The last thing a transaction does."""
    head = tx.row("event.take_seqs", {"count": len(events)})
    assert head is not None
    first = head[0] - len(events) + 1
    numbered = tuple(made._replace(seq=first + place) for place, made in enumerate(events))
    tx.run_many("event.append", [(*e[:PAYLOAD], tell(e.payload), *e[PAYLOAD + 1 :]) for e in numbered])
    return numbered


def asked(which: EventFilter) -> dict[str, Any]:
    """The parameters of a filter, but for its task."""
    kinds = wanted(which.kinds)
    return {
        "any_kind": not which.kinds, "kinds": dumps(sorted(kinds.names)), "beginnings": dumps(kinds.beginnings),
        "turn_id": which.turn_id, "session_key": which.session_key, "agent_id": which.agent_id, "actor": which.actor,
    }  # fmt: skip


def read(tx: Tx, after: int, which: EventFilter, limit: int) -> Page:
    params = {"after": after, "limit": limit, **asked(which)}
    if which.of_task is not None:
        params["task_id"] = which.of_task
    name = "event.read" if which.of_task is None else "event.read_task"
    page, size = Page(), 0
    for row in tx.rows(name, params):
        page.append(event_of(row))
        size += len(row[PAYLOAD])
        if size >= MOST_READ:
            page.cut = len(page) < limit
            break
    return page


def read_back(tx: Tx, before: int, which: EventFilter, limit: int) -> list[Event]:
    params = {"before": before, "limit": limit, "task_id": which.of_task, **asked(which)}
    return [event_of(row) for row in tx.rows("event.read_back", params)][::-1]


def last_of_task(tx: Tx, task_id: str) -> Event | None:
    row = tx.row("event.last_of_task", {"task_id": task_id})
    return None if row is None else event_of(row)


def bounds(tx: Tx) -> LogBounds:
    row = tx.row("event.bounds", {})
    assert row is not None
    return LogBounds(*row)


def prune(tx: Tx, before: int, keep: int, step: int = PRUNE_STEP) -> int:
    oldest, last = bounds(tx)
    fresh = tx.row("event.first_fresh", {"oldest": oldest, "before": before})
    too_old = (fresh[0] if fresh else last + 1) - 1
    upto = min(max(too_old, last - keep), oldest + step - 1)
    gone = tx.run("event.prune_left", {"oldest": oldest})
    if upto >= oldest:
        gone += tx.run("event.prune", {"oldest": oldest, "upto": upto})
        tx.run("event.set_oldest", {"oldest": upto + 1})
    return gone


def get_cursor(tx: Tx, name: str) -> int | None:
    row = tx.row("event.get_cursor", {"name": name})
    return None if row is None else int(row[0])


def set_cursor(tx: Tx, name: str, seq: int) -> None:
    tx.run("event.set_cursor", {"name": name, "seq": seq})

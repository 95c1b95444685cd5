"""Events: append with consecutive seqs, read, prune. Also the cursors: the last seq that each reader has handled."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import Any

from midwatch.domain.event import EVERYTHING, Event, EventFilter, LogBounds, Page, Pruned, parse_kinds
from midwatch.domain.store import STEP_SECONDS
from midwatch.stores.rows import PAYLOAD, decode_event, dumps, encode_event
from midwatch.stores.verbs.tx import Tx

MOST_READ = 4_000_000
"""Maximum characters of all payloads in one page, so that long texts do not fill the memory of the process."""
PRUNE_PAGE = 100
"""Number of events that pruning looks at before it checks how much of its time is used."""


def append(tx: Tx, events: list[Event]) -> tuple[Event, ...]:
    """Store `events` and return them with their seqs. Call this just before the commit."""
    numbered = number(events, tx.value(int, "event.take_seqs", count=len(events)) or 0)
    tx.run_many("event.append", map(encode_event, numbered))
    return numbered


def touch(tx: Tx) -> None:
    """Write a row without changing it, to find out whether the database can write."""
    tx.run("event.touch", {})


def number(events: list[Event], last_seq: int) -> tuple[Event, ...]:
    """Return the events with consecutive seqs, of which the last is `last_seq`."""
    first = last_seq - len(events) + 1
    return tuple(event._replace(seq=first + index) for index, event in enumerate(events))


def _params(which: EventFilter) -> dict[str, Any]:
    """Return the SQL parameters of a filter, except its task."""
    kinds = parse_kinds(which.kinds)
    return {
        "any_kind": not which.kinds, "kinds": dumps(sorted(kinds.names)), "beginnings": dumps(kinds.beginnings),
        "turn_id": which.turn_id, "session_key": which.session_key, "agent_id": which.agent_id, "actor": which.actor,
    }  # fmt: skip


def read(tx: Tx, after: int, which: EventFilter = EVERYTHING, limit: int = 500, most_text: int = MOST_READ) -> Page:
    params = {"after": after, "limit": limit, **_params(which)}
    if which.of_task is not None:
        params["task_id"] = which.of_task
    name = "event.read" if which.of_task is None else "event.read_task"
    page, size = Page(), 0
    for row in tx.rows(name, params):
        page.append(decode_event(row))
        size += len(row[PAYLOAD])
        if size >= most_text:
            page.cut = len(page) < limit
            break
    return page


def read_back(tx: Tx, before: int, which: EventFilter = EVERYTHING, limit: int = 500) -> list[Event]:
    params = {"before": before, "limit": limit, "task_id": which.of_task, **_params(which)}
    return tx.find_all(Event, "event.read_back", **params)[::-1]


def find_last(tx: Tx, task_id: str) -> Event | None:
    return tx.find(Event, "event.last_of_task", task_id=task_id)


def read_bounds(tx: Tx) -> LogBounds:
    row = tx.row("event.bounds", {})
    assert row is not None
    return LogBounds(*row)


def prune(tx: Tx, before: int, keep: int, after: int = 0, seconds: float = STEP_SECONDS) -> Pruned:
    oldest, last = read_bounds(tx)

    def is_surplus(row: tuple[Any, ...]) -> bool:
        seq, written_at = row
        # Events before `oldest` are those of tasks that were open when the log was pruned before.
        return bool(seq < oldest or seq <= last - keep or written_at < before)

    deadline, removed = time.perf_counter() + seconds, 0
    while True:
        # The time of each event is read, because the times are not in order if a clock was set back.
        surplus = list(takewhile(is_surplus, tx.rows("event.prunable", {"after": after, "limit": PRUNE_PAGE})))
        if surplus:
            removed += tx.run("event.prune", {"after": after, "upto": surplus[-1][0]})
            after = surplus[-1][0]
        if len(surplus) < PRUNE_PAGE or time.perf_counter() >= deadline:
            break
    if after >= oldest:  # at the end, because on PostgreSQL this row stops all transactions with events
        tx.run("event.set_oldest", {"oldest": after + 1})
    return Pruned(removed, after if len(surplus) == PRUNE_PAGE else None)


def get_cursor(tx: Tx, name: str) -> int | None:
    return tx.value(int, "event.get_cursor", name=name)


def set_cursor(tx: Tx, name: str, seq: int) -> None:
    tx.run("event.set_cursor", {"name": name, "seq": seq})

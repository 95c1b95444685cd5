"""Events: append with consecutive seqs, read, prune. Also the cursors: the last seq that each reader has handled."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import Any

from midwatch.domain.event import EVERYTHING, Event, EventFilter, LogBounds, Page, Pruned, parse_kinds
from midwatch.domain.session import PRIVATE
from midwatch.domain.store import STEP_SECONDS
from midwatch.domain.task import OPEN, STATUSES
from midwatch.stores.rows import PAYLOAD, SEQ, decode_event, dumps, encode_event
from midwatch.stores.verbs import listing
from midwatch.stores.verbs.tx import Move, Tx

LAST = 2**62
"""A number after every seq."""
MOST_READ = 4_000_000
"""Maximum characters of all payloads in one page, so that long texts do not fill the memory of the process."""
PRUNE_PAGE = 100
"""Number of events that pruning looks at before it checks how much of its time is used."""


def append(tx: Tx) -> tuple[Event, ...]:
    """Store the events, counts and sums that a transaction has collected. Call this just before the commit.

    Return the events with their seqs.
    """
    events = tx.events
    numbered = number(events, tx.value(int, "event.take_seqs", count=len(events), **count_moves(tx.moves)) or 0)
    tx.run_many("event.append", map(encode_event, numbered))
    if ended := list_ended(tx.moves):
        tx.run("usage.add", {"ids": dumps(ended)})
    return numbered


def count_moves(moves: list[Move]) -> dict[str, int]:
    """Return by how much the number of tasks of each status has changed."""
    counts: dict[str, int] = dict.fromkeys(STATUSES, 0)
    for _, before, after in moves:
        if before is not None:
            counts[before] -= 1
        if after is not None:
            counts[after] += 1
    return counts


def list_ended(moves: list[Move]) -> list[str]:
    """Return the ids of the tasks that have ended. Tasks that were only removed are not included."""
    return [task_id for task_id, _, after in moves if after is not None and after not in OPEN]


def touch(tx: Tx) -> None:
    """Write a row without changing it, to find out whether the database can write."""
    tx.run("event.touch", {})


def number(events: list[Event], last_seq: int) -> tuple[Event, ...]:
    """Return the events with consecutive seqs, of which the last is `last_seq`."""
    seqs = range(last_seq - len(events) + 1, last_seq + 1)
    return tuple(Event._make((*event[:SEQ], seq, *event[SEQ + 1 :])) for seq, event in zip(seqs, events, strict=True))


def _params(which: EventFilter) -> dict[str, Any]:
    """Return the SQL parameters of a filter, except its task."""
    kinds = parse_kinds(which.kinds)
    return {
        "any_kind": not which.kinds, "kinds": dumps(sorted(kinds.names)), "beginnings": dumps(kinds.beginnings),
        "tree": which.tree, "turn_id": which.turn_id, "session_key": which.session_key, "agent_id": which.agent_id,
        "actor": which.actor,
    }  # fmt: skip


def read(tx: Tx, after: int, which: EventFilter = EVERYTHING, limit: int = 500, most_text: int = MOST_READ) -> Page:
    path, filtered = _choose_path(which)
    params = {"after": after, "limit": limit, "task_id": which.of_task, **_params(which)}
    end = tx.value(int, f"event.next_end_{path}", **params, look=listing.MOST_LOOKED) if filtered else None
    page, size = Page(), 0
    page.next = end
    for row in tx.rows(f"event.next_{path}", {**params, "end": LAST if end is None else end}):
        page.append(decode_event(row))
        size += len(row[PAYLOAD])
        if size >= most_text or len(page) == limit:
            page.next = page[-1].seq
            break
    return page


def read_back(tx: Tx, before: int, which: EventFilter = EVERYTHING, limit: int = 500) -> Page:
    path, filtered = _choose_path(which)
    params = {"before": before, "limit": limit, "task_id": which.of_task, **_params(which)}
    end = tx.value(int, f"event.end_{path}", **params, look=listing.MOST_LOOKED) if filtered else None
    page = Page(tx.find_all(Event, f"event.list_{path}", **params, end=end or 0)[::-1])
    page.next = page[0].seq if len(page) == limit else end
    return page


def _choose_path(which: EventFilter) -> tuple[str, bool]:
    """Return the path of `midwatch.stores.sql.PATHS` for a filter, and whether not every event of the path matches."""
    if which.of_task is not None:
        return "task", which != EventFilter(task_id=which.task_id)
    if which.session_key is not None and not which.session_key.startswith(PRIVATE):
        return "session", which != EventFilter(session_key=which.session_key)
    if which.kinds == ("watchdog_alert",):
        return "alert", which != EventFilter(kinds=which.kinds)
    return "all", which != EVERYTHING


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

"""Usage: sum it. `midwatch.stores.verbs.event.append` adds the usage of each task when the task ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from midwatch.domain.session import PRIVATE
from midwatch.domain.usage import PARTS, QUARTER, UsageQuery, UsageRow, find_date, split_days
from midwatch.stores.rows import dumps
from midwatch.stores.sql import name_sum
from midwatch.stores.verbs.tx import Tx

TOTALS, QUARTERS, DAYS, FOUR_HOURS = 0, 1, 2, 3
"""The levels of the sums; see the table `usage_sums`."""
WIDTHS = {TOTALS: 1, QUARTERS: 1, DAYS: 96, FOUR_HOURS: 16}
"""How many quarters of an hour a sum of each level contains."""
KEPT_QUARTERS = 400 * 96
"""The sums are kept for 400 days before the newest, so usually longer than the tasks."""


def sum_usage(tx: Tx, query: UsageQuery) -> list[UsageRow]:
    """Return the sums of whole quarters of an hour, and the usage of the tasks that ended in the parts at both ends."""
    since, until, session = query.since, query.until, query.session_key
    if session is not None and session.startswith(PRIVATE):
        return _rows(tx, "usage.sum_private", query, since=since, until=until)
    first, last = -(-since // QUARTER), until // QUARTER
    found = []
    if last < first:  # both times are in the same quarter
        return _rows(tx, "usage.sum_tasks", query, since=since, until=until)
    if _has_ended(tx, (first - 1) * QUARTER, since):
        found += _rows(tx, "usage.sum_tasks", query, since=since, until=first * QUARTER)
    elif since < first * QUARTER:
        first -= 1  # the period begins before the first task of this quarter
    if _has_ended(tx, until, (last + 1) * QUARTER):
        found += _rows(tx, "usage.sum_tasks", query, since=last * QUARTER, until=until)
    elif last * QUARTER < until:
        last += 1  # the period ends after the last task of this quarter
    name = name_sum(query.by) if session is None else "usage.sum_session"
    return found + _rows(tx, name, query, pieces=dumps(_split(tx, query, first, last)))


def prune(tx: Tx) -> None:
    """Remove the sums that are much older than the newest."""
    tx.run_many("usage.prune", [{"level": level, "kept": KEPT_QUARTERS // width} for level, width in WIDTHS.items()])


Piece = tuple[int | None, int, int, int]
"""Sums to read: the first quarter of their day or None, their level, the first sum, and the sum after the last."""


def _split(tx: Tx, query: UsageQuery, first: int, last: int) -> list[Piece]:
    """Split some quarters of an hour into days, if the query groups by day, and these into few sums."""
    levels = [DAYS, FOUR_HOURS, QUARTERS]
    if query.session_key is None and set(query.by) <= {"day"}:
        levels = [TOTALS]
    if "day" not in query.by:
        return [(None, *piece) for piece in _cut(first, last, levels)]
    oldest, newest = tx.row("usage.bounds", {}) or (None, None)
    if oldest is None or newest is None:
        return []
    days = split_days(max(first, oldest), min(last, newest + 1), query.zone)
    return [(begin, *piece) for begin, after in days for piece in _cut(begin, after, levels)]


def _cut(first: int, last: int, levels: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the sums that contain exactly these quarters of an hour, from the first of the levels where possible.

    A day of a time zone is usually not a day in UTC; then both its ends come from the other levels.
    """
    if first >= last:
        return
    level, finer = levels[0], levels[1:]
    width = WIDTHS[level]
    begin, after = -(-first // width), last // width
    if begin >= after:
        yield from _cut(first, last, finer)
        return
    yield from _cut(first, begin * width, finer)
    yield level, begin, after
    yield from _cut(after * width, last, finer)


def _has_ended(tx: Tx, since: int, until: int) -> bool:
    return tx.row("usage.ended_between", {"since": since, "until": until}) is not None


def _rows(tx: Tx, name: str, query: UsageQuery, **params: Any) -> list[UsageRow]:
    """Return the rows of a named query. Its column for the day contains any quarter of an hour of this day."""
    params |= {part: part in query.by for part in PARTS} | {"session_key": query.session_key}
    rows = list(tx.rows(name, params))
    days = {
        quarter: None if quarter is None else find_date(quarter, query.zone).isoformat()
        for quarter in {row[4] for row in rows}
    }
    return [UsageRow._make((*row[:4], days[row[4]], *map(int, row[5:12]), *row[12:])) for row in rows]

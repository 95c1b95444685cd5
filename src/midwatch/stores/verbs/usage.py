"""Usage: sum it. `midwatch.stores.verbs.event.append` adds the usage of each task when the task ends."""

from __future__ import annotations

from typing import Any

from midwatch.domain.session import PRIVATE
from midwatch.domain.usage import PARTS, QUARTER, UsageQuery, UsageRow
from midwatch.stores.verbs.tx import Tx

TOTALS, DETAILS, DAYS = 0, 1, 2
"""The levels of the sums; see the table `usage_sums`."""
QUARTERS = 96
"""Quarters of an hour in a day."""
KEPT_DAYS = 400
"""The sums are kept for this many days before the newest, so usually longer than the tasks."""
KEPT = {TOTALS: KEPT_DAYS * QUARTERS, DETAILS: KEPT_DAYS * QUARTERS, DAYS: KEPT_DAYS}


def sum_usage(tx: Tx, query: UsageQuery) -> list[UsageRow]:
    """Return the sums of whole quarters of an hour, and the usage of the tasks that ended in the parts at both ends."""
    since, until, session = query.since, query.until, query.session_key
    params: dict[str, Any] = {part: part in query.by for part in PARTS} | {"session_key": session}
    if session is not None and session.startswith(PRIVATE):
        return _rows(tx, "usage.sum_private", params, since=since, until=until)
    first, last = -(-since // QUARTER), until // QUARTER
    found = []
    if last < first:  # both times are in the same quarter
        return _rows(tx, "usage.sum_tasks", params, since=since, until=until)
    if _has_ended(tx, (first - 1) * QUARTER, since):
        found += _rows(tx, "usage.sum_tasks", params, since=since, until=first * QUARTER)
    elif since < first * QUARTER:
        first -= 1  # the period begins before the first task of this quarter
    if _has_ended(tx, until, (last + 1) * QUARTER):
        found += _rows(tx, "usage.sum_tasks", params, since=last * QUARTER, until=until)
    elif last * QUARTER < until:
        last += 1  # the period ends after the last task of this quarter
    name = "usage.sum" if session is None else "usage.sum_session"
    if session is None and query.by == ("day",):
        name = "usage.totals"  # there is nothing to group
    for level, begin, end in _split(query, first, last):
        found += _rows(tx, name, params, level=level, first=begin, last=end)
    return found


def prune(tx: Tx) -> None:
    """Remove the sums that are much older than the newest."""
    tx.run_many("usage.prune", [{"level": level, "kept": kept} for level, kept in KEPT.items()])


def _split(query: UsageQuery, first: int, last: int) -> list[tuple[int, int, int]]:
    """Return the levels with the fewest sums for some quarters of an hour, each with its first and last sum."""
    if query.session_key is None and set(query.by) <= {"day"}:
        return [(TOTALS, first, last)]
    first_day, last_day = -(-first // QUARTERS), last // QUARTERS
    if "day" in query.by or first_day >= last_day:  # a day of the caller's time zone is not a day in UTC
        return [(DETAILS, first, last)]
    begin, end = first_day * QUARTERS, last_day * QUARTERS
    return [(DETAILS, first, begin), (DAYS, first_day, last_day), (DETAILS, end, last)]


def _has_ended(tx: Tx, since: int, until: int) -> bool:
    return tx.row("usage.ended_between", {"since": since, "until": until}) is not None


def _rows(tx: Tx, name: str, params: dict[str, Any], **times: int) -> list[UsageRow]:
    return [UsageRow(*row[:5], *map(int, row[5:12]), *row[12:]) for row in tx.rows(name, {**params, **times})]

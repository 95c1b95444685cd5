"""Usage: sum it. `midwatch.stores.verbs.event.append` adds the usage of each task when the task ends."""

from __future__ import annotations

from typing import Any

from midwatch.domain.session import PRIVATE
from midwatch.domain.usage import PARTS, QUARTER, UsageQuery, UsageRow
from midwatch.stores.verbs.tx import Tx


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
    return found + _rows(tx, name, params, first=first, last=last)


def _has_ended(tx: Tx, since: int, until: int) -> bool:
    return tx.row("usage.ended_between", {"since": since, "until": until}) is not None


def _rows(tx: Tx, name: str, params: dict[str, Any], **times: int) -> list[UsageRow]:
    return [UsageRow(*row[:5], *map(int, row[5:12]), *row[12:]) for row in tx.rows(name, {**params, **times})]

"""Usage: the cost of ended tasks by actor, agent, session, model and day. Figures that no agent reports are unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Literal, NamedTuple, Protocol, get_args

from midwatch.base.clock import SECOND

By = Literal["actor", "agent", "session", "model", "day"]
PARTS: tuple[By, ...] = get_args(By)
QUARTER = 900 * SECOND
"""A quarter of an hour, in microseconds. In every time zone, a quarter of an hour lies within one day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Which ended tasks to sum, and what to group them by.

    A task is included if it ended at or after `since` and before `until`. Days begin at midnight in `zone`.
    """

    since: int
    until: int
    by: tuple[By, ...] = ("actor", "agent")
    session_key: str | None = None
    zone: tzinfo = UTC


class UsageRow(NamedTuple):
    """The summed usage of some ended tasks.

    A field that the query does not group by is None. `day` is the date on which the tasks ended, such as `2026-03-29`.
    `micros` is how long the last attempts of the tasks worked. `untold` tasks reported no usage, `unpriced` tasks
    reported no cost.
    """

    actor: str | None = None
    agent: str | None = None
    session: str | None = None
    model: str | None = None
    day: str | None = None
    tasks: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    micros: int = 0
    untold: int = 0
    unpriced: int = 0
    input_tokens: float | None = None
    output_tokens: float | None = None
    cost_usd: float | None = None


class UsageStore(Protocol):
    """Port: the usage of ended tasks."""

    async def sum_usage(self, query: UsageQuery) -> list[UsageRow]:
        """Return the usage of the tasks that ended in the period of the query, one row or a few for each group.

        A task outside a conversation has the session '', and a task without a model has the model ''.
        """


COUNTS = ("tasks", "done", "failed", "cancelled", "untold", "unpriced")
FIGURES = ("input_tokens", "output_tokens", "cost_usd")


def add_up(rows: Iterable[UsageRow]) -> dict[str, Any]:
    """Return the sum of all rows as JSON data."""
    # column by column, because a year has many rows
    columns = dict(zip(UsageRow._fields, zip(*rows, strict=True), strict=False))
    total: dict[str, Any] = {name: sum(columns.get(name, ())) for name in COUNTS}
    for name in FIGURES:
        known = [figure for figure in columns.get(name, ()) if figure is not None and math.isfinite(figure)]
        total[name] = round(sum(known), 6 if name == "cost_usd" else None) if known else None
    return total | {"seconds": round(sum(columns.get("micros", ())) / SECOND, 3)}


def group_rows(rows: Iterable[UsageRow], by: Sequence[By]) -> list[dict[str, Any]]:
    """Return the sum of each group as JSON data.

    The groups are sorted by day if the query groups by day; otherwise the group with the most tasks is first.
    """
    parts: dict[tuple[str, ...], list[UsageRow]] = {}
    for row in rows:
        parts.setdefault(tuple(getattr(row, part) or "" for part in by), []).append(row)
    groups = [{**dict(zip(by, key, strict=True)), **add_up(part)} for key, part in parts.items()]
    if "day" in by:
        return sorted(groups, key=lambda group: (group["day"], -group["tasks"], *(group[part] for part in by)))
    return sorted(groups, key=lambda group: (-group["tasks"], *(group[part] for part in by)))


def find_date(quarter: int, zone: tzinfo) -> date:
    """Return the day of a quarter of an hour in a time zone."""
    return datetime.fromtimestamp(quarter * QUARTER / SECOND, zone).date()


def split_days(first: int, last: int, zone: tzinfo) -> list[tuple[int, int]]:
    """Split the quarters of an hour from `first` until `last` into days of a time zone.

    Return for each day its first quarter, and the quarter after its last.
    """
    days = []
    while first < last:
        midnight = datetime.combine(find_date(first, zone) + timedelta(days=1), time.min, zone).timestamp()
        after = min(max(first + 1, int(midnight * SECOND) // QUARTER), last)
        days.append((first, after))
        first = after
    return days


def describe_gaps(total: Mapping[str, Any]) -> str:
    """Return a text that says which figures are missing; return "" if no figure is missing."""
    missing = {"usage": total["untold"], "cost": total["unpriced"] - total["untold"]}
    tasks = f"{total['tasks']} {'task' if total['tasks'] == 1 else 'tasks'}"
    return "; ".join(f"no {figure} reported for {count} of {tasks}" for figure, count in missing.items() if count > 0)

"""Usage: the cost of ended tasks by actor, agent, session, model and day. Figures that no agent reports are unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, Literal, NamedTuple, Protocol, get_args
from zoneinfo import ZoneInfo

from midwatch.base.clock import SECOND

By = Literal["actor", "agent", "session", "model", "day"]
PARTS: tuple[By, ...] = get_args(By)
QUARTER = 900 * SECOND
"""A quarter of an hour, in microseconds. In every time zone, a quarter of an hour lies within one day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Which ended tasks to sum, and what to group them by.

    A task is included if it ended at or after `since` and before `until`.
    """

    since: int
    until: int
    by: tuple[By, ...] = ("actor", "agent")
    session_key: str | None = None


class UsageRow(NamedTuple):
    """The summed usage of some ended tasks.

    A field that the query does not group by is None. `quarter` is when the tasks ended, in quarters of an hour since
    the epoch. `micros` is how long the last attempts of the tasks worked. `untold` tasks reported no usage, `unpriced`
    tasks reported no cost.
    """

    actor: str | None = None
    agent: str | None = None
    session: str | None = None
    model: str | None = None
    quarter: int | None = None
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
        """Return the usage of the tasks that ended in the period of the query, one row for each group.

        If the query groups by day, a row is for a quarter of an hour, not for a whole day. A task outside a
        conversation has the session '', and a task without a model has the model ''.
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


def group_rows(rows: Iterable[UsageRow], by: Sequence[By], zone: ZoneInfo) -> list[dict[str, Any]]:
    """Return the sum of each group as JSON data.

    The groups are sorted by day if the query groups by day; otherwise the group with the most tasks is first.
    """
    rows = list(rows)
    days = _find_days((row.quarter for row in rows), zone) if "day" in by else {}
    parts: dict[tuple[str, ...], list[UsageRow]] = {}
    for row in rows:
        key = (days[row.quarter] if part == "day" else getattr(row, part) or "" for part in by)
        parts.setdefault(tuple(key), []).append(row)
    groups = [{**dict(zip(by, key, strict=True)), **add_up(part)} for key, part in parts.items()]
    if "day" in by:
        return sorted(groups, key=lambda group: (group["day"], -group["tasks"], *(group[part] for part in by)))
    return sorted(groups, key=lambda group: (-group["tasks"], *(group[part] for part in by)))


def _find_days(quarters: Iterable[int | None], zone: ZoneInfo) -> dict[int | None, str]:
    """Return the day of each quarter of an hour in a time zone."""
    days: dict[int | None, str] = {}
    name, ends = "", 0.0
    for quarter in sorted({quarter or 0 for quarter in quarters}):
        began = quarter * QUARTER / SECOND
        if began >= ends:
            date = datetime.fromtimestamp(began, zone).date()
            name, ends = date.isoformat(), datetime.combine(date + timedelta(days=1), time.min, zone).timestamp()
        days[quarter] = name
    return days


def describe_gaps(total: Mapping[str, Any]) -> str:
    """Return a text that says which figures are missing; return "" if no figure is missing."""
    missing = {"usage": total["untold"], "cost": total["unpriced"] - total["untold"]}
    tasks = f"{total['tasks']} {'task' if total['tasks'] == 1 else 'tasks'}"
    return "; ".join(f"no {figure} reported for {count} of {tasks}" for figure, count in missing.items() if count > 0)

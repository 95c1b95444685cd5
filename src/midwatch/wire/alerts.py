"""Alerts and routines as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import TypedDict

from midwatch.domain.fields import AT, Example


class AlertInfo(TypedDict):
    """Something that does not go as it should: overdue, stuck or silent."""

    subject: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    alert: Annotated[str, Example("silent")]
    text: Annotated[str, Example("Silent: Rebuild the index")]
    since: Annotated[str, Example(AT)]


class AlertPage(TypedDict):
    """What is wrong now: what was told just now, and what was told lately."""

    told: list[AlertInfo]
    known: list[AlertInfo]


class RoutineInfo(TypedDict):
    """Work of midwatch itself at intervals."""

    name: Annotated[str, Example("watchdog")]
    seconds: Annotated[float, Example(60.0)]
    runs: Annotated[int, Example(12)]
    failures: int
    skipped: int
    last_at: Annotated[str | None, Example(AT)]
    last_error: str | None


class RoutinePage(TypedDict):
    """All routines of the process, by name."""

    routines: list[RoutineInfo]

"""Alerts and routines as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.alert import Alert
from midwatch.domain.fields import AT, Example
from midwatch.wire.shapes import shape_of


@shape_of(Alert)
class AlertInfo(dict[str, Any]):
    """Something that does not go as it should: overdue, stuck or silent."""


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

"""Alerts and routines as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.alert import Alert
from midwatch.domain.fields import AT, Example
from midwatch.wire.shapes import shape_of


@shape_of(Alert)
class AlertInfo(dict[str, Any]):
    """A problem of a task, an automation or a goal: overdue, stuck or silent."""


class AlertPage(TypedDict):
    """The current alerts: alerts in `told` are sent now, alerts in `known` were sent a short time before."""

    told: list[AlertInfo]
    known: list[AlertInfo]


class RoutineInfo(TypedDict):
    """A routine that midwatch runs at intervals."""

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

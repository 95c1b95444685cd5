"""Alerts and routines as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.alert import Alert
from midwatch.domain.fields import AT, Example
from midwatch.wire.shapes import shape_of


@shape_of(Alert, id=Annotated[str | None, Example("al_06f2m8yq3kq5r0v9")])
class AlertInfo(dict[str, Any]):
    """A problem, and the state of its alert. While the state is `found`, the alert is not raised yet and has no id."""


class AlertList(TypedDict):
    """The problems that exist now, oldest first."""

    alerts: list[AlertInfo]


class AlertPage(TypedDict):
    """What the watchdog did: `told` has alerts with a notice now, `known` other open alerts, `over` withdrawn ones."""

    told: list[AlertInfo]
    known: list[AlertInfo]
    over: list[AlertInfo]


class RoutineInfo(TypedDict):
    """A routine that midwatch runs at intervals."""

    name: Annotated[str, Example("watchdog")]
    seconds: Annotated[float, Example(60.0)]
    runs: Annotated[int, Example(12)]
    failures: int
    skipped: int
    last_at: Annotated[str | None, Example(AT)]
    last_error: str | None
    last_result: Annotated[str | None, Example("answered 200")]


class RoutinePage(TypedDict):
    """All routines of the process, by name."""

    routines: list[RoutineInfo]

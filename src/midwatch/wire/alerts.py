"""Alerts and routines as the HTTP interface shows them."""

from __future__ import annotations

from typing_extensions import TypedDict


class AlertInfo(TypedDict):
    """Something that does not go as it should: overdue, stuck or silent."""

    subject: str
    alert: str
    text: str
    since: str


class AlertPage(TypedDict):
    """What is wrong now: what was told just now, and what was told lately."""

    told: list[AlertInfo]
    known: list[AlertInfo]


class RoutineInfo(TypedDict):
    """Work of midwatch itself at intervals."""

    name: str
    seconds: float
    runs: int
    failures: int
    skipped: int
    last_at: str | None
    last_error: str | None


class RoutinePage(TypedDict):
    """All routines of the process, by name."""

    routines: list[RoutineInfo]

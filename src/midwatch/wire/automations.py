"""Automations and their runs as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from midwatch.domain.automation import Automation
from midwatch.domain.fields import AT, Example
from midwatch.wire.shapes import shape_of
from midwatch.wire.triggers import WebhookInfo

WHEN = "at 09:00 on Monday through Friday"
NEXT_RUNS = ["2026-01-05T09:00:00+01:00", "2026-01-06T09:00:00+01:00"]


MORE: dict[str, Any] = {
    "zone": Annotated[str, Example("Europe/Berlin")],
    "running": Annotated[bool, Example(False)],
    "next_runs": Annotated[list[str], Example(NEXT_RUNS)],
    "problem": Annotated[str | None, Example(None)],
}


@shape_of(Automation, **MORE)
class AutomationInfo(dict[str, Any]):
    """An automation as JSON. `schedule` has one of at, every (seconds) and cron, or none if only triggers start it."""


@shape_of(Automation, **MORE, webhooks=NotRequired[list[WebhookInfo]])
class ChangedAutomation(AutomationInfo):
    """An automation that was created or changed. `webhooks` are its new webhooks with their secrets, if any."""


class AutomationPage(TypedDict):
    """Automations, newest first."""

    automations: list[AutomationInfo]


class ImportInfo(TypedDict):
    """The result of an import for one automation: made, changed, same or deleted."""

    id: Annotated[str, Example("am_1")]
    what: Annotated[str, Example("made")]
    new_webhooks: list[str]
    """The webhooks that got a new secret, because an export has none."""


class ImportPage(TypedDict):
    """The results of an import, in the order of the imported automations."""

    automations: list[ImportInfo]


class RunInfo(TypedDict):
    """One run of an automation, or one step of a goal."""

    task_id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    scheduled_for: str | None
    status: Annotated[str, Example("done")]
    outcome: Annotated[str | None, Example("ok")]
    started_at: Annotated[str | None, Example(AT)]
    completed_at: Annotated[str | None, Example(AT)]
    result: Annotated[str | None, Example("Nothing is on fire.")]
    error: str | None
    usage: dict[str, Any] | None


class RunPage(TypedDict):
    """Runs or steps, newest first."""

    runs: list[RunInfo]


class LastInfo(TypedDict):
    """The last run of an automation of a chain, or why its last run did not start."""

    outcome: Annotated[str, Example("ok")]
    at: Annotated[str | None, Example(AT)]
    task_id: Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")]
    why: str | None


class NodeInfo(TypedDict):
    """One automation of a chain. `level` is how many come before it, `after` is those right before it."""

    id: Annotated[str, Example("am_06f2m8yq3kq5r0v9x1w2")]
    title: Annotated[str, Example("deploy")]
    status: Annotated[str, Example("active")]
    level: Annotated[int, Example(1)]
    after: Annotated[list[str], Example(["am_06f2m8yq1aa2bb3cc4dd"])]
    starts: Annotated[list[str], Example(["after test"])]
    last: LastInfo | None


class ChainPage(TypedDict):
    """The automations of a chain, earlier ones first."""

    nodes: list[NodeInfo]


class PreviewInfo(TypedDict):
    """A preview of a schedule: the schedule in words, and the next runs with the zone's offset from UTC."""

    when: Annotated[str, Example(WHEN)]
    next_runs: Annotated[list[str], Example(NEXT_RUNS)]


class DayInfo(TypedDict):
    """One day of an automation: the schedule in words, the runs within 24 hours, and the newest runs."""

    id: Annotated[str, Example("am_1")]
    when: Annotated[str, Example(WHEN)]
    next_runs: Annotated[list[str], Example(NEXT_RUNS)]
    runs: list[RunInfo]


class DayPage(TypedDict):
    """One day of each automation, in the order of the list of automations."""

    days: list[DayInfo]

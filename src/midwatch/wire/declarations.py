"""Plans and declarations as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.declaration import FieldChange, PlanStep
from midwatch.domain.fields import Example
from midwatch.wire.shapes import shape_of


@shape_of(FieldChange)
class FieldChangeInfo(dict[str, Any]):
    """One field that a plan changes."""


@shape_of(PlanStep, fields=list[FieldChangeInfo])
class PlanStepInfo(dict[str, Any]):
    """What a plan does with one record: create, change, unchanged, remove or left."""


class PlanInfo(TypedDict):
    """What was done, or with `dry_run` what would be done: automations first, then goals, then rules."""

    set: Annotated[str, Example("team-a")]
    dry_run: bool
    steps: list[PlanStepInfo]


class DeclarationInfo(TypedDict):
    """The content of a file. `left_out` says what is missing in it, for people."""

    set: Annotated[str | None, Example("team-a")]
    automations: dict[str, dict[str, Any]]
    goals: dict[str, dict[str, Any]]
    rules: dict[str, list[dict[str, Any]]]
    left_out: list[str]

"""Goals as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.goal import Goal
from midwatch.wire.shapes import shape_of


@shape_of(Goal, usd=Annotated[float | None, Example(0.02)], running=Annotated[bool, Example(True)])
class GoalInfo(dict[str, Any]):
    """A goal as JSON. `status` is waiting_for_session, active, paused, complete or timeout.

    `usd` is null if the cost is not known.
    """


@shape_of(
    Goal,
    usd=Annotated[float | None, Example(0.02)],
    running=Annotated[bool, Example(True)],
    warnings=Annotated[list[str], Example([])],
)
class SavedGoal(GoalInfo):
    """A goal that was set or changed. `warnings` names budgets that never stop it, as its agent reports no usage."""


class GoalPage(TypedDict):
    """Goals, newest first."""

    goals: list[GoalInfo]

"""Handoffs as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.handoff import Handoff, HandoffTask, Link
from midwatch.domain.handoff_history import HandoffContext
from midwatch.wire.shapes import shape_of


@shape_of(HandoffTask)
class HandoffWork(dict[str, Any]):
    """The work that is handed over."""


@shape_of(HandoffContext)
class HandoffSurroundings(dict[str, Any]):
    """The context of the work. Lists show the context without its messages."""


class HandoffAnswer(TypedDict):
    """The answer of the target, or the error."""

    output: Any
    error: str | None
    duration_ms: int


@shape_of(Link)
class ChainLink(dict[str, Any]):
    """An agent that had the work, and the handoff that brought the work to it; null for the first agent."""


class Refusal(TypedDict):
    """An agent that rejected the handoff, and the reason."""

    agent: Annotated[str, Example("senior")]
    reason: Annotated[str, Example("busy")]


class HandoffAttempt(TypedDict):
    """An attempt of a handoff's task that has ended."""

    attempt: Annotated[int, Example(1)]
    started_at: str | None
    ended_at: str | None
    outcome: Annotated[str, Example("ok")]
    error: str | None


class LateAnswer(TypedDict):
    """The result of a handoff's task that arrived after the handoff had ended."""

    outcome: str | None
    output: Any
    error: str | None
    time: str | None


@shape_of(
    Handoff,
    task=HandoffWork,
    context=HandoffSurroundings,
    result=HandoffAnswer | None,
    chain=list[ChainLink],
    refusals=list[Refusal],
    attempts=list[HandoffAttempt],
    late=LateAnswer | None,
)
class HandoffInfo(dict[str, Any]):
    """A handoff as JSON; `timeout` is in seconds.

    `status` is pending, accepted, in_progress, completed, failed, rejected, cancelled or expired.
    """


class HandoffPage(TypedDict):
    """Some handoffs, newest first; `next` is the value of `before` for the following page."""

    handoffs: list[HandoffInfo]
    next: str | None

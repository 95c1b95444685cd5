"""Usage as the HTTP interface shows it."""

from __future__ import annotations

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from midwatch.domain.fields import AT, Example


class Consumed(TypedDict):
    """What work has cost. Figures that no agent told are null, not 0; `untold` tasks told nothing, `unpriced` ones no
    cost."""

    tasks: Annotated[int, Example(1)]
    done: Annotated[int, Example(1)]
    failed: int
    cancelled: int
    untold: int
    unpriced: Annotated[int, Example(1)]
    seconds: Annotated[float, Example(1.098)]
    input_tokens: Annotated[int | None, Example(1200)]
    output_tokens: Annotated[int | None, Example(80)]
    cost_usd: float | None


class ConsumedBy(Consumed):
    """What one part has cost; it has the names that were asked for. '' is the session of tasks in no conversation, and
    the model of those that told none."""

    actor: NotRequired[Annotated[str, Example("owner")]]
    agent: NotRequired[str]
    session: NotRequired[str]
    model: NotRequired[str]
    day: NotRequired[str]


class UsageInfo(TypedDict):
    """What the tasks that ended in a time have cost, in all and by what was asked for."""

    since: Annotated[str, Example(AT)]
    until: str | None
    by: Annotated[list[str], Example(["actor", "agent"])]
    zone: Annotated[str, Example("UTC")]
    total: Consumed
    rows: list[ConsumedBy]
    left_off: int
    """Rows beyond `limit`."""

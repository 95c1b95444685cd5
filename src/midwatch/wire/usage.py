"""Usage as the HTTP interface shows it."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class Consumed(TypedDict):
    """What work has cost. Figures that no agent told are null, not 0; `untold` tasks told nothing, `unpriced` ones no
    cost."""

    tasks: int
    done: int
    failed: int
    cancelled: int
    untold: int
    unpriced: int
    seconds: float
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


class ConsumedBy(Consumed):
    """What one part has cost; it has the names that were asked for. '' is the session of tasks in no conversation, and
    the model of those that told none."""

    actor: NotRequired[str]
    agent: NotRequired[str]
    session: NotRequired[str]
    model: NotRequired[str]
    day: NotRequired[str]


class UsageInfo(TypedDict):
    """What the tasks that ended in a time have cost, in all and by what was asked for."""

    since: str
    until: str | None
    by: list[str]
    zone: str
    total: Consumed
    rows: list[ConsumedBy]
    left_off: int
    """Rows beyond `limit`."""

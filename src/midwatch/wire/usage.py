"""Usage as the HTTP interface shows it."""

from __future__ import annotations

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from midwatch.domain.fields import AT, Example


class UsageTotals(TypedDict):
    """The usage of some tasks. Figures that no agent reported are null, not 0.

    `untold` tasks reported no usage, `unpriced` tasks reported no cost.
    """

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


class UsageGroup(UsageTotals):
    """The usage of one group of tasks, with the values that the request grouped by.

    A task outside a conversation has the session ''. A task without a model has the model ''.
    """

    actor: NotRequired[Annotated[str, Example("owner")]]
    agent: NotRequired[str]
    session: NotRequired[str]
    model: NotRequired[str]
    day: NotRequired[str]


class UsageInfo(TypedDict):
    """The usage of the tasks that ended in a period, in total and by group.

    `left_off` groups are not shown, because there are more groups than the limit of a reply.
    """

    since: Annotated[str, Example(AT)]
    until: str | None
    by: Annotated[list[str], Example(["actor", "agent"])]
    zone: Annotated[str, Example("UTC")]
    total: UsageTotals
    rows: list[UsageGroup]
    left_off: int

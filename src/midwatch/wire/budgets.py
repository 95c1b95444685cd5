"""Budgets as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.account import Account
from midwatch.domain.fields import AT, Example
from midwatch.wire.shapes import shape_of

ACCOUNT: dict[str, Any] = {
    "usd": Annotated[float | None, Example(0.02)],
    "question": Annotated[str | None, Example(None)],
    "open": Annotated[bool, Example(True)],
    "title": Annotated[str, Example("Tidy up the tests")],
    "agent": Annotated[str | None, Example("demo")],
}


class BudgetTask(TypedDict):
    """A task of an account, with its own usage. `parent_id` is the task that it grew out of, or null."""

    id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    parent_id: str | None
    agent: Annotated[str, Example("demo")]
    status: Annotated[str, Example("running")]
    open: bool
    prompt: Annotated[str, Example("Tidy up the tests")]
    budget: dict[str, Any] | None
    usage: dict[str, Any] | None
    created_at: Annotated[str, Example(AT)]


@shape_of(Account, **ACCOUNT)
class BudgetLine(dict[str, Any]):
    """An account: its limits and what it has spent. `question` is the open question that asks people for more.

    `usd` is null if the cost is not known. `open` is whether its first task or its goal is open.
    """


@shape_of(Account, **ACCOUNT, tasks=list[BudgetTask])
class BudgetInfo(dict[str, Any]):
    """An account with its tasks, oldest first."""


class BudgetPage(TypedDict):
    """Accounts with limits: those with a question first, then those of open work, then newest first."""

    budgets: list[BudgetLine]

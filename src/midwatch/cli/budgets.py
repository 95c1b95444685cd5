"""Commands of budgets: list the budgets, show one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from midwatch.cli import options as opt
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.output import fields, join, shorten, table
from midwatch.cli.parameters import Argument

if TYPE_CHECKING:
    from midwatch.wire.budgets import BudgetInfo, BudgetLine

HEADERS = ("ID", "STATE", "SPENT", "WHAT")
TASK_HEADERS = ("TASK", "STATUS", "AGENT", "TOKENS", "COST", "PROMPT")
AccountId = Annotated[str, Argument(metavar="ID", help="The id of a first task, of a goal, or day:DATE.")]


@command()
async def budgets(desk: Desk, limit: opt.ShortLimit = 20) -> Reply:
    """List the budgets of work and of days: those with a question first."""
    accounts = await desk.client.budgets(limit=limit)
    rows = [
        (account["id"], describe_state(account), describe_budget(account) or "", shorten(account["title"], 40))
        for account in accounts
    ]
    return Reply({"budgets": accounts}, table(HEADERS, rows, "No budgets. Set one with --budget."))


@command()
async def budget(desk: Desk, account_id: AccountId) -> Reply:
    """Show what work may spend together, what it has spent, and its tasks."""
    account = await desk.client.budget(account_id)
    about: list[Any] = [
        ("id", account["id"]),
        ("state", describe_state(account)),
        ("what", shorten(account["title"], 200)),
        ("spent", describe_spending(account)),
        ("limits", describe_budget(account)),
        ("when spent", account["on_budget"].replace("_", " ")),
        ("answer", f"midwatch approval {account['question']}" if account["question"] else None),
    ]
    rows = [make_task_row(task) for task in account["tasks"]]
    return Reply(account, lambda: join(fields(about), table(TASK_HEADERS, rows, "No tasks.")))


def describe_state(account: BudgetLine | BudgetInfo) -> str:
    """Return the state of an account as one word."""
    if account["scope"] == "day":
        return "day"
    return "asks" if account["question"] else "open" if account["open"] else "ended"


def describe_budget(account: BudgetLine | BudgetInfo) -> str | None:
    """Return the limits of an account, and how much of each is used, as text. Return None without limits."""
    from midwatch.domain.budget import NAMES, format_amount

    parts = [
        f"{format_amount(name, account[name])} of {format_amount(name, account['limits'][name])}"
        for name in NAMES
        if account["limits"].get(name)
    ]
    return ", ".join(parts) or None


def describe_spending(account: BudgetLine | BudgetInfo) -> str:
    """Return what an account has spent as text."""
    from midwatch.domain.budget import NAMES, format_amount

    return ", ".join(format_amount(name, account[name]) for name in NAMES)


def make_task_row(task: Any) -> tuple[Any, ...]:
    """Return the row of a task in the table of an account."""
    from midwatch.domain.budget import Spending, format_amount

    spent = Spending.of(task["usage"])
    cost = format_amount("usd", spent.usd) if spent.usd else ""
    return task["id"], task["status"], task["agent"], int(spent.tokens) or "", cost, shorten(task["prompt"], 40)

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
    from midwatch.wire.tasks import TaskInfo

UNKNOWN = "cost unknown"
MOST = 200
"""How many tasks of an account are listed, beside its first task."""
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
        ("limits", describe_budget(account) or "none"),
        ("when spent", describe_end(account)),
        ("answer", f"midwatch approval {account['question']}" if account["question"] else None),
    ]
    rows = [make_task_row(task) for task in account["tasks"]]
    empty = "All work of the day counts; see `midwatch usage`." if account["scope"] == "day" else "No tasks."
    return Reply(account, lambda: join(fields(about), table(TASK_HEADERS, rows, empty)))


def describe_state(account: BudgetLine | BudgetInfo) -> str:
    """Return the state of an account as one word, as the console shows it."""
    if account["question"]:
        return "asks"
    if any(account[name] is not None and account[name] >= most for name, most in account["limits"].items()):
        return "spent"
    return "day" if account["scope"] == "day" else "open" if account["open"] else "ended"


def describe_end(account: BudgetInfo) -> str | None:
    """Return what happens when the account is spent; None without limits."""
    if not account["limits"]:
        return None
    if account["scope"] == "day":
        return "new tasks wait until midnight"
    return {"ask": "people are asked", "stop": "the work stops", "wind_up": "each task gives one last answer"}[
        account["on_budget"]
    ]


def describe_budget(account: BudgetLine | BudgetInfo) -> str | None:
    """Return the limits of an account, and how much of each is used, as text. Return None without limits."""
    from midwatch.domain.budget import NAMES, format_amount

    parts = []
    for name in NAMES:
        if most := account["limits"].get(name):
            limit, spent = format_amount(name, most).removesuffix(" of work"), account[name]
            # "3 of 9 steps" instead of "3 steps of 9 steps"
            number = UNKNOWN if spent is None else format_amount(name, spent).split()[0]
            parts.append(f"{number} of {limit}")
    return ", ".join(parts) or None


def describe_spending(account: BudgetLine | BudgetInfo) -> str:
    """Return what an account has spent as text."""
    from midwatch.domain.budget import NAMES, format_amount

    # without limits, steps and time are not counted, and what no agent reported is unknown
    names = [name for name in NAMES if account[name] != 0 or account["limits"]]
    amounts = [UNKNOWN if account[name] is None else format_amount(name, account[name]) for name in names]
    return ", ".join(amounts) or ("nothing yet" if account["open"] else "unknown")


def describe_usage(task: TaskInfo) -> str:
    """Return the tokens and the cost that a task itself has used, as text."""
    from midwatch.domain.budget import format_amount

    tokens, cost = task["tokens_used"], (task["usage"] or {}).get("cost_usd")
    if tokens is None and cost is None:
        return "not known yet" if task["status"] in ("pending", "running") else "unknown, not reported by the agent"
    parts = [
        "tokens unknown" if tokens is None else format_amount("tokens", tokens),
        UNKNOWN if cost is None else format_amount("usd", cost),
    ]
    return ", ".join(parts)


def describe_tree(account: BudgetInfo, task_id: str) -> str | None:
    """Return what all work of an account has used, as text; None if the task is its only task."""
    if len(account["tasks"]) < 2:
        return None
    first = account["id"]
    whose = "with all work that grew out of it" if first == task_id else "the whole work that it belongs to"
    many = f"more than {MOST}" if len(account["tasks"]) > MOST else len(account["tasks"])
    count = f"{many} tasks, see `midwatch budget {first}`"
    return f"{whose}: {describe_spending(account)}; {count}"


async def find_retry_command(desk: Desk, task: TaskInfo, account: BudgetInfo | None = None) -> str | None:
    """Return the command that tries a failed or cancelled task again, with a budget that is large enough, or None.

    `account` is the account of the task, if it was read already.
    """
    if task["status"] not in ("failed", "cancelled"):
        return None
    from midwatch.domain.budget import Budget, Spending, suggest_retry

    more = "MORE"
    if task["outcome"] == "budget":
        account = account or await desk.client.budget(task["account_id"])
        limits = Budget.from_record(account["limits"])
        spent = Spending(account["tokens"], account["usd"] or 0.0, account["steps"], account["seconds"])
        more = limits.grow_beyond(spent).text() or more
    return suggest_retry(task["id"], task["outcome"], task["error"], more)


def make_task_row(task: Any) -> tuple[Any, ...]:
    """Return the row of a task in the table of an account."""
    from midwatch.domain.budget import Spending, format_amount

    spent = Spending.of(task["usage"])
    usage = task["usage"] or {}
    cost = format_amount("usd", spent.usd) if usage.get("cost_usd") is not None else "unknown" if spent.tokens else ""
    return task["id"], task["status"], task["agent"], int(spent.tokens) or "", cost, shorten(task["prompt"], 40)

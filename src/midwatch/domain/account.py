"""Accounts: what a tree of work may spend together, and what it has spent.

All work that grows out of a task has the account of this task: delegated and transferred work, background tasks of its
agents, retries. The work of a goal has the account of the goal. A task with limits of its own also has an account of
its own, and each day with a budget has one, too. An account exists only if it has limits, or if it belongs to a goal.

A step reserves in all its accounts before it starts, and counts at once. Tokens, money and time count as soon as they
are known, in the transaction that writes the event about them. So the accounts and the log never differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

from midwatch.domain.budget import MOST, NAMES, WHOLE, Budget, Name, Over, Scope, Spending, is_reached
from midwatch.domain.changes import Charge, Fence, Update
from midwatch.domain.fields import Example, JsonRecord
from midwatch.domain.requests import AccountMode
from midwatch.domain.task import Task
from midwatch.domain.usage import UsageQuery

WARN_AT = 0.8
"""The part of a limit at which people are warned."""
VERIFICATION_MARGIN = 0.25
"""The part of a limit that a verification or a wrap-up of a goal may spend beyond the limit."""
SMALLEST_RAISE = 1.25
"""The smallest factor by which people raise a limit."""
DAY = "day:"
"""The first part of the ids of the accounts of days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(JsonRecord):
    """The record of an account.

    `id` is the id of the goal, of the first task, or `day:` with a date and, for the budget of an agent, its name.
    `approval_id` is the question that asks people for more, if there was one. `warned` are the limits of which people
    were warned, with commas between them.
    """

    noun: ClassVar[str] = "account"

    id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    scope: Scope = "task"
    limits: Annotated[Mapping[str, Any], Example({"tokens": 200000})] = field(default_factory=dict)
    on_budget: AccountMode = "stop"
    tokens: Annotated[int, Example(1200)] = 0
    usd: Annotated[float, Example(0.02)] = 0.0
    steps: Annotated[int, Example(7)] = 0
    seconds: Annotated[float, Example(95.5)] = 0.0
    warned: str = ""
    approval_id: str | None = None
    created_at: int = 0

    @property
    def budget(self) -> Budget:
        """Return the limits of the account."""
        return Budget.from_record(self.limits)

    @property
    def spent(self) -> Spending:
        """Return what the account has spent."""
        return Spending(self.tokens, self.usd, self.steps, self.seconds)


class Day(NamedTuple):
    """The account of a day, of the desk or of one agent: its id, its limits, and the usage that it begins with."""

    id: str
    limits: Mapping[str, Any]
    query: UsageQuery
    agent: str | None = None


class Reservation(NamedTuple):
    """The accounts of a task after a step was reserved. If `granted` is false, a limit is reached."""

    accounts: tuple[Account, ...]
    granted: bool = True


class AccountStore(Protocol):
    """Port: accounts. Limits are written as part of a step, with `Changes`; spending with its `charges`.

    A new account begins with what its tasks have spent already.
    """

    async def reserve(self, fence: Fence, ids: Sequence[str], exempt: str | None = None) -> Reservation:
        """Count one step in all these accounts, unless a limit of one of them is reached; then count nothing.

        The limits of the account `exempt` do not apply. Raise LeaseLost if the attempt does not run any more.
        """

    async def open_days(self, days: Sequence[Day], now: int) -> None:
        """Create the accounts of days that do not exist yet, and set the limits of the others."""

    async def sum_account(self, account_id: str) -> Spending:
        """Return what the tasks of an account have spent, also if the account does not exist.

        For each task, the larger amount counts: that of its events, or that of its report at the end.
        """

    async def read_accounts(self, ids: Sequence[str]) -> list[Account]:
        """Return those of these accounts that exist."""

    async def list_accounts(self, limit: int = 100) -> list[Account]:
        """Return accounts with limits: first those with a question, then those of open work, then newest first."""

    async def find_account(self, approval_id: str) -> Account | None:
        """Return the account that a question asks for, or None."""

    async def has_reported_cost(self, account_id: str) -> bool:
        """Return whether one of the first 200 tasks of an account has reported a cost, which may be 0."""

    async def list_account_tasks(self, account_id: str, limit: int = 200) -> list[Task]:
        """Return the tasks of an account, oldest first."""


# -- pure rules ----------------------------------------------------------------------------------------------------


def open_account(task: Task) -> tuple[Account, ...]:
    """Return the account that a new task needs for limits of its own; none without limits, and for a retry."""
    if not task.budget or task.retry_of is not None:
        return ()
    scope: Scope = "automation" if task.cause == "automation" else "task"
    return (
        Account(id=task.id, scope=scope, limits=task.budget, on_budget=task.on_budget, created_at=task.created_at),
    )  # fmt: skip


def build_account(task: Task, limits: Budget, spent: Spending, now: int) -> Account:
    """Return the account of a task that had none. When it is stored, it begins with what its tasks have spent."""
    return Account(
        id=task.account, limits=limits.data() or {}, on_budget=task.on_budget, tokens=int(spent.tokens),
        usd=spent.usd, steps=int(spent.steps), seconds=spent.seconds, created_at=now,
    )  # fmt: skip


def list_ids(task: Task, days: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the ids of all accounts that may apply to a task, in the order in which they are changed."""
    return tuple(sorted({task.account, task.retry_of or task.id, *days}))


def find_over(account: Account, spent: Spending, task: Task) -> Over | None:
    """Return the first limit of an account that `spent` reaches, or None."""
    return account.budget.over(spent, scope_of(account, task))


def scope_of(account: Account, task: Task) -> Scope:
    """Return what an account is for a task. It is a `tree` if the limits belong to the work that began the task."""
    first = task.parent_id is None and task.cause != "automation"
    own = first or account.id == (task.retry_of or task.id)
    return "tree" if account.scope in ("task", "automation") and not own else account.scope


def charge(ids: Iterable[str], spent: Spending) -> tuple[Charge, ...]:
    """Return the charges of an amount for these accounts."""
    return tuple(Charge(account_id, *spent) for account_id in ids) if any(spent) else ()


def list_unwarned(account: Account, spent: Spending) -> list[Name]:
    """Return the limits that are nearly reached and of which nobody was warned."""
    limits = account.budget
    nearly = [
        name
        for name in NAMES
        if (most := getattr(limits, name))
        and getattr(spent, name) >= WARN_AT * most
        and not is_reached(most, getattr(spent, name))
    ]
    return [name for name in nearly if name not in account.warned.split(",")]


def set_limits(account: Account, limits: Budget, on_budget: AccountMode | None = None) -> Update:
    """Return the update that gives an account new limits. People are warned again of those that changed."""
    most = limits.data() or {}
    warned = ",".join(name for name in account.warned.split(",") if most.get(name) == account.limits.get(name))
    fields = {"limits": most, "warned": warned, "on_budget": on_budget or account.on_budget, "approval_id": None}
    return Update("account", account.id, fields, {"approval_id": account.approval_id})


def extend_limits(account: Account) -> Account:
    """Return the account of a goal for the turn that verifies the goal or wraps it up, so that the goal can end.

    Its limits are a little higher. At these limits, the turn ends without a question.
    """
    extended = {name: most * (1 + VERIFICATION_MARGIN) for name, most in account.limits.items()}
    limits = {name: math.ceil(most) if name in WHOLE else most for name, most in extended.items()}
    return replace(account, limits=limits, on_budget="wind_up")


def raise_limits(limits: Budget, spent: Spending, factor: float) -> Budget:
    """Return the limits; each one that is reached is multiplied, so that it is not reached any more."""
    raised: dict[str, float] = {}
    for name in NAMES:
        most, used = getattr(limits, name), getattr(spent, name)
        if most is not None and is_reached(most, used):
            base = used if is_reached(most * SMALLEST_RAISE, used) else most  # for all factors, so that more is more
            more = min(base * factor, MOST)
            raised[name] = math.ceil(more) if name in WHOLE else float(f"{more:.12g}")
    return limits._replace(**raised)

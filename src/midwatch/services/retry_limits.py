"""The limits of a retry: those of the task that is retried, or larger ones, in the accounts of this task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.base.errors import Conflict
from midwatch.domain.account import Account, build_account, list_ids, scope_of
from midwatch.domain.budget import NO_LIMITS, Budget
from midwatch.domain.changes import Changes
from midwatch.domain.goal import Goal
from midwatch.domain.goal_step import raise_goal
from midwatch.domain.requests import OnBudget
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.services.accounts import change_limits


async def raise_limits(store: Store, old: Task, raised: Budget, now: int) -> tuple[Mapping[str, Any] | None, Changes]:
    """Return the limits of a retry of `old`, and the changes of its accounts.

    Raise Conflict if these limits are spent already.
    """
    accounts = await store.read_accounts(list_ids(old))
    changes, own, raised_id = Changes(), old.budget, old.account
    if accounts and old.account not in {account.id for account in accounts}:
        raised_id = accounts[0].id  # only the task itself has limits, not the work that it belongs to
    elif not accounts and raised is not NO_LIMITS:
        spent = await store.sum_account(old.account)
        mode = _find_mode(None, await store.get_task(old.account), old)
        opened = build_account(old._replace(on_budget=mode), raised, spent, now)
        accounts, own = [opened], raised.data()
        changes = Changes(records=(opened,))
    for account in accounts:
        wanted = raised if account.id == raised_id else raised.keep_only(account.budget)
        limits = account.budget.override_with(wanted)
        if over := limits.over(account.spent, scope_of(account, old)):
            more = limits.grow_beyond(account.spent).text()
            command = f"midwatch retry {old.id} --budget {more}"
            raise Conflict(f"task {old.id} cannot continue: {over.words}. Increase it: `{command}`.")
        if account.id == (old.retry_of or old.id):
            own = limits.data()
        if limits != account.budget:
            changes = changes.plus(await _set_limits(store, account, limits, old, now))
    return own, changes


async def _set_limits(store: Store, account: Account, limits: Budget, old: Task, now: int) -> Changes:
    """Return the changes that give an account, and the goal that it belongs to, new limits.

    An answer may have changed what happens when the account is spent. Then it becomes what it was before the answer.
    """
    goal = await store.get_goal(account.id) if account.scope == "goal" else None
    steps = await store.list_goal_steps(account.id, 1) if goal else []
    mode = _find_mode(goal, steps[0] if steps else await store.get_task(account.id), old)
    raised = (raise_goal(goal, limits, now),) if goal is not None and goal.open else ()
    return (await change_limits(store, account, limits, mode, now)).plus(Changes(updates=raised))


def _find_mode(goal: Goal | None, first: Task | None, old: Task) -> OnBudget:
    """Return what was set for an account: by its goal, or for its first task; for the task `old` if this was pruned."""
    if goal is not None and goal.on_budget is not None:
        return goal.on_budget
    return old.on_budget if first is None else first.on_budget

"""The limits of a retry: those of the task that is retried, or larger ones, in the accounts of this task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.base.errors import Conflict
from midwatch.domain.account import build_account, list_ids, scope_of
from midwatch.domain.budget import NO_LIMITS, Budget
from midwatch.domain.changes import Changes
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
        opened = build_account(old, raised, spent, now)
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
            changes = changes.plus(await change_limits(store, account, limits, old.on_budget, now))
    return own, changes

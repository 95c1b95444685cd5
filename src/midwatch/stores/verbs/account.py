"""Accounts: reserve steps, open days, read, list, prune. `changes.apply` writes limits and charges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from midwatch.domain.account import Account, Day, Reservation
from midwatch.domain.budget import Spending
from midwatch.domain.changes import Fence
from midwatch.domain.task import Task
from midwatch.stores.rows import decode, dumps, encode, get_values
from midwatch.stores.verbs.changes import check_fence
from midwatch.stores.verbs.tx import Tx
from midwatch.stores.verbs.usage import sum_usage


def reserve(tx: Tx, fence: Fence, ids: Sequence[str], exempt: str | None = None) -> Reservation:
    check_fence(tx, fence)
    rows = [tx.row("account.reserve", {"id": account_id}) for account_id in sorted(ids)]
    counted = [decode(Account, row) for row in rows if row is not None]
    before = [account.spent._replace(steps=account.steps - 1) for account in counted]
    reached = [
        account.budget.over(spent, account.scope)
        for account, spent in zip(counted, before, strict=True)
        if account.id != exempt
    ]
    if not any(reached):
        return Reservation(tuple(counted))
    for account in counted:
        tx.run("account.give_back", {"id": account.id})
    return Reservation(tuple(read(tx, ids)), granted=False)


def open_days(tx: Tx, days: Sequence[Day], now: int) -> None:
    known = {account.id for account in read(tx, [day.id for day in days])}
    for day in sorted(days):
        if day.id in known:
            tx.run("account.set_day", {"id": day.id, "limits": dumps(day.limits)})
            continue
        spent = Spending()
        for row in sum_usage(tx, day.query):
            if day.agent in (None, row.agent):
                spent = spent.plus(Spending.of(row._asdict()))
        account = Account(
            id=day.id, scope="day", limits=day.limits, tokens=int(spent.tokens), usd=spent.usd, seconds=spent.seconds,
            created_at=now,
        )  # fmt: skip
        tx.run("account.add_day", encode("account", get_values(account)))


def sum_spending(tx: Tx, account_id: str) -> Spending:
    row = tx.row("account.sum", {"id": account_id})
    return Spending(*row) if row is not None else Spending()


def read(tx: Tx, ids: Iterable[str]) -> list[Account]:
    accounts = tx.find_all(Account, "account.of_ids", ids=dumps(list(ids)))
    return sorted(accounts, key=lambda account: account.id)


def list_(tx: Tx, limit: int = 100) -> list[Account]:
    asking = tx.find_all(Account, "account.asking", limit=limit)
    recent = tx.find_all(Account, "account.recent", limit=limit)
    return list({account.id: account for account in (*asking, *recent)}.values())[:limit]


def find_asked(tx: Tx, approval_id: str) -> Account | None:
    return tx.find(Account, "account.asked", approval_id=approval_id)


def has_reported_cost(tx: Tx, account_id: str) -> bool:
    return tx.row("account.reported_cost", {"id": account_id}) is not None


def list_tasks(tx: Tx, account_id: str, limit: int = 200) -> list[Task]:
    return tx.find_all(Task, "account.tasks", id=account_id, limit=limit)


def prune(tx: Tx, ids: Iterable[str]) -> None:
    """Remove the accounts of removed tasks, if no other task has them."""
    tx.run("account.prune", {"ids": dumps(list(ids))})

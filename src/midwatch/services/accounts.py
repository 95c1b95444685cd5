"""The account service: what work may spend together and what it has spent. The record is `midwatch.domain.account`."""

from __future__ import annotations

from typing import Any

from midwatch.base.clock import iso
from midwatch.base.errors import NotFound
from midwatch.domain.account import DAY, Account, AccountStore, build_account, set_limits
from midwatch.domain.approval import resolve
from midwatch.domain.budget import NO_LIMITS, Budget
from midwatch.domain.changes import Changes
from midwatch.domain.goal import Goal
from midwatch.domain.identity import AnyActor
from midwatch.domain.requests import AccountMode
from midwatch.domain.store import Store
from midwatch.domain.task import OPEN, Task
from midwatch.services.authorization import Authorization, authorize

MOST = 200


class Accounts:
    """Service: budgets that trees of work share."""

    def __init__(self, store: Store, authorization: Authorization) -> None:
        self._store = store
        self._authorization = authorization

    async def list(self, limit: int = 50, *, actor: AnyActor = None) -> list[dict[str, Any]]:
        """Return accounts with limits as JSON: those that ask first, then those of open work, then newest first."""
        authorize(actor, "oversee")
        described = [
            await self._describe(account, actor) for account in await self._store.list_accounts(min(limit, MOST))
        ]
        return sorted(described, key=lambda account: (account["question"] is None, not account["open"]))

    async def get(self, account_id: str, *, actor: AnyActor = None) -> dict[str, Any]:
        """Return an account as JSON, with its first tasks, or raise NotFound. The account of any task can be read.

        An agent gets only tasks that belong to its own work.
        """
        tasks = await self._store.list_account_tasks(account_id)
        account = next(iter(await self._store.read_accounts([account_id])), None)
        if account is None and not tasks:
            raise NotFound("budget", account_id)
        authorize(actor, "oversee" if account_id.startswith(DAY) else "read")
        seen = [task for task in tasks if await self._authorization.may_read(actor, task)]
        if not seen:
            await self._authorization.check_account(actor, account_id)
        if account is None:
            first, spent = tasks[0], await self._store.sum_account(account_id)
            account = build_account(first._replace(account_id=account_id), NO_LIMITS, spent, first.created_at)
        return {**await self._describe(account, actor), "tasks": [_describe_task(task) for task in seen]}

    async def _describe(self, account: Account, actor: AnyActor) -> dict[str, Any]:
        """Return an account as JSON. An actor that may not read its first task or its goal does not get its title."""
        approval = await self._store.get_approval(account.approval_id) if account.approval_id else None
        root = await self._store.get_task(account.id) if account.scope != "day" else None
        goal = await self._store.get_goal(account.id) if account.scope == "goal" else None
        origin = goal or root
        title, agent = account.id, None
        if origin is not None and await self._authorization.may_read(actor, origin):
            title, agent = origin.objective if isinstance(origin, Goal) else origin.prompt, origin.agent
        return {
            **account.snapshot(),
            "usd": await read_cost(self._store, account),
            "question": approval.id if approval is not None and approval.status == "pending" else None,
            "open": bool((root and root.open) or (goal and goal.open)),
            "title": title,
            "agent": agent,
        }


async def read_cost(store: AccountStore, spender: Account | Goal) -> float | None:
    """Return the dollars that an account or a goal has spent, or None if the cost is not known.

    Tokens without any cost mean that no agent reported one and no price was known, unless a task reports a cost of 0.
    """
    known = spender.usd or not spender.tokens or await store.has_reported_cost(spender.id)
    return spender.usd if known else None


async def change_limits(store: Store, account: Account, limits: Budget, mode: AccountMode, now: int) -> Changes:
    """Return the changes that give an account new limits. An open question about the old ones expires.

    The question must end before the account forgets it: its end moves the deadlines of handoffs.
    """
    approval = await store.get_approval(account.approval_id) if account.approval_id else None
    changes = Changes(updates=(set_limits(account, limits, mode),))
    if approval is None or approval.status != "pending":
        return changes
    return resolve(approval, "expired", now, why="the budget was changed").plus(changes)


def _describe_task(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "parent_id": task.parent_id or task.retry_of,
        "agent": task.agent,
        "status": task.status,
        "open": task.status in OPEN,
        "prompt": task.prompt[:MOST],
        "budget": task.budget,
        "usage": task.usage,
        "created_at": iso(task.created_at),
    }

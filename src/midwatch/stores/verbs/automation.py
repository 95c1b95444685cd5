"""Automations: read, list, find due automations, prune. `changes.apply` writes automations."""

from __future__ import annotations

from collections.abc import Sequence

from midwatch.domain.automation import Automation, Hold, Status
from midwatch.domain.task import Task
from midwatch.stores.rows import dumps
from midwatch.stores.verbs import account
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, automation_id: str) -> Automation | None:
    return tx.find(Automation, "automation.get", id=automation_id)


def list_(
    tx: Tx, scope: tuple[str, str] | None = None, statuses: tuple[Status, ...] = (), limit: int = 20
) -> list[Automation]:
    params = {"statuses": dumps(statuses or ("active", "paused")), "limit": limit}
    if scope is None:
        return tx.find_all(Automation, "automation.list", **params)
    return tx.find_all(Automation, "automation.list_scope", scope_kind=scope[0], scope_id=scope[1], **params)


def find(tx: Tx, text: str, limit: int = 3) -> list[Automation]:
    named = tx.find_all(Automation, "automation.named", name=text)
    titled = tx.find_all(Automation, "automation.titled", title=text, limit=limit)
    return [*named, *(automation for automation in titled if automation not in named)][:limit]


def list_due(tx: Tx, now: int, limit: int = 64) -> list[Automation]:
    return tx.find_all(Automation, "automation.due", now=now, limit=limit)


def find_held(tx: Tx, ids: Sequence[str]) -> dict[str, frozenset[Hold]]:
    held: dict[str, frozenset[Hold]] = {}
    for automation_id, hold in tx.rows("automation.held", {"ids": dumps(ids)}):
        held[automation_id] = held.get(automation_id, frozenset()) | {hold}
    return held


def find_next_at(tx: Tx) -> int | None:
    return tx.value(int, "automation.next_at")


def find_open_run(tx: Tx, automation_id: str) -> Task | None:
    return tx.find(Task, "automation.open_run", id=automation_id, cause="automation")


def list_runs(tx: Tx, automation_id: str, limit: int = 20) -> list[Task]:
    return tx.find_all(Task, "automation.runs", id=automation_id, cause="automation", limit=limit)


def list_results(tx: Tx, automation_id: str, limit: int) -> list[Task]:
    return tx.find_all(Task, "automation.results", id=automation_id, cause="automation", limit=limit)


def prune(tx: Tx, before: int) -> int:
    rows = list(tx.rows("automation.prune", {"before": before}))
    account.prune(tx, {name for (name,) in rows if name})
    return len(rows)

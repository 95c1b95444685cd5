"""Goals: read, list, find due goals, delete. `changes.apply` writes goals."""

from __future__ import annotations

from midwatch.base.clock import SECOND
from midwatch.domain.changes import Changes
from midwatch.domain.goal import LAST_SECONDS, Goal, Status
from midwatch.domain.task import Task
from midwatch.stores.rows import dumps
from midwatch.stores.verbs.changes import apply
from midwatch.stores.verbs.tx import Tx

LAST = int(LAST_SECONDS * SECOND)


def get(tx: Tx, goal_id: str) -> Goal | None:
    return tx.find(Goal, "goal.get", id=goal_id)


def list_named(tx: Tx, name: str, limit: int = 20) -> list[Goal]:
    open_goals = tx.find_all(Goal, "goal.named_open", name=name, limit=limit)
    others = tx.find_all(Goal, "goal.named", name=name, limit=limit)
    newest_first = sorted(open_goals, key=lambda goal: goal.id, reverse=True)
    return [*newest_first, *(goal for goal in others if not goal.open)][:limit]


def list_(
    tx: Tx, statuses: tuple[Status, ...] = (), limit: int = 20, scope: tuple[str, str] | None = None
) -> list[Goal]:
    if scope is not None:
        params = {"scope_kind": scope[0], "scope_id": scope[1], "statuses": dumps(statuses), "limit": limit}
        return tx.find_all(Goal, "goal.list_scope", **params)
    return tx.find_all(Goal, "goal.list", statuses=dumps(statuses), limit=limit)


def has_open(tx: Tx) -> bool:
    return tx.value(int, "goal.any_open") is not None


def list_due(tx: Tx, now: int, limit: int = 64) -> list[Goal]:
    return tx.find_all(Goal, "goal.due", now=now, late=now - LAST, limit=limit)


def find_next_at(tx: Tx) -> int | None:
    return tx.value(int, "goal.next_at", last=LAST)


def find_open_step(tx: Tx, goal_id: str) -> Task | None:
    return tx.find(Task, "automation.open_run", id=goal_id, cause="goal")


def list_steps(tx: Tx, goal_id: str, limit: int = 20) -> list[Task]:
    return tx.find_all(Task, "automation.runs", id=goal_id, cause="goal", limit=limit)


def delete(tx: Tx, goal_id: str, revision: int, changes: Changes) -> bool:
    deleted = tx.run("goal.delete", {"id": goal_id, "revision": revision}) == 1
    if deleted:
        apply(tx, changes)
        tx.run("account.prune", {"ids": dumps([goal_id])})
        tx.topics.add("goal")
    return deleted

"""Automations and goals: look, list, find what is due; they are written by `changes.apply`."""

from __future__ import annotations

from midwatch.base.clock import SECOND
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes
from midwatch.domain.goal import LAST_SECONDS, Goal
from midwatch.domain.task import Task
from midwatch.stores.sql import RECORDS, dumps, loads
from midwatch.stores.verbs.changes import apply
from midwatch.stores.verbs.task import task_of
from midwatch.stores.verbs.tx import Row, Tx


def _automation(row: Row) -> Automation:
    values = dict(zip(RECORDS["automation"], row, strict=True))
    values |= {
        "schedule": loads(values["schedule"]),
        "fresh": bool(values["fresh"]),
        "worktree": bool(values["worktree"]),
        "tags": tuple(loads(values["tags"])),
        "budget": None if values["budget"] is None else loads(values["budget"]),
        "approvals": None if values["approvals"] is None else loads(values["approvals"]),
    }
    return Automation(**values)


def _goal(row: Row) -> Goal:
    return Goal(**dict(zip(RECORDS["goal"], row, strict=True)))


def get(tx: Tx, automation_id: str) -> Automation | None:
    row = tx.row("automation.get", {"id": automation_id})
    return None if row is None else _automation(row)


def list_(tx: Tx, scope: tuple[str, str] | None, statuses: tuple[str, ...], limit: int) -> list[Automation]:
    kind, name = scope or (None, None)
    params = {"scope_kind": kind, "scope_id": name, "statuses": dumps(list(statuses)), "limit": limit}
    return [_automation(row) for row in tx.rows("automation.list", params)]


def due(tx: Tx, now: int, limit: int) -> list[Automation]:
    return [_automation(row) for row in tx.rows("automation.due", {"now": now, "limit": limit})]


def next_at(tx: Tx) -> int | None:
    row = tx.row("automation.next_at", {})
    return row[0] if row else None


def open_task(tx: Tx, cause: str, cause_id: str) -> Task | None:
    row = tx.row("automation.open_run", {"id": cause_id, "cause": cause})
    return None if row is None else task_of(row)


def passed_to(tx: Tx, cause: str, cause_id: str) -> str | None:
    row = tx.row("automation.passed_to", {"id": cause_id, "cause": cause})
    return row[0] if row else None


def tasks_of(tx: Tx, cause: str, cause_id: str, limit: int) -> list[Task]:
    found = tx.rows("automation.runs", {"id": cause_id, "cause": cause, "limit": limit})
    return [task_of(row) for row in found]


def prune(tx: Tx, before: int) -> int:
    return tx.run("automation.prune", {"before": before})


def goal(tx: Tx, goal_id: str) -> Goal | None:
    row = tx.row("goal.get", {"id": goal_id})
    return None if row is None else _goal(row)


def open_goal(tx: Tx, scope: tuple[str, str]) -> Goal | None:
    row = tx.row("goal.open", {"scope_kind": scope[0], "scope_id": scope[1]})
    return None if row is None else _goal(row)


def goals(tx: Tx, statuses: tuple[str, ...], limit: int) -> list[Goal]:
    return [_goal(row) for row in tx.rows("goal.list", {"statuses": dumps(list(statuses)), "limit": limit})]


def due_goals(tx: Tx, now: int, limit: int) -> list[Goal]:
    params = {"now": now, "late": now - _LAST, "limit": limit}
    return [_goal(row) for row in tx.rows("goal.due", params)]


def next_goal_at(tx: Tx) -> int | None:
    row = tx.row("goal.next_at", {"last": _LAST})
    return row[0] if row else None


_LAST = int(LAST_SECONDS * SECOND)


def delete_goal(tx: Tx, goal_id: str, revision: int, changes: Changes) -> bool:
    gone = tx.run("goal.delete", {"id": goal_id, "revision": revision}) == 1
    if gone:
        apply(tx, changes)
        tx.topics.add("goal")
    return gone

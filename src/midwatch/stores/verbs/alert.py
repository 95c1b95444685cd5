"""Alerts: raise, read and prune them, and find late, waiting, paused and undelivered records for the watchdog."""

from __future__ import annotations

from midwatch.domain.alert import Alert, Group, Plans, Undelivered
from midwatch.domain.approval import Approval
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes
from midwatch.domain.event import Event
from midwatch.domain.goal import Goal
from midwatch.domain.task import Task
from midwatch.stores.rows import dumps
from midwatch.stores.verbs import task as tasks
from midwatch.stores.verbs.changes import apply, insert
from midwatch.stores.verbs.tx import Tx


def raise_(tx: Tx, alert: Alert, changes: Changes) -> bool:
    if tx.row("alert.find_open", {"subject": alert.subject, "kind": alert.kind}) is not None:
        return False
    insert(tx, alert)
    apply(tx, changes)
    return True


def get(tx: Tx, alert_id: str) -> Alert | None:
    return tx.find(Alert, "alert.get", id=alert_id)


def list_open(tx: Tx) -> list[Alert]:
    return tx.find_all(Alert, "alert.open")


def prune(tx: Tx, before: int) -> int:
    return tx.run("alert.prune", {"before": before})


def list_signs(tx: Tx) -> list[tuple[Task, Event | None]]:
    return [(task, tx.find(Event, "alert.last_sign", task_id=task.id)) for task in tasks.list_running(tx)]


def list_late_agents(tx: Tx, before: int) -> dict[str, int]:
    return {row[0]: row[1] for row in tx.rows("alert.late_agents", {"before": before})}


def find_oldest_late(tx: Tx, agent: str, before: int, *, free: bool) -> Task | None:
    return tx.find(Task, "alert.oldest_late", agent=agent, before=before, free=free)


def list_behind_sessions(tx: Tx, before: int, limit: int) -> list[Group]:
    return _list_groups(tx, "alert.behind_sessions", before, limit)


def list_behind_directories(tx: Tx, before: int, limit: int) -> list[Group]:
    return _list_groups(tx, "alert.behind_directories", before, limit)


def _list_groups(tx: Tx, name: str, before: int, limit: int) -> list[Group]:
    rows = list(tx.rows(name, {"before": before, "limit": limit}))
    found = ((tasks.get(tx, oldest), count, holder) for _, count, holder, oldest in rows)
    return [Group(task, count, holder) for task, count, holder in found if task is not None]


def list_unanswered(tx: Tx, before: int, limit: int) -> list[Approval]:
    return tx.find_all(Approval, "alert.unanswered", before=before, limit=limit)


def list_paused_automations(tx: Tx, expected: tuple[str, ...], limit: int) -> list[Automation]:
    return tx.find_all(Automation, "alert.paused_automations", expected=dumps(expected), limit=limit)


def list_paused_goals(tx: Tx, expected: tuple[str, ...], limit: int) -> list[Goal]:
    return tx.find_all(Goal, "alert.paused_goals", expected=dumps(expected), limit=limit)


def list_undelivered(tx: Tx, since: int) -> list[Undelivered]:
    times: dict[str, list[int]] = {}
    for channel, created_at in tx.rows("alert.undelivered", {}):
        if created_at >= since:
            times.setdefault(channel, []).append(created_at)
    return [Undelivered(channel, len(failed), min(failed)) for channel, failed in sorted(times.items())]


def count_plans(tx: Tx) -> Plans:
    automations = tx.value(int, "alert.count_automations") or 0
    return Plans(tasks.count(tx).pending, automations, tx.value(int, "alert.count_goals") or 0)


def list_waits(tx: Tx, task: Task) -> list[tuple[int, int | None]]:
    about = {"id": task.id, "attempt": task.attempt, "root": task.root_id or task.id}
    return [(row[0], row[1]) for row in tx.rows("alert.waits", about)]

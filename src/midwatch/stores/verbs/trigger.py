"""Triggers and firings: read, list, find due ones, count, prune. `changes.apply` writes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from midwatch.domain.trigger import Firing, Kind, Trigger
from midwatch.stores.rows import dumps
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, trigger_id: str) -> Trigger | None:
    return tx.find(Trigger, "trigger.get", id=trigger_id)


def list_(tx: Tx, kinds: Collection[Kind], paused: bool = False) -> list[Trigger]:
    found = tx.find_all(Trigger, "trigger.list", kinds=dumps(list(kinds)), paused=paused)
    return sorted(found, key=lambda trigger: trigger.id)


def list_naming(tx: Tx, kind: Kind, words: Sequence[str]) -> list[Trigger]:
    found = tx.find_all(Trigger, "trigger.list_naming", kind=kind, words=dumps(list(words)))
    return sorted(found, key=lambda trigger: trigger.id)


def get_firing(tx: Tx, firing_id: str) -> Firing | None:
    return tx.find(Firing, "trigger.firing", id=firing_id)


def find_firing(tx: Tx, trigger_id: str, key: str) -> Firing | None:
    return tx.find(Firing, "trigger.find", trigger_id=trigger_id, key=key)


def find_firing_of(tx: Tx, task_id: str) -> Firing | None:
    return tx.find(Firing, "trigger.of_task", task_id=task_id)


def list_firings(tx: Tx, automation_id: str, limit: int = 20) -> list[Firing]:
    return tx.find_all(Firing, "trigger.firings", automation_id=automation_id, limit=limit)


def list_due(tx: Tx, now: int, limit: int = 64) -> list[Firing]:
    return tx.find_all(Firing, "trigger.due", now=now, limit=limit)


def find_next_at(tx: Tx, now: int) -> int | None:
    return tx.value(int, "trigger.next_at", now=now)


def count(tx: Tx, trigger_id: str, since: int) -> int:
    return tx.value(int, "trigger.count", trigger_id=trigger_id, since=since) or 0


def count_waiting(tx: Tx, automation_id: str) -> int:
    return tx.value(int, "trigger.count_waiting", automation_id=automation_id) or 0


def prune(tx: Tx, before: int) -> int:
    pruned = len(list(tx.rows("trigger.prune", {"before": before})))
    tx.run("trigger.prune_triggers", {})
    return pruned

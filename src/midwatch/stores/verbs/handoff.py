"""Handoffs: read, list, count, find due or abandoned handoffs, move deadlines, prune.

`changes.apply` writes handoffs.
"""

from __future__ import annotations

from collections.abc import Sequence

from midwatch.domain.handoff import Handoff, HandoffFilter
from midwatch.domain.listing import Listing
from midwatch.stores.rows import dumps
from midwatch.stores.verbs.listing import list_page
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, handoff_id: str) -> Handoff | None:
    return tx.find(Handoff, "handoff.get", id=handoff_id)


def find(tx: Tx, source_task: str | None, once: str) -> Handoff | None:
    return tx.find(Handoff, "handoff.find", source_task=source_task or "", once=once)


def list_(tx: Tx, which: HandoffFilter) -> Listing[Handoff]:
    path = "handoff.all" if which.root_id is None else "handoff.root"
    params = {"statuses": dumps(which.statuses), "agent": which.agent, "root_id": which.root_id}
    filtered = bool(which.statuses or which.agent)
    return list_page(tx, Handoff, path, params, before=which.before, limit=which.limit, filtered=filtered)


def count_open(tx: Tx) -> dict[str, int]:
    return dict(tx.rows("handoff.open", {}))


def count(tx: Tx, root_id: str) -> int:
    return tx.value(int, "handoff.count", root_id=root_id) or 0


def list_due(tx: Tx, now: int, limit: int = 64) -> list[Handoff]:
    return tx.find_all(Handoff, "handoff.due", now=now, limit=limit)


def find_due(tx: Tx, handoff_id: str, now: int) -> Handoff | None:
    return tx.find(Handoff, "handoff.due_by_id", id=handoff_id, now=now)


def find_next_at(tx: Tx) -> int | None:
    return tx.value(int, "handoff.next")


def move_deadlines(tx: Tx, approval_id: str) -> None:
    """After the end of a question about a budget, add the time for which it was open to the deadlines of its work.

    The handoffs are locked first. So if two questions of the same work end at the same time, one of them is seen as
    ended by the other, and the time for which both were open is added once.
    """
    if tx.run("handoff.lock_waiting", {"approval_id": approval_id}):
        tx.run("handoff.move_deadlines", {"approval_id": approval_id})
        tx.topics.add("handoff")


def list_abandoned(tx: Tx, living: Sequence[str]) -> list[Handoff]:
    return tx.find_all(Handoff, "handoff.abandoned", living=dumps(living))


def list_orphaned(tx: Tx) -> list[Handoff]:
    return tx.find_all(Handoff, "handoff.orphaned")


def prune(tx: Tx, before: int) -> int:
    return tx.run("handoff.prune", {"before": before})

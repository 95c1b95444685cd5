"""Alerts: which were told when."""

from __future__ import annotations

from collections.abc import Iterable

from midwatch.domain.alert import Told
from midwatch.domain.changes import Changes
from midwatch.stores.verbs.changes import apply
from midwatch.stores.verbs.tx import Tx

KEPT = 7 * 86400 * 1_000_000


def told_since(tx: Tx, since: int) -> frozenset[str]:
    return frozenset(row[0] for row in tx.rows("alert.since", {"since": since}))


def tell(tx: Tx, told: Iterable[Told], changes: Changes) -> None:
    for one in told:
        tx.run("alert.tell", {"id": one.id, "told_at": one.told_at})
        tx.run("alert.forget", {"before": one.told_at - KEPT})
    apply(tx, changes)

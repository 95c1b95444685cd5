"""Alerts: read and record when each alert was last sent."""

from __future__ import annotations

from collections.abc import Collection

from midwatch.domain.alert import SentAlert
from midwatch.domain.changes import Changes
from midwatch.stores.verbs.changes import apply
from midwatch.stores.verbs.tx import Tx

KEPT = 7 * 86400 * 1_000_000


def list_sent(tx: Tx, since: int) -> frozenset[str]:
    return frozenset(row[0] for row in tx.rows("alert.sent_since", {"since": since}))


def record(tx: Tx, sent: Collection[SentAlert], changes: Changes) -> None:
    for alert in sent:
        tx.run("alert.record", {"id": alert.id, "told_at": alert.told_at})
        tx.run("alert.prune", {"before": alert.told_at - KEPT})
    apply(tx, changes)

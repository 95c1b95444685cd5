"""Rules: look; they are written by `changes.apply`."""

from __future__ import annotations

from midwatch.domain.rule import Rule
from midwatch.stores.sql import RECORDS
from midwatch.stores.verbs.tx import Row, Tx


def _rule(row: Row) -> Rule:
    return Rule(**dict(zip(RECORDS["rule"], row, strict=True)))


def rule(tx: Tx, rule_id: str) -> Rule | None:
    row = tx.row("rule.get", {"id": rule_id})
    return None if row is None else _rule(row)


def rules(tx: Tx, agent: str | None, revoked: bool, limit: int) -> list[Rule]:
    params = {"agent": agent, "revoked": int(revoked), "limit": limit}
    return [_rule(row) for row in tx.rows("rule.list", params)]

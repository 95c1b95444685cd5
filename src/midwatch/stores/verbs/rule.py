"""Rules: read, list. `changes.apply` writes rules."""

from __future__ import annotations

from midwatch.domain.rule import Rule
from midwatch.stores.verbs.tx import Tx


def get(tx: Tx, rule_id: str) -> Rule | None:
    return tx.find(Rule, "rule.get", id=rule_id)


def list_(tx: Tx, agent: str | None = None, *, revoked: bool = False, limit: int = 500) -> list[Rule]:
    return tx.find_all(Rule, "rule.list", agent=agent, revoked=int(revoked), limit=limit)


def list_declared(tx: Tx, declared_by: str) -> list[Rule]:
    return tx.find_all(Rule, "rule.declared", declared_by=declared_by)

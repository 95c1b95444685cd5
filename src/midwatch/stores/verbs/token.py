"""Tokens: find by secret, read, list, count, prune. `changes.apply` writes tokens."""

from __future__ import annotations

from midwatch.domain.identity import Token
from midwatch.stores.verbs.tx import Tx

MOST_LISTED = 1000


def recognise(tx: Tx, hashed: str, now: int) -> Token | None:
    return tx.find(Token, "token.by_hash", hash=hashed, now=now)


def get(tx: Tx, key: str) -> Token | None:
    return tx.find(Token, "token.get", key=key)


def list_(tx: Tx) -> list[Token]:
    return tx.find_all(Token, "token.list", limit=MOST_LISTED)


def count(tx: Tx, actor: str, now: int) -> int:
    return tx.value(int, "token.count", actor=actor, now=now) or 0


def prune(tx: Tx, before: int) -> int:
    return tx.run("token.prune", {"before": before})

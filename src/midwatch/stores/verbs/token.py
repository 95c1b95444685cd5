"""Tokens: recognise, look, prune; they are written by `changes.apply`."""

from __future__ import annotations

from midwatch.domain.identity import Token
from midwatch.stores.sql import RECORDS
from midwatch.stores.verbs.tx import Row, Tx


def _token(row: Row) -> Token:
    return Token(**dict(zip(RECORDS["token"], row, strict=True)))


def by_hash(tx: Tx, hashed: str, now: int) -> Token | None:
    row = tx.row("token.by_hash", {"hash": hashed, "now": now})
    return None if row is None else _token(row)


def get(tx: Tx, key: str) -> Token | None:
    row = tx.row("token.get", {"key": key}) or tx.row("token.by_name", {"key": key})
    return None if row is None else _token(row)


def list_(tx: Tx) -> list[Token]:
    return [_token(row) for row in tx.rows("token.list", {})]


def count(tx: Tx, actor: str, now: int) -> int:
    row = tx.row("token.count", {"actor": actor, "now": now})
    return int(row[0]) if row else 0


def prune(tx: Tx, before: int) -> int:
    return tx.run("token.prune", {"before": before})

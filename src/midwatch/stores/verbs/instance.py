"""Instances: make known, forget, list."""

from __future__ import annotations

from collections.abc import Iterable

from midwatch.domain.instance import Instance
from midwatch.stores.sql import RECORDS, loads
from midwatch.stores.verbs.changes import insert
from midwatch.stores.verbs.tx import Tx


def add_instance(tx: Tx, instance: Instance) -> None:
    insert(tx, instance)


def remove_instances(tx: Tx, ids: Iterable[str]) -> None:
    tx.run_many("engine.remove", [{"id": one} for one in ids])


def instances(tx: Tx) -> list[Instance]:
    found = (dict(zip(RECORDS["instance"], row, strict=True)) for row in tx.rows("engine.list", {}))
    return [
        Instance(**{**values, "agents": tuple(loads(values["agents"])), "terms": loads(values["terms"])})
        for values in found
    ]

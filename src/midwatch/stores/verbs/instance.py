"""Instances: add, remove, list."""

from __future__ import annotations

from collections.abc import Collection

from midwatch.domain.instance import Instance
from midwatch.stores.verbs.changes import insert
from midwatch.stores.verbs.tx import Tx


def add(tx: Tx, instance: Instance) -> None:
    insert(tx, instance)


def remove(tx: Tx, ids: Collection[str]) -> None:
    tx.run_many("engine.remove", [{"id": instance_id} for instance_id in ids])


def list_(tx: Tx) -> list[Instance]:
    return tx.find_all(Instance, "engine.list")

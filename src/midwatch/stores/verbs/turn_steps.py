"""Steps: look; they are written by `changes.apply`."""

from __future__ import annotations

from midwatch.domain.turn_steps import Step
from midwatch.stores.sql import RECORDS, loads
from midwatch.stores.verbs.tx import Row, Tx


def _step(row: Row) -> Step:
    values = dict(zip(RECORDS["step"], row, strict=True))
    return Step(**{**values, "data": None if values["data"] is None else loads(values["data"])})


def of_task(tx: Tx, task_id: str) -> list[Step]:
    return [_step(row) for row in tx.rows("step.of_task", {"task_id": task_id})]


def before(tx: Tx, task_id: str) -> list[Step]:
    return [_step(row) for row in tx.rows("step.of_tries", {"task_id": task_id})]


def of_thread(tx: Tx, thread_id: str, without: str) -> list[Step]:
    return [_step(row) for row in tx.rows("step.of_thread", {"thread_id": thread_id, "without": without})]

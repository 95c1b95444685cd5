"""Steps of turns: read. `changes.apply` writes steps."""

from __future__ import annotations

from midwatch.domain.turn_steps import Step
from midwatch.stores.verbs.tx import Tx


def list_of_task(tx: Tx, task_id: str) -> list[Step]:
    return tx.find_all(Step, "step.of_task", task_id=task_id)


def list_before(tx: Tx, task_id: str) -> list[Step]:
    return tx.find_all(Step, "step.of_tries", task_id=task_id)


def list_of_thread(tx: Tx, thread_id: str, without: str) -> list[Step]:
    return tx.find_all(Step, "step.of_thread", thread_id=thread_id, without=without)

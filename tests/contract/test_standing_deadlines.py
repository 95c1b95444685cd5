"""Test the contract of stores for deadlines of handoffs that stand still while people are asked about a budget."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict
from midwatch.domain.account import Account
from midwatch.domain.agent import Choice
from midwatch.domain.approval import Approval, Status, resolve
from midwatch.domain.changes import Changes, Update
from midwatch.domain.handoff import Handoff, cancel_handoff, request_handoff
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.stores.postgres import PostgresStore
from records import CLOCK, a_handoff, a_task

NOW = CLOCK.now()
HOUR = 3600 * SECOND
MINUTES = 60 * SECOND


async def add_task(store: Store, **fields: Any) -> Task:
    task = a_task(**fields)
    await store.apply(Changes(records=(task,)))
    return task


async def add_handoff(store: Store, source: Task, target: Task | None = None, **fields: Any) -> Handoff:
    base = {"created_at": NOW, "deadline_at": fields.get("created_at", NOW) + 5 * MINUTES}
    target_id = target.id if target else None
    handoff = a_handoff(source_task=source.id, task_id=target_id, **{**base, **fields})
    await store.apply(request_handoff(handoff, handoff.created_at))
    return handoff


async def ask(store: Store, task: Task, account: str | None, at: int = NOW) -> Approval:
    """Store a question of a task; with `account`, it asks about the budget of this account."""
    question = Approval(
        id=f"a_{task.id}_{at}", task_id=task.id, attempt=1, session_key=task.session_key, agent=task.agent,
        question="More?", choices=(Choice("yes", "allow_once"),), created_at=at, expires_at=at + 12 * HOUR,
    )  # fmt: skip
    await store.apply(Changes(records=(question,)))
    if account is not None:
        await store.apply(Changes(records=(Account(id=account, approval_id=question.id),)))
    return question


async def end(store: Store, question: Approval, at: int, status: Status = "granted") -> None:
    await store.apply(resolve(question, status, at))


async def read_delay(store: Store, handoff: Handoff) -> float:
    """Return the minutes by which the deadline of a handoff has moved."""
    stored = await store.get_handoff(handoff.id)
    assert stored is not None
    assert stored.revision == handoff.revision, "a step that was computed before the move is still valid"
    return (stored.deadline_at - handoff.deadline_at) / MINUTES


async def test_a_handoff_is_not_due_while_its_account_asks(store: Store) -> None:
    root = await add_task(store)
    child = await add_task(store, account_id=root.id)
    held = await add_handoff(store, root, child)
    pending = await add_handoff(store, child)  # its task does not exist yet
    other = await add_handoff(store, await add_task(store), deadline_at=NOW + HOUR)
    by_person = a_handoff(deadline_at=NOW + 2 * HOUR)
    await store.apply(request_handoff(by_person, NOW))
    assert await store.find_next_handoff_at() == held.deadline_at

    question = await ask(store, child, root.id)
    assert await store.find_next_handoff_at() == other.deadline_at
    late = NOW + 3 * HOUR
    assert [handoff.id for handoff in await store.list_due_handoffs(late)] == [other.id, by_person.id]
    assert await store.find_due_handoff(held.id, late) is None
    assert await store.find_due_handoff(other.id, late) == other
    assert await read_delay(store, held) == 0, "nothing is written while the question is open"

    await end(store, question, NOW + 30 * MINUTES, "expired")
    assert [await read_delay(store, handoff) for handoff in (held, pending, other, by_person)] == [30, 30, 0, 0]
    assert await store.find_due_handoff(held.id, NOW + 35 * MINUTES - 1) is None
    due = await store.find_due_handoff(held.id, NOW + 35 * MINUTES)
    assert due == await store.get_handoff(held.id)
    assert await store.find_next_handoff_at() == NOW + 35 * MINUTES
    with pytest.raises(Conflict):
        await end(store, question, NOW + 40 * MINUTES)
    assert await read_delay(store, held) == 30, "the second end changes nothing"


@pytest.mark.parametrize("status", ["granted", "denied", "expired"])
async def test_only_open_handoffs_move_and_only_by_the_time_since_they_began(store: Store, status: Status) -> None:
    root = await add_task(store)
    child = await add_task(store, account_id=root.id)
    first, ended = await add_handoff(store, root, child), await add_handoff(store, root)
    question = await ask(store, root, root.id)
    await store.apply(cancel_handoff(ended, "no", NOW)[1])
    second = await add_handoff(store, root, created_at=NOW + 20 * MINUTES)
    third = await add_handoff(store, root, created_at=NOW + 40 * MINUTES)
    await end(store, question, NOW + 30 * MINUTES, status)
    assert [await read_delay(store, handoff) for handoff in (first, second, third)] == [30, 10, 0]
    stored = await store.get_handoff(ended.id)
    assert stored is not None
    assert stored.deadline_at == ended.deadline_at


async def test_the_roots_of_a_goal_have_one_account(store: Store) -> None:
    steps = [await add_task(store, account_id="g_1") for _ in range(2)]
    handoffs = [await add_handoff(store, step) for step in steps]
    question = await ask(store, steps[1], "g_1")
    assert await store.find_next_handoff_at() is None
    await end(store, question, NOW + HOUR)
    assert [await read_delay(store, handoff) for handoff in handoffs] == [60, 60]


async def test_the_end_of_the_question_and_the_new_limits_may_be_one_step(store: Store) -> None:
    root = await add_task(store)
    handoff = await add_handoff(store, root)
    question = await ask(store, root, root.id)
    forget = Update("account", root.id, {"approval_id": None}, {"approval_id": question.id})
    await store.apply(resolve(question, "granted", NOW + HOUR).plus(Changes(updates=(forget,))))
    assert await read_delay(store, handoff) == 60


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_time_of_two_questions_at_once_counts_once(store: Store, order: tuple[int, int]) -> None:
    """A delegate with limits of its own asks about these while the account of the tree asks, too."""
    root = await add_task(store)
    child = await add_task(store, account_id=root.id)
    handoff = await add_handoff(store, root, child)
    questions = [await ask(store, root, root.id), await ask(store, child, child.id, NOW + 10 * MINUTES)]
    await end(store, questions[order[0]], NOW + 30 * MINUTES)
    assert await store.find_next_handoff_at() is None, "the other question is still open"
    await end(store, questions[order[1]], NOW + 50 * MINUTES)
    assert await read_delay(store, handoff) == 50


async def test_a_question_about_something_else_moves_nothing(store: Store) -> None:
    root = await add_task(store)
    handoff = await add_handoff(store, root)
    question = await ask(store, root, None)
    assert await store.find_next_handoff_at() == handoff.deadline_at
    await end(store, question, NOW + HOUR)
    assert await read_delay(store, handoff) == 0


@pytest.mark.slow
async def test_two_processes_end_two_questions_at_the_same_time(database: str) -> None:
    stores = [await PostgresStore.open(database) for _ in range(2)]
    for _ in range(20):
        root = await add_task(stores[0])
        child = await add_task(stores[0], account_id=root.id)
        handoffs = [await add_handoff(stores[0], root, child) for _ in range(3)]
        questions = [
            await ask(stores[0], root, root.id),
            await ask(stores[0], child, child.id, NOW + 10 * MINUTES),
        ]
        await asyncio.gather(*(end(*both, NOW + 50 * MINUTES) for both in zip(stores, questions, strict=True)))
        assert [await read_delay(stores[0], handoff) for handoff in handoffs] == [50] * 3
    for store in stores:
        await store.close()

"""Test the contract of stores for accounts: reservations, charges, days, lists, pruning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, LeaseLost
from midwatch.domain.account import Account, Day, set_limits
from midwatch.domain.budget import Budget
from midwatch.domain.changes import Changes, Charge, Fence, Update
from midwatch.domain.store import Store
from midwatch.domain.task import Task, end
from midwatch.domain.usage import QUARTER, UsageQuery
from records import CLOCK, a_task, an_automation, fence, put, submit_and_claim


async def read(store: Store, account_id: str) -> Account:
    (account,) = await store.read_accounts([account_id])
    return account


async def open_account(store: Store, **limits: Any) -> Task:
    return await submit_and_claim(store, budget=limits)


async def test_a_task_with_limits_has_an_account_and_a_task_without_has_none(store: Store) -> None:
    task = await open_account(store, tokens=100, usd=1.5)
    free = await put(store)
    assert [a.id for a in await store.read_accounts([task.id, free.id, "t_none"])] == [task.id]
    account = await read(store, task.id)
    assert (account.limits, account.scope, account.spent) == ({"tokens": 100, "usd": 1.5}, "task", (0, 0.0, 0, 0.0))
    again = a_task(budget={"tokens": 5}, retry_of=task.id, account_id=task.id)
    await store.submit(again)
    assert await store.read_accounts([again.id]) == [], "a retry shares the account of the first try"


async def test_steps_count_when_they_are_reserved_and_never_exceed_their_limit(store: Store) -> None:
    task = await open_account(store, steps=3)
    answers = await asyncio.gather(*(store.reserve(fence(task), [task.id, "t_none"]) for _ in range(10)))
    assert [answer.granted for answer in answers].count(True) == 3
    assert (await read(store, task.id)).steps == 3
    refused = next(answer for answer in answers if not answer.granted)
    assert [account.steps for account in refused.accounts] == [3], "the refused step was given back"


async def test_a_reservation_needs_every_account_and_counts_in_all_or_none(store: Store) -> None:
    root, child = await open_account(store, tokens=100), await open_account(store, steps=1)
    both = [root.id, child.id]
    assert (await store.reserve(fence(child), both)).granted
    assert not (await store.reserve(fence(child), both)).granted
    assert ((await read(store, root.id)).steps, (await read(store, child.id)).steps) == (1, 1)
    assert (await store.reserve(fence(child), both, exempt=child.id)).granted
    await store.apply(Changes(charges=(Charge(root.id, tokens=100),)))
    assert not (await store.reserve(fence(child), [root.id])).granted


async def test_a_reservation_of_a_lost_attempt_is_refused(store: Store) -> None:
    task = await open_account(store, steps=3)
    with pytest.raises(LeaseLost):
        await store.reserve(Fence(task.id, task.attempt + 1), [task.id])
    assert (await read(store, task.id)).steps == 0


async def test_charges_are_written_with_their_step_or_not_at_all(store: Store) -> None:
    task = await open_account(store, tokens=100)
    charges = (Charge(task.id, 10, 0.25, 1, 2.5), Charge("t_none", 9), Charge(task.id, 5, 0.0, -1))
    await asyncio.gather(*(store.apply(Changes(fence=fence(task), charges=charges)) for _ in range(8)))
    assert (await read(store, task.id)).spent == pytest.approx((120, 2.0, 0, 20.0))
    with pytest.raises(LeaseLost):
        await store.apply(Changes(fence=Fence(task.id, 9), charges=charges))
    wrong = Update("task", task.id, {"wait": None}, {"status": "pending"})
    with pytest.raises(Conflict):
        await store.apply(Changes(updates=(wrong,), charges=charges))
    assert (await read(store, task.id)).tokens == 120


async def test_only_one_question_is_asked_for_an_account(store: Store) -> None:
    task = await open_account(store, tokens=100)
    asked = [Update("account", task.id, {"approval_id": f"a_{n}"}, {"approval_id": None}) for n in range(3)]
    results = await asyncio.gather(
        *(store.apply(Changes(updates=(update,))) for update in asked), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Conflict", "NoneType"]
    account = await read(store, task.id)
    assert account.approval_id is not None
    assert await store.find_account(account.approval_id) == account
    assert await store.find_account("a_none") is None
    assert [listed.id for listed in await store.list_accounts()] == [task.id]
    await store.apply(Changes(updates=(set_limits(account, Budget(tokens=200)),)))
    raised = await read(store, task.id)
    assert (raised.limits, raised.approval_id) == ({"tokens": 200}, None)


async def test_a_day_begins_with_the_usage_of_its_ended_tasks(store: Store) -> None:
    task = await submit_and_claim(store)
    now = CLOCK.now()
    await store.apply(end(task, now, outcome="ok", usage={"input_tokens": 30, "output_tokens": 12, "cost_usd": 0.5})[1])
    begin = now // (96 * QUARTER) * 96 * QUARTER
    query = UsageQuery(since=begin, until=begin + 96 * QUARTER, by=("agent",))
    days = [Day("day:1", {"tokens": 100}, query), Day("day:1:x", {"usd": 1.0}, query, "x")]
    await asyncio.gather(*(store.open_days(days, now) for _ in range(3)))
    desk, other = await store.read_accounts(["day:1", "day:1:x"])
    assert (desk.scope, desk.tokens, desk.usd, other.tokens) == ("day", 42, 0.5, 0)
    await store.apply(Changes(charges=(Charge("day:1", 8),)))
    await store.open_days([Day("day:1", {"tokens": 60}, query)], now)
    assert ((await read(store, "day:1")).limits, (await read(store, "day:1")).tokens) == ({"tokens": 60}, 50)


async def test_accounts_are_removed_with_the_last_of_their_tasks(store: Store) -> None:
    task = await open_account(store, tokens=100)
    child = await submit_and_claim(store, account_id=task.id)
    assert [member.id for member in await store.list_account_tasks(task.id)] == [task.id, child.id]
    now = CLOCK.now()
    await store.apply(end(task, now, outcome="ok")[1])
    assert await store.prune_tasks(now + 1, 100) == 1
    assert await store.read_accounts([task.id]), "its other task still runs"
    await store.apply(end(child, now, outcome="ok")[1])
    assert await store.prune_tasks(now + 1, 100) == 1
    assert await store.read_accounts([task.id]) == []
    day = Day("day:1", {"tokens": 1}, UsageQuery(since=0, until=SECOND))
    await store.open_days([day], now)
    await store.prune_tasks(now, 100)
    assert await store.read_accounts(["day:1"])
    await store.prune_tasks(now + 1, 100)
    assert await store.read_accounts(["day:1"]) == []


async def test_an_automation_keeps_its_account_until_it_is_removed(store: Store) -> None:
    task, now = await open_account(store, tokens=100), CLOCK.now()
    kept = an_automation(now, account_id=task.id, status="deleted", deleted_at=5, next_run_at=None)
    await store.apply(Changes(records=(kept,)))
    await store.apply(end(task, now, outcome="ok")[1])
    assert await store.prune_tasks(now + 1, 100) == 1
    assert await store.read_accounts([task.id]), "its runs may still spend"
    assert await store.prune_automations(6) == 1
    assert await store.read_accounts([task.id]) == []

"""Test the contract of stores for accounts: reservations, charges, days, lists, pruning, migration."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, LeaseLost
from midwatch.domain.account import Account, Day, set_limits
from midwatch.domain.budget import Budget
from midwatch.domain.changes import Changes, Charge, Fence, Update
from midwatch.domain.event import LlmResponse, event
from midwatch.domain.store import Store
from midwatch.domain.task import Task, end, in_turn
from midwatch.domain.usage import QUARTER, UsageQuery
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sql import load_migrations
from midwatch.stores.sqlite import APPLICATION_ID, SqliteStore
from midwatch.stores.verbs.changes import apply
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


async def test_figures_that_are_far_too_large_never_prevent_a_write(store: Store) -> None:
    """Once a task never ended on SQLite, because its agent had reported the lowest integer."""
    task = await open_account(store, tokens=100)
    for _ in range(12):
        await store.apply(Changes(charges=(Charge(task.id, tokens=10**18),)))
    assert (await read(store, task.id)).tokens >= 4 * 10**18
    usage = {"input_tokens": -(2**63), "output_tokens": 2**63 - 1, "cost_usd": 1e300, "steps": "many"}
    answers = (LlmResponse(model="a\0", usage={"input_tokens": 7}), LlmResponse(usage={"input_tokens": -(2**63)}))
    told = tuple(event(answer, CLOCK.now(), **in_turn(task)) for answer in answers)
    await store.apply(Changes(events=told))
    await store.apply(end(task, CLOCK.now(), outcome="ok", usage=usage)[1])
    assert await store.sum_account(task.id) == (7, 0.0, 2, 0.0)


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


async def test_a_cost_of_0_is_known_if_any_task_has_reported_it(store: Store) -> None:
    root = await submit_and_claim(store)
    usage: dict[str, Any] = {"input_tokens": 5}
    for _ in range(30):
        await store.apply(end(await submit_and_claim(store, account_id=root.id), 1, outcome="ok", usage=usage)[1])
    assert not await store.has_reported_cost(root.id)
    free = {**usage, "cost_usd": 0.0}
    await store.apply(end(await submit_and_claim(store, account_id=root.id), 1, outcome="ok", usage=free)[1])
    assert await store.has_reported_cost(root.id)


@pytest.mark.parametrize("charge_first", [True, False])
async def test_a_charge_and_a_new_account_at_the_same_time_lose_nothing(database: str, charge_first: bool) -> None:
    stores = [await PostgresStore.open(database) for _ in range(2)]
    root = await submit_and_claim(stores[0])
    child = await submit_and_claim(stores[0], account_id=root.id)
    answer = event(LlmResponse(model="a", usage={"input_tokens": 12}), CLOCK.now(), **in_turn(child))
    charged = Changes(fence=fence(child), events=(answer,), charges=(Charge(root.id, 12, 0.0, 1),))
    opened = Changes(records=(Account(id=root.id, limits={"tokens": 100}),))
    written, go_on = threading.Event(), threading.Event()

    def apply_and_wait(tx: Any, changes: Changes) -> None:
        apply(tx, changes)
        written.set()
        go_on.wait(60)

    first, second = (charged, opened) if charge_first else (opened, charged)
    writes = [asyncio.create_task(stores[0].write(apply_and_wait, first))]
    assert await asyncio.to_thread(written.wait, 60)
    writes.append(asyncio.create_task(stores[1].apply(second)))
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while not writes[1].done() and not await (await connection.execute(waits)).fetchall():
            await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*writes)
    assert (await read(stores[0], root.id)).spent == (12, 0.0, 1, 0.0)
    for store in stores:
        await store.close()


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
    await store.prune_tasks(now + 26 * 3600 * SECOND, 100)
    assert await store.read_accounts(["day:1"]), "the day is not over in every time zone"
    await store.prune_tasks(now + 49 * 3600 * SECOND, 100)
    assert await store.read_accounts(["day:1"]) == []


async def test_the_own_account_of_a_task_is_kept_for_its_retries(store: Store) -> None:
    task = await open_account(store, tokens=100)
    child = await submit_and_claim(store, account_id=task.id, budget={"tokens": 3})
    now = CLOCK.now()
    await store.apply(end(child, now, outcome="error")[1])
    retry = await submit_and_claim(store, account_id=task.id, budget={"tokens": 3}, retry_of=child.id)
    assert await store.prune_tasks(now + 1, 100) == 1
    assert await store.get_task(child.id) is None
    assert (await read(store, child.id)).limits == {"tokens": 3}
    await store.apply(end(retry, now, outcome="ok")[1])
    assert await store.prune_tasks(now + 1, 100) == 1
    assert await store.read_accounts([child.id]) == []


async def test_an_automation_keeps_its_account_until_it_is_removed(store: Store) -> None:
    task, now = await open_account(store, tokens=100), CLOCK.now()
    kept = an_automation(now, account_id=task.id, status="deleted", deleted_at=5, next_run_at=None)
    await store.apply(Changes(records=(kept,)))
    await store.apply(end(task, now, outcome="ok")[1])
    assert await store.prune_tasks(now + 1, 100) == 1
    assert await store.read_accounts([task.id]), "its runs may still spend"
    assert await store.prune_automations(6) == 1
    assert await store.read_accounts([task.id]) == []


OLD = 11
"""The last version of the schema without accounts."""
TASK = {
    "status": "done", "prompt": "x", "agent": "it", "session_key": "bg:1", "gate_key": "bg:1", "created_at": 1,
    "due_at": 0, "cause": "api", "priority": 0, "rank": 0, "on_crash": "fail", "max_attempts": 1, "attempt": 1,
    "failures": 0, "rescues": 0, "interruptions": 0,
}  # fmt: skip
GOAL = {
    "id": "g_1", "status": "active", "objective": "x", "agent": "it", "session_key": "s", "created_at": 1,
    "max_tokens": 5000, "tokens": 100, "scope_kind": "user", "scope_id": "ann", "manage_mode": "creator_only",
}  # fmt: skip


def old_tasks() -> list[dict[str, Any]]:
    """Return tasks of an older version: open and ended work with children, a retry, and a goal with a child."""
    used = {"input_tokens": 30, "output_tokens": 12, "cost_usd": 0.25, "seconds": 1.5}
    odd = {**used, "output_tokens": "many", "cost_usd": None, "seconds": -4, "steps": 3}
    budget = {"tokens": 5000, "before": {"tokens": 7}}
    return [
        {"id": "t_1", "status": "running", "root_id": "t_1", "budget": budget, "usage": used},
        *({"id": f"t_1{n}", "root_id": "t_1", "parent_id": "t_1", "usage": used} for n in range(3)),
        {"id": "t_2", "root_id": "t_2", "budget": budget, "usage": used},
        {"id": "t_21", "root_id": "t_2", "parent_id": "t_2", "usage": used},
        {"id": "t_3", "root_id": "t_3", "budget": budget, "status": "failed", "usage": used},
        {"id": "t_31", "root_id": "t_3", "parent_id": "t_3", "status": "failed", "usage": odd},
        {"id": "t_32", "root_id": "t_3", "parent_id": "t_3", "status": "pending"},
        {"id": "t_33", "root_id": "t_3", "parent_id": "t_3", "usage": {"model": "a\0", "input_tokens": 1e300}},
        {"id": "t_4", "root_id": "t_4", "cause": "goal", "cause_id": "g_1", "usage": used},
        {"id": "t_41", "root_id": "t_4", "parent_id": "t_4", "cause": "handoff", "cause_id": "h_1", "usage": used},
        {"id": "t_5", "root_id": "t_5", "budget": budget, "usage": {"input_tokens": 1e15, "model": "a\0"}},
        {"id": "t_6", "root_id": "t_6", "budget": {"before": {"tokens": 7.5}}, "usage": {"input_tokens": 2.25}},
    ]


def build_old_rows(columns: dict[str, list[str]], mark: str) -> list[tuple[str, list[Any]]]:
    """Return the statements that write an old goal and old tasks. `columns` are those that have no default."""
    statements = []
    for table, rows in (
        ("goals", [GOAL]),
        ("tasks", [{**TASK, **task, "gate_key": task["id"]} for task in old_tasks()]),
    ):
        for row in rows:
            values = {**dict.fromkeys(columns[table], 0), **row}
            marks = ", ".join([mark] * len(values))
            values = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in values.items()}
            statements.append((f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", [*values.values()]))
    return statements


async def check_migrated(store: Store) -> None:
    accounts = await store.read_accounts(["t_1", "t_2", "t_3", "g_1"])
    goal, running, ended, waiting = (account.spent for account in accounts)
    assert goal == (100, 0.5, 0, 3.0), "its own figures were higher in tokens only"
    assert running == (4 * 42, 1.0, 0, 6.0), "its children count"
    assert ended == (42 + 7, 0.25, 0, 1.5), "it is not changed, since nothing of it is open"
    assert waiting == (42 + 30, 0.25, 3, 1.5), "figures that are not valid count as nothing"
    (fractions,) = await store.read_accounts(["t_6"])
    assert fractions.tokens == 9, "tokens are whole, also if an agent reports fractions"
    await store.close()


async def test_the_migration_adds_what_children_of_open_work_have_spent_in_a_file(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        for _, script in load_migrations("sqlite")[:OLD]:
            connection.executescript(script)
        needed = 'SELECT name FROM pragma_table_info(?) WHERE "notnull" AND dflt_value IS NULL AND pk = 0'
        columns = {name: [row[0] for row in connection.execute(needed, (name,))] for name in ("goals", "tasks")}
        for statement, values in build_old_rows(columns, "?"):
            connection.execute(statement, values)
        connection.execute(f"PRAGMA user_version = {OLD}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
    await check_migrated(await SqliteStore.open(tmp_path / "old.db"))


@pytest.mark.slow
async def test_the_migration_adds_what_children_of_open_work_have_spent_in_a_database(database: str) -> None:
    with psycopg.connect(database) as connection:
        for _, script in load_migrations("postgres")[:OLD]:
            connection.execute(script.encode())
        needed = (
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_name = %s AND is_nullable = 'NO' AND column_default IS NULL"
        )
        columns = {name: [row[0] for row in connection.execute(needed, (name,))] for name in ("goals", "tasks")}
        for statement, values in build_old_rows(columns, "%s"):
            connection.execute(statement.encode(), values)
        connection.execute("INSERT INTO midwatch_schema VALUES (%s)", (OLD,))
    await check_migrated(await PostgresStore.open(database))

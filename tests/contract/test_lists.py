"""Lists with filters end early and go on; counts and sums follow every change of a task, and survive what they must."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.records import CLOCK, a_task, put, submit_and_claim

from midwatch.base.errors import Conflict
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import EventFilter, TaskProgress, event
from midwatch.domain.store import Store
from midwatch.domain.task import end
from midwatch.domain.task_store import Summary, TaskFilter
from midwatch.domain.usage import QUARTER, By, UsageQuery, UsageRow
from midwatch.live.bus import Bus
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.rows import encode_task
from midwatch.stores.sql import TASK_COLUMNS, load_migrations
from midwatch.stores.sqlite import APPLICATION_ID, SqliteStore
from midwatch.stores.verbs import listing

LOOKED = 5
OLD = 9
"""The schema before counts and sums were kept."""


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each page look at few records."""
    monkeypatch.setattr(listing, "MOST_LOOKED", LOOKED)


async def list_all(store: Store, which: TaskFilter) -> tuple[list[str], int]:
    """Return the ids of all tasks that match a filter, newest first, and the number of pages."""
    found, pages = list[str](), 0
    while True:
        page = await store.list_tasks(which)
        found += [task.id for task in page]
        pages += 1
        if page.next is None:
            return found, pages
        which = replace(which, before=page.next)


@pytest.mark.usefixtures("short_looks")
async def test_pages_of_rare_tasks_end_early_and_miss_none(store: Store) -> None:
    tasks = [
        await put(store, agent=f"a{n % 2}", creator=f"c{n % 3}", **({"session_key": f"chat:{n % 5}"} if n % 4 else {}))
        for n in range(30)
    ]
    for task in tasks[:20]:
        await store.apply(end(task, CLOCK.now(), outcome="cancelled")[1])
    for which in (
        TaskFilter(), TaskFilter(agent="a1"), TaskFilter(creator="c2"), TaskFilter(session_key="chat:3"),
        TaskFilter(statuses=("pending",)), TaskFilter(statuses=("cancelled",), agent="a0"),
        TaskFilter(statuses=("pending", "cancelled"), creator="c1"), TaskFilter(statuses=("done",)),
        TaskFilter(session_key="chat:1", agent="a1", creator="c0"), TaskFilter(session_key=tasks[4].session_key),
        TaskFilter(statuses=("running", "pending"), session_key="chat:2"),
    ):  # fmt: skip
        shown = {"agent": which.agent, "creator": which.creator, "session_key": which.session_key}
        stored = [(task, "cancelled" if number < 20 else "pending") for number, task in enumerate(tasks)]
        wanted = [
            task.id
            for task, status in reversed(stored)
            if all(value in (None, getattr(task, name)) for name, value in shown.items())
            and (not which.statuses or status in which.statuses)
        ]
        for limit in (1, 4, 50):
            found, pages = await list_all(store, replace(which, limit=limit))
            assert found == wanted, (which, limit)
            assert pages <= len(wanted) // limit + len(tasks) // LOOKED + 1
    nothing = await store.list_tasks(TaskFilter(statuses=("done",)))
    assert (list(nothing), nothing.next) == ([], tasks[-LOOKED - 1].id)


@pytest.mark.usefixtures("short_looks")
async def test_pages_of_rare_events_end_early_and_miss_none(store: Store) -> None:
    rare = {3, 17, 18, 40}
    about = [{"actor": "rare" if n in rare else "often", "session_key": f"chat:{n % 2}"} for n in range(1, 43)]
    await store.apply(Changes(events=tuple(event(TaskProgress(text=str(n)), n, **a) for n, a in enumerate(about, 1))))
    for which in (EventFilter(actor="rare"), EventFilter(actor="rare", session_key="chat:1"), EventFilter(actor="x")):
        wanted = [n for n in rare if which.actor == "rare" and (which.session_key is None or n % 2)]
        for limit in (1, 3, 50):
            found, after, pages = list[int](), 0, 0
            while after is not None:
                page = await store.read_events(after, which, limit)
                found += [stored.seq for stored in page]
                assert page.next is None or page.next > after
                after, pages = page.next, pages + 1
            assert found == sorted(wanted)
            assert 1 < pages <= len(wanted) + len(about) // LOOKED + 1
            found, before = [], 1000
            while before is not None:
                page = await store.read_events_back(before, which, limit)
                found = [stored.seq for stored in page] + found
                before = page.next
            assert found == sorted(wanted)


@pytest.mark.usefixtures("short_looks")
async def test_a_follower_with_a_rare_filter_gets_each_stored_event_once(store: Store) -> None:
    await store.apply(Changes(events=tuple(event(TaskProgress(text="x"), n, actor=f"a{n % 16}") for n in range(100))))
    bus = Bus(store, CLOCK)
    store.on_commit(bus.receive_commit)
    await bus.start()
    seqs = []
    async for stored in bus.follow(0, EventFilter(actor="a3")):
        seqs.append(stored.seq)
        if len(seqs) == 7:  # the last of the stored ones: now a new event
            await store.apply(Changes(events=(event(TaskProgress(text="x"), 1, actor="a3"),)))
        if stored.seq == 101:
            break
    assert seqs == [4, 20, 36, 52, 68, 84, 100, 101]
    await bus.stop()


async def sum_usage(store: Store, *by: By, **more: Any) -> list[UsageRow]:
    return sorted(await store.sum_usage(UsageQuery(**{"since": 0, "until": 2**62, "by": by, **more})), key=str)


async def test_counts_and_sums_ignore_a_step_that_fails(store: Store) -> None:
    task, other = await submit_and_claim(store), await put(store)
    step = end(task, CLOCK.now(), outcome="ok", usage={"input_tokens": 3})[1]
    wrong = Update("task", other.id, {"priority": 1}, {"status": "running"})
    with pytest.raises(Conflict):
        await store.apply(step._replace(updates=(*step.updates, wrong)))
    assert await store.count_tasks() == Summary(2, 1, 1, 0, 0, 0)
    assert await sum_usage(store) in ([], [UsageRow()])
    await store.apply(step)
    assert await store.count_tasks() == Summary(2, 1, 0, 1, 0, 0)
    assert [row.input_tokens for row in await sum_usage(store)] == [3]


async def test_usage_is_exact_at_both_ends_and_survives_pruning(store: Store) -> None:
    start = (CLOCK.now() // QUARTER - 96 * 3) * QUARTER
    ends = [start + n * QUARTER // 3 for n in range(96 * 6)]  # two days, three tasks in each quarter of an hour
    for n, ended in enumerate(ends):
        task = await submit_and_claim(store, **({} if n % 50 else {"session_key": f"chat:{n}"}))
        task = task._replace(started_at=ended - 1000)
        usage = {"input_tokens": 1, "cost_usd": 0.5, "model": f"m{n % 2}"}
        await store.apply(end(task, ended, outcome="ok", usage=usage)[1])

    async def check(since: int, until: int, *by: By) -> None:
        rows = await sum_usage(store, *by, since=since, until=until)
        wanted = sum(since <= ended < until for ended in ends)
        assert (sum(row.tasks for row in rows), sum(row.cost_usd or 0 for row in rows)) == (wanted, wanted / 2)

    for since, until in (
        (0, 2**62), (start, ends[-1]), (start + 1, ends[-1] + 1), (start + QUARTER // 2, start + QUARTER // 2 + 5),
        (start + QUARTER // 2, start + 130 * QUARTER + 7), (ends[100], ends[101]), (ends[-1] + 1, 2**62),
    ):  # fmt: skip
        for by in ((), ("day",), ("agent", "model"), ("day", "session"), ("session",)):
            await check(since, until, *by)
    of_session = await sum_usage(store, "session", session_key="chat:50")
    assert [(row.session, row.tasks) for row in of_session] == [("chat:50", 1)]
    assert len(await sum_usage(store, "session")) == 1 + len(range(0, len(ends), 50))
    while await store.prune_tasks(2**62, 0):
        pass
    assert await store.count_tasks() == Summary(0, 0, 0, 0, 0, 0)
    await check(start, ends[-1] + QUARTER, "day")
    await check(start, ends[-1] + QUARTER, "session")


def make_old_tasks(columns: Collection[str]) -> tuple[str, list[tuple[Any, ...]]]:
    """Return tasks as the version before this migration stored them in these columns: the statement and its rows."""
    ended = a_task(
        status="done", started_at=1, completed_at=QUARTER + 5, usage={"input_tokens": 7, "model": "m"}, creator="ann"
    )
    failed = a_task(status="failed", completed_at=97 * QUARTER, session_key="chat:1")
    places = [place for place, name in enumerate(TASK_COLUMNS) if name in columns]
    rows = [tuple(encode_task(task)[place] for place in places) for task in (ended, failed, a_task(), a_task())]
    names, marks = ", ".join(TASK_COLUMNS[place] for place in places), ", ".join("?" for _ in places)
    return f"INSERT INTO tasks ({names}) VALUES ({marks})", rows


async def check_migrated(store: Store) -> None:
    assert await store.count_tasks() == Summary(4, 2, 0, 1, 1, 0)
    rows = await sum_usage(store, "actor", "session", "model")
    assert [(row.actor, row.session, row.model, row.tasks, row.input_tokens) for row in rows] == [
        ("", "chat:1", "", 1, None),
        ("ann", "", "m", 1, 7),
    ]
    assert [(row.day, row.tasks) for row in await sum_usage(store, "day")] == [("1970-01-01", 1), ("1970-01-02", 1)]
    await store.close()


async def test_the_migration_counts_and_sums_the_tasks_of_a_file(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        for _, script in load_migrations("sqlite")[:OLD]:
            connection.executescript(script)
        connection.executemany(*make_old_tasks([row[1] for row in connection.execute("PRAGMA table_info(tasks)")]))
        connection.execute(f"PRAGMA user_version = {OLD}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
    await check_migrated(await SqliteStore.open(tmp_path / "old.db"))


async def test_the_migration_counts_and_sums_the_tasks_of_a_database(database: str) -> None:
    with psycopg.connect(database) as connection:
        for _, script in load_migrations("postgres")[:OLD]:
            connection.execute(script.encode())
        described = connection.execute("SELECT * FROM tasks").description or ()
        statement, rows = make_old_tasks([column.name for column in described])
        for row in rows:
            connection.execute(statement.replace("?", "%s").encode(), row)
        connection.execute("INSERT INTO midwatch_schema VALUES (%s)", (OLD,))
    await check_migrated(await PostgresStore.open(database))

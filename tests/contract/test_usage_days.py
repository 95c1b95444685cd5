"""Usage by day: the sums of each day in a time zone are those of the tasks that ended on this day."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import psycopg
from tests.records import claim_request, put

from midwatch.base.clock import SECOND
from midwatch.domain.store import Store
from midwatch.domain.task import end
from midwatch.domain.usage import QUARTER, By, UsageQuery, UsageRow
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sql import load_migrations
from midwatch.stores.sqlite import APPLICATION_ID, SqliteStore

ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns")
GROUPS: tuple[tuple[By, ...], ...] = (
    ("day",), ("day", "agent"), ("day", "model"), ("day", "actor"), ("day", "session"),
    ("agent", "day", "model", "actor"), ("agent",), ("session", "model"), (),
)  # fmt: skip
FIRST, LAST = datetime.fromisoformat("2026-10-02T00:00:00+00:00"), datetime.fromisoformat("2026-10-28T00:00:00+00:00")
"""In these weeks, summer time begins on Lord Howe Island and ends in Berlin."""
FOUR_HOURS, DAY = 16 * QUARTER, 96 * QUARTER
OLD = 10
"""The schema before there were sums of four hours."""


class Ended(NamedTuple):
    """A task that has ended, with what its usage is grouped by."""

    at: int
    actor: str
    agent: str
    session: str
    model: str
    tokens: int


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * SECOND


def make_times() -> list[int]:
    """Return times of some weeks: any times, and times just before and after midnight in each zone."""
    dice = random.Random(7)
    times = [dice.randrange(micros(FIRST), micros(LAST)) for _ in range(150)]
    for zone in ZONES:
        for day in (2, 4, 24, 25):
            midnight = micros(datetime(2026, 10, day, tzinfo=ZoneInfo(zone)) + timedelta(days=1))
            times += [midnight - 1, midnight, midnight + QUARTER]
    return times


def make_ended() -> list[Ended]:
    dice = random.Random(8)
    return [
        Ended(at, dice.choice(["ann", "bob"]), dice.choice(["a0", "a1"]), dice.choice(["", "", "chat:1", "chat:2"]),
              dice.choice(["m0", "m1", ""]), dice.randrange(1000))
        for at in make_times()
    ]  # fmt: skip


async def store_ended(store: Store, tasks: list[Ended]) -> None:
    """Store tasks that worked for a second and have ended."""
    for task in tasks:
        fields = {"agent": task.agent, "creator": task.actor, **({"session_key": task.session} if task.session else {})}
        await put(store, due_at=0, **fields)
        (claim,) = (await store.claim(claim_request(agents={task.agent: 1}), task.at - SECOND)).taken
        usage = {"input_tokens": task.tokens, **({"model": task.model} if task.model else {})}
        await store.apply(end(claim.task, task.at, outcome="ok", usage=usage)[1])


def group(tasks: list[Ended], query: UsageQuery) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Return tasks, microseconds and input tokens of each group, summed task by task."""
    counts, tokens = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for task in tasks:
        if query.since <= task.at < query.until and query.session_key in (None, task.session):
            day = datetime.fromtimestamp(task.at // SECOND, query.zone).date().isoformat()
            key = tuple(day if part == "day" else str(getattr(task, part)) for part in query.by)
            counts[key] += 1
            tokens[key] += task.tokens
    return {key: (count, count * SECOND, tokens[key]) for key, count in counts.items()}


def group_stored(rows: list[UsageRow], query: UsageQuery) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Return the same from the rows of a store."""
    groups: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for row in rows:
        key = tuple(str(getattr(row, part)) for part in query.by)
        count, worked, tokens = groups.get(key, (0, 0, 0))
        groups[key] = (count + row.tasks, worked + row.micros, tokens + int(row.input_tokens or 0))
    return groups


async def test_the_sums_of_each_day_are_those_of_its_tasks_in_every_zone(store: Store) -> None:
    tasks = make_ended()
    await store_ended(store, tasks)
    middle = micros(FIRST) + 9 * DAY
    short = (middle + QUARTER, middle + 7 * QUARTER)
    periods = [(0, 2**62), (middle - 5 * DAY + 12345, middle + 14 * DAY + 678), short]
    for zone in map(ZoneInfo, ZONES):
        for since, until in periods:
            for by in GROUPS:
                for session in (None, "chat:1"):
                    query = UsageQuery(since=since, until=until, by=by, zone=zone, session_key=session)
                    assert group_stored(await store.sum_usage(query), query) == group(tasks, query), query
    while await store.prune_tasks(2**62, 0):
        pass
    for zone in map(ZoneInfo, ZONES):
        for by in GROUPS:
            query = UsageQuery(since=0, until=2**62, by=by, zone=zone)
            assert group_stored(await store.sum_usage(query), query) == group(tasks, query), "the sums survive"


async def test_the_days_of_an_empty_store_are_none(store: Store) -> None:
    assert await store.sum_usage(UsageQuery(since=0, until=2**62, by=("day", "agent"))) == []


async def test_old_sums_of_every_length_are_removed(store: Store) -> None:
    newest = micros(FIRST)
    old, kept = newest - 402 * DAY, newest - 398 * DAY
    await store_ended(store, [Ended(at, "ann", "a0", "", "m0", 1) for at in (old, kept, newest)])

    async def count(since: int, length: int, *by: By) -> int:
        return sum(row.tasks for row in await store.sum_usage(UsageQuery(since=since, until=since + length, by=by)))

    for wanted in (1, 0):
        for by in ((), ("agent",)):
            for length in (QUARTER, FOUR_HOURS, DAY):  # each of these is one sum
                assert await count(old, length, *by) == wanted, (by, length)
                assert await count(kept, length, *by) == await count(newest, length, *by) == 1
        while await store.prune_tasks(2**62, 0):
            pass


SUMS = [
    (1, start, actor, "demo", "", "m", tasks, tasks, 0, 0, 7, 0, 0, tokens, None, None)
    for start, actor, tasks, tokens in ((15, "ann", 2, 30.0), (16, "ann", 1, None), (31, "bob", 4, 5.0))
]
"""Sums of quarters of an hour of an older version, as rows of the table. Their tasks were removed."""


async def check_migrated(store: Store) -> None:
    """Check the sums of four hours: they are read for these periods."""

    async def read(since: int) -> list[tuple[object, ...]]:
        rows = await store.sum_usage(UsageQuery(since=since, until=since + FOUR_HOURS, by=("actor",)))
        return [(row.actor, row.tasks, row.micros, row.input_tokens) for row in sorted(rows, key=str)]

    assert await read(0) == [("ann", 2, 7, 30.0)]
    assert await read(FOUR_HOURS) == [("ann", 1, 7, None), ("bob", 4, 7, 5.0)]
    await store_ended(store, [Ended(QUARTER * 19, "bob", "demo", "", "m", 9)])
    assert await read(FOUR_HOURS) == [("ann", 1, 7, None), ("bob", 5, 7 + SECOND, 14.0)], "new tasks are added"
    await store.close()


async def test_the_migration_sums_the_usage_of_four_hours_in_a_file(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        for _, script in load_migrations("sqlite")[:OLD]:
            connection.executescript(script)
        connection.executemany(f"INSERT INTO usage_sums VALUES ({', '.join('?' * 16)})", SUMS)
        connection.execute(f"PRAGMA user_version = {OLD}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
    await check_migrated(await SqliteStore.open(tmp_path / "old.db"))


async def test_the_migration_sums_the_usage_of_four_hours_in_a_database(database: str) -> None:
    with psycopg.connect(database) as connection:
        for _, script in load_migrations("postgres")[:OLD]:
            connection.execute(script.encode())
        connection.cursor().executemany(f"INSERT INTO usage_sums VALUES ({', '.join(['%s'] * 16)})", SUMS)
        connection.execute("INSERT INTO midwatch_schema VALUES (%s)", (OLD,))
    await check_migrated(await PostgresStore.open(database))

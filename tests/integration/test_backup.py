"""Test the move to PostgreSQL and backups of it, with real databases."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from midwatch.base.errors import AlreadyRunning, BadConfig, Conflict, HomeUnusable, StoreCorrupt
from midwatch.base.home import Home
from midwatch.desk.build import open_store
from midwatch.desk.config import Settings
from midwatch.domain.alert import Alert
from midwatch.domain.changes import Changes
from midwatch.domain.identity import OWNER, create, make
from midwatch.domain.instance import Instance
from midwatch.domain.session import Message
from midwatch.domain.store import Store
from midwatch.runtime.backup import backup, migrate, restore
from midwatch.stores import transfer
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sqlite import SqliteStore
from records import CLOCK, a_goal, an_automation, fence, progress, put, submit_and_claim

Rows = dict[str, list[tuple]]


def report_nothing(what: str, done: int, total: int) -> None: ...


def read_sqlite_rows(path: Path) -> Rows:
    """Return all rows of a SQLite store or a backup."""
    with closing(sqlite3.connect(path)) as connection:
        return contents(connection, transfer.SqliteSide(connection, str(path)).tables())


def read_postgres_rows(url: str) -> Rows:
    """Return all rows of a PostgreSQL store, with the columns in the order of the SQLite schema."""
    with closing(model()) as sqlite, psycopg.connect(url) as connection:
        return contents(connection, transfer.SqliteSide(sqlite, "").tables())


def contents(connection: Any, tables: transfer.Tables) -> Rows:
    """Return all rows without the values that a restore drops on purpose: where tasks ran."""
    rows = {}
    for table, columns in tables.items():
        column_names = ", ".join(name for name in columns if name not in ("host", "pgid", "pgid_mark"))
        rows[table] = sorted(connection.execute(f"SELECT {column_names} FROM {table}"), key=repr)
    return rows


def model() -> sqlite3.Connection:
    """Yield an empty SQLite store."""
    connection = sqlite3.connect(":memory:")
    for _, script in transfer.load_migrations("sqlite"):
        connection.executescript(script)
    return connection


async def fill(store: Store) -> None:
    now = CLOCK.now()
    done = await submit_and_claim(
        store, session_key="chat:1", idempotency_key="k-1", prompt="nul \0 and\ttab \\N \u2028 é👍"
    )
    message = Message(session_key="chat:1", role="user", text="one\ntwo", time=now, task_id=done.id)
    await store.apply(Changes(fence=fence(done), messages=(message,), events=(progress(done, "half \\x 'q'"),)))
    await store.apply(create(make("api", "ci", OWNER, now, by="owner")[0]))
    await store.apply(Changes(records=(an_automation(now), a_goal(now))))
    silent = Alert(
        id="al_1", status="raised", subject="t_1", kind="silent", text="Silent: dig", since=now, raised_at=now
    )
    await store.raise_alert(silent, Changes())
    await store.set_cursor("hook", 1)
    await put(store, due_at=now + 10**12, timeout_seconds=0.1, priority=-5, usage={"tokens": 3})


@pytest.fixture
async def settings(home: Path) -> Settings:
    """Return the settings of a home with a SQLite store whose process ended in the middle of its work."""
    folder = Home(home)
    folder.prepare()
    store = await SqliteStore.open(folder.database)
    await fill(store)
    await store.close()
    return Settings.load(home)


@pytest.fixture
def shared(settings: Settings, database: str) -> Settings:
    return settings.model_copy(update={"db": database})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup.db"


async def read_store(settings: Settings, act: Callable) -> object:
    """Return the result of `act` on the store."""
    store = await open_store(settings, Home(settings.home))
    try:
        return await act(store)
    finally:
        await store.close()


def without_nul(rows: Rows) -> Rows:
    def fit(value: object) -> object:
        return value.replace("\0", "\ufffd") if isinstance(value, str) else value

    return {table: [tuple(map(fit, row)) for row in table_rows] for table, table_rows in rows.items()}


def test_both_schemas_have_the_same_tables_and_columns(database: str) -> None:
    from midwatch.stores.postgres import prepare

    prepare(database)
    with closing(model()) as sqlite, psycopg.connect(database) as connection:
        ours = transfer.SqliteSide(sqlite, "").tables()
        query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        theirs: dict[str, set[str]] = {}
        for table, column in connection.execute(query):
            theirs.setdefault(table, set()).add(column)
    assert theirs.keys() - ours.keys() == {"instances", "leader", "midwatch_schema"}
    assert {table: set(columns) for table, columns in ours.items()} == {table: theirs[table] for table in ours}


# -- moving ------------------------------------------------------------------------------------------------------------


async def test_all_data_moves_unchanged(settings: Settings, shared: Settings, database: str) -> None:
    reports: list[tuple[str, int]] = []
    copy_result = await migrate(settings, database, lambda table, rows, total: reports.append((table, rows)))
    source = read_sqlite_rows(settings.home / "midwatch.db")
    assert read_postgres_rows(database) == without_nul(source)
    assert copy_result.rows == {table: len(rows) for table, rows in source.items()}
    assert dict(reports) == copy_result.rows

    async def goes_on(store: PostgresStore) -> None:
        assert (await store.read_log_bounds()).last_seq == copy_result.last_seq
        before = {task.id for task in await store.list_running_tasks()}
        assert before == set()
        await put(store)
        seqs = [event.seq for event in await store.read_events(0)]
        assert seqs == list(range(1, copy_result.last_seq + 2))
        repeated_task = await put(store, idempotency_key="k-1", session_key="chat:1")
        assert repeated_task.attempt == 1
        assert await store.check() == []

    await read_store(shared, goes_on)


async def test_tasks_of_a_dead_process_are_recovered_before_a_move(
    settings: Settings, shared: Settings, database: str
) -> None:
    store = await SqliteStore.open(settings.home / "midwatch.db")
    rerun, failed = [await submit_and_claim(store, on_crash=rule) for rule in ("rerun", "fail")]
    await store.add_instance(an_instance())
    await store.close()
    await migrate(settings, database, report_nothing)

    async def look(store: PostgresStore) -> None:
        assert await store.list_running_tasks() == []
        assert await store.list_instances() == []
        waiting_task, ended_task = await store.get_task(rerun.id), await store.get_task(failed.id)
        assert waiting_task is not None and ended_task is not None
        assert (waiting_task.status, waiting_task.rescues, waiting_task.lease_owner) == ("pending", 1, None)
        assert (ended_task.status, ended_task.outcome) == ("failed", "lost")

    await read_store(shared, look)


def an_instance(**more: object) -> Instance:
    base = {"id": "i_1", "role": "worker", "host": "elsewhere", "boot_id": "", "pid": 7, "agents": ("demo",)}
    return Instance(**{**base, "slots": 1, "started_at": 1, **more})


async def test_a_failed_move_leaves_the_target_empty(settings: Settings, shared: Settings, database: str) -> None:
    def fail_at_table(what: str, done: int, total: int) -> None:
        if what == "tasks":
            raise RuntimeError("the lights went out")

    with pytest.raises(RuntimeError):
        await migrate(settings, database, fail_at_table)

    async def look(store: PostgresStore) -> tuple[int, int]:
        return (await store.count_tasks()).total, (await store.read_log_bounds()).last_seq

    assert await read_store(shared, look) == (0, 0)
    await migrate(settings, database, report_nothing)
    assert await read_store(shared, look) != (0, 0)


async def test_rows_that_arrive_changed_fail_the_move(
    settings: Settings, shared: Settings, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = transfer.PostgresSide.fill

    def write_wrong_rows(
        side: transfer.PostgresSide, table: str, columns: tuple[str, ...], rows: Iterable[tuple]
    ) -> None:
        whole(side, table, columns, (tuple("" if v == "héllo" else v for v in row) for row in rows))

    store = await SqliteStore.open(settings.home / "midwatch.db")
    await put(store, prompt="héllo")
    await store.close()
    monkeypatch.setattr(transfer.PostgresSide, "fill", write_wrong_rows)
    with pytest.raises(StoreCorrupt, match="table tasks"):
        await migrate(settings, database, report_nothing)
    assert all(len(rows) == (table == "event_head") for table, rows in read_postgres_rows(database).items())


async def test_both_databases_are_locked_during_a_move(settings: Settings, database: str) -> None:
    refused = []

    def write(what: str, done: int, total: int) -> None:
        with psycopg.connect(database, options="-c lock_timeout=50") as there:
            try:
                there.execute("UPDATE event_head SET last_seq = 7")
            except psycopg.errors.LockNotAvailable:
                refused.append("there")
        with closing(sqlite3.connect(settings.home / "midwatch.db", timeout=0.01)) as here:
            try:
                here.execute("UPDATE event_head SET last_seq = 7")
            except sqlite3.OperationalError:
                refused.append("here")

    copy_result = await migrate(settings, database, write)
    assert refused == ["there", "here"] * len(copy_result.rows)


async def test_data_moves_only_to_an_empty_database(settings: Settings, shared: Settings, database: str) -> None:
    task = await read_store(shared, lambda store: put(store))
    before = read_sqlite_rows(settings.home / "midwatch.db")
    with pytest.raises(Conflict, match="use an empty database"):
        await migrate(settings, database, report_nothing)
    assert read_sqlite_rows(settings.home / "midwatch.db") == before  # no task was recovered without need

    async def look(store: PostgresStore) -> int:
        return (await store.count_tasks()).total

    assert task is not None
    assert await read_store(shared, look) == 1


async def test_a_database_of_another_program_is_not_changed(settings: Settings, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE tasks (id INT)")
    with pytest.raises(StoreCorrupt, match="another program"):
        await migrate(settings, database, report_nothing)


@pytest.mark.parametrize("lock", ["up", "i_somebody", "leader"])
async def test_a_move_is_refused_while_a_process_runs(settings: Settings, database: str, lock: str) -> None:
    file_lock = Home(settings.home).lock(lock)
    assert file_lock.acquire()
    with pytest.raises(AlreadyRunning):
        await migrate(settings, database, report_nothing)
    file_lock.release()


async def test_a_move_needs_a_database_and_a_postgres_address(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(HomeUnusable):
        await migrate(Settings.load(tmp_path / "nothing"), "postgresql://127.0.0.1/x", report_nothing)
    with pytest.raises(BadConfig):
        await migrate(settings, "mysql://127.0.0.1/x", report_nothing)


# -- backups -----------------------------------------------------------------------------------------------------------


async def test_a_backup_is_restored_to_the_other_kind_of_store_and_back(
    settings: Settings, shared: Settings, database: str, file: Path, tmp_path: Path
) -> None:
    await migrate(settings, database, report_nothing)
    await read_store(shared, lambda store: submit_and_claim(store, on_crash="rerun"))
    copy_result = await backup(shared, file, report_nothing)
    rows = read_sqlite_rows(file)
    assert read_postgres_rows(database) == rows
    assert copy_result.rows == {table: len(table_rows) for table, table_rows in rows.items()}

    small = Settings.load(tmp_path / "small")
    assert await restore(small, file, report_nothing) == copy_result
    again = tmp_path / "again.db"
    assert await backup(small, again, report_nothing) == copy_result
    assert await restore(shared, again, report_nothing, force=True) == copy_result
    assert read_postgres_rows(database) == rows


async def test_a_backup_of_postgres_is_a_snapshot_during_writes(
    settings: Settings, shared: Settings, database: str, file: Path
) -> None:
    await migrate(settings, database, report_nothing)
    before = without_nul(read_sqlite_rows(settings.home / "midwatch.db"))
    loop = asyncio.get_running_loop()

    async def with_writer(store: PostgresStore) -> None:
        def write(what: str, done: int, total: int) -> None:
            asyncio.run_coroutine_threadsafe(put(store), loop).result(60)

        await backup(shared, file, write)
        assert (await store.count_tasks()).total > len(before["tasks"])

    await read_store(shared, with_writer)
    assert read_sqlite_rows(file) == before


async def test_postgres_data_is_replaced_only_by_force(shared: Settings, database: str, file: Path) -> None:
    await backup(shared.model_copy(update={"db": None}), file, report_nothing)
    await read_store(shared, lambda store: put(store, id="t_newer"))
    with pytest.raises(Conflict, match="--force"):
        await restore(shared, file, report_nothing)
    copy_result = await restore(shared, file, report_nothing, force=True)

    async def look(store: PostgresStore) -> tuple[object, int]:
        return await store.get_task("t_newer"), (await store.read_log_bounds()).last_seq

    assert await read_store(shared, look) == (None, copy_result.last_seq)


@pytest.mark.parametrize("force", [True, False])
async def test_a_restore_is_refused_while_a_process_sends_heartbeats(
    settings: Settings, shared: Settings, database: str, file: Path, force: bool
) -> None:
    await backup(settings, file, report_nothing)
    await read_store(shared, lambda store: store.add_instance(an_instance()))
    with psycopg.connect(database) as connection:  # it sends heartbeats while the restore checks
        connection.execute("UPDATE instances SET heartbeat = clock_timestamp() + interval '1 hour'")
    with pytest.raises(AlreadyRunning, match="pid 7 on elsewhere"):
        await restore(shared, file, report_nothing, force=force)
    with pytest.raises(AlreadyRunning, match="pid 7 on elsewhere"):
        await migrate(settings, database, report_nothing)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE instances SET heartbeat = clock_timestamp() - interval '9 seconds'")
    assert (await restore(shared, file, report_nothing)).rows["tasks"] == 2


async def test_concurrent_restores_do_not_mix(settings: Settings, shared: Settings, file: Path, tmp_path: Path) -> None:
    copy_result = await backup(settings, file, report_nothing)
    await read_store(shared, lambda store: store.check())
    homes = [shared.model_copy(update={"home": tmp_path / name}) for name in ("one", "two")]
    outcomes = await asyncio.gather(*(restore(home, file, report_nothing) for home in homes), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "CopyResult"]

    async def look(store: PostgresStore) -> int:
        return (await store.count_tasks()).total

    assert await read_store(shared, look) == copy_result.rows["tasks"]

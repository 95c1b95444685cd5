"""Test the SQLite store with other processes, full disks, damaged files, and sudden ends of the process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midwatch.base.errors import (
    Conflict,
    LeaseLost,
    LimitReached,
    MidwatchError,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.event import EventFilter, ToolExecStart, event
from midwatch.domain.session import Message
from midwatch.domain.store import Commit
from midwatch.domain.task import Task
from midwatch.domain.task_store import TaskFilter
from midwatch.stores.sql import load_migrations
from midwatch.stores.sqlite import APPLICATION_ID, SqliteStore, open_database, read_version
from midwatch.testing import settle
from records import CLOCK, a_task, fence, progress, put, submit_and_claim

NEWEST = load_migrations("sqlite")[-1][0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "midwatch.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(file)
    yield opened
    await opened.close()


def count_resources() -> set[object]:
    """Return the threads and open files of this process, except those of the loop's own executor."""
    resources: set[object] = {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio")}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # files that were just closed, such as those of this check
            resources.add(link.readlink())
    return resources


@contextmanager
def program(script: str, *arguments: object, count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that run `script`; they are killed at the end."""
    argv = [sys.executable, "-c", script, *(str(argument) for argument in arguments)]
    started = [
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
        )
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


# -- opening -----------------------------------------------------------------------------------------------------

OPEN = """
import asyncio, sys
from midwatch.base.errors import MidwatchError
from midwatch.stores.sqlite import SqliteStore

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        store = await SqliteStore.open(sys.argv[1])
    except MidwatchError as problem:
        print(type(problem).__name__, problem, flush=True)
        return
    await store.count_tasks()
    print((await store.describe())["schema"], flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("attempt", range(3))
def test_concurrent_processes_migrate_a_new_file_once(file: Path, attempt: int) -> None:
    with program(OPEN, file, count=4) as racing:
        for process in racing:
            assert line(process) == "ready"
        for process in racing:
            go(process)
        assert {line(process) for process in racing} == {str(NEWEST)}
    connection = sqlite3.connect(file)
    try:
        assert connection.execute("SELECT count(*), max(last_seq) FROM event_head").fetchone() == (1, 0)
        assert connection.execute("PRAGMA user_version").fetchone()[0] == NEWEST
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    finally:
        connection.close()


def test_a_file_during_its_migration_is_not_treated_as_foreign(file: Path) -> None:
    class RacingConnection:
        """A connection whose file another process migrates between two reads."""

        def execute(self, sql: str) -> Any:
            row = connection.execute(sql).fetchone()
            if "application_id" in sql:
                open_database(str(file)).close()
            return SimpleNamespace(fetchone=lambda: row)

    connection = sqlite3.connect(file, isolation_level=None)
    try:
        assert read_version(RacingConnection(), str(file), NEWEST) <= NEWEST  # type: ignore[arg-type]
    finally:
        connection.close()


async def test_data_is_there_after_reopening(file: Path) -> None:
    first = await SqliteStore.open(file)
    task = await put(first)
    await first.close()
    await first.close()
    second = await SqliteStore.open(file)
    try:
        assert await second.get_task(task.id) == task
        assert [e.seq for e in await second.read_events(0)] == [1]
    finally:
        await second.close()


async def test_every_commit_is_synced_to_disk(store: SqliteStore) -> None:
    facts = await store.describe()
    assert (facts["synchronous"], facts["journal"], facts["schema"]) == ("FULL", "wal", NEWEST)
    assert await store.write(lambda tx: tx.connection.execute("PRAGMA synchronous").fetchone()) == (2,)


async def test_the_file_is_readable_by_its_owner_only(store: SqliteStore, file: Path) -> None:
    await put(store)
    for path in file.parent.glob("midwatch.db*"):
        assert path.stat().st_mode & 0o077 == 0, path


def sqlite_file(file: Path, *statements: str) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def test_a_newer_schema_is_refused_and_not_changed(file: Path) -> None:
    await (await SqliteStore.open(file)).close()
    sqlite_file(file, f"PRAGMA user_version = {NEWEST + 1}")
    before = file.read_bytes()
    with pytest.raises(SchemaTooNew, match="upgrade midwatch"):
        await SqliteStore.open(file)
    assert file.read_bytes() == before


async def test_a_database_of_another_program_is_refused_and_not_changed(file: Path) -> None:
    sqlite_file(file, "CREATE TABLE customers (name)", "INSERT INTO customers VALUES ('me')")
    before = file.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a midwatch database; move the file away, or choose another home"):
        await SqliteStore.open(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to have a header", b"x" * 5000])
async def test_a_file_that_is_no_database_is_refused_and_not_changed(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="restore a backup, or move the file away"):
        await SqliteStore.open(file)
    assert file.read_bytes() == content


async def test_a_directory_at_the_path_is_reported(file: Path) -> None:
    file.mkdir()
    with pytest.raises(StoreUnavailable) as caught:
        await SqliteStore.open(file)
    assert len(str(caught.value).splitlines()) == 1


async def test_a_failed_opening_leaves_nothing_behind(file: Path) -> None:
    file.write_bytes(b"x" * 5000)
    before, errors = count_resources(), []
    for _ in range(5):
        with pytest.raises(StoreCorrupt) as caught:
            await SqliteStore.open(file)
        errors.append(caught.value)  # another process may keep the file open
    assert count_resources() - before == set()


NOBODY = """
import asyncio, os, sqlite3, sys
from midwatch.base.errors import MidwatchError
from midwatch.stores.sqlite import SqliteStore
from records import put

async def main():
    await (await SqliteStore.open(":memory:")).close()  # everything is imported
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        store = await SqliteStore.open(sys.argv[1])
        try:
            await put(store)
            print("written", flush=True)
        finally:
            await store.close()
    except MidwatchError as problem:
        print(type(problem).__name__, problem, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("existing", [True, False])
async def test_a_read_only_directory_is_reported(existing: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "midwatch.db"
        if existing:
            await (await SqliteStore.open(file)).close()
            file.chmod(0o444)
        Path(folder).chmod(0o555)
        with program(NOBODY, file) as (process,):
            message = line(process)
        Path(folder).chmod(0o700)
    assert message.startswith("StoreUnavailable")
    assert str(file) in message


# -- damage ------------------------------------------------------------------------------------------------------


async def make_filled_store(file: Path, tasks: int = 500) -> None:
    store = await SqliteStore.open(file)
    await asyncio.gather(*(put(store, prompt="p" * 400) for _ in range(tasks)))
    await store.close()


def damage(file: Path, start: int, length: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(b"\xa5" * length)


async def test_a_damaged_header_is_reported_at_startup(file: Path) -> None:
    await make_filled_store(file)
    damage(file, 0, 200)
    with pytest.raises(StoreCorrupt, match="damaged"):
        await SqliteStore.open(file)


async def test_damage_in_the_middle_is_reported_on_read(file: Path) -> None:
    await make_filled_store(file)
    damage(file, file.stat().st_size // 3 * 2, file.stat().st_size // 3)
    store = await SqliteStore.open(file)
    try:
        with pytest.raises(StoreCorrupt, match="restore a backup"):
            await store.list_tasks(TaskFilter(limit=500))
        assert await store.check() != []
    finally:
        await store.close()


async def test_damage_in_the_middle_is_reported_on_write(file: Path) -> None:
    await make_filled_store(file)
    damage(file, file.stat().st_size // 3 * 2, file.stat().st_size // 3)
    store = await SqliteStore.open(file)
    try:
        for verb in (put, submit_and_claim, put):
            with pytest.raises(StoreCorrupt):
                await verb(store)
    finally:
        await store.close()


# -- a full disk -------------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_writes_loses_nothing_and_recovers(file: Path) -> None:
    store = await SqliteStore.open(file)

    def limit(pages: int | None) -> Any:
        """Forbid the database to grow by more than this; None removes the limit."""

        def verb(tx: Any) -> None:
            now = tx.connection.execute("PRAGMA page_count").fetchone()[0]
            tx.connection.execute(f"PRAGMA max_page_count = {now + pages if pages is not None else 1_000_000_000}")

        return verb

    accepted: list[Task] = []
    refused = 0
    try:
        await store.write(limit(20))
        for _ in range(30):
            results = await asyncio.gather(*(put(store, prompt="p" * 2000) for _ in range(4)), return_exceptions=True)
            for result in results:
                if isinstance(result, Task):
                    accepted.append(result)
                else:
                    assert isinstance(result, StoreUnavailable)
                    assert "the disk is full" in str(result)
                    refused += 1
        assert accepted and refused
        last = (await store.read_log_bounds()).last_seq
        await store.write(limit(None))
        accepted.append(await put(store, prompt="p" * 2000))
        stored_ids = {task.id for task in await store.list_tasks(TaskFilter(limit=500))}
        assert stored_ids == {task.id for task in accepted}
        assert [e.seq for e in await store.read_events(0)] == list(range(1, last + 2))
        assert last + 1 == len(accepted)
        assert await store.check() == []
    finally:
        await store.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
async def test_a_real_full_disk_is_reported(tmp_path: Path) -> None:
    """Use a file system of one megabyte, also for the log and the index beside the file."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        store = await SqliteStore.open(disk / "midwatch.db")
        accepted: set[str] = set()
        refused = 0
        try:
            while refused < 5:
                try:
                    accepted.add((await put(store, prompt="p" * 5000)).id)
                except StoreUnavailable as problem:
                    assert len(str(problem).splitlines()) == 1
                    refused += 1
            assert accepted
            assert {t.id for t in await store.list_tasks(TaskFilter(limit=500))} == accepted
            subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
            accepted.add((await put(store)).id)
            assert {t.id for t in await store.list_tasks(TaskFilter(limit=500))} == accepted
            assert await store.check() == []
        finally:
            await store.close()
    finally:
        subprocess.run(["umount", disk], check=True)


# -- groups of writes --------------------------------------------------------------------------------------------


async def test_a_failed_commit_fails_every_write_of_its_group(store: SqliteStore) -> None:
    """Only COMMIT finds a violated deferred constraint, when every write of the group has already succeeded."""

    def forbid(tx: Any) -> None:
        tx.connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        tx.connection.execute("CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")

    def bad(tx: Any) -> None:
        tx.connection.execute("INSERT INTO child VALUES (7)")

    await store.write(forbid)
    store._connection.execute("PRAGMA foreign_keys = ON")
    before = await put(store)
    commits: list[Commit] = []
    store.on_commit(commits.append)
    busy, go_on = threading.Event(), threading.Event()

    def hold(tx: Any) -> None:
        """Keep the writer busy, so that the following writes form one group."""
        busy.set()
        assert go_on.wait(60)

    holding = asyncio.create_task(store.write(hold))
    assert await asyncio.to_thread(busy.wait, 60)
    group = [asyncio.ensure_future(write) for write in (put(store), store.write(bad), put(store), put(store))]
    await settle()
    go_on.set()
    await holding
    results = await asyncio.gather(*group, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 4
    assert commits == []
    assert [t.id for t in await store.list_tasks(TaskFilter())] == [before.id]
    after = await put(store)
    assert [(e.seq, e.task_id) for e in await store.read_events(0)] == [(1, before.id), (2, after.id)]


@pytest.mark.parametrize("seed", range(5))
async def test_a_group_of_writes_behaves_like_single_writes(store: SqliteStore, seed: int) -> None:
    """Writes that fail at once, after a statement, or not at all, mixed: each is stored whole or not at all."""
    chance = random.Random(seed)
    tasks = [await submit_and_claim(store) for _ in range(4)]
    start = (await store.read_log_bounds()).last_seq
    names: list[str] = []

    async def step(number: int) -> None:
        task, name = chance.choice(tasks), f"step {number}"
        good = Update("task", task.id, {"progress": name})
        bad = Update("task", task.id, {"progress": "never"}, {"attempt": 99})
        way = chance.randrange(6)
        changes = Changes(
            fence=Fence(task.id, 99) if way == 0 else fence(task),
            updates={1: (good, bad), 2: (bad, good)}.get(way, (good,)),
            records=(task,) if way == 3 else (a_task(id=f"t_{number}"),),
            messages=(Message(session_key=f"s{number % 3}", role="agent", text=name, time=1),),
            events=(progress(task, name), progress(task, name)),
        )
        try:
            await store.apply(changes)
        except (LeaseLost, Conflict):
            assert way <= 3
        else:
            assert way > 3
            names.append(name)

    await asyncio.gather(*(step(number) for number in range(100)))
    events = await store.read_events(start)
    assert [e.seq for e in events] == list(range(start + 1, start + 1 + 2 * len(names)))
    assert sorted(e.payload["text"] for e in events) == sorted(names * 2)
    texts = [m.text for n in range(3) for m in await store.read_messages(f"s{n}")]
    assert sorted(texts) == sorted(names)
    new_ids = {t.id for t in await store.list_tasks(TaskFilter(limit=500))} - {t.id for t in tasks}
    assert new_ids == {f"t_{name.removeprefix('step ')}" for name in names}
    for n in range(3):
        numbers = [m.number for m in await store.read_messages(f"s{n}")]
        assert numbers == list(range(1, len(numbers) + 1))


POISON: list[Any] = [{1: "a number as a name"}, {"a": 2**70}, "half of a pair: \ud83d"]


@pytest.mark.parametrize("arguments", POISON, ids=["key", "number", "text"])
async def test_an_event_that_cannot_be_written_does_not_affect_others(store: SqliteStore, arguments: Any) -> None:
    task = await submit_and_claim(store)
    bad = event(ToolExecStart(tool="x", arguments=arguments), CLOCK.now(), task_id=task.id)
    results = await asyncio.gather(
        put(store), store.apply(Changes(fence=fence(task), events=(bad,))), put(store), return_exceptions=True
    )
    assert isinstance(results[0], Task) and isinstance(results[2], Task)


@pytest.mark.parametrize("value", POISON, ids=["key", "number", "text"])
async def test_a_value_that_cannot_be_written_raises_our_error(store: SqliteStore, value: Any) -> None:
    task = await submit_and_claim(store)
    with pytest.raises(MidwatchError):
        await store.apply(Changes(fence=fence(task), updates=(Update("task", task.id, {"progress": value}),)))


async def test_a_cancelled_caller_does_not_affect_others(store: SqliteStore) -> None:
    leaving = asyncio.create_task(put(store))
    staying = asyncio.create_task(put(store))
    await asyncio.sleep(0)
    leaving.cancel()
    task = await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert task.id in {t.id for t in await store.list_tasks(TaskFilter())}


async def test_a_closed_store_refuses_calls(file: Path) -> None:
    store = await SqliteStore.open(file)
    waiting = [asyncio.create_task(put(store)) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert all(isinstance(task, Task) for task in await asyncio.gather(*waiting))  # started before the cancel
    for call in (put(store), store.get_task("t"), store.list_tasks(TaskFilter()), store.describe(), store.check()):
        with pytest.raises(StoreUnavailable, match="closed"):
            await call
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (20,)
    connection.close()


async def test_closing_leaves_no_thread_and_no_file_descriptor(tmp_path: Path) -> None:
    before = count_resources()
    for number in range(3):
        store = await SqliteStore.open(tmp_path / f"{number}.db")
        await asyncio.gather(*(put(store) for _ in range(5)), *(store.count_tasks() for _ in range(5)))
        await store.get_task("t")
        await store.close()
    assert count_resources() - before == set()


# -- other processes ---------------------------------------------------------------------------------------------

HOLD = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
held.execute("ROLLBACK")
print("free", flush=True)
sys.stdin.read()
"""


async def test_a_lock_of_another_program_only_delays_a_write(store: SqliteStore, file: Path) -> None:
    with program(HOLD, file) as (holder,):
        assert line(holder) == "held"
        writes = [asyncio.create_task(put(store)) for _ in range(3)]
        assert (await store.count_tasks()).total == 0  # reading continues
        done, _ = await asyncio.wait(writes, timeout=1.0)
        assert not done, "the lock was not in their way"
        go(holder)
        assert all(isinstance(task, Task) for task in await asyncio.gather(*writes))
        assert line(holder) == "free"
    assert (await store.count_tasks()).total == 3


async def test_a_lock_that_is_never_released_is_reported_and_the_store_recovers(file: Path) -> None:
    store = SqliteStore(file, busy_seconds=0.2)
    try:
        with program(HOLD, file) as (holder,):
            assert line(holder) == "held"
            with pytest.raises(StoreUnavailable, match="locked by another program"):
                await put(store)
        await put(store)
        assert (await store.count_tasks()).total == 1
    finally:
        await store.close()


async def test_commits_of_another_store_are_announced_without_their_events(store: SqliteStore, file: Path) -> None:
    commits: asyncio.Queue[Commit] = asyncio.Queue()
    store.on_commit(commits.put_nowait)
    await put(store)
    assert not (await commits.get()).foreign
    other_store = await SqliteStore.open(file)
    try:
        await put(other_store)
        async with asyncio.timeout(60):
            commit = await commits.get()
        assert commit.foreign and commit.events == () and "task" in commit.topics
    finally:
        await other_store.close()


STORM = """
import asyncio, sys
from midwatch.stores.sqlite import SqliteStore
from records import put

async def client(store, number):
    while True:
        task = await put(store, prompt=f"{number}")
        print("task", task.id, flush=True)

async def main():
    store = await SqliteStore.open(sys.argv[1])
    await asyncio.gather(*(client(store, number) for number in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("patience", [5, 50, 300])
async def test_acknowledged_writes_survive_a_kill_under_load(file: Path, patience: int) -> None:
    with program(STORM, file) as (storm,):
        for _ in range(patience):
            assert line(storm).startswith("task ")
        storm.send_signal(signal.SIGKILL)
        output, _ = storm.communicate()
    acknowledged = [
        text.split()[1] for text in output.splitlines() if text.startswith("task ") and len(text.split()) == 2
    ]
    store = await SqliteStore.open(file)
    try:
        stored_ids: set[str] = set()
        before: str | None = None
        while page := await store.list_tasks(TaskFilter(limit=500, before=before)):
            stored_ids |= {task.id for task in page}
            before = page[-1].id
        assert set(acknowledged[:-1]) <= stored_ids
        last = (await store.read_log_bounds()).last_seq
        assert last == len(stored_ids)
        events = await store.read_events(0, EventFilter(kinds=("task_submitted",)), limit=100_000)
        assert [e.seq for e in events] == list(range(1, last + 1))
        assert {e.task_id for e in events} == stored_ids
        assert await store.check() == []
        assert (await store.submit(a_task())).created
    finally:
        await store.close()


async def test_submits_of_one_group_never_exceed_the_limit_of_open_tasks(store: SqliteStore) -> None:
    """The open tasks are counted once for a group; also a submit that fails in the group must not change the limit."""
    first = await put(store, idempotency_key="k", body_hash="a")
    again = a_task(idempotency_key="k", body_hash="another")
    wishes = [a_task(), again, a_task(cause="automation"), a_task(), again, a_task(), a_task()]
    outcomes = await asyncio.gather(*(store.submit(task, 4) for task in wishes), return_exceptions=True)
    created = [not isinstance(outcome, Exception) for outcome in outcomes]
    assert created == [True, False, True, True, False, True, False]
    assert isinstance(outcomes[-1], LimitReached)
    assert first.id in str(outcomes[1])


PRUNE = """
import asyncio, itertools, os, signal, sys
from midwatch.stores.sqlite import SqliteStore
from midwatch.stores.verbs import event

steps, kill_at = itertools.count(1), int(sys.argv[3])

def kill_between_statements(statement):
    if statement.startswith("UPDATE event_head SET oldest_seq") and next(steps) == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = await SqliteStore.open(sys.argv[1])
    store._connection.set_trace_callback(kill_between_statements)
    after = 0
    while after is not None:
        _, after = await store.write(event.prune, 0, int(sys.argv[2]), after, 0.0)
    while await store.shrink():
        pass

asyncio.run(main())
"""


async def test_a_kill_while_events_are_pruned_loses_no_event_to_keep(store: SqliteStore, file: Path) -> None:
    still = await submit_and_claim(store)
    for _ in range(20):
        await store.apply(Changes(fence=fence(still), events=(progress(still),)))
        await store.apply(Changes(events=tuple(event(ToolExecStart(tool="x"), CLOCK.now()) for _ in range(100))))
    last, keep = (await store.read_log_bounds()).last_seq, 500

    async def check_log() -> int:
        """Check that the log has no hole and the open task all its events, and return the first seq of the log."""
        oldest = (await store.read_log_bounds()).oldest_seq
        stored = await store.read_events(0, limit=100_000)
        assert [e.seq for e in stored if e.seq >= oldest] == list(range(oldest, last + 1))
        assert {e.task_id for e in stored if e.seq < oldest} <= {still.id}
        assert len([e for e in stored if e.task_id == still.id]) == 22
        return oldest

    for kill_at, oldest in ((1, 1), (4, 301)):  # the step that was killed has removed nothing
        with program(PRUNE, file, keep, kill_at) as (pruning,):
            assert pruning.wait(60) == -signal.SIGKILL
        assert await check_log() == oldest
    with program(PRUNE, file, keep, 0) as (pruning,):
        assert pruning.wait(60) == 0
    assert await check_log() == last - keep + 1
    assert await store.check() == []

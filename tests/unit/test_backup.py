"""Test backup and restore on SQLite: what is copied, what is refused, and what remains after a failure."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from midwatch.base.errors import (
    AlreadyRunning,
    Conflict,
    HomeUnusable,
    NotFound,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)
from midwatch.base.home import Home
from midwatch.cli import backup as backup_commands
from midwatch.cli.doctor import check_database
from midwatch.desk.config import Settings
from midwatch.domain.account import Account
from midwatch.domain.agent import Choice
from midwatch.domain.alert import Alert
from midwatch.domain.approval import Approval
from midwatch.domain.changes import Changes
from midwatch.domain.channel import Delivery
from midwatch.domain.context_item import make_item
from midwatch.domain.handoff import Handoff, HandoffTask
from midwatch.domain.identity import OWNER, make
from midwatch.domain.rule import Rule
from midwatch.domain.session import Message, Session, gate_key
from midwatch.domain.store import Store
from midwatch.domain.trigger import Trigger, record_firing
from midwatch.domain.turn_steps import Step
from midwatch.domain.worktree import Worktree
from midwatch.runtime.backup import backup, restore
from midwatch.runtime.runtime import Runtime
from midwatch.stores import sqlite, transfer
from midwatch.stores.rows import dumps
from midwatch.stores.sql import load_migrations
from midwatch.stores.sqlite import SqliteStore
from records import CLOCK, a_goal, a_steer, an_automation, fence, progress, put, submit_and_claim

PROCESS = ("host", "pgid", "pgid_mark")


def report_nothing(what: str, done: int, total: int) -> None: ...


def contents(path: Path) -> dict[str, list[tuple]]:
    """Return every row of every table, without the values that a restore drops on purpose."""
    connection = sqlite3.connect(path)
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'instances'")
        tables = {}
        for (name,) in names.fetchall():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})") if row[1] not in PROCESS]
            tables[name] = sorted(connection.execute(f"SELECT {', '.join(columns)} FROM {name}"), key=repr)
        return tables
    finally:
        connection.close()


async def fill(store: Store) -> None:
    """Store rows in every table: tasks in all states, a pruned log, a conversation, a question, a notice, a token."""
    now = CLOCK.now()
    running_task = await submit_and_claim(
        store, session_key="chat:1", idempotency_key="k-1", timeout_seconds=1.5, on_crash="rerun"
    )
    session = Session(key="chat:1", agent="demo", gate_key=gate_key("chat:1"), created_at=now, updated_at=now)
    message = Message(session_key="chat:1", role="user", text="héllo 👍\nworld", time=now, task_id=running_task.id)
    approval = Approval(
        id="a_1", task_id=running_task.id, attempt=1, session_key="chat:1", agent="demo", question="?",
        choices=(Choice("yes", "allow_once"), Choice("no", "reject_once")), created_at=now, expires_at=now + 10**12,
    )  # fmt: skip
    notice = Delivery(
        id="d_1",
        task_id=running_task.id,
        channel="console",
        notice="started",
        text="it started",
        due_at=now,
        created_at=now,
    )
    await store.apply(
        Changes(
            fence=fence(running_task), sessions=(session,),
            messages=(message, replace(message, role="agent", task_id=None)),
            records=(approval, make("api", "ci", OWNER, now, by="owner")[0]), deliveries=(notice,),
            events=(progress(running_task, "half"),),
        )
    )  # fmt: skip
    await put(store, prompt="wait", due_at=now + 10**12)
    rule = Rule(id="r_1", agent="demo", effect="allow", command="git log", created_at=now)
    tree = Worktree(
        id="w_1", status="kept", host="h", repository="/r", path="/w", branch="midwatch/w_1", base="b", target="main",
        subdir="", task_id=running_task.id,
    )  # fmt: skip
    step = Step(task_id=running_task.id, number=1, thread_id="th_1", created_at=now, data={"said": "é"})
    handoff = Handoff(id="h_1", request=HandoffTask(input="x").data(), chain=(("demo", None),), created_at=now)
    account = Account(id=running_task.id, limits={"tokens": 5}, created_at=now)
    item = make_item(running_task.id, "t_child", "demo", "ok", "seven", now, wake=False)
    steer = a_steer(running_task, "later")
    options = {"id": "tr_1", "kind": "git", "branch": "main"}
    automation = an_automation(now, triggers=(options,))
    trigger = Trigger(id="tr_1", automation_id=automation.id, kind="git", options=options, created_at=now)
    firing, fired = record_firing(automation, trigger, now, key="abc", summary="push", payload="1 commit")
    assert fired.records == (firing,)
    records = (automation, a_goal(now), account, rule, tree, step, steer, handoff, item, trigger, firing)
    await store.apply(Changes(records=records))
    silent = Alert(
        id="al_1", status="raised", subject="t_1", kind="silent", text="Silent: dig", since=now, raised_at=now
    )
    await store.raise_alert(silent, Changes())
    await store.set_cursor("hook", 1)


@pytest.fixture
async def filled(home: Path) -> Settings:
    settings = Settings.load(home)
    home_dir = Home(home)
    home_dir.prepare()
    store = await SqliteStore.open(home_dir.database)
    await fill(store)
    await store.close()
    return settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup.db"


@pytest.fixture
def other(tmp_path: Path) -> Settings:
    """Return an empty home."""
    return Settings.load(tmp_path / "other")


def list_files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# -- what is copied ----------------------------------------------------------------------------------------------------


async def test_a_backup_is_complete_and_restored_unchanged(filled: Settings, file: Path, other: Settings) -> None:
    store = await SqliteStore.open(filled.home / "midwatch.db")
    await put(store, status="done", completed_at=1)
    await store.close()
    result = await backup(filled, file, report_nothing)
    assert all(result.rows.values())  # an empty table would prove nothing
    assert list_files(file.parent) == {"home", file.name}
    assert file.stat().st_mode & 0o777 == 0o600
    before = contents(filled.home / "midwatch.db")
    assert contents(file) == before
    assert result.rows == {name: len(rows) for name, rows in before.items()}
    assert await restore(other, file, report_nothing) == result
    assert contents(other.home / "midwatch.db") == before
    assert result.last_seq == len(before["events"])


async def test_restored_tasks_continue_but_processes_elsewhere_are_not_touched(
    filled: Settings, file: Path, other: Settings
) -> None:
    await backup(filled, file, report_nothing)
    await restore(other, file, report_nothing)
    store = await SqliteStore.open(other.home / "midwatch.db")
    (running_task,) = await store.list_running_tasks()
    assert (running_task.host, running_task.pgid, running_task.pgid_mark) == (None, None, None)
    assert running_task.lease_owner  # no process owns it here, so it is recovered at the next start
    replayed = await put(store, session_key="chat:1", idempotency_key="k-1")
    assert replayed.id == running_task.id
    await put(store)
    events = await store.read_events(0)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    await store.close()


async def test_a_backup_is_a_snapshot_during_writes(
    filled: Settings, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PAGES_PER_STEP", 10)
    writer = await SqliteStore.open(filled.home / "midwatch.db")
    loop = asyncio.get_running_loop()
    before = contents(filled.home / "midwatch.db")

    def write(what: str, done: int, total: int) -> None:
        asyncio.run_coroutine_threadsafe(put(writer), loop).result(60)

    result = await backup(filled, file, write)
    await writer.close()
    assert contents(file) == before
    assert contents(filled.home / "midwatch.db")["event_head"] != before["event_head"]
    assert result.rows["tasks"] == len(before["tasks"])


async def test_a_pruned_log_keeps_its_beginning(filled: Settings, file: Path, other: Settings) -> None:
    store = await SqliteStore.open(filled.home / "midwatch.db")
    for _ in range(20):
        await put(store, status="done", completed_at=1)
    await store.prune_tasks(CLOCK.now(), 0)
    await store.prune_events(CLOCK.now(), 5)
    bounds = await store.read_log_bounds()
    await store.close()
    assert bounds.oldest_seq > 1
    await backup(filled, file, report_nothing)
    await restore(other, file, report_nothing)
    store = await SqliteStore.open(other.home / "midwatch.db")
    assert await store.read_log_bounds() == bounds
    await store.close()


async def test_a_backup_of_an_older_schema_is_restored_to_the_newest(
    filled: Settings, file: Path, other: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await backup(filled, file, report_nothing)
    sealed = file.read_bytes()
    migrations = load_migrations("sqlite")
    newer = [*migrations, (migrations[-1][0] + 1, "ALTER TABLE tasks ADD COLUMN colour TEXT DEFAULT 'blue';\n")]
    for module in (sqlite, transfer):
        monkeypatch.setattr(module, "load_migrations", lambda kind: newer)
    assert (await restore(other, file, report_nothing)).rows == result.rows
    assert file.read_bytes() == sealed
    database = sqlite3.connect(other.home / "midwatch.db")
    assert database.execute("SELECT DISTINCT colour FROM tasks").fetchall() == [("blue",)]
    database.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_an_existing_file_is_replaced_only_with_force(filled: Settings, file: Path) -> None:
    file.write_text("precious")
    with pytest.raises(Conflict, match="--force"):
        await backup(filled, file, report_nothing)
    assert file.read_text() == "precious"
    await backup(filled, file, report_nothing, force=True)
    assert contents(file) == contents(filled.home / "midwatch.db")


@pytest.mark.parametrize("place", ["missing/backup.db", "file/backup.db", "folder"])
async def test_an_unwritable_directory_is_reported(filled: Settings, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await backup(filled, tmp_path / place, report_nothing, force=True)
    assert list_files(tmp_path) == {"file", "folder", "home"}


async def test_a_name_that_is_too_long_is_reported(filled: Settings, tmp_path: Path) -> None:
    for act in (backup, restore):
        with pytest.raises(StoreUnavailable, match="too long"):
            await act(filled, tmp_path / ("x" * 300), report_nothing)


async def test_a_home_without_a_database_has_nothing_to_back_up(other: Settings, file: Path) -> None:
    with pytest.raises(HomeUnusable, match="MIDWATCH_HOME"):
        await backup(other, file, report_nothing)
    assert not other.home.exists()


def text(file: Path) -> None:
    file.write_text("this is no database " * 500)


def empty(file: Path) -> None:
    file.touch()


def foreign(file: Path) -> None:
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE tasks (id)")
    database.close()


@pytest.mark.parametrize("make", [text, empty, foreign])
async def test_a_file_that_is_no_backup_is_not_restored(
    make: Callable[[Path], None], file: Path, other: Settings
) -> None:
    make(file)
    before = file.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a backup"):
        await restore(other, file, report_nothing, force=True)
    assert file.read_bytes() == before
    assert not other.home.exists()


UNCHECKED = "PRAGMA ignore_check_constraints = ON; "
TAMPERED = {
    "unknown state": (UNCHECKED + "UPDATE tasks SET status = 'flying'", "row t_.* of table tasks .* status"),
    "unknown literal": ("UPDATE tasks SET outcome = 'superb'", "row t_.* of table tasks .* outcome"),
    "wrong type": ("UPDATE tasks SET attempt = 'two'", "row t_.* of table tasks .* attempt must be INTEGER"),
    "bytes": ("UPDATE sessions SET title = x'00ff'", "row chat:1 of table sessions .* title must be TEXT"),
    "not UTF-8": ("UPDATE rules SET command = CAST(x'80ff' AS TEXT)", "row r_1 of table rules .* command is not UTF-8"),
    "negative": ("UPDATE goals SET max_tokens = -1", "row .* of table goals .* max_tokens must not be negative"),
    "infinite": ("UPDATE goals SET max_seconds = 9e999", "row .* of table goals .* max_seconds .* infinite"),
    "no JSON": ("UPDATE automations SET schedule = '{'", "row .* of table automations .* schedule is not .* JSON"),
    "other JSON": ("UPDATE tasks SET budget = '[1]'", "row t_.* of table tasks .* budget"),
    "JSON inside": ("UPDATE approvals SET choices = '[[1, 2]]'", "row a_1 of table approvals .* choices"),
    "no boolean": ("UPDATE automations SET fresh = 7", "row .* of table automations .* fresh must be 0 or 1"),
    "no payload": ("UPDATE events SET payload = 'null' WHERE seq = 2", "row 2 of table events .* payload"),
    "dangling id": ("UPDATE approvals SET task_id = 't_gone'", "row a_1 of table approvals .* its task does not exist"),
    "no owner": ("UPDATE tasks SET lease_owner = NULL", "row t_.* of table tasks .* no process owns it"),
    "after the end": ("UPDATE event_head SET last_seq = 1", "row 2 of table events .* behind the log's end"),
    "no end": ("DELETE FROM event_head", "row 1 of table event_head .* it is missing"),
    "two owners": (
        (
            "DROP INDEX tasks_gate; UPDATE tasks SET status = 'running', gate_key = 'x', lease_owner = 'i_1';"
            "UPDATE event_head SET pending = 0, running = pending + running"
        ),
        "two rows of table tasks exclude each other",
    ),
    "missing column": ("ALTER TABLE tasks DROP COLUMN steers", "table tasks has other columns"),
    "missing table": ("DROP TABLE cursors", "table cursors has other columns"),
    "another table": ("CREATE TABLE extra (x)", "table extra is not known"),
    "trigger": ("CREATE TRIGGER x AFTER INSERT ON tasks BEGIN DELETE FROM tokens; END", "trigger x is not known"),
}


@pytest.mark.parametrize("case", TAMPERED)
async def test_a_tampered_backup_is_refused_and_nothing_is_changed(filled: Settings, file: Path, case: str) -> None:
    script, message = TAMPERED[case]
    await backup(filled, file, report_nothing)
    database = sqlite3.connect(file)
    database.executescript(script)
    database.close()
    before = contents(filled.home / "midwatch.db")
    files = list_files(filled.home)
    with pytest.raises(StoreCorrupt, match=message) as caught:
        await restore(filled, file, report_nothing, force=True)
    assert "nothing was changed" in str(caught.value).lower() and "\n" not in str(caught.value)
    assert contents(filled.home / "midwatch.db") == before
    assert list_files(filled.home) == files


async def test_a_missing_backup_is_reported(file: Path, other: Settings) -> None:
    with pytest.raises(NotFound, match="no backup"):
        await restore(other, file, report_nothing)


@pytest.mark.parametrize("part", ["events", "tasks_gate"])
async def test_a_damaged_backup_is_not_restored(filled: Settings, file: Path, other: Settings, part: str) -> None:
    await backup(filled, file, report_nothing)
    database = sqlite3.connect(file)
    (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (part,)).fetchone()
    (size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    with file.open("r+b") as damaged:
        damaged.seek((page - 1) * size)
        damaged.write(b"\xff" * size)
    with pytest.raises(StoreCorrupt, match="damaged"):
        await restore(other, file, report_nothing)
    assert not (other.home / "midwatch.db").exists()


async def test_a_backup_of_a_newer_midwatch_is_not_restored(filled: Settings, file: Path, other: Settings) -> None:
    await backup(filled, file, report_nothing)
    database = sqlite3.connect(file)
    database.execute("PRAGMA user_version = 999")
    database.close()
    with pytest.raises(SchemaTooNew, match="999"):
        await restore(other, file, report_nothing)


async def test_data_is_replaced_only_with_force_and_kept_under_another_name(
    filled: Settings, file: Path, tmp_path: Path
) -> None:
    await backup(filled, file, report_nothing)
    store = await SqliteStore.open(filled.home / "midwatch.db")
    await put(store)
    await store.close()
    before = contents(filled.home / "midwatch.db")
    with pytest.raises(Conflict, match="--force"):
        await restore(filled, file, report_nothing)
    assert contents(filled.home / "midwatch.db") == before
    result = await restore(filled, file, report_nothing, force=True)
    assert result.aside is not None
    assert contents(result.aside) == before
    assert contents(filled.home / "midwatch.db") == contents(file)


async def test_a_damaged_database_is_replaced_with_force(filled: Settings, file: Path) -> None:
    await backup(filled, file, report_nothing)
    database = filled.home / "midwatch.db"
    database.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StoreCorrupt, match="--force"):
        await restore(filled, file, report_nothing)
    result = await restore(filled, file, report_nothing, force=True)
    assert result.aside is not None
    assert result.aside.read_bytes() == b"this is no database" * 1000
    assert contents(database) == contents(file)


@pytest.mark.parametrize("lock", ["up", "i_somebody", "leader"])
@pytest.mark.parametrize("force", [True, False])
async def test_a_restore_is_refused_while_a_process_runs(filled: Settings, file: Path, lock: str, force: bool) -> None:
    await backup(filled, file, report_nothing)
    before = contents(filled.home / "midwatch.db")
    home_lock = Home(filled.home).lock(lock)
    assert home_lock.acquire()
    with pytest.raises(AlreadyRunning):
        await restore(filled, file, report_nothing, force=force)
    home_lock.release()
    assert contents(filled.home / "midwatch.db") == before


# -- failures ----------------------------------------------------------------------------------------------------------


def lose_row(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as database, database:
        database.execute("DELETE FROM events WHERE seq = 2")


def damage_index(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events_task'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    with copy.open("r+b") as damaged:
        damaged.seek((page - 1) * size)
        damaged.write(b"\xff" * size)


@pytest.mark.parametrize(("spoil", "message"), [(lose_row, "table events"), (damage_index, "damaged")])
async def test_a_copy_that_differs_is_noticed(
    filled: Settings, file: Path, spoil: Callable[[Path], None], message: str
) -> None:
    def spoil_before_check(what: str, done: int, total: int) -> None:
        if what == transfer.CHECK and not done:
            (copy,) = file.parent.glob(".midwatch-*/backup.db")
            spoil(copy)

    with pytest.raises(StoreCorrupt, match=message):
        await backup(filled, file, spoil_before_check)
    assert list_files(file.parent) == {"home"}


async def test_the_file_of_an_older_midwatch_can_shrink_after_a_restore(filled: Settings, file: Path) -> None:
    with closing(sqlite3.connect(filled.home / "midwatch.db", isolation_level=None)) as database:
        for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA auto_vacuum = NONE", "VACUUM"):
            database.execute(statement)

    async def find_problems() -> list[str]:
        async with Runtime.open(filled.home, work=False) as runtime:
            return [finding.told async for finding in check_database(runtime) if finding.remedy]

    assert await find_problems() == ["its file does not shrink when records are removed"]
    await backup(filled, file, report_nothing)
    await restore(filled, file, report_nothing, force=True)
    assert await find_problems() == []
    assert contents(filled.home / "midwatch.db") == contents(file)


async def test_the_commands_print_the_progress_of_large_files(
    filled: Settings, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transfer, "PAGES_PER_STEP", 1)
    printed = []
    for large, quiet in ((1000, False), (10, True), (10, False)):
        monkeypatch.setattr(backup_commands, "LARGE", large)
        await backup(filled, file, backup_commands.report_progress(quiet), force=True)
        printed.append(capsys.readouterr().err.splitlines())
    small, hidden, shown = printed
    assert small == hidden == []
    assert [line.split()[0] for line in shown] == ["file:"] * 11 + ["check:"] * 2
    assert shown[-3:] == ["file: 100 %", "check: 0 %", "check: 100 %"]


async def test_a_backup_with_other_indexes_is_restored_row_by_row(
    filled: Settings, file: Path, other: Settings
) -> None:
    await backup(filled, file, report_nothing)
    with closing(sqlite3.connect(file)) as database:
        database.executescript("DROP INDEX events_task; CREATE INDEX mine ON events (kind)")
    reports: list[str] = []
    await restore(other, file, lambda what, done, total: reports.append(what))
    assert "events" in reports
    assert contents(other.home / "midwatch.db") == contents(file)
    with transfer.sqlite_side(str(other.home / "midwatch.db"), alone=False) as side:
        assert side.has_plain_schema()


RESTORE_UNTIL_KILLED = """
import asyncio, itertools, os, signal, sys
from pathlib import Path
from midwatch.desk.config import Settings
from midwatch.runtime.backup import restore

home, file, (kill_in, kill_at) = Path(sys.argv[1]), Path(sys.argv[2]), map(int, sys.argv[3:])
copies = itertools.count(1)

def report(what, done, total):
    if what == "file" and total > 5000 and done == kill_at and next(copies) == kill_in:
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(restore(Settings.load(home), file, report, force=True))
"""


@pytest.mark.slow
async def test_a_killed_restore_leaves_the_old_content(filled: Settings, file: Path) -> None:
    database = filled.home / "midwatch.db"
    await backup(filled, file, report_nothing)
    with closing(sqlite3.connect(file)) as changed, changed:  # larger than SQLite's cache, so that pages reach the file
        changed.execute("UPDATE events SET payload = ? WHERE seq = 1", (dumps({"text": "x" * 50_000_000}),))
    before = contents(database)

    def restore_in_child(*kill: int) -> int:
        """Restore in a child process that dies in the first or second copy of the file, at a number of pages."""
        argv = [sys.executable, "-c", RESTORE_UNTIL_KILLED, filled.home, file, *map(str, kill)]
        return subprocess.run(argv, timeout=120).returncode

    for copy, page in ((1, 1000), (2, 9000)):
        assert restore_in_child(copy, page) == -signal.SIGKILL
        assert Path(f"{database}-journal").exists() == (copy == 2)  # the second copy replaces the database
        assert contents(database) == before
    assert restore_in_child(0, 0) == 0
    assert contents(database) == contents(file)


@pytest.mark.parametrize("act", [backup, restore])
async def test_a_cancelled_copy_ends_and_leaves_nothing(
    filled: Settings, file: Path, other: Settings, act: Callable[..., Awaitable[object]]
) -> None:
    if act is restore:
        await backup(filled, file, report_nothing)
    started, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(what: str, done: int, total: int) -> None:
        loop.call_soon_threadsafe(started.set)
        assert go_on.wait(60)

    copying = asyncio.ensure_future(act(filled if act is backup else other, file, slow))
    await started.wait()
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    go_on.set()
    await loop.shutdown_default_executor()  # the program is ended in the same way
    assert file.exists() == (act is restore)
    assert list_files(file.parent) <= {"home", "other", file.name}
    if act is restore:
        assert not any(rows for name, rows in contents(other.home / "midwatch.db").items() if name != "event_head")
        assert not [name for name in list_files(other.home) if name.startswith(".midwatch")]

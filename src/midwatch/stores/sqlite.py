"""The SQLite store: one Python thread that writes waiting verbs in groups, and several Python threads that read.

Every group is one transaction with `synchronous = FULL`, so a change is on disk before its caller gets the result. If a
verb fails, only its own changes are rolled back, and only its caller gets the error.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from midwatch.base.errors import Conflict, DiskFull, StoreCorrupt, StoreError, StoreUnavailable
from midwatch.domain.store import EVERY_TOPIC, STEP_SECONDS, Commit
from midwatch.stores.base import VerbStore
from midwatch.stores.rows import Row
from midwatch.stores.runner import Answer, Op, log
from midwatch.stores.sql import SQLITE, check_schema, load, load_migrations
from midwatch.stores.verbs.event import append
from midwatch.stores.verbs.task import submit
from midwatch.stores.verbs.tx import Params, Tx

T = TypeVar("T")

APPLICATION_ID = 0x6D696477  # "midw": marks files of midwatch
GROUP = 256
LOOK_SECONDS = 0.5
"""Seconds between two checks whether another process has committed. The time is short, so that an agent that another
process cancels ends within a second."""
BUSY_SECONDS = 5.0
"""Seconds that the store waits for a lock of another program."""
INCREMENTAL = 2
SHRINK_PAGES = 16
"""Number of pages that the store moves before it checks how much of its time is used."""
SPARE_PAGES, SPARE_PART = 1000, 0.05
"""The store leaves so many unused pages in the file, and this part of all pages, because new records will need them."""
READERS = 2
MEMORY = ":memory:"

# sqlite3 looks for a way to convert each null, and finds none. This takes longer than to store the null, and half of
# the columns of a new task are null. With an adapter it does not look any further.
sqlite3.register_adapter(type(None), lambda null: null)


class SqliteTx(Tx):
    """An open transaction on SQLite. It sends no hints to the engine, because each commit wakes the engine."""

    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        super().__init__(statements)
        self.connection = connection

    def rows(self, name: str, params: Mapping[str, Any]) -> Iterable[Row]:
        return self.connection.execute(self.statements[name], params)

    def row(self, name: str, params: Mapping[str, Any]) -> Row | None:
        row: Row | None = self.connection.execute(self.statements[name], params).fetchone()
        return row

    def run(self, name: str, params: Mapping[str, Any]) -> int:
        return self.connection.execute(self.statements[name], params).rowcount

    def run_many(self, name: str, params: Iterable[Params]) -> None:
        self.connection.executemany(self.statements[name], params)

    def statement(self, sql: str, params: Params) -> int:
        return self.connection.execute(sql, params).rowcount


class _NeedsSavepoints(Exception):
    """Raised when a verb of a group without savepoints failed after it had written something."""


class SqliteStore(VerbStore):
    """A store in one file, or in memory for tests."""

    def __init__(
        self, path: Path | str, *, look_seconds: float = LOOK_SECONDS, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        super().__init__(READERS)
        self.path = str(path)
        self._look_seconds = look_seconds
        self._busy_seconds = busy_seconds
        self._statements = load(SQLITE)
        self._queue: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._connection = open_database(self.path, busy_seconds)
        self._thread = threading.Thread(target=self._serve, name="midwatch-writer", daemon=True)
        self._reading: list[sqlite3.Connection] = []
        self._identity = _identity(self.path)
        self._gone = False
        self._thread.start()

    @classmethod
    async def open(cls, path: Path | str) -> SqliteStore:
        """Open the database file; create or upgrade it if necessary. Raise StoreError if the file cannot be used."""
        return cls(path)

    async def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._reading:
            connection.close()

    def _submit(self, op: Op) -> None:
        self._queue.put(op)
        if op.verb is submit:
            for listener in self._submit_listeners:
                listener()

    async def read(self, verb: Callable[..., T], *args: Any) -> T:
        if self.path == MEMORY:  # another connection would open another, empty database
            return await self.write(verb, *args)
        return await super().read(verb, *args)

    async def peek(self, verb: Callable[..., T], *args: Any) -> T:
        if self._closed.is_set() or self.path == MEMORY:
            return await self.read(verb, *args)
        try:  # one statement needs no transaction, and is faster here than in a thread
            return verb(SqliteTx(self._reader(), self._statements), *args)
        except sqlite3.Error as problem:
            raise translate(problem, self.path) from problem

    async def shrink(self) -> bool:
        return await self.write(_shrink)

    async def describe(self) -> dict[str, object]:
        return await self.write(_describe, self.path)

    async def check(self) -> list[str]:
        lines = await self.read(lambda tx: [row[0] for row in tx.connection.execute("PRAGMA integrity_check(10)")])
        return [line for line in lines if line != "ok"]

    # -- reader threads ------------------------------------------------------------------------------------------

    def _reader(self) -> sqlite3.Connection:
        """Return the connection of the current Python thread, which can only read; open it if necessary."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = _connect(self.path, self._busy_seconds)
            connection.execute("PRAGMA query_only = ON")
            self._local.connection = connection
            self._reading.append(connection)
        return connection

    def _read(self, verb: Callable[..., T], args: tuple[Any, ...]) -> T:
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return verb(SqliteTx(connection, self._statements), *args)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            raise translate(problem, self.path) from problem

    # -- the writer thread ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Commit waiting verbs in groups, and check for commits of other processes at intervals."""
        last_version, pause = self._data_version(), self._look_seconds
        looked = time.monotonic()
        while True:
            group, more = self._gather(max(0.0, looked + pause - time.monotonic()))
            if group:
                self._commit(group)
            if not more:
                self._connection.close()
                return
            if time.monotonic() - looked >= pause:
                looked = time.monotonic()
                self._gone = self._identity is not None and _identity(self.path) != self._identity
                version = self._data_version()
                if version != last_version:
                    last_version = version
                    self._report([], Commit(EVERY_TOPIC, (), foreign=True))

    def _gather(self, patience: float) -> tuple[list[Op], bool]:
        """Wait up to `patience` seconds for verbs. Return one group of them, and False if the store is being closed."""
        group: list[Op] = []
        try:
            op = self._queue.get(timeout=patience) if patience else self._queue.get_nowait()
            while op is not None:
                group.append(op)
                if len(group) >= GROUP:
                    return group, True
                op = self._queue.get_nowait()
            return group, False
        except queue.Empty:
            return group, True

    def _data_version(self) -> int:
        try:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return -1

    def _commit(self, group: list[Op]) -> None:
        """Run all verbs of a group in one transaction, and commit it.

        First the group runs without savepoints, because a savepoint costs two statements per verb. If a verb fails
        after it has written something, the whole group is rolled back and runs again with savepoints.
        """
        if self._gone:
            error = StoreUnavailable(f"{self.path} was removed or replaced; stop this process, then put the file back.")
            self._report([Answer(op, None, error) for op in group], None)
            return
        try:
            commit, answers = self._attempt(group, savepoints=False)
        except _NeedsSavepoints:
            self._roll_back()
            commit, answers = self._attempt(group, savepoints=True)
        self._report(answers, commit)

    def _attempt(self, group: list[Op], *, savepoints: bool) -> tuple[Commit | None, list[Answer]]:
        tx = SqliteTx(self._connection, self._statements)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            answers = [self._run(tx, op, savepoints) for op in group]
            appended = append(tx) if tx.events or tx.moves else ()
            self._connection.execute("COMMIT")
        except _NeedsSavepoints:
            raise
        except Exception as problem:
            self._roll_back()
            error = translate(problem, self.path) if isinstance(problem, sqlite3.Error) else problem
            return None, [Answer(op, None, error) for op in group]
        return Commit(frozenset(tx.topics), appended), answers

    def _run(self, tx: SqliteTx, op: Op, savepoint: bool) -> Answer:
        mark, changes = tx.mark(), self._connection.total_changes
        if savepoint:
            self._connection.execute("SAVEPOINT verb")
        try:
            answer = Answer(op, op.verb(tx, *op.args), None)
        except (sqlite3.OperationalError, sqlite3.InternalError):
            raise
        except Exception as problem:
            if savepoint:
                self._connection.execute("ROLLBACK TO verb")
            elif self._connection.total_changes != changes:
                raise _NeedsSavepoints from problem
            tx.reset(mark)
            if isinstance(problem, sqlite3.IntegrityError):
                problem = Conflict(f"a record with this key already exists ({problem}); read it, then retry.")
            answer = Answer(op, None, problem)
        if savepoint:
            self._connection.execute("RELEASE verb")
        return answer

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("a transaction of the store could not be rolled back")


def translate(problem: sqlite3.Error, path: str) -> StoreError:
    """Return an error of SQLite as a StoreError that says what to do."""
    text = str(problem)
    if "disk is full" in text:
        return DiskFull(f"the disk is full: free some space for {path}; everything stored before is safe.")
    if "locked" in text or "busy" in text:
        return StoreUnavailable(f"{path} is locked by another program; stop that program or try again.")
    if "readonly" in text or "unable to open" in text:
        return StoreUnavailable(f"{path} cannot be written; check the permissions of the file and of its directory.")
    if isinstance(problem, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text):
        return StoreCorrupt(f"{path} is damaged ({text}); restore a backup, or move the file away to start empty.")
    return StoreUnavailable(f"{path} cannot be read or written: {text}. Check the disk, then try again.")


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the database file; None for a store in memory or a missing file."""
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _connect(path: str, busy_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA cache_size = -16000")
    except BaseException:
        connection.close()
        raise
    return connection


def open_database(path: str, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open or create a database file, migrate it to the newest schema, and return a connection that can write."""
    try:
        if path != MEMORY:
            Path(path).touch(mode=0o600, exist_ok=True)
        connection = _connect(path, busy_seconds)
        try:
            _migrate(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA journal_size_limit = 67108864")
        except BaseException:
            connection.close()
            raise
    except OSError as problem:
        raise StoreUnavailable(
            f"{path} cannot be opened: {problem.strerror}; check the path and the permissions."
        ) from None
    except sqlite3.Error as problem:
        raise translate(problem, path) from None
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    """Migrate the database file to the newest schema in one transaction."""
    migrations = load_migrations("sqlite")
    newest = migrations[-1][0]
    if read_version(connection, path, newest) == newest:
        return
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only possible before the first table is created
    with connection:
        connection.execute("BEGIN IMMEDIATE")  # a second process waits here, and then has nothing to migrate
        version = read_version(connection, path, newest)
        for number, script in migrations:
            if version < number:
                for statement in _split(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {number}")


def read_version(connection: sqlite3.Connection, path: str, newest: int) -> int:
    """Return the version of the file's schema. Raise StoreError if another program or a newer midwatch wrote it."""
    # In this order, because another process may create the tables and the mark meanwhile, in one transaction.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if mark != APPLICATION_ID and tables:
        raise StoreCorrupt(f"{path} is not a midwatch database; move the file away, or choose another home.")
    check_schema(path, version, newest)
    return version


def _split(script: str) -> Iterable[str]:
    """Return the single statements of an SQL script."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _pragma(tx: SqliteTx, name: str) -> Any:
    return tx.connection.execute(f"PRAGMA {name}").fetchone()[0]


def _shrink(tx: SqliteTx, seconds: float = STEP_SECONDS) -> bool:
    """Move pages from the end of the file to unused ones, until little is unused or the time is over."""
    deadline = time.perf_counter() + seconds
    if _pragma(tx, "auto_vacuum") != INCREMENTAL:
        return False
    while _pragma(tx, "freelist_count") > max(SPARE_PAGES, _pragma(tx, "page_count") * SPARE_PART):
        tx.connection.execute(f"PRAGMA incremental_vacuum({SHRINK_PAGES})").fetchall()
        if time.perf_counter() >= deadline:
            return True
    return False


def _describe(tx: SqliteTx, path: str) -> dict[str, object]:
    pragma = partial(_pragma, tx)
    levels = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
    return {
        "kind": "sqlite",
        "path": path,
        "schema": pragma("user_version"),
        "journal": pragma("journal_mode"),
        "synchronous": levels.get(pragma("synchronous"), "?"),
        "bytes": pragma("page_count") * pragma("page_size"),
        "shrinks": pragma("auto_vacuum") == INCREMENTAL,
        "sqlite": sqlite3.sqlite_version,
    }

"""The PostgreSQL store: runs the same verbs as SQLite, in a few Python threads, each with its own connection.

The numbers of events come from one row. Every transaction with events locks this row just before its commit, so the
numbers are consecutive and in the order of commits. NOTIFY reports a commit to other processes.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from midwatch.base.errors import Conflict, DiskFull, MidwatchError, StoreCorrupt, StoreError, StoreUnavailable
from midwatch.domain.changes import Changes
from midwatch.domain.store import EVERY_TOPIC, Commit
from midwatch.stores import cluster
from midwatch.stores.base import VerbStore
from midwatch.stores.postgres_tx import CHANNEL, Connection, Hint, PostgresTx, load_statements
from midwatch.stores.runner import Answer, Op, log, read
from midwatch.stores.sql import check_schema, load_migrations
from midwatch.stores.verbs import changes as change_verbs
from midwatch.stores.verbs import event, task

T = TypeVar("T")

GROUPERS, WRITERS, READERS = 2, 3, 3
GROUP = 32
TRIES = 5
OLDEST_SERVER = 140000
SCHEMA_LOCK = 7_305_002
RECONNECT_SECONDS = 0.5
LISTEN_SECONDS = 5.0
UNSURE_SECONDS = 15.0
"""If the reply to a commit is lost, the store tries for this many seconds to find out whether the commit succeeded."""
PAUSE_SECONDS = 0.003
"""Seconds between two reports to listeners. Commits of other processes within this time are reported together."""
CONNECTION_OPTIONS: Mapping[str, Any] = {
    "options": "-c idle_in_transaction_session_timeout=2000 -c lock_timeout=10000 -c jit=off "
    "-c enable_seqscan=off -c enable_sort=off -c enable_hashjoin=off -c enable_mergejoin=off",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "midwatch",
}
"""A process that is suspended within a transaction holds its locks for two seconds at most. Sequential scans are off,
because the planner may assume that a table that has just grown is small."""
OURS = "midwatch verbs"
AGAIN = (pg.UniqueViolation, pg.SerializationFailure, pg.DeadlockDetected)
"""Errors that occur because another transaction was faster. If the verb is repeated, it usually succeeds."""


def connect(url: str) -> Connection:
    """Return a connection in autocommit mode that prepares each statement when it is first used."""
    options = {**CONNECTION_OPTIONS, "application_name": OURS}
    return psycopg.connect(url, autocommit=True, prepare_threshold=0, **options)


KEPT = "SELECT 1 FROM events WHERE seq > %s AND id = %s"


class PostgresStore(VerbStore):
    """A store in a PostgreSQL database that many processes share."""

    def __init__(self, url: str, hint: Hint | None = None) -> None:
        super().__init__(READERS)
        self.url = url
        self.id = uuid.uuid4().hex[:12]
        self._statements = load_statements()
        self._hint = hint
        self._waiting: deque[Op] = deque()
        self._groupers = ThreadPoolExecutor(GROUPERS, "midwatch-grouper")
        self._writers = ThreadPoolExecutor(WRITERS, "midwatch-writer")
        self._connections: set[Connection] = set()
        self._last_seq = 0
        self._bell, self._ringer = os.pipe()
        self._listener = threading.Thread(target=self._listen, name="midwatch-listen", daemon=True)

    @classmethod
    async def open(cls, url: str, hint: Hint | None = None) -> PostgresStore:
        """Connect, and create or upgrade the tables. Raise StoreError if the database cannot be used.

        Each transaction calls `hint` with the tasks that may now be claimed, so that the engine learns of them.
        """
        try:
            await asyncio.to_thread(prepare, url)
        except psycopg.Error as problem:
            raise explain(problem, url) from None
        store = cls(url, hint)
        store._listener.start()
        return store

    async def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        os.write(self._ringer, b"x")
        self._listener.join()
        os.close(self._bell)
        os.close(self._ringer)
        for threads in (self._groupers, self._writers, self._readers):
            threads.shutdown()
        for connection in self._connections:
            connection.close()

    def _submit(self, op: Op) -> None:
        """Start a verb in a Python thread.

        Most verbs about tasks wait in a queue, and one transaction runs all that wait: two transactions with events
        cannot commit at the same time.
        """
        if _runs_alone(op):
            self._writers.submit(self._serve, [op])
        else:
            self._waiting.append(op)
            self._groupers.submit(self._serve_waiting)

    async def snapshot(self, verb: Callable[..., T], *args: Any) -> T:
        return await self.read(_read_snapshot, verb, *args)

    # -- in the threads ------------------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        """Return the connection of the current Python thread; open it if necessary."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            try:
                connection = self._local.connection = connect(self.url)
            except psycopg.Error as problem:
                raise explain(problem, self.url) from problem
            self._connections.add(connection)
        return connection

    def _drop(self, connection: Connection, problem: psycopg.Error) -> bool:
        """Close a connection after an error, and return whether the connection was lost.

        The driver does not always mark a lost connection as closed. An error without an SQL state does not come from
        the server, so it also means that the connection was lost.
        """
        lost = connection.closed or problem.sqlstate is None
        connection.close()
        self._connections.discard(connection)
        self._local.connection = None
        return lost

    def _read(self, verb: Callable[..., T], args: tuple[Any, ...]) -> T:
        for tries_left in reversed(range(TRIES)):
            connection = self._connection()
            try:
                return verb(PostgresTx(connection, self._statements), *args)
            except psycopg.Error as problem:
                if not self._drop(connection, problem) or not tries_left:
                    raise explain(problem, self.url) from problem
        raise AssertionError

    def _serve_waiting(self) -> None:
        group: list[Op] = []
        with suppress(IndexError):  # no more verbs wait
            while len(group) < GROUP:
                group.append(self._waiting.popleft())
        if group:
            self._serve(sorted(group, key=_task_id))

    def _serve(self, group: list[Op]) -> None:
        try:
            answers, commit = self._write(group)
        except BaseException as problem:
            if len(group) > 1 and not isinstance(problem, StoreUnavailable):
                for op in group:  # one failing verb makes the whole group fail
                    self._serve([op])
                return
            answers, commit = [Answer(op, None, problem) for op in group], None
        self._report(answers, commit)

    def _write(self, group: list[Op]) -> tuple[list[Answer], Commit]:
        """Run verbs in a transaction. Repeat the transaction if another one was faster or the connection was lost."""
        for tries_left in reversed(range(TRIES)):
            connection = self._connection()
            tx, answers, last_seq = PostgresTx(connection, self._statements), list[Answer](), self._last_seq
            try:
                return answers, self._transaction(tx, group, answers)
            except AGAIN as problem:
                self._drop(connection, problem)
                if len(group) > 1:
                    raise
                if not tries_left:
                    name = problem.diag.constraint_name or problem
                    raise Conflict(f"a record with this key already exists ({name}); read it, then retry.") from problem
            except psycopg.Error as problem:
                lost = self._drop(connection, problem)
                if lost and tx.committing and self._was_committed(tx, last_seq, problem):
                    return answers, Commit(EVERY_TOPIC, (), foreign=True)
                if not lost or not tries_left:
                    raise explain(problem, self.url) from problem
        raise AssertionError

    def _transaction(self, tx: PostgresTx, group: list[Op], answers: list[Answer]) -> Commit:
        """Run the transaction once. Raise an error only after the pipeline has ended, which prevents further errors."""
        head = None
        problem: BaseException | None = None
        try:
            with tx.connection.pipeline() as tx.pipeline:
                try:
                    tx.connection.execute("BEGIN")
                    answers += [_run(tx, op) for op in group]
                    head = tx.commit(self.id, self._hint)
                except BaseException as raised:
                    problem = raised
        except psycopg.Error as raised:
            problem = problem or raised
        if problem is not None:
            if not isinstance(problem, psycopg.Error):
                with suppress(psycopg.Error):
                    tx.connection.execute("ROLLBACK")
            raise problem
        if head is None:
            return Commit(frozenset(tx.topics), ())
        row = head.fetchone()
        assert row is not None
        self._last_seq = max(self._last_seq, row[0])
        return Commit(frozenset(tx.topics), event.number(tx.events, row[0]))

    def _was_committed(self, tx: PostgresTx, last_seq: int, problem: psycopg.Error) -> bool:
        """Return whether a commit whose reply was lost has succeeded: if so, its events are stored.

        For a transaction without events return False, because it can be repeated. The query first locks the row
        `event_head`, and so waits for commits that still run.
        """
        if not tx.events:
            return False
        deadline = time.monotonic() + UNSURE_SECONDS
        while True:
            try:
                with connect(self.url) as connection, connection.transaction():
                    connection.execute("SELECT 1 FROM event_head FOR UPDATE")
                    row = connection.execute(KEPT, (last_seq, tx.events[0].id)).fetchone()
                    return row is not None
            except psycopg.Error:
                if self._closed.wait(RECONNECT_SECONDS) or time.monotonic() > deadline:
                    raise explain(problem, self.url) from problem

    # -- other processes -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Report commits of other processes. After each new connection, report that everything may have changed."""
        warned = False
        while not self._closed.is_set():
            try:
                # (a selector, because a plain `select` does not support descriptors above 1023)
                with connect(self.url) as connection, selectors.DefaultSelector() as waits:
                    waits.register(connection.fileno(), selectors.EVENT_READ)
                    waits.register(self._bell, selectors.EVENT_READ)
                    connection.execute(f"LISTEN {CHANNEL}", prepare=False)
                    self._report([], Commit(EVERY_TOPIC, (), foreign=True))
                    warned = False
                    while not self._closed.wait(PAUSE_SECONDS):
                        waits.select(LISTEN_SECONDS)
                        self._report_foreign([notify.payload for notify in connection.notifies(timeout=0)])
            except psycopg.Error as problem:
                if not warned:
                    log.warning("commits of other processes are noticed late: %s", explain(problem, self.url))
                warned = True
                self._closed.wait(RECONNECT_SECONDS)

    def _report_foreign(self, payloads: list[str]) -> None:
        foreign = [topics for sender, _, topics in (text.partition(" ") for text in payloads) if sender != self.id]
        if foreign:
            topics = frozenset(name for names in foreign for name in names.split(",") if name)
            self._report([], Commit(topics, (), foreign=True))

    # -- methods that are not part of the port --------------------------------------------------------------------

    living = read(cluster.list_living)
    count_due_by_agent = read(cluster.count_due)
    drop_jobs = read(cluster.drop_jobs)
    refresh_statistics = read(cluster.refresh_statistics)

    async def shrink(self) -> bool:
        return False  # PostgreSQL's autovacuum makes the space of removed rows usable again

    async def describe(self) -> dict[str, object]:
        return await self.read(_describe, self.url)

    async def check(self) -> list[str]:
        """Return the problems of the log. Everything else is checked by PostgreSQL itself."""
        return await self.read(_check)


def _run(tx: PostgresTx, op: Op) -> Answer:
    """Run a verb. If the verb fails before it has written anything, the other verbs of its group can continue."""
    written, mark, hints = tx.written, tx.mark(), len(tx.hints)
    try:
        return Answer(op, op.verb(tx, *op.args), None)
    except MidwatchError as problem:
        if tx.written != written:
            raise
        tx.reset(mark)
        del tx.hints[hints:]
        return Answer(op, None, problem)


def _runs_alone(op: Op) -> bool:
    """Return whether a verb needs its own transaction. Groups of such verbs could deadlock."""
    if op.verb is task.submit:
        return bool(op.args[0].cause == "message")
    return op.verb is not change_verbs.apply or bool(op.args[0].messages or op.args[0].sessions)


def _task_id(op: Op) -> str:
    """Return the id of the task that a verb locks. Groups are sorted by these ids, so that they cannot deadlock."""
    if op.verb is task.submit:
        return str(op.args[0].id)
    changes: Changes = op.args[0]
    return changes.fence.task_id if changes.fence else changes.updates[0].id if changes.updates else ""


def _read_snapshot(tx: PostgresTx, verb: Callable[..., T], *args: Any) -> T:
    """Run a verb that only reads. All its queries see the same snapshot."""
    with tx.connection.transaction():
        tx.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return verb(tx, *args)


def explain(problem: Exception, url: str) -> StoreError:
    """Return an error of the database as a StoreError that says what to do. It never contains the password."""
    address = hide_password(url)
    text = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
    if isinstance(problem, pg.InsufficientPrivilege):
        return StoreUnavailable(f"{address}: the user has no permission ({text}); grant it, or use another user.")
    if isinstance(problem, pg.DiskFull):
        return DiskFull(f"the disk of {address} is full; free some space. Everything stored before is safe.")
    if isinstance(problem, pg.ReadOnlySqlTransaction):
        return StoreUnavailable(f"{address} is read-only; use the address of the primary server.")
    if isinstance(problem, pg.LockNotAvailable | pg.QueryCanceled):
        return StoreUnavailable(f"{address} is busy: {text}. Try again.")
    if isinstance(problem, psycopg.ProgrammingError | psycopg.DataError):
        return StoreError(f"{address} refused a statement: {text}. Check the address, then restart midwatch.")
    return StoreUnavailable(f"{address} cannot be reached: {text}. Check the address, the user and the server.")


def hide_password(url: str) -> str:
    """Return the address of a database without the password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "the database"
    user, host, port, name = (parts.get(part) for part in ("user", "host", "port", "dbname"))
    return f"postgresql://{f'{user}@' if user else ''}{host or ''}{f':{port}' if port else ''}/{name or ''}"


def prepare(url: str) -> None:
    """Migrate the database to the newest schema, each migration in one transaction."""
    migrations = load_migrations("postgres")
    newest = migrations[-1][0]
    with connect(url) as connection:
        if connection.info.server_version < OLDEST_SERVER:
            version = connection.info.server_version // 10_000
            raise StoreUnavailable(f"{hide_password(url)} is PostgreSQL {version}; midwatch needs 14 or newer.")
        if read_version(connection) == newest:
            return
        # Before the transaction: one that waits for the lock would not see the tables that were created meanwhile.
        connection.execute("SELECT pg_advisory_lock(%s)", (SCHEMA_LOCK,))
        for number, script in migrations:
            with connection.transaction():
                version = read_version(connection)
                check_schema(hide_password(url), version, newest)
                if version < number:
                    connection.execute(script.encode(), prepare=False)
                    connection.execute("DELETE FROM midwatch_schema")
                    connection.execute("INSERT INTO midwatch_schema VALUES (%s)", (number,))


def read_version(connection: Connection) -> int:
    """Return the version of the schema; 0 for a database without midwatch's tables."""
    tables = connection.execute("SELECT to_regclass('midwatch_schema'), to_regclass('tasks')").fetchone()
    assert tables is not None
    if tables[0] is None:
        if tables[1] is not None:
            raise StoreCorrupt("the database has a table `tasks` of another program; use an empty database or schema.")
        return 0
    row = connection.execute("SELECT max(version) FROM midwatch_schema").fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def _describe(tx: PostgresTx, url: str) -> dict[str, object]:
    row = tx.connection.execute(
        "SELECT pg_database_size(current_database()), current_setting('synchronous_commit'), "
        "extract(epoch FROM clock_timestamp()) * 1000000"
    ).fetchone()
    assert row is not None
    return {
        "kind": "postgres",
        "path": hide_password(url),
        "schema": read_version(tx.connection),
        "synchronous": row[1],
        "bytes": row[0],
        "server": tx.connection.info.server_version,
        "database_time": int(row[2]),
    }


def _check(tx: PostgresTx) -> list[str]:
    """Return a problem if `event_head` is missing or behind the last event."""
    row = tx.connection.execute("SELECT last_seq, (SELECT max(seq) FROM events) FROM event_head").fetchone()
    if row is None:
        return ["event_head is empty"]
    return [f"the last event has seq {row[1]}, but event_head has {row[0]}"] if row[1] and row[1] > row[0] else []

"""The PostgreSQL store: the same verbs in a few threads, each with a connection of its own.

Event numbers come from one row that every transaction locks with its last statements, so they are given in the order
of commits and without holes. Other processes hear of a commit by NOTIFY.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from midwatch.base.errors import Conflict, MidwatchError, SchemaTooNew, StoreCorrupt, StoreError, StoreUnavailable
from midwatch.domain.changes import Changes
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.instance import DEAD_SECONDS, Instance
from midwatch.domain.store import EVERY_TOPIC, Commit
from midwatch.domain.task import Claims
from midwatch.stores.base import VerbStore
from midwatch.stores.postgres_tx import CHANNEL, Hint, statements
from midwatch.stores.postgres_tx import Connection as Connection
from midwatch.stores.postgres_tx import PostgresTx as PostgresTx
from midwatch.stores.verbs import changes as change_verbs
from midwatch.stores.verbs import instance as instance_verbs
from midwatch.stores.verbs import task

T = TypeVar("T")
log = logging.getLogger("midwatch.store")

GROUPERS, WRITERS, READERS = 2, 3, 3
GROUP = 32
TRIES = 5
OLDEST_SERVER = 140000
SCHEMA_LOCK = 7_305_002
RECONNECT_SECONDS = 0.5
LISTEN_SECONDS = 5.0
UNSURE_SECONDS = 15.0
"""How long it is tried to find out whether a commit took place whose answer was lost."""
PAUSE_SECONDS = 0.003
"""Others' commits that come faster than this are told together."""
CONNECTION_OPTIONS: Mapping[str, Any] = {
    "options": "-c idle_in_transaction_session_timeout=2000 -c lock_timeout=10000 -c jit=off "
    "-c enable_seqscan=off -c enable_sort=off",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "midwatch",
}
"""A process that is stopped in the middle of a transaction holds its locks for two seconds at most. Our statements are
made for our indexes, whatever the planner believes about tables that have just grown."""
OURS = "midwatch verbs"
AGAIN = (pg.UniqueViolation, pg.SerializationFailure, pg.DeadlockDetected)
"""Somebody else was faster: with their commit visible the same verb gives the right answer."""


def connect(url: str) -> Connection:
    """A connection that does what it is told at once; every statement is prepared when it is first used."""
    options = {**CONNECTION_OPTIONS, "application_name": OURS}
    return psycopg.connect(url, autocommit=True, prepare_threshold=0, **options)


KEPT = "SELECT 1 FROM events WHERE seq > %s AND id = %s"
DROP_JOBS = """
DELETE FROM procrastinate_jobs WHERE id IN (
  SELECT id FROM procrastinate_jobs
  WHERE queue_name = %(queue)s AND status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= now())
  ORDER BY id DESC OFFSET %(keep)s FOR UPDATE SKIP LOCKED
)
"""
ALIVE = "SELECT id FROM instances WHERE heartbeat > clock_timestamp() - make_interval(secs => %(dead)s)"


class _Op(NamedTuple):
    verb: Callable[..., Any]
    args: tuple[Any, ...]
    future: asyncio.Future[Any]


class _Answer(NamedTuple):
    op: _Op
    result: Any
    problem: BaseException | None


class _Attempt:
    """One try of a transaction."""

    def __init__(self, tx: PostgresTx, last_seq: int) -> None:
        self.tx = tx
        self.last_seq = last_seq
        """Its events come after this one."""
        self.answers: list[_Answer] = []
        self.committing = False
        """Whether the commit may have been sent: after that nobody but the database knows how it ended."""


class PostgresStore(VerbStore):
    """A store in a PostgreSQL database that many processes share."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.url = url
        self.id = uuid.uuid4().hex[:12]
        self._loop = loop
        self._statements = statements()
        self._hint: Hint | None = None
        self._closed = threading.Event()
        self._waiting: deque[_Op] = deque()
        self._groupers = ThreadPoolExecutor(GROUPERS, "midwatch-grouper")
        self._writers = ThreadPoolExecutor(WRITERS, "midwatch-writer")
        self._readers = ThreadPoolExecutor(READERS, "midwatch-reader")
        self._local = threading.local()
        self._connections: set[Connection] = set()
        self._last_seq = 0
        self._bell, self._ringer = os.pipe()
        self._listener = threading.Thread(target=self._listen, name="midwatch-listen", daemon=True)

    @classmethod
    async def open(cls, url: str) -> PostgresStore:
        """Connect, making or upgrading the tables as needed; StoreError when it cannot be used."""
        try:
            await asyncio.to_thread(prepare, url)
        except psycopg.Error as problem:
            raise explain(problem, url) from None
        made = cls(url, asyncio.get_running_loop())
        made._listener.start()
        return made

    async def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        os.write(self._ringer, b"x")
        self._listener.join()
        os.close(self._bell)
        os.close(self._ringer)
        for threads in (self._groupers, self._writers, self._readers):
            threads.shutdown()
        for connection in self._connections:
            connection.close()

    def set_hint(self, hint: Hint) -> None:
        """Have the engine told, in the same transaction, of every task that may be taken."""
        self._hint = hint

    async def write(self, verb: Callable[..., T], *args: Any) -> T:
        """Verbs of tasks that wait together are committed together: commits with events go one after the other."""
        op = self._op(verb, args)
        if _alone(op):
            self._writers.submit(self._serve, [op])
        else:
            self._waiting.append(op)
            self._groupers.submit(self._serve_waiting)
        result: T = await op.future
        return result

    async def read(self, verb: Callable[..., T], *args: Any) -> T:
        op = self._op(verb, args)
        self._readers.submit(self._look, op)
        result: T = await op.future
        return result

    async def moment(self, verb: Callable[..., T], *args: Any) -> T:
        return await self.read(_at_once, verb, *args)

    async def claim(self, request: ClaimRequest, now: int) -> Claims:
        return await self.write(_claim, request, now)

    def _op(self, verb: Callable[..., Any], args: tuple[Any, ...]) -> _Op:
        if self._closed.is_set():
            raise StoreUnavailable("the store is closed.")
        return _Op(verb, args, self._loop.create_future())

    # -- in the threads ------------------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        """This thread's own."""
        found: Connection | None = getattr(self._local, "connection", None)
        if found is not None:
            return found
        try:
            made = self._local.connection = connect(self.url)
        except psycopg.Error as problem:
            raise explain(problem, self.url) from problem
        self._connections.add(made)
        return made

    def _drop(self, connection: Connection, problem: psycopg.Error) -> bool:
        """Let go of a connection that is not to be trusted; whether it was lost. The driver may trip over a loss before
        it knows of it: then the error is its own and not the server's."""
        lost = connection.closed or problem.sqlstate is None
        connection.close()
        self._connections.discard(connection)
        self._local.connection = None
        return lost

    def _look(self, op: _Op) -> None:
        try:
            self._tell([_Answer(op, self._read(op), None)], None)
        except BaseException as problem:
            self._tell([_Answer(op, None, problem)], None)

    def _read(self, op: _Op) -> Any:
        for left in reversed(range(TRIES)):
            connection = self._connection()
            try:
                return op.verb(PostgresTx(connection, self._statements), *op.args)
            except psycopg.Error as problem:
                if not self._drop(connection, problem) or not left:
                    raise explain(problem, self.url) from problem
        raise AssertionError

    def _serve_waiting(self) -> None:
        group: list[_Op] = []
        with suppress(IndexError):  # nothing waits any more
            while len(group) < GROUP:
                group.append(self._waiting.popleft())
        if group:
            self._serve(sorted(group, key=_task_id))

    def _serve(self, group: list[_Op]) -> None:
        try:
            answers, commit = self._write(group)
        except BaseException as problem:
            if len(group) > 1 and not isinstance(problem, StoreUnavailable):
                for op in group:  # one of them troubles the others
                    self._serve([op])
                return
            answers, commit = [_Answer(op, None, problem) for op in group], None
        self._tell(answers, commit)

    def _write(self, group: list[_Op]) -> tuple[list[_Answer], Commit]:
        """Run verbs in a transaction; again where somebody was faster, or the connection was lost before the commit."""
        for left in reversed(range(TRIES)):
            connection = self._connection()
            attempt = _Attempt(PostgresTx(connection, self._statements), self._last_seq)
            try:
                return attempt.answers, self._transaction(attempt, group)
            except AGAIN as problem:
                self._drop(connection, problem)
                if len(group) > 1:
                    raise
                if not left:
                    name = problem.diag.constraint_name or problem
                    raise Conflict(f"another record is in the way ({name}); look again.") from problem
            except psycopg.Error as problem:
                lost = self._drop(connection, problem)
                if lost and attempt.committing and self._kept(attempt, problem):
                    return attempt.answers, Commit(EVERY_TOPIC, (), foreign=True)
                if not lost or not left:
                    raise explain(problem, self.url) from problem
        raise AssertionError

    def _transaction(self, attempt: _Attempt, group: list[_Op]) -> Commit:
        """An error is kept out of the pipeline, which would log what else it meets on its way out."""
        tx, head = attempt.tx, None
        problem: BaseException | None = None
        try:
            with tx.connection.pipeline() as tx.pipeline:
                try:
                    tx.connection.execute("BEGIN")
                    attempt.answers += [_run(tx, op) for op in group]
                    attempt.committing = True
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
        first = row[0] - len(tx.events) + 1
        return Commit(frozenset(tx.topics), tuple(e._replace(seq=first + n) for n, e in enumerate(tx.events)))

    def _kept(self, attempt: _Attempt, problem: psycopg.Error) -> bool:
        """Whether a transaction whose commit was sent and not answered took place: its events tell. Without events it
        is a write that can be repeated. Locking the head waits for whoever still commits."""
        if not attempt.tx.events:
            return False
        deadline = time.monotonic() + UNSURE_SECONDS
        while True:
            try:
                with connect(self.url) as connection, connection.transaction():
                    connection.execute("SELECT 1 FROM event_head FOR UPDATE")
                    found = connection.execute(KEPT, (attempt.last_seq, attempt.tx.events[0].id))
                    return found.fetchone() is not None
            except psycopg.Error:
                if self._closed.wait(RECONNECT_SECONDS) or time.monotonic() > deadline:
                    raise explain(problem, self.url) from problem

    # -- who hears of it -----------------------------------------------------------------------------------------

    def _tell(self, answers: list[_Answer], commit: Commit | None) -> None:
        for op, _, problem in answers:
            if problem is not None and not isinstance(problem, MidwatchError):
                log.error("verb %s failed", getattr(op.verb, "__name__", "?"), exc_info=problem)
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._heard, answers, commit)

    def _heard(self, answers: list[_Answer], commit: Commit | None) -> None:
        for op, result, problem in answers:
            if op.future.done():
                continue
            if problem is None:
                op.future.set_result(result)
            else:
                op.future.set_exception(problem)
        if commit is not None and (commit.topics or commit.events or commit.foreign):
            for listener in self._listeners:
                listener(commit)

    def _listen(self) -> None:
        """Pass on other processes' commits. After a lost connection anything may have changed."""
        deaf = False
        while not self._closed.is_set():
            try:
                # (a selector, since a plain `select` knows no descriptor above 1023)
                with connect(self.url) as connection, selectors.DefaultSelector() as waits:
                    waits.register(connection.fileno(), selectors.EVENT_READ)
                    waits.register(self._bell, selectors.EVENT_READ)
                    connection.execute(f"LISTEN {CHANNEL}", prepare=False)
                    self._tell([], Commit(EVERY_TOPIC, (), foreign=True))
                    deaf = False
                    while not self._closed.wait(PAUSE_SECONDS):
                        waits.select(LISTEN_SECONDS)
                        self._pass_on([heard.payload for heard in connection.notifies(timeout=0)])
            except psycopg.Error as problem:
                if not deaf:
                    log.warning("other processes' commits are not heard of: %s", explain(problem, self.url))
                deaf = True
                self._closed.wait(RECONNECT_SECONDS)

    def _pass_on(self, heard: list[str]) -> None:
        others = [topics for sender, _, topics in (said.partition(" ") for said in heard) if sender != self.id]
        if others:
            topics = frozenset(name for said in others for name in said.split(",") if name)
            self._tell([], Commit(topics, (), foreign=True))

    # -- beyond the port -----------------------------------------------------------------------------------------

    async def living(self) -> list[Instance]:
        """The processes whose heartbeat is young enough."""

        return await self.read(_living)

    async def due_by_agent(self, now: int) -> dict[str, int]:
        """How many tasks of each agent wait to be taken now."""
        asked = "SELECT agent, count(*) FROM tasks WHERE status = 'pending' AND due_at <= %s GROUP BY agent"
        return await self.read(lambda tx: dict(tx.connection.execute(asked, (now,)).fetchall()))

    async def refresh_statistics(self, tables: Iterable[str]) -> None:
        """Keep what the planner knows of small busy tables fresh; stale knowledge makes fetching a job slow."""

        def analyze(tx: PostgresTx) -> None:
            for table in tables:
                tx.connection.execute(f'VACUUM ANALYZE "{table}"', prepare=False)

        await self.read(analyze)

    async def drop_jobs(self, queue: str, keep: int) -> int:
        """Delete the oldest due jobs of a queue but for so many; how many went."""
        return await self.read(lambda tx: tx.connection.execute(DROP_JOBS, {"queue": queue, "keep": keep}).rowcount)

    async def describe(self) -> dict[str, object]:
        return await self.read(_describe, self.url)

    async def check(self) -> list[str]:
        return await self.read(_check)


def _run(tx: PostgresTx, op: _Op) -> _Answer:
    """A verb that fails before it has written anything fails alone."""
    written, events, hints, topics = tx.written, len(tx.events), len(tx.hints), set(tx.topics)
    try:
        return _Answer(op, op.verb(tx, *op.args), None)
    except MidwatchError as problem:
        if tx.written != written:
            raise
        del tx.events[events:], tx.hints[hints:]
        tx.topics = topics
        return _Answer(op, None, problem)


def _alone(op: _Op) -> bool:
    """Whether a verb has to be on its own: together, such locks could be taken in an order that locks up two groups."""
    if op.verb is task.submit:
        return op.args[0].cause == "message" or _speaks(op.args[1])
    return op.verb is not change_verbs.apply or _speaks(op.args[0])


def _speaks(changes: Changes) -> bool:
    return bool(changes.messages or changes.sessions)


def _task_id(op: _Op) -> str:
    """Groups lock tasks in the order of their ids."""
    if op.verb is task.submit:
        return str(op.args[0].id)
    changes: Changes = op.args[0]
    return changes.fence.task_id if changes.fence else changes.updates[0].id if changes.updates else ""


def _living(tx: PostgresTx) -> list[Instance]:
    alive = {row[0] for row in tx.connection.execute(ALIVE, {"dead": DEAD_SECONDS})}
    return [one for one in instance_verbs.instances(tx) if one.id in alive]


def _at_once(tx: PostgresTx, verb: Callable[..., T], *args: Any) -> T:
    with tx.connection.transaction():
        tx.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return verb(tx, *args)


def _claim(tx: PostgresTx, request: ClaimRequest, now: int) -> Claims:
    tx.wanted = request.free
    return task.claim(tx, request, now)


def explain(problem: Exception, url: str) -> StoreError:
    """What a database error means to a person, with the remedy. The password is never shown."""
    place = shown(url)
    text = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
    if isinstance(problem, pg.InsufficientPrivilege):
        return StoreUnavailable(f"{place}: no permission ({text}); grant it, or use another user.")
    if isinstance(problem, pg.DiskFull):
        return StoreUnavailable(f"{place}: its disk is full; free some space. What was accepted before is safe.")
    if isinstance(problem, pg.ReadOnlySqlTransaction):
        return StoreUnavailable(f"{place} takes no writes; name the primary server.")
    if isinstance(problem, pg.LockNotAvailable | pg.QueryCanceled):
        return StoreUnavailable(f"{place} is busy: {text}. Try again.")
    if isinstance(problem, psycopg.ProgrammingError | psycopg.DataError):
        return StoreError(f"{place} did not understand midwatch: {text}. Is it a midwatch database of this version?")
    return StoreUnavailable(f"{place} cannot be reached: {text}. Check the address, the user and that it runs.")


def shown(url: str) -> str:
    """The address without its password."""
    try:
        known = conninfo_to_dict(url)
    except psycopg.Error:
        return "the database"
    user, host, port, name = (known.get(part) for part in ("user", "host", "port", "dbname"))
    return f"postgresql://{f'{user}@' if user else ''}{host or ''}{f':{port}' if port else ''}/{name or ''}"


def migrations() -> list[tuple[int, str]]:
    """Number and text of each migration, in order."""
    folder = resources.files("midwatch.stores").joinpath("migrations", "postgres")
    found = [(int(file.name[:4]), file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(found)


def prepare(url: str) -> None:
    """Bring the database to the newest schema, step by step, each whole or not at all."""
    newest = migrations()[-1][0]
    with connect(url) as connection:
        if connection.info.server_version < OLDEST_SERVER:
            version = connection.info.server_version // 10_000
            raise StoreUnavailable(f"{shown(url)} is PostgreSQL {version}; midwatch needs 14 or newer.")
        if schema_version(connection) == newest:
            return
        # Before the transaction, not in it: a lock that is waited for inside sees the tables as they were before.
        connection.execute("SELECT pg_advisory_lock(%s)", (SCHEMA_LOCK,))
        for number, script in migrations():
            with connection.transaction():
                version = schema_version(connection)
                if version > newest:
                    raise SchemaTooNew(
                        f"{shown(url)} was written by a newer midwatch (schema {version}, this one knows {newest}); "
                        "upgrade midwatch."
                    )
                if version < number:
                    connection.execute(script.encode(), prepare=False)
                    connection.execute("DELETE FROM midwatch_schema")
                    connection.execute("INSERT INTO midwatch_schema VALUES (%s)", (number,))


def schema_version(connection: Connection) -> int:
    """The schema's number; 0 for a database without midwatch's tables."""
    found = connection.execute("SELECT to_regclass('midwatch_schema'), to_regclass('tasks')").fetchone()
    assert found is not None
    if found[0] is None:
        if found[1] is not None:
            raise StoreCorrupt("the database has tables of another program; use an empty database or schema.")
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
        "path": shown(url),
        "schema": schema_version(tx.connection),
        "synchronous": row[1],
        "bytes": row[0],
        "server": tx.connection.info.server_version,
        "database_time": int(row[2]),
    }


def _check(tx: PostgresTx) -> list[str]:
    """The log's head and its last event must agree; the rest PostgreSQL sees to itself."""
    row = tx.connection.execute("SELECT last_seq, (SELECT max(seq) FROM events) FROM event_head").fetchone()
    if row is None:
        return ["event_head is empty"]
    return [f"the log ends at {row[1]} but its head says {row[0]}"] if row[1] and row[1] > row[0] else []

"""The PostgreSQL store: the same verbs on a pool of connections, each in a thread of its own.

Event numbers come from one row that every transaction locks with its last statements, so they are given in the order
of commits and without holes. Other processes hear of a commit by NOTIFY.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import resources
from typing import Any, TypeVar

import psycopg
import psycopg_pool
from psycopg import errors as pg

from midwatch.engine import DEAD_SECONDS, Instance
from midwatch.errors import Conflict, MidwatchError, SchemaTooNew, StoreCorrupt, StoreError, StoreUnavailable
from midwatch.event import Event
from midwatch.store import EVERY_TOPIC, Commit
from midwatch.stores.base import VerbStore
from midwatch.stores.sql import POSTGRES, dumps, load
from midwatch.stores.verbs.event import PAYLOAD
from midwatch.stores.verbs.tx import Params, Row

T = TypeVar("T")
Connection = psycopg.Connection[Row]
Hint = Callable[[Connection, str, int], None]
log = logging.getLogger("midwatch.store")

CONNECTIONS = 8
TRIES = 5
OLDEST_SERVER = 140000
CHANNEL = "midwatch"
CLAIM_LOCK, SCHEMA_LOCK = 7_305_001, 7_305_002
CLAIM_STEP = 100
"""Rows a claim reads at a time."""
RECONNECT_SECONDS = 0.5
LISTEN_SECONDS = 1.0
CONNECTION_OPTIONS: Mapping[str, Any] = {
    "options": "-c idle_in_transaction_session_timeout=2000 -c lock_timeout=10000",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "midwatch",
}
"""A process that is stopped in the middle of a transaction holds its locks for two seconds at most."""
AGAIN = (pg.UniqueViolation, pg.SerializationFailure, pg.DeadlockDetected)
"""Somebody else was faster: with their commit visible the same verb gives the right answer."""


def translate(statement: str) -> str:
    """A statement as psycopg takes it."""
    return re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s", statement.replace("%", "%%")).replace("?", "%s")


NEXT_IN_GATE = """
SELECT agent, due_at FROM tasks
WHERE status = 'pending' AND gate_key = (SELECT gate_key FROM tasks WHERE id = %s)
ORDER BY rank, due_at, id LIMIT 1
"""


class PostgresTx:
    """An open transaction on one connection."""

    def __init__(self, connection: Connection, statements: Mapping[str, str], hint: Hint | None) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.topics: set[str] = set()
        self._statements = statements
        self._hint = hint

    def rows(self, name: str, params: Mapping[str, Any]) -> Iterable[Row]:
        if name != "task.claimable":
            return self.connection.execute(self._statements[name], clean(params))
        self.connection.execute("SELECT pg_advisory_xact_lock(%s)", (CLAIM_LOCK,))
        return self._stream(name, params)

    def _stream(self, name: str, params: Mapping[str, Any]) -> Iterator[Row]:
        """Rows as they are needed: a claim seldom looks at more than a few."""
        with self.connection.cursor("claim") as cursor:
            cursor.itersize = CLAIM_STEP
            cursor.execute(self._statements[name], clean(params))
            yield from cursor

    def row(self, name: str, params: Mapping[str, Any]) -> Row | None:
        return self.connection.execute(self._statements[name], clean(params)).fetchone()

    def run(self, name: str, params: Mapping[str, Any]) -> int:
        if name == "session.say":  # numbers within a session are given one after the other
            lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
            self.connection.execute(lock, (params["session_key"],))
        return self.connection.execute(self._statements[name], clean(params)).rowcount

    def run_many(self, name: str, params: Iterable[Params]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(self._statements[name], [clean(one) for one in params])

    def statement(self, sql: str, params: Params) -> int:
        return self.connection.execute(translate(sql), clean(params)).rowcount

    def hint(self, agent: str, due_at: int) -> None:
        if self._hint is not None:
            self._hint(self.connection, agent, due_at)

    def unblocked(self, task_id: str) -> None:
        if self._hint is not None:
            for agent, due_at in self.connection.execute(NEXT_IN_GATE, (task_id,)).fetchall():
                self._hint(self.connection, agent, due_at)


SEQ = Event._fields.index("seq")
_OTHERS = tuple(name for name in Event._fields if name != "seq")
APPEND = (
    f"INSERT INTO events (seq, {', '.join(_OTHERS)}) "  # noqa: S608 - names of our own record
    f"VALUES ((SELECT last_seq FROM event_head) - %s, {', '.join('%s' for _ in _OTHERS)})"
)


def _event_row(made: Event) -> Row:
    values = (*made[:PAYLOAD], dumps(made.payload), *made[PAYLOAD + 1 :])
    return (*values[:SEQ], *values[SEQ + 1 :])


def clean(params: Params) -> Any:
    """Values as PostgreSQL takes them: its texts hold no NUL."""
    if isinstance(params, tuple):
        return tuple(_clean(value) for value in params)
    return {name: _clean(value) for name, value in params.items()}


def _clean(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value


ALIVE = "SELECT id FROM instances WHERE heartbeat > clock_timestamp() - make_interval(secs => %(dead)s)"


class PostgresStore(VerbStore):
    """A store in a PostgreSQL database that many processes share."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.url = url
        self.id = uuid.uuid4().hex[:12]
        self._loop = loop
        self._statements = {name: translate(text) for name, text in load(POSTGRES).items()}
        self._hint: Hint | None = None
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(CONNECTIONS, "midwatch-store")
        self._pool: psycopg_pool.ConnectionPool[Connection] = psycopg_pool.ConnectionPool(
            url,
            min_size=1,
            max_size=CONNECTIONS,
            open=False,
            timeout=8.0,
            kwargs={**CONNECTION_OPTIONS, "autocommit": True},
            check=psycopg_pool.ConnectionPool.check_connection,
        )
        self._listener = threading.Thread(target=self._listen, name="midwatch-listen", daemon=True)

    @classmethod
    async def open(cls, url: str) -> PostgresStore:
        """Connect, making or upgrading the tables as needed; StoreError when it cannot be used."""
        made = cls(url, asyncio.get_running_loop())
        try:
            await asyncio.to_thread(prepare, url)
            await asyncio.to_thread(made._pool.open, True, 8.0)
        except (psycopg.Error, psycopg_pool.PoolTimeout) as problem:
            made._pool.close()
            made._threads.shutdown()
            raise explain(problem, url) from None
        except MidwatchError:
            made._pool.close()
            made._threads.shutdown()
            raise
        made._listener.start()
        return made

    async def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        await asyncio.to_thread(self._wake_listener)
        await asyncio.to_thread(self._listener.join)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._pool.close)

    def set_hint(self, hint: Hint) -> None:
        """Have the engine told, in the same transaction, of every task that may be taken."""
        self._hint = hint

    async def write(self, verb: Callable[..., T], *args: Any) -> T:
        return await self._in_thread(self._write, verb, args)

    async def read(self, verb: Callable[..., T], *args: Any) -> T:
        return await self._in_thread(self._read, verb, args)

    async def _in_thread(self, run: Callable[..., T], *args: Any) -> T:
        if self._closed.is_set():
            raise StoreUnavailable("the store is closed.")
        return await self._loop.run_in_executor(self._threads, run, *args)

    # -- in the threads ------------------------------------------------------------------------------------------

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of the pool; database errors become StoreErrors."""
        try:
            with self._pool.connection() as connection:
                yield connection
        except AGAIN:
            raise
        except (psycopg.Error, psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed) as problem:
            raise explain(problem, self.url) from problem

    def _read(self, verb: Callable[..., T], args: tuple[Any, ...]) -> T:
        with self.connection() as connection:
            return verb(PostgresTx(connection, self._statements, None), *args)

    def _write(self, verb: Callable[..., T], args: tuple[Any, ...]) -> T:
        for _ in range(TRIES):
            try:
                with self.connection() as connection:
                    result, commit = self._transaction(connection, verb, args)
                self._tell(commit)
                return result
            except AGAIN as problem:
                last = problem
        raise Conflict(f"another record is in the way ({last.diag.constraint_name or last}); look again.") from last

    def _transaction(self, connection: Connection, verb: Callable[..., T], args: tuple[Any, ...]) -> tuple[T, Commit]:
        tx = PostgresTx(connection, self._statements, self._hint)
        connection.execute("BEGIN")
        try:
            result = verb(tx, *args)
            return result, self._finish(connection, tx)
        except BaseException:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            raise

    def _finish(self, connection: Connection, tx: PostgresTx) -> Commit:
        """Number and store the events, tell the others, commit: in one round trip, for the numbers lock everybody."""
        count = len(tx.events)
        with connection.pipeline():
            head = None
            if count:
                take = "UPDATE event_head SET last_seq = last_seq + %s RETURNING last_seq"
                head = connection.execute(take, (count,))
                for place, made in enumerate(tx.events):
                    connection.execute(APPEND, clean((count - 1 - place, *_event_row(made))))
            if count or tx.topics:
                said = f"{self.id} {','.join(sorted(tx.topics))}"
                connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, said))
            connection.execute("COMMIT")
        if head is None:
            return Commit(frozenset(tx.topics), ())
        row = head.fetchone()
        assert row is not None
        first = row[0] - count + 1
        return Commit(frozenset(tx.topics), tuple(e._replace(seq=first + n) for n, e in enumerate(tx.events)))

    # -- who hears of it -----------------------------------------------------------------------------------------

    def _tell(self, commit: Commit) -> None:
        if commit.topics or commit.events:
            with suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(self._heard, commit)

    def _heard(self, commit: Commit) -> None:
        for listener in self._listeners:
            listener(commit)

    def _listen(self) -> None:
        """Pass on other processes' commits. After a lost connection anything may have changed."""
        while not self._closed.is_set():
            try:
                with psycopg.connect(self.url, **{**CONNECTION_OPTIONS, "autocommit": True}) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._tell(Commit(EVERY_TOPIC, (), foreign=True))
                    while not self._closed.is_set():
                        for heard in connection.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                            sender, _, topics = heard.payload.partition(" ")
                            if sender != self.id:
                                self._tell(Commit(frozenset(filter(None, topics.split(","))), (), foreign=True))
            except psycopg.Error as problem:
                log.warning("not hearing of other processes' commits: %s", problem)
                self._closed.wait(RECONNECT_SECONDS)

    def _wake_listener(self) -> None:
        """So that it sees that the store is closed, and not only after a second."""
        with suppress(StoreError), self.connection() as connection:
            connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, f"{self.id} "))

    async def living(self) -> list[Instance]:
        """The processes whose heartbeat is young enough."""
        alive = await self.read(lambda tx: {row[0] for row in tx.connection.execute(ALIVE, {"dead": DEAD_SECONDS})})
        return [one for one in await self.list_instances() if one.id in alive]

    async def pending_agents(self, now: int) -> list[str]:
        """Agents that have a task to be taken now."""
        asked = "SELECT DISTINCT agent FROM tasks WHERE status = 'pending' AND due_at <= %s"
        return await self.read(lambda tx: [row[0] for row in tx.connection.execute(asked, (now,))])

    async def refresh_statistics(self, tables: Iterable[str]) -> None:
        """Keep what the planner knows of small busy tables fresh; stale knowledge makes fetching a job slow."""

        def analyze(tx: PostgresTx) -> None:
            for table in tables:
                tx.connection.execute(f'VACUUM ANALYZE "{table}"')

        await self.read(analyze)

    async def describe(self) -> dict[str, object]:
        return await self.read(_describe, self.url)

    async def check(self) -> list[str]:
        return await self.read(_check)


def explain(problem: Exception, url: str) -> StoreError:
    """What a database error means to a person, with the remedy. The password is never shown."""
    place = shown(url)
    text = " ".join(str(problem).split()) or type(problem).__name__
    if isinstance(problem, pg.InsufficientPrivilege):
        return StoreUnavailable(f"{place}: no permission ({text}); grant it, or use another user.")
    if isinstance(problem, pg.DiskFull):
        return StoreUnavailable(f"{place}: its disk is full; free some space. What was accepted before is safe.")
    if isinstance(problem, psycopg.ProgrammingError | psycopg.DataError):
        return StoreError(f"{place} did not understand midwatch: {text}. Is it a midwatch database of this version?")
    return StoreUnavailable(f"{place} cannot be reached: {text}. Check the address, the user and that it runs.")


def shown(url: str) -> str:
    """The address without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def migrations() -> list[tuple[int, str]]:
    """Number and text of each migration, in order."""
    folder = resources.files("midwatch.stores").joinpath("migrations", "postgres")
    found = [(int(file.name[:4]), file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(found)


def prepare(url: str) -> None:
    """Bring the database to the newest schema, step by step, each whole or not at all."""
    newest = migrations()[-1][0]
    with psycopg.connect(url, **{**CONNECTION_OPTIONS, "autocommit": True}) as connection:
        if connection.info.server_version < OLDEST_SERVER:
            version = connection.info.server_version // 10_000
            raise StoreUnavailable(f"{shown(url)} is PostgreSQL {version}; midwatch needs 14 or newer.")
        if schema_version(connection) == newest:
            return
        for number, script in migrations():
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
                version = schema_version(connection)
                if version > newest:
                    raise SchemaTooNew(
                        f"{shown(url)} was written by a newer midwatch (schema {version}, this one knows {newest}); "
                        "upgrade midwatch."
                    )
                if version < number:
                    connection.execute(script.encode())
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

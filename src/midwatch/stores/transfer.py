"""Copy a whole database: between two SQLite files page by page, otherwise row by row.

Pages are copied by SQLite's own backup interface, which is fast. Rows that are copied are also compared. A side is one
of the two databases, with an open transaction: all reads see one snapshot, and all writes are committed together at the
end of the `with` block. One of the two sides is always SQLite; it provides the names of all tables and columns.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from midwatch.base.errors import StoreCorrupt, StoreError
from midwatch.stores.rows import Row, replace_nul
from midwatch.stores.sql import check_schema, load_migrations
from midwatch.stores.sqlite import APPLICATION_ID, INCREMENTAL, MEMORY, open_database, translate
from midwatch.stores.validation import check_rows

if TYPE_CHECKING:
    from midwatch.stores.postgres_tx import Connection

Tables = Mapping[str, tuple[str, ...]]
"""The columns of each table."""
OnProgress = Callable[[str, int, int], None]
"""A function that is called with what is being done, how much of it is done, and how much there is.

It counts the rows of a table, which is named, or the pages of a file that is copied (`FILE`) or checked (`CHECK`).
"""

LEFT_OUT = frozenset({"instances"})
"""Tables that are not copied. A process belongs only to the database that it uses."""
HEAD = "event_head"
FILE, CHECK = "file", "check"
PAGES_PER_STEP = 1000
REPORT_EVERY = 1000
ROWS_PER_FETCH = 100  # few, because a row may have megabytes
MASK = 2**64 - 1


class Tally(NamedTuple):
    """The number of rows of a table, and a checksum that does not depend on the order of the rows."""

    rows: int
    mark: int


class Side(ABC):
    """An open transaction on one database."""

    @abstractmethod
    def rows(self, table: str, columns: tuple[str, ...]) -> Generator[Row, None, None]:
        """Yield these columns of all rows of a table."""

    @abstractmethod
    def fill(self, table: str, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        """Add rows to a table."""

    @abstractmethod
    def run(self, statement: str) -> list[Row]:
        """Run a statement without parameters and return its rows, if any."""

    def convert(self, row: Row) -> Row:
        """Return a row with values that this database can store."""
        return row

    def empty(self, tables: Tables) -> bool:
        """Return whether this database has no rows in these tables, and an empty log."""
        filled = (self.run(f"SELECT 1 FROM {name} LIMIT 1") for name in tables if name != HEAD)  # noqa: S608
        return self.last_seq() == 0 and not any(filled)

    def clear(self, tables: Tables) -> None:
        """Remove all rows of these tables."""
        for name in tables:
            self.run(f"DELETE FROM {name}")  # noqa: S608 - names from our own schema

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return int(self.run(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608

    def last_seq(self) -> int:
        """Return the last seq of the log."""
        return int(self.run("SELECT last_seq FROM event_head")[0][0])

    def forget_processes(self) -> None:
        """Clear the processes, and the process ids that are stored with running tasks. Call this for a copy.

        The processes may still work for the original database, so midwatch must not end them because of the copy.
        """
        self.run("DELETE FROM instances")
        self.run("UPDATE tasks SET host = NULL, pgid = NULL, pgid_mark = NULL WHERE status = 'running'")


class SqliteSide(Side):
    """A SQLite file."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def tables(self) -> Tables:
        """Return the tables to copy, with their columns."""
        names = [row[0] for row in self.run("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        copied = [name for name in names if name not in LEFT_OUT and not name.startswith("sqlite_")]
        return {name: tuple(row[1] for row in self.run(f"PRAGMA table_info({name})")) for name in copied}

    def has_plain_schema(self) -> bool:
        """Return whether the file has exactly the tables and indexes that midwatch creates."""
        with closing(open_database(MEMORY)) as fresh:
            return _read_schema(self._connection) == _read_schema(fresh)

    def copy_pages(self, target: SqliteSide, on_progress: OnProgress) -> None:
        """Replace the content of `target` with the pages of this file, in one transaction.

        This side must be in a transaction. The copy contains what this transaction sees, even if others write
        meanwhile. Without a transaction, each write of others would begin the copy again.
        """
        assert self._connection.in_transaction

        def report(_status: int, left: int, total: int) -> None:
            on_progress(FILE, total - left, total)

        self.tables()  # a transaction begins with its first read
        self._connection.backup(target._connection, pages=PAGES_PER_STEP, progress=report)

    def check(self, name: str) -> None:
        """Raise StoreCorrupt if a row is not valid. The error names the file `name`."""
        check_rows(self._connection, name)

    def rows(self, table: str, columns: tuple[str, ...]) -> Generator[Row, None, None]:
        try:
            yield from self._connection.execute(f"SELECT {', '.join(columns)} FROM {table}")  # noqa: S608
        except sqlite3.Error as problem:
            raise translate(problem, self._path) from None

    def fill(self, table: str, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        marks = ", ".join("?" for _ in columns)
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.IntegrityError as problem:
            raise StoreCorrupt(
                f"two rows of table {table} exclude each other ({problem}); nothing was changed; choose another file."
            ) from None

    def run(self, statement: str) -> list[Row]:
        return self._connection.execute(statement).fetchall()

    def count_pages(self) -> int:
        """Return the number of pages of the file."""
        return int(self.run("PRAGMA page_count")[0][0])

    def is_sound(self) -> bool:
        """Return whether SQLite finds no damage in the tables and indexes of the file."""
        return self.run("PRAGMA integrity_check(1)") == [("ok",)]


def _read_schema(connection: sqlite3.Connection) -> set[Row]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


class PostgresSide(Side):
    """A PostgreSQL database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, table: str, columns: tuple[str, ...]) -> Generator[Row, None, None]:
        with self._connection.cursor("transfer") as cursor:
            cursor.itersize = ROWS_PER_FETCH
            cursor.execute(f"SELECT {', '.join(columns)} FROM {table}".encode())  # noqa: S608
            yield from cursor

    def fill(self, table: str, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()
        with self._connection.cursor() as cursor, cursor.copy(statement) as copying:
            for row in rows:
                copying.write_row(row)

    def run(self, statement: str) -> list[Row]:
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def convert(self, row: Row) -> Row:
        return tuple(map(replace_nul, row))

    def lock(self, tables: Tables) -> None:
        """Lock the tables: other transactions cannot write to them until this transaction ends."""
        self.run(f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE")


@contextmanager
def _open(path: str) -> Iterator[sqlite3.Connection]:
    """Open a SQLite file, and migrate it to the newest schema."""
    with closing(open_database(path)) as connection:
        try:
            yield connection
        except sqlite3.Error as problem:
            raise translate(problem, path) from None


@contextmanager
def sqlite_side(path: str, *, alone: bool) -> Iterator[SqliteSide]:
    """Open a transaction on a SQLite file. To write, pass `alone`: then other processes cannot write meanwhile."""
    with _open(path) as connection:
        connection.execute("BEGIN IMMEDIATE" if alone else "BEGIN")
        yield SqliteSide(connection, path)
        connection.execute("COMMIT")


@contextmanager
def exclusive_side(path: str) -> Iterator[SqliteSide]:
    """Open a SQLite file such that no other connection can use it meanwhile, not even between two transactions."""
    with _open(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        yield SqliteSide(connection, path)


def copy_file(source: SqliteSide, path: str, on_progress: OnProgress) -> None:
    """Copy a SQLite file to the new file `path`, without its processes. Before the copy is used, call `check_copy`."""
    with _new_file(path) as target:
        source.copy_pages(target, on_progress)
        target.run("DELETE FROM instances")
    seal(path)


@contextmanager
def _new_file(path: str) -> Iterator[SqliteSide]:
    """Create an empty file for a copy. Nothing is synced to disk, because a copy that is not complete is removed."""
    Path(path).touch(mode=0o600)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield SqliteSide(connection, path)


def check_copy(path: Path, wanted: Mapping[str, int], on_progress: OnProgress) -> None:
    """Raise StoreCorrupt if SQLite finds damage in a copy, or if the numbers of rows are not `wanted`."""
    with open_backup(path) as copied:
        pages = copied.count_pages()
        on_progress(CHECK, 0, pages)
        for table, rows in wanted.items():
            if (found := copied.count(table)) != rows:
                raise StoreCorrupt(
                    f"the copy of table {table} differs from the original ({found} of {rows} rows); nothing was "
                    "changed; try again."
                )
        if not copied.is_sound():
            raise StoreCorrupt(
                "the copy is damaged; nothing was changed. If `midwatch doctor` finds damage, restore an older backup."
            )
        on_progress(CHECK, pages, pages)


@contextmanager
def open_backup(file: Path) -> Iterator[SqliteSide]:
    """Open a backup for reading. Raise StoreCorrupt if the file is not a backup."""
    with _read_backup(file) as connection:
        yield SqliteSide(connection, str(file))


def is_sound(path: str) -> bool:
    """Return whether a quick check finds no damage in a database file. For a missing file return True."""
    try:
        with closing(open_database(path)) as connection:
            return connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    except (StoreCorrupt, sqlite3.DatabaseError):
        return False


def seal(path: str) -> None:
    """Write the changes in SQLite's journal into the database file, so that this one file is complete."""
    with _open(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def unseal(file: Path, path: str, on_progress: OnProgress) -> None:
    """Copy the backup `file` to `path`. Check the copy, and migrate it to the newest schema."""
    with open_backup(file) as backup, _new_file(path) as target:
        backup.run("BEGIN")
        backup.copy_pages(target, on_progress)
        target.run("PRAGMA ignore_check_constraints = ON")  # `SqliteSide.check` names the row
        pages = target.count_pages()
        on_progress(CHECK, 0, pages)
        if not target.is_sound():
            raise _refuse(file)
        on_progress(CHECK, pages, pages)
    open_database(path).close()


def allow_shrinking(path: str) -> None:
    """Rewrite a file of an older midwatch, so that the file can shrink when records are removed."""
    with _open(path) as connection:
        if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != INCREMENTAL:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")


@contextmanager
def _read_backup(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as problem:
        raise StoreError(f"{file} cannot be read: {problem}. Check the path and the permissions.") from None
    with closing(connection):
        try:
            mark, version = (
                connection.execute(f"PRAGMA {n}").fetchone()[0] for n in ("application_id", "user_version")
            )
            if mark != APPLICATION_ID:
                raise _refuse(file)
            check_schema(str(file), version, load_migrations("sqlite")[-1][0])
            yield connection
        except sqlite3.DatabaseError as problem:
            error = translate(problem, str(file))
            raise (_refuse(file) if isinstance(error, StoreCorrupt) else error) from None


def _refuse(file: Path) -> StoreCorrupt:
    return StoreCorrupt(f"{file} is not a backup of midwatch, or the file is damaged; choose another file.")


@contextmanager
def postgres_side(url: str, *, writes: bool) -> Iterator[PostgresSide]:
    """Open a transaction on a PostgreSQL database with midwatch's tables. Without `writes` it can only read."""
    import psycopg

    from midwatch.stores.postgres import CONNECTION_OPTIONS, explain

    patient = {**CONNECTION_OPTIONS, "options": "-c idle_in_transaction_session_timeout=0 -c lock_timeout=10000"}
    try:
        with psycopg.connect(url, **patient) as connection:
            if not writes:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield PostgresSide(connection)
    except psycopg.Error as problem:
        raise explain(problem, url) from None


def copy(source: Side, target: Side, tables: Tables, on_progress: OnProgress) -> dict[str, Tally]:
    """Replace all rows of `target` with the rows of `source`. Raise StoreCorrupt if the rows then differ.

    Return the number of rows and the checksum of each table.
    """
    target.clear(tables)
    copied = {}
    for table, columns in tables.items():
        counter = _Counter(table, source.count(table), on_progress)
        with closing(source.rows(table, columns)) as rows:
            target.fill(table, columns, counter.count(map(target.convert, rows)))
        copied[table] = counter.tally()
    compare(target, tables, copied)
    return copied


def compare(side: Side, tables: Tables, wanted: Mapping[str, Tally]) -> None:
    """Raise StoreCorrupt if the rows of a table do not match the number and checksum in `wanted`."""
    for table, columns in tables.items():
        counter = _Counter(table, wanted[table].rows, lambda _table, _rows, _of: None)
        with closing(side.rows(table, columns)) as rows:
            for _ in counter.count(rows):
                pass
        if counter.tally() != wanted[table]:
            raise StoreCorrupt(
                f"the copy of table {table} differs from the original ({counter.rows} of {wanted[table].rows} rows); "
                "nothing was changed; try again."
            )


class _Counter:
    """A counter of the rows that pass through `count`, and of the sum of their checksums."""

    def __init__(self, table: str, total: int, on_progress: OnProgress) -> None:
        self.rows = 0
        self._total = total
        self._mark = 0
        self._table = table
        self._on_progress = on_progress

    def count(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.rows += 1
            self._mark = (self._mark + hash(row)) & MASK
            if self.rows % REPORT_EVERY == 0:
                self._on_progress(self._table, self.rows, self._total)
            yield row
        if self.rows % REPORT_EVERY or not self.rows:
            self._on_progress(self._table, self.rows, self._total)

    def tally(self) -> Tally:
        return Tally(self.rows, self._mark)

"""Backups: write the store to a file, restore the store from a file, and move a home to PostgreSQL.

A backup is a SQLite file with the tables of the store. It can be made from and restored to both SQLite and PostgreSQL.
Everything is copied in one transaction, and the copy is checked before it is used: a file is copied page by page and
checked by SQLite; rows from or for PostgreSQL are compared one by one.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from midwatch.base.clock import SystemClock
from midwatch.base.errors import AlreadyRunning, Conflict, HomeUnusable, NotFound, StoreCorrupt, StoreUnavailable
from midwatch.base.home import Home
from midwatch.desk.build import open_store
from midwatch.desk.config import Settings
from midwatch.desk.foundation import build_living
from midwatch.domain.agent import AgentTerms
from midwatch.domain.instance import DEAD_SECONDS
from midwatch.domain.store import Store
from midwatch.loops.rescuer import Rescuer
from midwatch.runtime.crew import reap_processes
from midwatch.services.approvals import Approvals
from midwatch.services.task_endings import TaskEndings
from midwatch.stores import transfer
from midwatch.stores.sqlite import SqliteStore
from midwatch.stores.transfer import OnProgress, Side, SqliteSide, Tally


class CopyResult(NamedTuple):
    """The result of a copy: the number of rows in each table, and the `seq` of the last event."""

    rows: dict[str, int]
    last_seq: int
    aside: Path | None = None
    """The file that now contains the database that was replaced, or None."""


class CopyCancelled(Exception):
    """The copy stopped, because the call that started it was cancelled."""


async def backup(settings: Settings, file: Path, report: OnProgress, *, force: bool = False) -> CopyResult:
    """Write the current content of the store to `file`, while tasks run. With `force` an existing file is replaced."""
    home = Home(settings.home)
    if _check_file(file.exists) and not force:
        raise Conflict(f"{file} exists already; choose another name, or replace the file with `--force`.")
    if settings.db:
        await (await open_store(settings, home)).close()  # check the store and create missing tables
    else:
        _need_database(home)
    return await _in_thread(partial(_back_up, settings, home, file), report)


async def restore(settings: Settings, file: Path, report: OnProgress, *, force: bool = False) -> CopyResult:
    """Fill the empty store from the backup `file`. With `force` the store may have data, which is replaced.

    Raise AlreadyRunning if a process uses the store.
    """
    home = Home(settings.home)
    if not _check_file(file.is_file):
        raise NotFound("backup", str(file))
    with transfer.open_backup(file):
        home.prepare()
    with _lock_home(home):
        if settings.db:
            await _prepare_target(settings, home, may_have_data=force)
        return await _in_thread(partial(_restore, settings, home, file, force), report)


async def migrate(settings: Settings, url: str, report: OnProgress) -> CopyResult:
    """Copy the SQLite store of a home to the empty PostgreSQL database at `url`. The SQLite file stays unchanged."""
    home = Home(settings.home)
    _need_database(home)
    home.prepare()
    target_settings = Settings.load(home.path, db=url)
    with _lock_home(home):
        await _prepare_target(target_settings, home)
        await _rescue(home)
        return await _in_thread(partial(_migrate, home, url), report)


# -- before anything is copied -----------------------------------------------------------------------------------------


def _check_file(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError as problem:
        raise StoreUnavailable(f"{problem.filename} cannot be used: {problem.strerror}; choose another file.") from None


def _need_database(home: Home) -> None:
    if not home.database.exists():
        raise HomeUnusable(f"{home.path} has no midwatch database; name the right home in MIDWATCH_HOME.")


@contextmanager
def _lock_home(home: Home) -> Iterator[None]:
    """Prevent servers of this home from starting. Raise AlreadyRunning if a process still uses the home."""
    up = home.claim_up()
    try:
        if home.list_locks() - {"up"}:
            raise AlreadyRunning(f"a process still uses {home.path}; find it with `midwatch cluster` and stop it.")
        yield
    finally:
        up.release()


async def _prepare_target(settings: Settings, home: Home, *, may_have_data: bool = False) -> None:
    """Create the missing tables of the target database. Raise an error if a live process uses the database.

    Unless `may_have_data` is True, also raise an error if the database contains data.
    """
    store = await open_store(settings, home)
    try:
        for process in await build_living(settings, home, store)():
            raise AlreadyRunning(
                f"process {process.id} ({process.role}, pid {process.pid} on {process.host}) uses the database; stop "
                f"all processes first. After a process was killed, wait {DEAD_SECONDS:.0f} s."
            )
        if not may_have_data and await _has_data(store):
            raise _refuse_data("the database")
    finally:
        await store.close()


async def _has_data(store: Store) -> bool:
    return (await store.count_tasks()).total > 0 or (await store.read_log_bounds()).last_seq > 0


def _refuse_data(where: str) -> Conflict:
    return Conflict(f"{where} has data of midwatch; use an empty database, or replace the data by `restore --force`.")


async def _rescue(home: Home) -> None:
    """Rescue the tasks of dead processes, as a server does when it starts."""

    class EmptyEngine:
        """The part of an engine that the rescuer needs. It lists no dead processes and says that this process leads."""

        dead = staticmethod(set[str])
        leads = staticmethod(lambda: True)

    async def plain_terms(agent: str) -> AgentTerms:
        return AgentTerms()

    store, clock = await SqliteStore.open(home.database), SystemClock()
    engine: Any = EmptyEngine()
    endings = TaskEndings(store, clock, plain_terms)
    try:
        await Rescuer(store, clock, engine, Approvals(store, clock), endings, owner="", reap=reap_processes).rescue()
    finally:
        await store.close()


# -- in a thread -------------------------------------------------------------------------------------------------------


async def _in_thread(work: Callable[[OnProgress], CopyResult], report: OnProgress) -> CopyResult:
    """Run a copy in a Python thread. If the call is cancelled, the copy stops at its next progress report."""
    cancelled = threading.Event()

    def report_or_stop(what: str, done: int, total: int) -> None:
        if cancelled.is_set():
            raise CopyCancelled
        report(what, done, total)

    try:
        return await asyncio.to_thread(work, report_or_stop)
    finally:
        cancelled.set()


def _back_up(settings: Settings, home: Home, file: Path, report: OnProgress) -> CopyResult:
    with _scratch(file.absolute().parent) as folder:
        copy = folder / "backup.db"
        copied = _copy_rows(settings.db, copy, report) if settings.db else _copy_file(home.database, copy, report)
        _rename(copy, file)
    return copied


def _copy_file(database: Path, copy: Path, report: OnProgress) -> CopyResult:
    with transfer.sqlite_side(str(database), alone=False) as source:
        copied = _count_rows(source)
        transfer.copy_file(source, str(copy), report)
    transfer.check_copy(copy, copied.rows, report)
    return copied


def _copy_rows(url: str, copy: Path, report: OnProgress) -> CopyResult:
    with transfer.postgres_side(url, writes=False) as source, transfer.sqlite_side(str(copy), alone=True) as target:
        tables = target.tables()
        tallies = transfer.copy(source, target, tables, report)
    transfer.seal(str(copy))
    with transfer.open_backup(copy) as reopened:
        transfer.compare(reopened, tables, tallies)
        return _count_copied(tallies, reopened)


def _restore(settings: Settings, home: Home, file: Path, force: bool, report: OnProgress) -> CopyResult:
    with _scratch(home.path) as folder:
        unpacked = folder / "backup.db"
        transfer.unseal(file, str(unpacked), report)
        with transfer.sqlite_side(str(unpacked), alone=False) as source:
            source.check(str(file))
            if settings.db:
                return _into_postgres(source, settings.db, report, force=force)
            if not source.has_plain_schema():
                unpacked = folder / "rebuilt.db"
                with transfer.sqlite_side(str(unpacked), alone=True) as rebuilt:
                    transfer.copy(source, rebuilt, source.tables(), report)
        transfer.allow_shrinking(str(unpacked))
        return _into_home(unpacked, home.database, folder / "before.db", report, force=force)


def _into_home(unpacked: Path, database: Path, before: Path, report: OnProgress, *, force: bool) -> CopyResult:
    """Fill the SQLite file `database` of a home from the checked file `unpacked`, and return the result.

    If the file had data, another file in the same directory gets its old content. `before` is a temporary file.
    """
    aside = database.with_name(f"{database.name}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    if not transfer.is_sound(str(database)):
        if not force:
            raise StoreCorrupt(f"{database} is damaged; replace it with `midwatch restore FILE --force`.")
        for end in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                Path(f"{database}{end}").rename(f"{aside}{end}")
    with transfer.sqlite_side(str(unpacked), alone=True) as source:
        source.forget_processes()
    with transfer.exclusive_side(str(database)) as target, transfer.sqlite_side(str(unpacked), alone=False) as source:
        if not target.empty(source.tables()):
            if not force:
                raise _refuse_data(str(database))
            _keep_aside(target, before, aside, report)
        source.copy_pages(target, report)
        copied = _count_rows(source)
    return copied._replace(aside=aside if aside.exists() else None)


def _keep_aside(side: SqliteSide, before: Path, aside: Path, report: OnProgress) -> None:
    """Copy a database that will be replaced to the file `before`, and give this file its name `aside`."""
    side.run("BEGIN")
    transfer.copy_file(side, str(before), report)
    wanted = _count_rows(side).rows
    side.run("COMMIT")
    transfer.check_copy(before, wanted, report)
    _rename(before, aside)


def _migrate(home: Home, url: str, report: OnProgress) -> CopyResult:
    with transfer.sqlite_side(str(home.database), alone=True) as source:
        source.check(str(home.database))
        return _into_postgres(source, url, report, force=False)


def _into_postgres(source: SqliteSide, url: str, report: OnProgress, *, force: bool) -> CopyResult:
    tables = source.tables()
    with transfer.postgres_side(url, writes=True) as target:
        target.lock(tables)
        if not force and not target.empty(tables):
            raise _refuse_data("the database")
        return _refill(source, target, report)


def _refill(source: SqliteSide, target: Side, report: OnProgress) -> CopyResult:
    copied = _count_copied(transfer.copy(source, target, source.tables(), report), target)
    target.forget_processes()
    return copied


def _count_rows(side: SqliteSide) -> CopyResult:
    return CopyResult({table: side.count(table) for table in side.tables()}, side.last_seq())


def _count_copied(tallies: Mapping[str, Tally], side: Side) -> CopyResult:
    return CopyResult({table: tally.rows for table, tally in tallies.items()}, side.last_seq())


# -- files -------------------------------------------------------------------------------------------------------------


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """Yield a temporary directory inside of `parent`, on the same disk as the file that will be written there."""
    try:
        with tempfile.TemporaryDirectory(prefix=".midwatch-", dir=parent) as folder:
            yield Path(folder)
    except OSError as problem:
        raise StoreUnavailable(f"{parent} cannot be written ({problem.strerror}); choose another directory.") from None


def _rename(copy: Path, file: Path) -> None:
    """Sync the finished file `copy` to disk, then rename it to `file`."""
    _sync(copy)
    copy.replace(file)
    _sync(file.absolute().parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Backups, and moving to another database.

A backup is a SQLite file with the tables of the store, whichever store it was made from, so it can be restored to
either. Everything is copied in one transaction and compared row by row before it counts.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
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
from midwatch.runtime.crew import reap_left
from midwatch.services.approvals import Approvals
from midwatch.services.task_endings import TaskEndings
from midwatch.stores import transfer
from midwatch.stores.sqlite import SqliteStore
from midwatch.stores.transfer import OnProgress, Side, SqliteSide, Tally


class Copied(NamedTuple):
    """The result of a copy: the rows by table, and the last event."""

    rows: dict[str, int]
    last_seq: int
    aside: Path | None = None
    """The file to which the replaced database was moved."""


class Stopped(Exception):
    """The copy was cancelled."""


async def backup(settings: Settings, file: Path, report: OnProgress, *, force: bool = False) -> Copied:
    """Write the current content of the store to `file`. Tasks continue meanwhile."""
    home = Home(settings.home)
    if _try_to_look(file.exists) and not force:
        raise Conflict(f"{file} exists already; choose another name, or replace it with --force.")
    if settings.db:
        await (await open_store(settings, home)).close()  # checks it, and creates missing tables
    else:
        _need_database(home)
    return await _in_thread(partial(_back_up, settings, home, file), report)


async def restore(settings: Settings, file: Path, report: OnProgress, *, force: bool = False) -> Copied:
    """Fill the store from a backup. `force` replaces its content, but never while a process uses it."""
    home = Home(settings.home)
    if not _try_to_look(file.is_file):
        raise NotFound("backup", str(file))
    with transfer.open_backup(file):
        home.prepare()
    with _alone(home):
        if settings.db:
            await _look_at_target(settings, home, used_is_fine=force)
        return await _in_thread(partial(_restore, settings, home, file, force), report)


async def migrate(settings: Settings, url: str, report: OnProgress) -> Copied:
    """Copy the SQLite store of a home to an empty PostgreSQL. The file stays where it is."""
    home = Home(settings.home)
    _need_database(home)
    home.prepare()
    wanted = Settings.load(home.path, db=url)
    with _alone(home):
        await _look_at_target(wanted, home)
        await _rescue(home)
        return await _in_thread(partial(_migrate, home, url), report)


# -- before anything is copied -----------------------------------------------------------------------------------------


def _try_to_look(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except OSError as problem:
        raise StoreUnavailable(f"{problem.filename} cannot be used: {problem.strerror}; choose another file.") from None


def _need_database(home: Home) -> None:
    if not home.database.exists():
        raise HomeUnusable(f"there is no midwatch database in {home.path}; choose the home with MIDWATCH_HOME.")


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Keep servers of this home from starting; AlreadyRunning when a process still works in it."""
    up = home.claim_up()
    try:
        if any(home.lock(path.stem).is_taken() for path in home.run.glob("*.lock") if path != up.path):
            raise AlreadyRunning(f"a process still works in {home.path}; `midwatch cluster` lists it. End it first.")
        yield
    finally:
        up.release()


async def _look_at_target(settings: Settings, home: Home, *, used_is_fine: bool = False) -> None:
    """Create missing tables; refuse a database that a live process uses, or that contains data."""
    store = await open_store(settings, home)
    try:
        for process in await build_living(settings, home, store)():
            raise AlreadyRunning(
                f"{process.role} {process.id} (pid {process.pid} on {process.host}) uses that database; stop every "
                f"process first. A killed process counts as ended after {DEAD_SECONDS:.0f} s."
            )
        if not used_is_fine and await _is_used(store):
            raise _in_use("that database")
    finally:
        await store.close()


async def _is_used(store: Store) -> bool:
    return (await store.count_tasks()).total > 0 or (await store.read_log_bounds()).last_seq > 0


def _in_use(where: str) -> Conflict:
    return Conflict(f"{where} holds data of midwatch already; use an empty one (only `restore --force` replaces data).")


async def _rescue(home: Home) -> None:
    """Rescue the tasks of dead processes, as the next start would do."""

    class Nobody:
        """An engine without processes, for the rescuer."""

        dead = staticmethod(set[str])
        leads = staticmethod(lambda: True)

    async def plain_terms(agent: str) -> AgentTerms:
        return AgentTerms()

    store, clock = await SqliteStore.open(home.database), SystemClock()
    engine: Any = Nobody()
    endings = TaskEndings(store, clock, plain_terms)
    try:
        await Rescuer(store, clock, engine, Approvals(store, clock), endings, owner="", reap=reap_left).rescue()
    finally:
        await store.close()


# -- in a thread -------------------------------------------------------------------------------------------------------


async def _in_thread(work: Callable[[OnProgress], Copied], report: OnProgress) -> Copied:
    """Run the copy in a thread. When it is cancelled, it ends at its next step."""
    left = threading.Event()

    def tell(table: str, rows: int) -> None:
        if left.is_set():
            raise Stopped
        report(table, rows)

    try:
        return await asyncio.to_thread(work, tell)
    finally:
        left.set()


def _back_up(settings: Settings, home: Home, file: Path, report: OnProgress) -> Copied:
    with _scratch(file.absolute().parent) as folder:
        copy = folder / "backup.db"
        with _source(settings, home) as source, transfer.sqlite_side(str(copy), alone=True) as target:
            tables = target.tables()
            tallies = transfer.copy(source, target, tables, report)
        transfer.seal(str(copy))
        with transfer.open_backup(copy) as reopened:
            transfer.compare(reopened, tables, tallies)
            copied = _count_copied(tallies, reopened)
        _put(copy, file)
    return copied


def _source(settings: Settings, home: Home) -> AbstractContextManager[Side]:
    if settings.db:
        return transfer.postgres_side(settings.db, writes=False)
    return transfer.sqlite_side(str(home.database), alone=False)


def _restore(settings: Settings, home: Home, file: Path, force: bool, report: OnProgress) -> Copied:
    with _scratch(home.path) as folder:
        unpacked = str(folder / "backup.db")
        transfer.unseal(file, unpacked)
        with transfer.sqlite_side(unpacked, alone=False) as source:
            if settings.db:
                return _into_postgres(source, settings.db, report, force=force)
            return _into_home(source, home.database, folder / "before.db", report, force=force)


def _into_home(source: SqliteSide, database: Path, before: Path, report: OnProgress, *, force: bool) -> Copied:
    """Fill the SQLite file of a home. Its old content is kept in another file beside it."""
    tables = source.tables()
    aside = database.with_name(f"{database.name}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    if not transfer.is_sound(str(database)):
        if not force:
            raise StoreCorrupt(f"{database} is damaged; `midwatch restore FILE --force` moves it away.")
        for end in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                Path(f"{database}{end}").rename(f"{aside}{end}")
    with transfer.sqlite_side(str(database), alone=True) as target:
        if not target.empty(tables):
            if not force:
                raise _in_use(str(database))
            with transfer.sqlite_side(str(before), alone=True) as kept:
                transfer.copy(target, kept, tables, report)
            transfer.seal(str(before))
        copied = _refill(source, target, report)
    if before.exists():
        _put(before, aside)
    return copied._replace(aside=aside if aside.exists() else None)


def _migrate(home: Home, url: str, report: OnProgress) -> Copied:
    with transfer.sqlite_side(str(home.database), alone=True) as source:
        return _into_postgres(source, url, report, force=False)


def _into_postgres(source: SqliteSide, url: str, report: OnProgress, *, force: bool) -> Copied:
    tables = source.tables()
    with transfer.postgres_side(url, writes=True) as target:
        target.lock(tables)
        if not force and not target.empty(tables):
            raise _in_use("that database")
        return _refill(source, target, report)


def _refill(source: SqliteSide, target: Side, report: OnProgress) -> Copied:
    copied = _count_copied(transfer.copy(source, target, source.tables(), report), target)
    target.forget_processes()
    return copied


def _count_copied(tallies: Mapping[str, Tally], side: Side) -> Copied:
    return Copied({table: tally.rows for table, tally in tallies.items()}, side.last_seq())


# -- files -------------------------------------------------------------------------------------------------------------


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """Create a temporary directory on the same disk as the result."""
    try:
        with tempfile.TemporaryDirectory(prefix=".midwatch-", dir=parent) as folder:
            yield Path(folder)
    except OSError as problem:
        raise StoreUnavailable(f"{parent} cannot be written: {problem.strerror}; choose another place.") from None


def _put(copy: Path, file: Path) -> None:
    """Give a finished file its name, after it was written to disk."""
    _sync(copy)
    copy.replace(file)
    _sync(file.absolute().parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo
import pytest
from hypothesis import HealthCheck, settings

from midwatch.domain.store import Store
from midwatch.programs import cgroup
from midwatch.programs.guard import guard
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from postgres import Cluster, cluster

MEMORY_WANTED = 4 << 30

settings.register_profile(
    "same", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)  # every run uses the same examples; `--hypothesis-profile=default` finds new ones. Examples have no time limit
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the duration of the chaos test and the simulated weeks."""
    parser.addoption("--chaos-seconds", type=float, default=40.0, help="how long the chaos test goes on")
    parser.addoption("--seeds", type=int, default=40, help="how many weeks are simulated")
    parser.addoption("--seed", type=int, default=None, help="simulate only the week of this seed")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the test process and, by inheritance, all processes that tests start."""
    restore_sigint()
    keep_files_in_memory()


def restore_sigint() -> None:
    """Restore the handler of SIGINT: a background job of a script starts with SIGINT ignored, and so would its
    children.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_files_in_memory() -> None:
    """Keep files of tests in memory where possible: tests kill processes, never the machine."""
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK):
        return
    stats = os.statvfs(memory)
    if not stats.f_flag & os.ST_NOEXEC and stats.f_bavail * stats.f_frsize > MEMORY_WANTED:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slowest tests first, so that the others run beside them: a test with its own timeout is slowest."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("timeout", "slow")])


def pytest_collection_finish() -> None:
    """Exclude loaded objects from garbage collection, which would check them again and again."""
    gc.collect()
    gc.freeze()


STORES = ("sqlite", "sqlite-memory", pytest.param("postgres", marks=pytest.mark.slow))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster | str]:
    """Yield a PostgreSQL of this test run. Without one, its tests are skipped, and in CI they fail."""
    if url := os.environ.get("MIDWATCH_TEST_PG"):
        yield url
        return
    try:
        with cluster() as server:
            yield server
    except FileNotFoundError as problem:
        if os.environ.get("CI"):
            pytest.fail(str(problem))
        pytest.skip(str(problem))


@pytest.fixture
def database(postgres: Cluster | str) -> Iterator[str]:
    """Yield the address of an empty PostgreSQL database."""
    server = postgres if isinstance(postgres, str) else postgres.url
    name = f"midwatch_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        execute_with_retries(admin, f'CREATE DATABASE "{name}"')
        yield psycopg.conninfo.make_conninfo(server, dbname=name)
        execute_with_retries(admin, f'DROP DATABASE "{name}" WITH (FORCE)')


def execute_with_retries(admin: psycopg.Connection[Any], statement: str) -> None:
    """Repeat a statement while the server reports that the database is in use: it waits five seconds for others, which
    is short on a busy machine.
    """
    for _ in range(9):
        with suppress(psycopg.errors.ObjectInUse):
            admin.execute(statement)
            return
    admin.execute(statement)


async def open_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> Store:
    """Open an empty store of a kind."""
    if kind == "postgres":
        return await PostgresStore.open(request.getfixturevalue("database"))
    return await SqliteStore.open(":memory:" if kind == "sqlite-memory" else folder / "midwatch.db")


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Yield an empty store of each kind."""
    opened = await open_store(request.param, tmp_path, request)
    yield opened
    await opened.close()


@pytest.fixture
async def memory() -> AsyncIterator[SqliteStore]:
    """Yield an empty store in memory."""
    opened = await SqliteStore.open(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that the test advances."""
    return FakeClock()


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    """Check that every process group of a test has ended with it."""
    yield
    guard.close()
    assert guard.pid is None, "a process group was left behind"


@pytest.fixture
def without_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start programs as on a machine without cgroups."""
    monkeypatch.setattr(cgroup, "find_own", lambda pid: None)
    monkeypatch.setattr(cgroup.cgroups, "base", None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the path of an empty home directory."""
    return tmp_path / "home"

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
from midwatch.programs.guard import guard
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from postgres import Cluster, cluster

MEMORY_WANTED = 4 << 30

settings.register_profile(
    "same", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)  # every run tries the same; `--hypothesis-profile=default` looks for more. An example takes as long as it takes
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the chaos test goes on, and which weeks are simulated."""
    parser.addoption("--chaos-seconds", type=float, default=40.0, help="how long the chaos test goes on")
    parser.addoption("--seeds", type=int, default=60, help="how many weeks are simulated")
    parser.addoption("--seed", type=int, default=None, help="simulate only the week of this seed")


def pytest_configure(config: pytest.Config) -> None:
    """What holds for the test process and, being inherited, for whatever tests start."""
    hear_interrupts()
    keep_files_in_memory()


def hear_interrupts() -> None:
    """A script's background job is started with SIGINT ignored, and so would be what tests start to interrupt it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_files_in_memory() -> None:
    """Files of tests are kept in memory where they can be: tests kill processes, never the machine."""
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK):
        return
    told = os.statvfs(memory)
    if not told.f_flag & os.ST_NOEXEC and told.f_bavail * told.f_frsize > MEMORY_WANTED:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, and the rest fits in beside it: a test with a limit of its own takes longest."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("timeout", "slow")])


def pytest_collection_finish() -> None:
    """What is loaded stays, so the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


STORES = ("sqlite", "sqlite-memory", pytest.param("postgres", marks=pytest.mark.slow))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster | str]:
    """A PostgreSQL of this test run. Where there is none its tests are skipped, and in CI they fail."""
    if given := os.environ.get("MIDWATCH_TEST_PG"):
        yield given
        return
    try:
        with cluster() as made:
            yield made
    except FileNotFoundError as problem:
        if os.environ.get("CI"):
            pytest.fail(str(problem))
        pytest.skip(str(problem))


@pytest.fixture
def database(postgres: Cluster | str) -> Iterator[str]:
    """The address of an empty PostgreSQL database."""
    server = postgres if isinstance(postgres, str) else postgres.url
    name = f"midwatch_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        insist(admin, f'CREATE DATABASE "{name}"')
        yield psycopg.conninfo.make_conninfo(server, dbname=name)
        insist(admin, f'DROP DATABASE "{name}" WITH (FORCE)')


def insist(admin: psycopg.Connection[Any], statement: str) -> None:
    """Once more and again, while the server finds that others still use the database: it waits five seconds for them,
    which is not much on a busy machine."""
    for _ in range(9):
        with suppress(psycopg.errors.ObjectInUse):
            admin.execute(statement)
            return
    admin.execute(statement)


async def open_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> Store:
    """An empty store of a kind."""
    if kind == "postgres":
        return await PostgresStore.open(request.getfixturevalue("database"))
    return await SqliteStore.open(":memory:" if kind == "sqlite-memory" else folder / "midwatch.db")


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    opened = await open_store(request.param, tmp_path, request)
    yield opened
    await opened.close()


@pytest.fixture
async def memory() -> AsyncIterator[SqliteStore]:
    """An empty store in memory."""
    opened = await SqliteStore.open(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that is moved by hand."""
    return FakeClock()


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    """Every process group a test has started has ended with it."""
    yield
    guard.close()
    assert guard.pid is None, "a process group was left behind"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory."""
    return tmp_path / "home"

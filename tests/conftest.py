"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from midwatch.store import Store
from midwatch.stores.sqlite import SqliteStore


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the chaos test goes on."""
    parser.addoption("--chaos-seconds", type=float, default=60.0, help="how long the chaos test goes on")


STORES = ("sqlite", "sqlite-memory")


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    place = ":memory:" if request.param == "sqlite-memory" else tmp_path / "midwatch.db"
    opened = await SqliteStore.open(place)
    yield opened
    await opened.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory."""
    return tmp_path / "home"

"""What a shared PostgreSQL knows of the processes that use it, by its own clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from midwatch.base.clock import SECOND
from midwatch.base.errors import BadConfig
from midwatch.domain.instance import DEAD_SECONDS

if TYPE_CHECKING:
    from midwatch.stores.postgres import PostgresStore, PostgresTx

FORM = "write it as postgresql://user:password@host:5432/name, special characters of the password as %XX"


class Seen(NamedTuple):
    """A process as the database sees it."""

    heartbeat_age: float
    """Seconds since it last showed that it lives."""
    leads: bool


class DatabaseClock(NamedTuple):
    """How the database's clock compares with this machine's."""

    ahead: float
    """Seconds by which the database's is ahead; negative when it is behind."""
    round_trip: float
    """Seconds one question took, so how exact that is."""


SEEN = """
SELECT instances.id, extract(epoch FROM clock_timestamp() - heartbeat)::float8,
  leader.instance IS NOT NULL AND leader.renewed > clock_timestamp() - make_interval(secs => %s)
FROM instances LEFT JOIN leader ON leader.instance = instances.id
"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


async def seen(store: PostgresStore) -> dict[str, Seen]:
    """Every process that made itself known, dead or alive, by its id."""

    def look(tx: PostgresTx) -> dict[str, Seen]:
        found = tx.connection.execute(SEEN, (DEAD_SECONDS,))
        return {name: Seen(max(0.0, age), leads) for name, age, leads in found}

    return await store.read(look)


async def database_clock(store: PostgresStore) -> DatabaseClock:
    """Compare the clocks, by the quickest of a few questions."""
    return min([await store.read(_ask) for _ in range(3)], key=lambda told: told.round_trip)


def _ask(tx: PostgresTx) -> DatabaseClock:
    before = time.time()
    row = tx.connection.execute(NOW).fetchone()
    after = time.time()
    assert row is not None
    return DatabaseClock(row[0] / SECOND - (before + after) / 2, after - before)


def check_address(url: str) -> None:
    """BadConfig for an address that cannot be one. Nothing of it is told: its password may be anywhere."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        raise BadConfig(f"setting db: it cannot be read as an address; {FORM}.") from None
    ports = str(parts.get("port") or "0").split(",")
    if "@" in str(parts.get("host", "")) or not all(port.isdigit() for port in ports if port):
        raise BadConfig(f"setting db: its host and port make no sense; {FORM}.")

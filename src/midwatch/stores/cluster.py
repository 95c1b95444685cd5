"""Verbs for PostgreSQL alone: the processes that share it, its clock and its job queue; and a check of its address."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from midwatch.base.clock import SECOND
from midwatch.base.errors import BadConfig
from midwatch.domain.instance import DEAD_SECONDS, Instance
from midwatch.stores.postgres_tx import PostgresTx
from midwatch.stores.runner import VerbRunner

FORM = "write it as postgresql://user:password@host:5432/name, special characters of the password as %XX"


class Seen(NamedTuple):
    """A process as the database sees it: the seconds since its last heartbeat, and whether it leads."""

    heartbeat_age: float
    leads: bool


class DatabaseClock(NamedTuple):
    """How many seconds the database's clock is ahead of this machine's, and how long the question took.

    The comparison is no more exact than the round trip.
    """

    ahead: float
    round_trip: float


async def list_processes(store: VerbRunner) -> dict[str, Seen]:
    """Return every process in the store, dead or alive, by its id."""

    def look(tx: PostgresTx) -> dict[str, Seen]:
        rows = tx.rows("cluster.processes", {"dead": DEAD_SECONDS})
        return {name: Seen(max(0.0, age), leads) for name, age, leads in rows}

    return await store.read(look)


async def read_clock(store: VerbRunner) -> DatabaseClock:
    """Compare the clocks, by the quickest of a few questions."""
    return min([await store.read(_compare_clocks) for _ in range(3)], key=lambda clock: clock.round_trip)


def _compare_clocks(tx: PostgresTx) -> DatabaseClock:
    before = time.time()
    database = tx.value(int, "cluster.now") or 0
    after = time.time()
    return DatabaseClock(database / SECOND - (before + after) / 2, after - before)


def check_address(url: str) -> None:
    """Raise BadConfig for a wrong address. The error shows no part of it, since its password may be anywhere."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        raise BadConfig(f"setting db: it cannot be read as an address; {FORM}.") from None
    ports = str(parts.get("port") or "0").split(",")
    if "@" in str(parts.get("host", "")) or not all(port.isdigit() for port in ports if port):
        raise BadConfig(f"setting db: its host or port is invalid; {FORM}.")


# -- verbs of `midwatch.engines.queue_upkeep.SharedStore` --------------------------------------------------------


def list_living(tx: PostgresTx) -> list[Instance]:
    return tx.find_all(Instance, "cluster.living", dead=DEAD_SECONDS)


def count_due(tx: PostgresTx, now: int) -> dict[str, int]:
    return dict(tx.rows("cluster.due", {"now": now}))


def drop_jobs(tx: PostgresTx, queue: str, keep: int) -> int:
    return tx.run("cluster.drop_jobs", {"queue": queue, "keep": keep})


def refresh_statistics(tx: PostgresTx, tables: Iterable[str]) -> None:
    for table in tables:
        tx.connection.execute(f'VACUUM ANALYZE "{table}"', prepare=False)

"""Verbs only for PostgreSQL: list the processes that share the database, read its clock, clean its job queue.

This module also checks the address of the database.
"""

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

FORM = "write it as postgresql://user:password@host:5432/name; write special characters of the password as %XX"


class ProcessState(NamedTuple):
    """The state of a process in the database: seconds since its last heartbeat, and whether it is the leader."""

    heartbeat_age: float
    leads: bool


class DatabaseClock(NamedTuple):
    """The seconds by which the database's clock is ahead of this machine's clock, and the duration of the query.

    The first number may be wrong by up to half of the duration.
    """

    ahead: float
    round_trip: float


async def list_processes(store: VerbRunner) -> dict[str, ProcessState]:
    """Return all processes in the store by id, including dead ones."""

    def look(tx: PostgresTx) -> dict[str, ProcessState]:
        rows = tx.rows("cluster.processes", {"dead": DEAD_SECONDS})
        return {name: ProcessState(max(0.0, age), leads) for name, age, leads in rows}

    return await store.read(look)


async def read_clock(store: VerbRunner) -> DatabaseClock:
    """Compare the clock of the database with the clock of this machine, with the fastest of a few queries."""
    return min([await store.read(_compare_clocks) for _ in range(3)], key=lambda clock: clock.round_trip)


def _compare_clocks(tx: PostgresTx) -> DatabaseClock:
    before = time.time()
    database = tx.value(int, "cluster.now") or 0
    after = time.time()
    return DatabaseClock(database / SECOND - (before + after) / 2, after - before)


def check_address(url: str) -> None:
    """Raise BadConfig if an address is not valid. The error shows no part of the address, which may hold a password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        raise BadConfig(f"the setting `db` is not a valid address; {FORM}.") from None
    ports = str(parts.get("port") or "0").split(",")
    if "@" in str(parts.get("host", "")) or not all(port.isdigit() for port in ports if port):
        raise BadConfig(f"the host or port in the setting `db` is not valid; {FORM}.")


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

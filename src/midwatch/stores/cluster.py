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
from midwatch.stores.rows import decode
from midwatch.stores.runner import VerbRunner
from midwatch.stores.sql import SUBSTITUTIONS

FORM = "write it as postgresql://user:password@host:5432/name, special characters of the password as %XX"


class Seen(NamedTuple):
    """A process as the database sees it."""

    heartbeat_age: float
    """Seconds since its last heartbeat."""
    leads: bool


class DatabaseClock(NamedTuple):
    """How the database's clock compares with this machine's."""

    ahead: float
    """Seconds by which the database's is ahead; negative when it is behind."""
    round_trip: float
    """Seconds that the question took: the comparison is no more exact than this."""


SEEN = """
SELECT instances.id, extract(epoch FROM clock_timestamp() - heartbeat)::float8,
  leader.instance IS NOT NULL AND leader.renewed > clock_timestamp() - make_interval(secs => %s)
FROM instances LEFT JOIN leader ON leader.instance = instances.id
"""
LIVING = f"""
SELECT {SUBSTITUTIONS["instance"]} FROM instances
WHERE heartbeat > clock_timestamp() - make_interval(secs => %s) ORDER BY started_at, id
"""  # noqa: S608 - names of our own record
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
DUE = "SELECT agent, count(*) FROM tasks WHERE status = 'pending' AND due_at <= %s GROUP BY agent"
DROP_JOBS = """
DELETE FROM procrastinate_jobs WHERE id IN (
  SELECT id FROM procrastinate_jobs
  WHERE queue_name = %(queue)s AND status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= now())
  ORDER BY id DESC OFFSET %(keep)s FOR UPDATE SKIP LOCKED
)
"""


async def list_processes(store: VerbRunner) -> dict[str, Seen]:
    """Return every process that made itself known, dead or alive, by its id."""

    def look(tx: PostgresTx) -> dict[str, Seen]:
        rows = tx.connection.execute(SEEN, (DEAD_SECONDS,))
        return {name: Seen(max(0.0, age), leads) for name, age, leads in rows}

    return await store.read(look)


async def read_clock(store: VerbRunner) -> DatabaseClock:
    """Compare the clocks, by the quickest of a few questions."""
    return min([await store.read(_compare_clocks) for _ in range(3)], key=lambda clock: clock.round_trip)


def _compare_clocks(tx: PostgresTx) -> DatabaseClock:
    before = time.time()
    row = tx.connection.execute(NOW).fetchone()
    after = time.time()
    assert row is not None
    return DatabaseClock(row[0] / SECOND - (before + after) / 2, after - before)


def check_address(url: str) -> None:
    """Raise BadConfig for a wrong address. The error shows no part of it, since its password may be anywhere."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        raise BadConfig(f"setting db: it cannot be read as an address; {FORM}.") from None
    ports = str(parts.get("port") or "0").split(",")
    if "@" in str(parts.get("host", "")) or not all(port.isdigit() for port in ports if port):
        raise BadConfig(f"setting db: its host and port make no sense; {FORM}.")


# -- verbs of `midwatch.engines.queue_upkeep.SharedStore` --------------------------------------------------------


def list_living(tx: PostgresTx) -> list[Instance]:
    return [decode(Instance, row) for row in tx.connection.execute(LIVING, (DEAD_SECONDS,))]


def count_due(tx: PostgresTx, now: int) -> dict[str, int]:
    return dict(tx.connection.execute(DUE, (now,)).fetchall())


def drop_jobs(tx: PostgresTx, queue: str, keep: int) -> int:
    return tx.connection.execute(DROP_JOBS, {"queue": queue, "keep": keep}).rowcount


def refresh_statistics(tx: PostgresTx, tables: Iterable[str]) -> None:
    for table in tables:
        tx.connection.execute(f'VACUUM ANALYZE "{table}"', prepare=False)

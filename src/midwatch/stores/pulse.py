"""Heartbeat, leases and leadership of a process on PostgreSQL, all by the database's clock.

They use a connection of their own, so that a busy event loop or pool does not make a living process look dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from midwatch.domain.changes import Fence
from midwatch.domain.instance import DEAD_SECONDS, Beat
from midwatch.stores.postgres import OURS, Connection, connect, explain

BEAT = """
UPDATE instances SET heartbeat = clock_timestamp()
FROM (SELECT id, heartbeat FROM instances WHERE id = %(id)s FOR UPDATE) AS before
WHERE instances.id = before.id
RETURNING before.heartbeat > clock_timestamp() - make_interval(secs => %(dead)s)
"""
LEAD = """
UPDATE leader SET instance = %(id)s, renewed = clock_timestamp()
WHERE instance = %(id)s OR instance IS NULL OR renewed < clock_timestamp() - make_interval(secs => %(dead)s)
RETURNING instance
"""
ALIVE = "SELECT id FROM instances WHERE heartbeat > clock_timestamp() - make_interval(secs => %(dead)s)"
LEASES = "SELECT id, attempt FROM tasks WHERE status = 'running' AND lease_owner = %(id)s"
FREE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %(ours)s AND state = 'active'
  AND wait_event = 'ClientRead' AND xact_start < clock_timestamp() - make_interval(secs => %(stopped)s)
"""
"""Ends the transaction of a process that was stopped between two statements: it may hold locks that all others need.
The server itself ends it only after it was asked for answers."""
STOPPED_SECONDS = 2.0


class PostgresPulse:
    """Implements `midwatch.domain.instance.Pulse` for one process."""

    def __init__(self, url: str, instance_id: str) -> None:
        self._url = url
        self._id = instance_id
        self._connection: Connection | None = None

    def beat(self) -> Beat:
        me = {"id": self._id, "dead": DEAD_SECONDS, "ours": OURS, "stopped": STOPPED_SECONDS}
        with self._connected() as connection:
            connection.execute(FREE, me)
            beaten, led, owned, living = (connection.execute(query, me) for query in (BEAT, LEAD, LEASES, ALIVE))
            return Beat(
                known=beaten.fetchone() == (True,),  # other processes may be about to take a late one for dead
                leases=frozenset(Fence(*row) for row in owned.fetchall()),
                leads=led.fetchone() is not None,
                alive=frozenset(row[0] for row in living.fetchall()),
            )

    def resign(self) -> None:
        with self._connected() as connection:
            connection.execute("UPDATE leader SET instance = NULL WHERE instance = %s", (self._id,))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            if self._connection is None:
                self._connection = connect(self._url)
                self._connection.execute("SET synchronous_commit = off")  # a heartbeat has no time to wait for the disk
            yield self._connection
        except psycopg.Error as problem:
            self.close()
            raise explain(problem, self._url) from problem

"""The pulse of a process on PostgreSQL: heartbeat, leases and leadership, all by the database's clock.

It has a connection of its own, so that neither a busy event loop nor a busy pool makes a living process look dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from midwatch.change import Fence
from midwatch.engine import DEAD_SECONDS, Beat
from midwatch.stores.postgres import ALIVE, Connection, connect, explain

BEAT = "UPDATE instances SET heartbeat = clock_timestamp() WHERE id = %(id)s RETURNING id"
LEAD = """
UPDATE leader SET instance = %(id)s, renewed = clock_timestamp()
WHERE instance = %(id)s OR instance IS NULL OR renewed < clock_timestamp() - make_interval(secs => %(dead)s)
RETURNING instance
"""
LEASES = "SELECT id, attempt FROM tasks WHERE status = 'running' AND lease_owner = %(id)s"


class PostgresPulse:
    """Implements `midwatch.engine.Pulse` for one process."""

    def __init__(self, url: str, instance_id: str) -> None:
        self._url = url
        self._id = instance_id
        self._connection: Connection | None = None

    def beat(self) -> Beat:
        me = {"id": self._id, "dead": DEAD_SECONDS}
        with self._connected() as connection:
            with connection.pipeline():
                beaten, led, owned, living = (connection.execute(said, me) for said in (BEAT, LEAD, LEASES, ALIVE))
            return Beat(
                known=beaten.fetchone() is not None,
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
            yield self._connection
        except psycopg.Error as problem:
            self.close()
            raise explain(problem, self._url) from problem

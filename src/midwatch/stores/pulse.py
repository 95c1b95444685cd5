"""Heartbeat, leases and leadership of a process on PostgreSQL, based on the database's clock.

The heartbeat has its own connection, so that a process with a busy event loop or busy threads does not seem dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from midwatch.domain.changes import Fence
from midwatch.domain.instance import DEAD_SECONDS, Beat
from midwatch.stores.postgres import OURS, connect, explain
from midwatch.stores.postgres_tx import Connection, PostgresTx, load_statements

STOPPED_SECONDS = 2.0


class PostgresPulse:
    """The heartbeat of one process. It implements `midwatch.domain.instance.Pulse`."""

    def __init__(self, url: str, instance_id: str) -> None:
        self._url = url
        self._id = instance_id
        self._statements = load_statements()
        self._connection: Connection | None = None

    def beat(self) -> Beat:
        me = {"id": self._id, "dead": DEAD_SECONDS}
        with self._connect() as tx:
            tx.row("cluster.end_stopped", {"application": OURS, "stopped": STOPPED_SECONDS})
            return Beat(
                known=tx.row("cluster.beat", me) == (True,),
                leads=tx.row("cluster.lead", me) is not None,
                leases=frozenset(Fence(*row) for row in tx.rows("cluster.leases", me)),
                alive=frozenset(row[0] for row in tx.rows("cluster.alive", me)),
            )

    def resign(self) -> None:
        with self._connect() as tx:
            tx.run("cluster.resign", {"id": self._id})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _connect(self) -> Iterator[PostgresTx]:
        try:
            if self._connection is None:
                self._connection = connect(self._url)
                self._connection.execute("SET synchronous_commit = off")  # a heartbeat does not wait for the disk
            yield PostgresTx(self._connection, self._statements)
        except psycopg.Error as problem:
            self.close()
            raise explain(problem, self._url) from problem

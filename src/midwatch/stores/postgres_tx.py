"""A transaction on PostgreSQL. It waits for the reply to a statement only if a verb needs the result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import psycopg

from midwatch.domain.event import Event
from midwatch.domain.task import OPEN, STATUSES
from midwatch.stores.rows import Row, decode_task, dump_payload, dumps, replace_nul
from midwatch.stores.sql import POSTGRES, load
from midwatch.stores.verbs.event import count_moves, list_ended
from midwatch.stores.verbs.tx import Params, Tx

Connection = psycopg.Connection[Row]
Due = tuple[str, int]
"""An agent, and the time from which one of its tasks may be claimed."""

CHANNEL = "midwatch"
CLAIM_LOCK = 7_305_001
CLAIM_STEP = 100
"""If the first tasks that a claim reads are not enough, it reads this many more at a time."""


def translate(statement: str) -> str:
    """Return a statement with its parameters in the format of psycopg."""
    return re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s", statement.replace("%", "%%")).replace("?", "%s")


def load_statements() -> dict[str, str]:
    """Return all statements by name.

    Transactions run concurrently, so some statements must lock the rows that they read.
    """
    statements = load(POSTGRES)
    statements["task.fenced"] += " FOR NO KEY UPDATE"
    statements["account.running"] += " FOR NO KEY UPDATE"
    statements["session.status"] += " FOR SHARE"  # a concurrent close waits, and then sees the new task
    statements["task.claim"] = statements["task.claim"].removesuffix(" AND status = 'pending'")  # it is locked
    body, order, by = statements["task.claimable"].partition("ORDER BY")
    after = "AND (rank, due_at, id) > (:rank, :due_at, :id)"
    statements["task.claimable"] = (
        f"{LISTED.sub(_compare_array, body)} {after} {order}{by} LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED"
    )
    statements["task.heads"] = f"{LISTED.sub(_compare_array, statements['task.heads'])} FOR NO KEY UPDATE SKIP LOCKED"
    return {name: translate(text) for name, text in statements.items()}


LISTED = re.compile(r"(NOT )?IN \((SELECT (?:jsonb_array_elements_text\(CAST\(:\w+ AS jsonb\)\)|head FROM heads))\)")


def _compare_array(match: re.Match[str]) -> str:
    """Return a comparison with an array instead of a subquery.

    With a subquery the planner would sort all pending tasks.
    """
    return f"{'<> ALL' if match[1] else '= ANY'} (ARRAY({match[2]}))"


FIRST = {"rank": -(2**31), "due_at": 0, "id": ""}
COLUMNS = tuple(name for name in Event._fields if name != "seq")
NUMBERS = frozenset({"time", "version", "attempt", "iteration"})
APPEND = f"""
WITH head AS (
  UPDATE event_head SET last_seq = last_seq + %(count)s, {", ".join(f"{s} = {s} + %({s})s" for s in STATUSES)}
  RETURNING last_seq
),
stored AS (
  INSERT INTO events (seq, {", ".join(COLUMNS)})
  SELECT head.last_seq - %(count)s + new.place, {", ".join(f"new.{name}" for name in COLUMNS)}
  FROM head, json_to_recordset(%(events)s)
    AS new (place BIGINT, {", ".join(f"{name} {'BIGINT' if name in NUMBERS else 'TEXT'}" for name in COLUMNS)})
)
SELECT last_seq, pg_notify(%(channel)s, %(note)s) FROM head
"""  # noqa: S608 - names of our own record
NOTIFY = "SELECT pg_notify(%s, %s)"


def _encode(events: list[Event]) -> str:
    """Return events as JSON for the statement `APPEND`."""
    rows = []
    for number, event in enumerate(events, 1):
        row = {name: replace_nul(value) for name, value in event._asdict().items() if value is not None}
        rows.append({**row, "place": number, "payload": dump_payload(event.payload)})
    return dump_payload(rows)


def clean(params: Params) -> Any:
    """Return the parameters with each NUL character replaced, because PostgreSQL cannot store it."""
    if isinstance(params, tuple):
        return tuple(map(replace_nul, params))
    return {name: replace_nul(value) for name, value in params.items()}


Hint = Callable[[Connection, list[Due]], None]


class PostgresTx(Tx):
    """An open transaction on PostgreSQL.

    The transaction sends statements without waiting for earlier replies. It waits for replies only if a verb needs a
    result, and at the commit.
    """

    def __init__(self, connection: Connection, statements: Mapping[str, str]) -> None:
        super().__init__(statements)
        self.connection = connection
        self.hints: list[Due] = []
        self.written = 0
        """Number of statements sent that may have changed data."""
        self.committing = False
        """Whether COMMIT may have been sent. If it was sent, only the database knows whether the commit succeeded."""
        self.pipeline: psycopg.Pipeline | None = None
        self._gates: list[psycopg.Cursor[Row]] = []
        self._ended_alone: set[str] = set()

    def rows(self, name: str, params: Mapping[str, Any]) -> Iterable[Row]:
        return self._claimable(params) if name == "task.claimable" else self._ask(name, params)

    def row(self, name: str, params: Mapping[str, Any]) -> Row | None:
        if name == "session.add_message":  # messages of one session get their numbers one after the other
            self._lock("hashtextextended(%s, 0)", params["session_key"])
        if name == "context_item.count_running":  # of two results, the second sees the first one's turn
            self._lock("hashtextextended(%s, 1)", params["key"])
        if name in ("session.add_message", "session.open", "steer.count") or name.startswith("context_item.count_"):
            self.written += 1
        return self._ask(name, params).fetchone()

    def run(self, name: str, params: Mapping[str, Any]) -> int:
        if name == "task.ask_to_yield":  # another transaction may be claiming the task that holds the gate
            self._lock("%s", CLAIM_LOCK)
        cursor = self._send(name, params)
        return self._count(cursor, self.statements[name])

    def run_many(self, name: str, params: Iterable[Params]) -> None:
        for values in params:
            self.written += 1
            self._send(name, values)

    def statement(self, sql: str, params: Params) -> int:
        query = translate(sql)
        if query.startswith("UPDATE tasks"):
            return self._update_task(query, params)
        return self._count(self.connection.execute(query, clean(params)), query)

    def hint(self, agent: str, due_at: int) -> None:
        self.hints.append((agent, due_at))

    def unblock(self, task_id: str) -> None:
        if task_id not in self._ended_alone:
            self._gates.append(self._send("cluster.unblocked", {"id": task_id}))

    def commit(self, sender: str, hint: Hint | None) -> psycopg.Cursor[Row] | None:
        """Send the hints, store the events with their numbers, notify other processes, commit.

        The last three statements are sent together, because all other transactions with events wait while the numbers
        are assigned. If there are events, the returned cursor contains the number of the last event.
        """
        self.committing = True
        if self._gates:
            self._wait()
            self.hints += [due for answer in self._gates for due in answer.fetchall()]
        if self.hints and hint is not None:
            hint(self.connection, self.hints)
        head, note = None, f"{sender} {','.join(sorted(self.topics))}"
        if self.events or self.moves:
            params = {"count": len(self.events), "events": _encode(self.events), "channel": CHANNEL, "note": note}
            head = self.connection.execute(APPEND, {**params, **count_moves(self.moves)})
            if ended := list_ended(self.moves):
                # after the head is locked, so that two transactions cannot wait for each other
                self._send("usage.add", {"ids": dumps(ended)})
        elif self.topics:
            self.connection.execute(NOTIFY, (CHANNEL, note))
        self.connection.execute("COMMIT")
        return head

    def _send(self, name: str, params: Params) -> psycopg.Cursor[Row]:
        return self.connection.execute(self.statements[name], clean(params))

    def _ask(self, name: str, params: Params) -> psycopg.Cursor[Row]:
        cursor = self._send(name, params)
        self._wait()
        return cursor

    def _wait(self) -> None:
        """Wait for all replies. Then the transaction is idle, and the server ends it if it stays idle too long."""
        if self.pipeline is not None:
            self.pipeline.sync()

    def _lock(self, number: str, value: object) -> None:
        self.connection.execute(f"SELECT pg_advisory_xact_lock({number})", (value,))

    def _count(self, cursor: psycopg.Cursor[Row], query: str) -> int:
        """Return how many rows a statement changed."""
        self.written += 1
        if query.startswith("INSERT"):  # no verb needs the number; a conflict is detected before the commit
            return 1
        self._wait()
        if cursor.rowcount == 0:
            self.written -= 1
        return cursor.rowcount

    def _update_task(self, query: str, params: Params) -> int:
        """Update a task, and return the number of changed rows.

        Remember a task that ended and had its own session and no reserved directory: no other task can wait for it.
        """
        cursor = self.connection.execute(f"{query} RETURNING id, status, gate_key, dir_key", clean(params))
        self._wait()
        rows = cursor.fetchall()
        for task_id, status, gate_key, dir_key in rows:
            if status not in OPEN and gate_key == f"bg:{task_id}" and dir_key is None:
                self._ended_alone.add(task_id)
        self.written += len(rows)
        return len(rows)

    def _claimable(self, params: Mapping[str, Any]) -> Iterator[Row]:
        """Yield the rows of the tasks that may be claimed, and lock these rows.

        Few rows are read at a time, because a claim rarely needs more tasks than it claims. Only one claim runs at a
        time, so that order, limits and gates are correct.
        """
        self._lock("%s", CLAIM_LOCK)
        after, limit = FIRST, min(params["free"], CLAIM_STEP)
        while True:
            rows = self._ask("task.claimable", {**params, **after, "limit": limit}).fetchall()
            yield from rows
            if len(rows) < limit:
                return
            last = decode_task(rows[-1][:-1])
            after, limit = {"rank": last.rank, "due_at": last.due_at, "id": last.id}, CLAIM_STEP

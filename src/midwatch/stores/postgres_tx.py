"""A transaction on PostgreSQL: the verbs' statements, sent without waiting where nobody needs the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import psycopg

from midwatch.domain.event import Event
from midwatch.domain.task import OPEN
from midwatch.stores.sql import POSTGRES, load, tell
from midwatch.stores.verbs import task
from midwatch.stores.verbs.tx import Params, Row

Connection = psycopg.Connection[Row]
Due = tuple[str, int]
"""An agent, and when a task of it may be taken."""

CHANNEL = "midwatch"
CLAIM_LOCK = 7_305_001
CLAIM_STEP = 100
"""Tasks a claim looks at, at a time, when the first ones were not enough."""


def translate(statement: str) -> str:
    """A statement as psycopg takes it."""
    return re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s", statement.replace("%", "%%")).replace("?", "%s")


def statements() -> dict[str, str]:
    """All statements; where transactions run side by side some have to lock what they look at."""
    found = load(POSTGRES)
    found["task.fenced"] += " FOR NO KEY UPDATE"
    found["session.status"] += " FOR SHARE"  # who closes it meanwhile waits, and then finds the new task
    found["task.claim"] = found["task.claim"].removesuffix(" AND status = 'pending'")  # it was locked when it was seen
    body, order, by = found["task.claimable"].partition("ORDER BY")
    after = "AND (rank, due_at, id) > (:rank, :due_at, :id)"
    found["task.claimable"] = (
        f"{LISTED.sub(_any_of, body)} {after} {order}{by} LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED"
    )
    found["task.heads"] = f"{LISTED.sub(_any_of, found['task.heads'])} FOR NO KEY UPDATE SKIP LOCKED"
    return {name: translate(text) for name, text in found.items()}


LISTED = re.compile(r"(NOT )?IN \((SELECT (?:jsonb_array_elements_text\(CAST\(:\w+ AS jsonb\)\)|head FROM heads))\)")


def _any_of(found: re.Match[str]) -> str:
    """A list is compared as an array: joined, the planner would sort all pending tasks first."""
    return f"{'<> ALL' if found[1] else '= ANY'} (ARRAY({found[2]}))"


UNBLOCKED = """
(SELECT agent, due_at FROM tasks
WHERE status = 'pending' AND gate_key = (SELECT gate_key FROM tasks WHERE id = %(id)s)
ORDER BY rank, due_at, id LIMIT 1)
UNION
SELECT agent, min(due_at) FROM tasks
WHERE status = 'pending' AND dir_key = (SELECT dir_key FROM tasks WHERE id = %(id)s)
GROUP BY agent
"""
"""What may be taken when a task has ended: the next in its gate, and somebody of each agent in its directory."""
FIRST = {"rank": -(2**31), "due_at": 0, "id": ""}
COLUMNS = tuple(name for name in Event._fields if name != "seq")
NUMBERS = frozenset({"time", "version", "attempt", "iteration"})
APPEND = f"""
WITH head AS (UPDATE event_head SET last_seq = last_seq + %(count)s RETURNING last_seq),
stored AS (
  INSERT INTO events (seq, {", ".join(COLUMNS)})
  SELECT head.last_seq - %(count)s + made.place, {", ".join(f"made.{name}" for name in COLUMNS)}
  FROM head, json_to_recordset(%(events)s)
    AS made (place BIGINT, {", ".join(f"{name} {'BIGINT' if name in NUMBERS else 'TEXT'}" for name in COLUMNS)})
)
SELECT last_seq, pg_notify(%(channel)s, %(said)s) FROM head
"""  # noqa: S608 - names of our own record
NOTIFY = "SELECT pg_notify(%s, %s)"


def _rows(events: list[Event]) -> str:
    """Events as APPEND takes them."""
    made = []
    for place, one in enumerate(events, 1):
        row = {name: _clean(value) for name, value in one._asdict().items() if value is not None}
        made.append({**row, "place": place, "payload": tell(one.payload)})
    return tell(made)


def clean(params: Params) -> Any:
    """Values as PostgreSQL takes them: its texts hold no NUL."""
    if isinstance(params, tuple):
        return tuple(_clean(value) for value in params)
    return {name: _clean(value) for name, value in params.items()}


def _clean(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value


Hint = Callable[[Connection, list[Due]], None]


class PostgresTx:
    """An open transaction. Statements are sent without waiting for the answers of those before them; what a verb
    asks for is waited for, and everything is when it commits."""

    def __init__(self, connection: Connection, known: Mapping[str, str]) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.topics: set[str] = set()
        self.hints: list[Due] = []
        """What the engine is to be told of."""
        self.written = 0
        """How many statements were sent that change something."""
        self.wanted = CLAIM_STEP
        """How many tasks a claim hopes for."""
        self.pipeline: psycopg.Pipeline | None = None
        self._statements = known
        self._gates: list[psycopg.Cursor[Row]] = []
        self._ended_alone: set[str] = set()

    def rows(self, name: str, params: Mapping[str, Any]) -> Iterable[Row]:
        return self._claimable(params) if name == "task.claimable" else self._ask(name, params)

    def row(self, name: str, params: Mapping[str, Any]) -> Row | None:
        if name == "session.say":  # numbers within a session are given one after the other
            self._lock("hashtextextended(%s, 0)", params["session_key"])
        if name in ("session.say", "session.open", "steer.count"):
            self.written += 1
        return self._ask(name, params).fetchone()

    def run(self, name: str, params: Mapping[str, Any]) -> int:
        if name == "task.ask_to_yield":  # the holder of the gate may be just about to be claimed
            self._lock("%s", CLAIM_LOCK)
        sent = self._send(name, params)
        if name == "task.claim":  # the row was locked when it was looked at
            self.written += 1
            return 1
        return self._touched(sent, self._statements[name])

    def run_many(self, name: str, params: Iterable[Params]) -> None:
        for one in params:
            self.written += 1
            self._send(name, one)

    def statement(self, sql: str, params: Params) -> int:
        said = translate(sql)
        if said.startswith("UPDATE tasks"):
            return self._update_task(said, params)
        return self._touched(self.connection.execute(said, clean(params)), said)

    def hint(self, agent: str, due_at: int) -> None:
        self.hints.append((agent, due_at))

    def unblocked(self, task_id: str) -> None:
        if task_id not in self._ended_alone:
            self._gates.append(self.connection.execute(UNBLOCKED, {"id": task_id}))

    def commit(self, sender: str, hint: Hint | None) -> psycopg.Cursor[Row] | None:
        """Defer the hints, number and store the events, tell the others, commit. From the numbers on in one go, for
        they lock everybody. The answer has the last number, if there are any."""
        if self._gates:
            self._wait()
            self.hints += [due for found in self._gates for due in found.fetchall()]
        if self.hints and hint is not None:
            hint(self.connection, self.hints)
        head, said = None, f"{sender} {','.join(sorted(self.topics))}"
        if self.events:
            told = {"count": len(self.events), "events": _rows(self.events), "channel": CHANNEL, "said": said}
            head = self.connection.execute(APPEND, told)
        elif self.topics:
            self.connection.execute(NOTIFY, (CHANNEL, said))
        self.connection.execute("COMMIT")
        return head

    def _send(self, name: str, params: Params) -> psycopg.Cursor[Row]:
        return self.connection.execute(self._statements[name], clean(params))

    def _ask(self, name: str, params: Params) -> psycopg.Cursor[Row]:
        sent = self._send(name, params)
        self._wait()
        return sent

    def _wait(self) -> None:
        """For all answers. It leaves the transaction idle in the eyes of the server, which ends one that stays so."""
        if self.pipeline is not None:
            self.pipeline.sync()

    def _lock(self, number: str, value: object) -> None:
        self.connection.execute(f"SELECT pg_advisory_xact_lock({number})", (value,))

    def _touched(self, sent: psycopg.Cursor[Row], said: str) -> int:
        self.written += 1
        if said.startswith("INSERT"):  # nobody asks how many; a conflict is heard of before the commit
            return 1
        self._wait()
        if sent.rowcount == 0:
            self.written -= 1
        return sent.rowcount

    def _update_task(self, said: str, params: Params) -> int:
        """Notes whether a task has ended that nothing can have waited for: a private session is its gate alone, and it
        had no directory for itself."""
        sent = self.connection.execute(f"{said} RETURNING gate_key, dir_key", clean(params))
        self._wait()
        found = sent.fetchall()
        assert isinstance(params, Mapping)
        if params.get("status", "pending") not in OPEN and found == [(f"bg:{params['id']}", None)]:
            self._ended_alone.add(params["id"])
        self.written += len(found)
        return len(found)

    def _claimable(self, params: Mapping[str, Any]) -> Iterator[Row]:
        """Rows as they are needed, locked: a claim seldom looks at more than it takes. Claims go one after the other,
        so that order, limits and gates are right."""
        self._lock("%s", CLAIM_LOCK)
        known, after, limit = task.task_of, FIRST, min(self.wanted, CLAIM_STEP)
        while True:
            found = self._ask("task.claimable", {**params, **after, "limit": limit}).fetchall()
            yield from found
            if len(found) < limit:
                return
            last = known(found[-1][:-1])
            after, limit = {"rank": last.rank, "due_at": last.due_at, "id": last.id}, CLAIM_STEP

"""Measure a bare sqlite3 loop: `python -m benchmarks.bare ROWS DIRECTORY COUNT` prints its figures as JSON.

It writes groups of 64 tasks with three commits each (submit, claim, finish) and five events per task, and uses nothing
but the database: no event loop, no threads, no objects, no rules. ROWS selects the rows:

same   the rows midwatch writes, in its schema: one real task is run, and its rows are copied with new ids
least  the narrowest rows that could still run a queue, in a schema of their own
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import CHUNKS, least_cpu_us
from benchmarks.ours import PROMPT, drive, up
from midwatch.stores.sqlite import open_database

GROUP = 64
WARM_UP = 4
CLAIMED = ("status", "attempt", "lease_owner", "host", "started_at", "token_hash")
ENDED = ("status", "outcome", "result", "completed_at", "usage", "lease_owner")
STEPS = (("task_submitted",), ("task_started",), ("turn_start", "turn_end", "task_finished"))
"""The events of each of the three steps."""

LEAST_SCHEMA = """
CREATE TABLE tasks (
  id TEXT PRIMARY KEY, gate_key TEXT, status TEXT, prompt TEXT, agent TEXT, rank INTEGER, due_at INTEGER,
  attempt INTEGER, lease_owner TEXT, started_at INTEGER, completed_at INTEGER, outcome TEXT, result TEXT
);
CREATE INDEX tasks_claim ON tasks (rank, due_at, id) WHERE status = 'pending';
CREATE UNIQUE INDEX tasks_gate ON tasks (gate_key) WHERE status = 'running';
CREATE TABLE events (seq INTEGER PRIMARY KEY, id TEXT, task_id TEXT, kind TEXT, time INTEGER, payload TEXT);
CREATE INDEX events_task ON events (task_id);
CREATE TABLE event_head (last_seq INTEGER);
INSERT INTO event_head VALUES (0);
"""

Values = dict[str, object]


class Rows(NamedTuple):
    """The row of an ended task and its events by kind, to be copied, and an empty database for the copies."""

    task: Values
    events: dict[str, Values]
    connection: sqlite3.Connection


def same(folder: Path) -> Rows:
    """Return the rows of a real task."""

    async def one_task() -> Path:
        async with up(str(folder / "home")) as desk:
            await drive(desk, 1, 1)
            return desk.home.database

    source = sqlite3.connect(asyncio.run(one_task()))
    source.row_factory = sqlite3.Row
    task: Values = dict(source.execute("SELECT * FROM tasks").fetchone())
    events = {row["kind"]: dict(row) for row in source.execute("SELECT * FROM events")}
    source.close()
    return Rows(task, events, open_database(str(folder / "bare.db")))


def least(folder: Path) -> Rows:
    """Return the narrowest possible rows."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(LEAST_SCHEMA)
    now = time.time_ns() // 1000
    task: Values = {
        "id": "", "gate_key": "", "status": "done", "prompt": PROMPT, "agent": "noop", "rank": 0, "due_at": now,
        "attempt": 1, "lease_owner": "bare", "started_at": now, "completed_at": now, "outcome": "ok", "result": "ok",
    }  # fmt: skip
    event = {"seq": 0, "id": "", "task_id": "", "time": now, "payload": '{"agent":"noop"}'}
    return Rows(task, {kind: {**event, "kind": kind} for step in STEPS for kind in step}, connection)


class Bare:
    """The loop."""

    def __init__(self, rows: Rows) -> None:
        self.connection = rows.connection
        self.made = 0
        self.seq = 0
        later = dict.fromkeys(name for name in (*CLAIMED, *ENDED) if name in rows.task)
        fresh = {**rows.task, **later, "status": "pending", "attempt": 0}
        self.task = _get_common_values(fresh, ("id", "gate_key"))
        self.insert_task = _insert("tasks", fresh, ("id", "gate_key"))
        self.events = {kind: _get_common_values(row, ("seq", "id", "task_id")) for kind, row in rows.events.items()}
        self.insert_event = _insert("events", next(iter(rows.events.values())), ("seq", "id", "task_id"))
        self.claim, self.claimed = _update({**rows.task, "status": "running"}, CLAIMED, "pending")
        self.end, self.ended = _update({**rows.task, "lease_owner": None}, ENDED, "running")

    def run(self, groups: int) -> None:
        """Run so many groups from submit to done."""
        for _ in range(groups):
            for step, kinds in zip((self._submit, self._claim, self._finish), STEPS, strict=True):
                self.connection.execute("BEGIN IMMEDIATE")
                self._add_events(step(), kinds)
                self.connection.execute("COMMIT")

    def _submit(self) -> list[str]:
        ids = [f"t_{self.made + number:023x}" for number in range(GROUP)]
        self.made += GROUP
        self.connection.executemany(self.insert_task, [(task_id, f"bg:{task_id}", *self.task) for task_id in ids])
        return ids

    def _claim(self) -> list[str]:
        rows = self.connection.execute(
            "SELECT id FROM tasks WHERE status = 'pending' ORDER BY rank, due_at, id LIMIT ?", (GROUP,)
        )
        self.ids = [row[0] for row in rows.fetchall()]
        self.connection.executemany(self.claim, [(*self.claimed, task_id) for task_id in self.ids])
        return self.ids

    def _finish(self) -> list[str]:
        self.connection.executemany(self.end, [(*self.ended, task_id) for task_id in self.ids])
        return self.ids

    def _add_events(self, ids: list[str], kinds: tuple[str, ...]) -> None:
        written = []
        for task_id in ids:
            for kind in kinds:
                self.seq += 1
                written.append((self.seq, f"e_{self.seq:023x}", task_id, *self.events[kind]))
        self.connection.executemany(self.insert_event, written)
        self.connection.execute("UPDATE event_head SET last_seq = ?", (self.seq,))


def _get_common_values(row: Values, first: tuple[str, ...]) -> tuple[object, ...]:
    """Return the values of a row without those that differ in every copy."""
    return tuple(value for name, value in row.items() if name not in first)


def _insert(table: str, row: Values, first: tuple[str, ...]) -> str:
    names = [*first, *(name for name in row if name not in first)]
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def _update(row: Values, columns: tuple[str, ...], before: str) -> tuple[str, tuple[object, ...]]:
    names = [name for name in columns if name in row]
    changes = ", ".join(f"{name} = ?" for name in names)
    return f"UPDATE tasks SET {changes} WHERE status = '{before}' AND id = ?", tuple(row[name] for name in names)


def bare(rows: Rows, count: int) -> dict[str, object]:
    """Return the tasks per second of the bare loop."""
    loop, groups = Bare(rows), count // GROUP
    loop.run(WARM_UP)
    began, marks, step = time.perf_counter(), [time.process_time()], max(1, groups // CHUNKS)
    for first in range(0, groups, step):
        loop.run(min(step, groups - first))
        if first + step <= groups:
            marks.append(time.process_time())
    wall = time.perf_counter() - began
    done = loop.connection.execute("SELECT count(*) FROM tasks WHERE status = 'done'").fetchone()[0]
    if done != (groups + WARM_UP) * GROUP:
        raise RuntimeError(f"{done} tasks are done, not {(groups + WARM_UP) * GROUP}")
    synchronous = loop.connection.execute("PRAGMA synchronous").fetchone()[0]
    events = loop.connection.execute("SELECT count(*) FROM events").fetchone()[0] / done
    loop.connection.close()
    return {
        "tasks_per_s": groups * GROUP / wall, "synchronous": synchronous, "events_per_task": events,
        "cpu_us_per_task": least_cpu_us(marks, step * GROUP),
    }  # fmt: skip


def main() -> None:
    which, folder, count = sys.argv[1:]
    rows = {"same": same, "least": least}[which](Path(folder))
    print(json.dumps(bare(rows, int(count))))


if __name__ == "__main__":
    main()

"""No statement of a store reads or sorts a whole table that grows with use.

Both tests read how the database would run each statement. On SQLite, "SCAN" reads a whole table or a whole index, and
"TEMP B-TREE FOR ORDER BY" sorts. PostgreSQL chooses by the sizes of the tables, so its test fills and analyses the
tables first, and uses the settings of the store, which forbid sequential scans: then a statement that no index serves
shows as a scan of an index without a condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psycopg

from midwatch.stores.postgres import connect, prepare
from midwatch.stores.postgres_tx import load_statements
from midwatch.stores.sql import INSERT_TASK, PATHS, SQLITE, load
from midwatch.stores.sqlite import MEMORY, open_database

GROWING = frozenset({
    "accounts", "alerts", "approvals", "automations", "context_items", "deliveries", "events", "goals", "handoffs",
    "messages", "rules", "sessions", "steers", "steps", "tasks", "tokens", "usage_sums", "worktrees",
})  # fmt: skip
SMALL = frozenset({
    "tasks_claim", "tasks_actor", "tasks_later", "tasks_gate", "tasks_directory", "tasks_queue", "tasks_waiting",
    "tasks_waiting_directory", "tasks_behind", "tasks_behind_directory", "alerts_open", "automations_paused",
    "goals_paused", "automations_due", "tasks_cause_open",
    "goals_open", "goals_deadline", "goals_session", "handoffs_open",
    "approvals_open", "deliveries_due", "sessions_live", "tasks_taking", "accounts_asking",
})  # fmt: skip
"""Indexes of open records only. Reading a whole one is as much work as there is open work."""

IN_ORDER = "reads an index in the order of the list, and stops at its limit"
FEW_OF_A_TASK = "sorts the few records of one task"
OPEN_ONLY = "reads or sorts only open records"
ALLOWED: Mapping[str, str] = {
    "trigger.late": "it sorts the automations with firings that wait too long",
    "account.recent": IN_ORDER,
    "account.prune_days": "days are few; reads the accounts before a time",
    "alert.behind_directories": OPEN_ONLY,
    "alert.behind_sessions": OPEN_ONLY,
    "alert.oldest_late": OPEN_ONLY,
    "alert.open": OPEN_ONLY,
    "alert.paused_automations": OPEN_ONLY,
    "alert.paused_goals": OPEN_ONLY,
    "alert.unanswered": OPEN_ONLY,
    "alert.undelivered": IN_ORDER,
    "approval.list": IN_ORDER,
    "approval.list_task": FEW_OF_A_TASK,
    "approval.overdue": OPEN_ONLY,
    "approval.pending_of": FEW_OF_A_TASK,
    "automation.list": IN_ORDER,
    "automation.due": OPEN_ONLY,
    "channel.list": IN_ORDER,
    "channel.list_task": FEW_OF_A_TASK,
    "channel.due": OPEN_ONLY,
    "engine.list": "sorts the few processes",
    "goal.due": OPEN_ONLY,
    "goal.list": IN_ORDER,
    "handoff.list_root": "sorts the handoffs of one root task",
    "handoff.end_root": "sorts the handoffs of one root task",
    "rule.list": "people write rules one by one; " + IN_ORDER,
    "session.list": IN_ORDER,
    "session.queue": OPEN_ONLY,
    "step.of_task": FEW_OF_A_TASK,
    "step.of_tries": FEW_OF_A_TASK,
    "step.of_thread": "sorts the steps of one conversation",
    "task.failed": "sorts at most 1000 tasks",
    "task.heads": OPEN_ONLY,
    "task.list_open": OPEN_ONLY,
    "task.prunable": IN_ORDER,
    "task.end_open": OPEN_ONLY,
    "token.get": "sorts at most two tokens",
    "token.list": IN_ORDER,
    "token.prune": "the tokens that have ended are removed every hour",
    "cluster.unblocked": OPEN_ONLY,
}

BY: Mapping[str, str] = {
    "session.list": "tasks_queue",
    "session.list_before": "tasks_queue",
    "session.live_work": "tasks_queue",
    "session.view": "tasks_queue",
    "task.prunable": "tasks_returning",
}
"""Statements that must use an index of open records, although an index of all records serves them, too."""


def test_sqlite_scans_and_sorts_no_growing_table() -> None:
    problems = {}
    with closing(open_database(MEMORY)) as connection:
        for name, statement in list_statements(load(SQLITE)):
            params: Any = dict.fromkeys(re.findall(r":(\w+)", statement)) or (None,) * statement.count("?")
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", params)]
            problems[name] = [step for step in steps if is_unbounded(step)]
            if name in BY and not any(f"INDEX {BY[name]} " in step for step in steps):
                problems[name].append(f"does not use {BY[name]}")
    report(problems)


def is_unbounded(step: str) -> bool:
    """Return whether a step of a plan of SQLite reads a whole table or index that grows, or sorts."""
    if step.startswith("USE TEMP B-TREE"):
        return "ORDER BY" in step
    scan = re.match(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?", step)
    return scan is not None and scan[1] in GROWING and scan[2] not in SMALL


def test_postgres_scans_and_sorts_no_growing_table(database: str) -> None:
    prepare(database)
    problems = {}
    with connect(database) as connection:
        for table in sorted(GROWING):
            fill(connection, table)
        connection.execute("ANALYZE")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        for name, statement in list_statements(load_statements()):
            if "procrastinate" in statement or " VALUES (" in statement:
                continue  # a table that only exists with this engine, or an insert of one row, which reads nothing
            plan = explain(connection, statement)
            problems[name] = [*find_unbounded(plan), *find_missing(plan, name)]
    report(problems)


def explain(connection: psycopg.Connection[Any], statement: str) -> Mapping[str, Any]:
    """Return the plan of PostgreSQL for a statement with any parameters."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
    nothing = f"({', '.join('NULL' for _ in names)})" if names else ""
    connection.execute(f"PREPARE explained AS {text}".encode(), prepare=False)
    row = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE explained {nothing}".encode(), prepare=False).fetchone()
    connection.execute("DEALLOCATE explained", prepare=False)
    assert row is not None
    plan: Mapping[str, Any] = row[0][0]["Plan"]
    return plan


def find_unbounded(node: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the nodes of a plan of PostgreSQL that read a whole table or index that grows, or sort its rows.

    A node below a limit that takes every row stops at the limit.
    """
    kind, table, index = node["Node Type"], node.get("Relation Name"), node.get("Index Name")
    reads_all = kind == "Seq Scan" or (kind in ("Index Scan", "Index Only Scan") and "Index Cond" not in node)
    stops = parent == "Limit" and kind != "Seq Scan" and "Filter" not in node
    if reads_all and not stops and table in GROWING and index not in SMALL:
        yield f"{kind} of {table} {index or ''}"
    if kind in ("Sort", "Incremental Sort") and any(part.get("Relation Name") in GROWING for part in walk(node)):
        yield f"{kind} by {node['Sort Key']}"
    for part in node.get("Plans", ()):
        yield from find_unbounded(part, kind)


def find_missing(plan: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the index that a statement must use, if the plan does not use it. For lists, SQLite is told to use it."""
    noun, _, rest = name.partition(".")
    path = PATHS.get(noun, {}).get(rest.rpartition("_")[2])
    index = BY.get(name) or (path.by if path is not None else "")
    if index and all(node.get("Index Name") != index for node in walk(plan)):
        yield f"does not use {index}"


def walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for part in node.get("Plans", ()):
        yield from walk(part)


def list_statements(statements: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the statements that a database can run by themselves. Those for PostgreSQL only need its syntax."""
    for name, statement in statements.items():
        is_shared = not name.startswith("cluster.") or "%(" in statement
        if not name.startswith("part.") and is_shared and statement != INSERT_TASK:
            yield name, statement


def fill(connection: psycopg.Connection[Any], table: str) -> None:
    """Add 5000 rows to a table. One row in a hundred is open."""
    columns = connection.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s", (table,)
    ).fetchall()
    states = {
        "tasks": ("done", "pending"), "approvals": ("granted", "pending"), "deliveries": ("sent", "pending"),
        "goals": ("complete", "active"), "handoffs": ("completed", "pending"), "automations": ("active", "paused"),
        "sessions": ("idle", "closed"), "steers": ("injected", "queued"), "worktrees": ("removed", "kept"),
        "context_items": ("taken", "queued"), "alerts": ("withdrawn", "raised"),
    }  # fmt: skip
    fixed = {
        "on_crash": "'fail'", "scope_kind": "'user'", "manage_mode": "'scope_all'", "mode": "'stop'",
        "form": "'delegate'", "effect": "'allow'", "role": "'owner'",
        "completed_at": "CASE WHEN g % 100 > 0 THEN g END", "level": "g % 4", "live_owner": "NULL", "usage": "NULL",
        "wake": "g % 2",
    }  # fmt: skip
    if table in states:
        fixed["status"] = f"CASE WHEN g % 100 > 0 THEN '{states[table][0]}' ELSE '{states[table][1]}' END"
    if table == "tokens":
        fixed["kind"] = "'api'"
    values = [fixed.get(name, "'x' || g" if kind == "text" else "g") for name, kind in columns]
    names = ", ".join(name for name, _ in columns)
    connection.execute(
        f"INSERT INTO {table} ({names}) SELECT {', '.join(values)} FROM generate_series(1, 5000) AS g".encode()
    )


def report(problems: Mapping[str, list[str]]) -> None:
    """Fail if a statement has a problem and is not in the list of exceptions, or does not use its index of `BY`."""
    assert not {name: steps for name, steps in problems.items() if steps and name not in ALLOWED}
    assert not {name: steps for name, steps in problems.items() if f"does not use {BY.get(name)}" in steps}
    assert not [name for name in ALLOWED if name not in problems and not name.startswith("cluster.")]

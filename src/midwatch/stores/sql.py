"""The statements: read once from `queries/*.sql`, and the inserts and guarded updates built from the records.

A query file holds named statements: a comment line `-- name: purpose` and the statement below it. Parameters are
written `:name`; `{task}` and the like stand for the columns of that record, `{list:x}` for the rows of a JSON list,
`{number:x.y}` and `{text:x.y}` for what is called y in the JSON object of column x.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import orjson

from midwatch.base.errors import InvalidInput
from midwatch.domain.approval import Approval
from midwatch.domain.automation import Automation
from midwatch.domain.channel import Delivery
from midwatch.domain.event import Event
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import Handoff
from midwatch.domain.identity import Token
from midwatch.domain.instance import Instance
from midwatch.domain.rule import Rule
from midwatch.domain.session import Message, Session
from midwatch.domain.steering import Steer
from midwatch.domain.task import Task
from midwatch.domain.turn_steps import Step
from midwatch.domain.worktree import Worktree

NOUNS = (
    "task", "event", "session", "channel", "approval", "token", "engine", "automation", "goal", "alert", "worktree",
    "rule", "step", "steer", "handoff",
)  # fmt: skip
TABLES = {
    "task": "tasks",
    "approval": "approvals",
    "rule": "rules",
    "delivery": "deliveries",
    "session": "sessions",
    "token": "tokens",
    "automation": "automations",
    "goal": "goals",
    "instance": "instances",
    "worktree": "worktrees",
    "step": "steps",
    "steer": "steers",
    "handoff": "handoffs",
}
JSON_COLUMNS = frozenset(
    {"progress", "budget", "usage", "trace", "worktree", "choices", "agents", "terms", "schedule", "tags"}
    | {"paths", "always", "approvals", "data", "request", "context", "chain", "refusals", "tries", "late"}
)

EVENT_COLUMNS = Event._fields
DEEPEST = 50
TASK_JSON = 5
"""The last fields of a task are JSON."""


def columns(record: type) -> tuple[str, ...]:
    """The stored fields of a record, in order."""
    if issubclass(record, tuple):
        return tuple(record._fields)  # type: ignore[attr-defined]  # a NamedTuple
    return tuple(f.name for f in fields(record))  # type: ignore[arg-type]  # a dataclass


RECORDS: Mapping[str, tuple[str, ...]] = {
    "task": columns(Task),
    "session": columns(Session),
    "message": columns(Message),
    "delivery": columns(Delivery),
    "approval": columns(Approval),
    "rule": columns(Rule),
    "token": columns(Token),
    "automation": columns(Automation),
    "goal": columns(Goal),
    "instance": columns(Instance),
    "worktree": columns(Worktree),
    "step": columns(Step),
    "steer": columns(Steer),
    "handoff": columns(Handoff),
}


NOT_LIVE_ELSEWHERE = """NOT EXISTS (
    SELECT 1 FROM sessions JOIN instances ON instances.id = sessions.live_owner
    WHERE sessions.key = tasks.session_key AND sessions.live_owner <> :owner
  )"""
"""Whether the claiming process may take a task: its session's conversation is not open in another one that lives."""

DIRECTORY_FREE = """(dir_key IS NULL OR dir_key NOT IN (
    SELECT busy.dir_key FROM tasks busy WHERE busy.status = 'running' AND busy.dir_key IS NOT NULL
  ))"""
"""Whether nobody has the directory for itself that a task would. Those that are taken are looked for once."""


EVENT_FILTER = """(CAST(:any_kind AS BOOLEAN) OR kind IN {list:kinds} OR EXISTS (
    SELECT 1 FROM {list:beginnings} AS wanted WHERE substr(kind, 1, length(wanted.value)) = wanted.value
  ))
  AND (CAST(:turn_id AS TEXT) IS NULL OR turn_id = :turn_id)
  AND (CAST(:session_key AS TEXT) IS NULL OR session_key = :session_key)
  AND (CAST(:agent_id AS TEXT) IS NULL OR agent_id = :agent_id)
  AND (CAST(:actor AS TEXT) IS NULL OR actor = :actor)"""
"""What an `EventFilter` asks for, but for the task."""


def _substitutions() -> dict[str, str]:
    made = {"event": ", ".join(EVENT_COLUMNS)}
    made["event_marks"] = ", ".join("?" for _ in EVENT_COLUMNS)
    for name, cols in RECORDS.items():
        made[name] = ", ".join(cols)
        made[f"{name}_params"] = ", ".join(f":{col}" for col in cols)
    made["event_filter"] = EVENT_FILTER
    made["not_live_elsewhere"] = NOT_LIVE_ELSEWHERE
    made["directory_free"] = DIRECTORY_FREE
    return made


SUBSTITUTIONS = _substitutions()


class Dialect(NamedTuple):
    """Where databases differ: how a JSON list of texts becomes rows, how an index is insisted on, and what stands in a
    JSON object, as a number if it is one, or as a text."""

    rows_of: str
    by_index: str
    number: str
    text: str


SQLITE = Dialect(
    "(SELECT value FROM json_each(:{}))",
    "INDEXED BY {}",
    "CASE WHEN json_type({0}, '$.{1}') IN ('integer', 'real') THEN CAST(json_extract({0}, '$.{1}') AS REAL) END",
    "CASE WHEN json_type({0}, '$.{1}') = 'text' THEN json_extract({0}, '$.{1}') END",
)
POSTGRES = Dialect(
    "(SELECT value FROM jsonb_array_elements_text(CAST(:{} AS jsonb)))",
    "",
    # its texts cannot hold a NUL, which JSON can
    "CASE WHEN position('\\u0000' IN {0}) = 0 AND json_typeof(CAST({0} AS json) -> '{1}') = 'number' "
    "THEN CAST(CAST({0} AS json) ->> '{1}' AS DOUBLE PRECISION) END",
    "CASE WHEN position('\\u0000' IN {0}) = 0 AND json_typeof(CAST({0} AS json) -> '{1}') = 'string' "
    "THEN CAST({0} AS json) ->> '{1}' END",
)


def load(dialect: Dialect) -> dict[str, str]:
    """All statements by `noun.name`."""
    found: dict[str, str] = {}
    for noun in NOUNS:
        text = resources.files("midwatch.stores").joinpath("queries", f"{noun}.sql").read_text()
        for block in re.split(r"^-- (?=\w+: )", text, flags=re.M)[1:]:
            head, _, statement = block.partition("\n")
            name = head.partition(":")[0]
            found[f"{noun}.{name}"] = _filled(statement, dialect)
    return found


def _filled(statement: str, dialect: Dialect) -> str:
    """The statement with `{task}` and the like replaced by columns, `{list:x}` and its kin by the dialect's words."""
    text = re.sub(r"\{(\w+)\}", lambda m: SUBSTITUTIONS[m[1]], statement.strip())
    text = re.sub(r"\{list:(\w+)\}", lambda m: dialect.rows_of.format(m[1]), text)
    text = re.sub(r"\{number:(\w+)\.(\w+)\}", lambda m: dialect.number.format(m[1], m[2]), text)
    text = re.sub(r"\{text:(\w+)\.(\w+)\}", lambda m: dialect.text.format(m[1], m[2]), text)
    return re.sub(r"\{by:(\w+)\}", lambda m: dialect.by_index.format(m[1]), text)


def _insert_task() -> str:
    cols = (*RECORDS["task"], "rank")
    return f"INSERT INTO tasks ({', '.join(cols)}) VALUES ({', '.join('?' for _ in cols)})"  # noqa: S608


INSERT_TASK = _insert_task()
"""By position: tasks and events are written often enough for names to cost."""


@cache
def insert_statement(noun: str) -> str:
    """Insert a whole record."""
    cols = RECORDS[noun]
    return f"INSERT INTO {TABLES[noun]} ({', '.join(cols)}) VALUES ({', '.join(f':{c}' for c in cols)})"  # noqa: S608


@cache
def update_statement(noun: str, changed: tuple[str, ...], guarded: tuple[tuple[str, bool], ...]) -> str:
    """Set some columns of one record where the guarded ones hold; each guard is (column, is null)."""
    known = RECORDS[noun]
    assert all(name in known for name in (*changed, *(name for name, _ in guarded))), (noun, changed, guarded)
    sets = ", ".join(f"{name} = :{name}" for name in changed)
    tests = "".join(f" AND {name} IS NULL" if null else f" AND {name} = :guard_{name}" for name, null in guarded)
    return f"UPDATE {TABLES[noun]} SET {sets} WHERE id = :id{tests}"  # noqa: S608 - names checked above, values bound


def dumps(value: Any) -> str:
    """JSON text of a value, or InvalidInput."""
    try:
        return orjson.dumps(value, default=_plain).decode()
    except TypeError as problem:
        raise InvalidInput(f"this cannot be kept as JSON: {problem}.") from None


def tell(payload: Any) -> str:
    """JSON text of what an event tells. It is told in any case: what JSON cannot say is told as text."""
    try:
        return orjson.dumps(payload, default=_plain).decode()
    except Exception:
        return orjson.dumps(_told(payload)).decode()


def _told(value: Any, depth: int = 0) -> Any:
    """The value in what JSON can say for certain; what is nested too deeply, or is no data, as text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {_text(name): _told(one, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple) and depth < DEEPEST:
        return [_told(one, depth + 1) for one in value]
    return _text(value)


def _text(value: Any) -> str:
    try:
        said = value if isinstance(value, str) else repr(value)
    except Exception:
        said = f"<{type(value).__name__}>"
    return said.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | Sequence):
        return list(value)
    return str(value)


def task_row(task: Task) -> tuple[Any, ...]:
    """The values of INSERT_TASK."""
    tail = (value if value is None else dumps(value) for value in task[-TASK_JSON:])
    return (*task[:-TASK_JSON], *tail, task.rank)


def encode(values: Mapping[str, Any]) -> dict[str, Any]:
    """A record's fields as the database takes them."""
    return {name: _column(name, value) for name, value in values.items()}


def _column(name: str, value: Any) -> Any:
    if isinstance(value, bool) and name != "progress":  # which is an agent's own, and may be anything
        return int(value)
    # A person's answer is a text, a handoff's an object: what is an object is JSON, whatever it is called.
    return dumps(value) if value is not None and (name in JSON_COLUMNS or isinstance(value, Mapping)) else value


loads = orjson.loads

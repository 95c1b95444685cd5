"""SQL statements: those in `queries/*.sql`, and the inserts and guarded updates that this module builds.

A query file contains named statements: a comment line `-- name: purpose`, and the statement below it. A parameter is
written `:name`. These words in braces are replaced:

- `{task}` and the names of other records: the columns of the record
- any other name: the statement with this name in `part.sql`
- `{list:x}`: a subquery that returns the items of the JSON list in the parameter x
- `{pieces:x}`: a subquery that returns the pieces of a period (`verbs/usage.py`) in the JSON list of the parameter x
- `{number:x.y}` and `{text:x.y}`: the member y of the JSON object in column x
- `{object:x.y}`: the member y of the JSON object in column x as JSON text, if this member is an object
- `{by:x}`: a hint that SQLite must use the index x
- `{among:x}`: a comparison with the rows of the statement x in `part.sql`
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from itertools import product
from typing import NamedTuple

from midwatch.base.errors import SchemaTooNew
from midwatch.domain.event import Event
from midwatch.stores.rows import COLUMNS, RECORDS

COLUMNS_OF = {noun: COLUMNS[record] for noun, record in RECORDS.items()}
TABLES = {noun: f"{noun}s" for noun in RECORDS} | {"delivery": "deliveries"}

SUBSTITUTIONS = {
    "event": ", ".join(Event._fields),
    "event_marks": ", ".join("?" for _ in Event._fields),
    **{noun: ", ".join(names) for noun, names in COLUMNS_OF.items()},
    **{f"{noun}_params": ", ".join(f":{name}" for name in names) for noun, names in COLUMNS_OF.items()},
}


Dialect = Mapping[str, str]
"""The replacements of `{list:x}` and the other words with a colon for one kind of database."""

SQLITE: Dialect = {
    "list": "(SELECT value FROM json_each(:{}))",
    "pieces": "(SELECT json_extract(value, '$[0]') AS day, json_extract(value, '$[1]') AS level, "
    "json_extract(value, '$[2]') AS first, json_extract(value, '$[3]') AS last FROM json_each(:{}))",
    "by": "INDEXED BY {}",
    "among": "IN ({{{}}})",
    "number": "CASE WHEN json_type({0}, '$.{1}') IN ('integer', 'real') "
    "AND abs(CAST(json_extract({0}, '$.{1}') AS REAL)) < 1e150 "  # abs of the lowest integer is an error
    "THEN CAST(json_extract({0}, '$.{1}') AS REAL) END",
    "object": "CASE WHEN json_type({0}, '$.{1}') = 'object' THEN json_extract({0}, '$.{1}') END",
    "text": "CASE WHEN json_type({0}, '$.{1}') = 'text' THEN json_extract({0}, '$.{1}') END",
}
POSTGRES: Dialect = {
    "list": "(SELECT value FROM jsonb_array_elements_text(CAST(:{} AS jsonb)))",
    "pieces": "(SELECT CAST(value ->> 0 AS BIGINT) AS day, CAST(value ->> 1 AS BIGINT) AS level, "
    "CAST(value ->> 2 AS BIGINT) AS first, CAST(value ->> 3 AS BIGINT) AS last "
    "FROM jsonb_array_elements(CAST(:{} AS jsonb)))",
    "by": "",
    "among": "= ANY (ARRAY({{{}}}))",  # with a subquery the planner may read a whole table in the order of the result
    # a text of PostgreSQL cannot contain NUL, but JSON can
    "number": "CASE WHEN position('\\u0000' IN {0}) = 0 AND json_typeof(CAST({0} AS json) -> '{1}') = 'number' "
    "AND abs(CAST(CAST({0} AS json) ->> '{1}' AS DOUBLE PRECISION)) < 1e150 "
    "THEN CAST(CAST({0} AS json) ->> '{1}' AS DOUBLE PRECISION) END",
    "object": "CASE WHEN json_typeof(CAST(replace({0}, '\\u0000', '\\ufffd') AS json) -> '{1}') = 'object' "
    "THEN CAST(CAST(replace({0}, '\\u0000', '\\ufffd') AS json) -> '{1}' AS TEXT) END",
    "text": "CASE WHEN position('\\u0000' IN {0}) = 0 AND json_typeof(CAST({0} AS json) -> '{1}') = 'string' "
    "THEN CAST({0} AS json) ->> '{1}' END",
}


def _read_files(*folder: str) -> dict[str, str]:
    """Return the texts of the SQL files in a folder, by file name and in the order of these names."""
    path = resources.files("midwatch.stores").joinpath(*folder)
    texts = {file.name.removesuffix(".sql"): file.read_text() for file in path.iterdir() if file.name.endswith(".sql")}
    return dict(sorted(texts.items()))


def load_migrations(kind: str) -> list[tuple[int, str]]:
    """Return the number and the text of each migration for a kind of database, in order."""
    return [(int(name[:4]), text) for name, text in _read_files("migrations", kind).items()]


def check_schema(place: str, version: int, newest: int) -> None:
    """Raise SchemaTooNew if a newer version of midwatch has written the database."""
    if version > newest:
        raise SchemaTooNew(
            f"{place} was written by a newer midwatch (schema {version}; this one supports {newest}); upgrade midwatch."
        )


def load(dialect: Dialect) -> dict[str, str]:
    """Return the statements of all query files. Their keys have the form `noun.name`."""
    statements: dict[str, str] = {}
    for noun, text in _read_files("queries").items():
        for block in re.split(r"^-- (?=\w+: )", text, flags=re.M)[1:]:
            head, _, statement = block.partition("\n")
            statements[f"{noun}.{head.partition(':')[0]}"] = statement.strip()

    statements |= build_lists() | build_sums(statements.pop("usage.sum"))

    def fill(statement: str) -> str:
        while "{" in statement:  # a replacement may contain words in braces, too
            statement = re.sub(r"\{(\w+)\}", lambda m: SUBSTITUTIONS.get(m[1]) or statements[f"part.{m[1]}"], statement)
            statement = re.sub(r"\{(\w+):([\w.]+)\}", lambda m: dialect[m[1]].format(*m[2].split(".")), statement)
        return statement

    return {name: fill(statement) for name, statement in statements.items()}


class Path(NamedTuple):
    """A way to read a list: the records that match a condition, in the order of the list, by one index."""

    condition: str
    by: str = ""
    source: str = ""
    """What is read, if it is not the table of the records alone."""
    key: str = ""
    """The column that the list is ordered by, if it is not that of the table."""


PATHS: Mapping[str, Mapping[str, Path]] = {
    "task": {
        "all": Path("true"),
        "open": Path("id {among:open_tasks}"),
        "unfinished": Path("status IN ('failed', 'cancelled')", "tasks_unfinished"),
        "session": Path("session_key = :session_key", "tasks_session"),
        "tag": Path(
            "tagged.noun = 'task' AND tagged.tag = :tag AND tasks.id = tagged.record_id",
            source="tagged CROSS JOIN tasks",
            key="tagged.record_id",
        ),
        "creator": Path("creator = :creator", "tasks_creator"),
        "agent": Path("agent = :agent", "tasks_agent"),
    },
    "handoff": {"all": Path("true"), "root": Path("id {among:handoffs_of_root}")},
    "worktree": {"all": Path("true"), "present": Path("status <> 'removed'", "worktrees_present")},
    "event": {
        "all": Path("true"),
        "task": Path("task_id = :task_id", "events_task"),
        "session": Path("session_key = :session_key AND substr(session_key, 1, 3) <> 'bg:'", "events_session"),
        "alert": Path("kind = 'watchdog_alert'", "events_alert"),
    },
}
"""The ways to read the lists that can be long and have filters."""

USAGE_COLUMNS = ("actor", "agent", "session", "model")
"""What the sums of usage are grouped by, except the day."""


def build_lists() -> dict[str, str]:
    """Return the statements that read a page of a list, for each of `PATHS`.

    A page of `list_x` contains records before `:before`, newest first, but none before `:end`. `end_x` finds this end:
    a number of records after the start, so that a page with a filter that matches few records does not read them all.
    `next_x` and `next_end_x` read events in the other direction.
    """
    statements: dict[str, str] = {}
    for noun, paths in PATHS.items():
        for name, (condition, by, table, key) in paths.items():
            key = key or ("seq" if noun == "event" else "id")
            table = table or ("events" if noun == "event" else TABLES[noun])
            source = f"FROM {table} {f'{{by:{by}}}' if by else ''} WHERE {condition}"
            page = f"AND {{{noun}_filter}} ORDER BY {key}"
            before, after = f"{key} < :before", f"{key} > :after"
            statements |= {
                f"{noun}.list_{name}": f"SELECT {{{noun}}} {source} AND {before} AND {key} >= :end "
                f"{page} DESC LIMIT :limit",
                f"{noun}.end_{name}": f"SELECT {key} {source} AND {before} ORDER BY {key} DESC LIMIT 1 OFFSET :look",
            }  # fmt: skip
            if noun == "event":
                statements |= {
                    f"event.next_{name}": f"SELECT {{event}} {source} AND {after} AND seq <= :end {page} LIMIT :limit",
                    f"event.next_end_{name}": f"SELECT seq {source} AND {after} ORDER BY seq LIMIT 1 OFFSET :look",
                }
    return statements


def name_sum(columns: Collection[str]) -> str:
    """Return the name of the statement that sums usage by these columns."""
    return "_".join(["usage.sum_by", *(name for name in USAGE_COLUMNS if name in columns)])


def build_sums(statement: str) -> dict[str, str]:
    """Return the statements that sum usage by day and by some columns, for each choice of columns."""
    statements = {}
    for wanted in product((False, True), repeat=len(USAGE_COLUMNS)):
        keys = [name for name, wants in zip(USAGE_COLUMNS, wanted, strict=True) if wants]
        columns = ", ".join(name if name in keys else "NULL" for name in USAGE_COLUMNS)
        text = statement.replace("{columns}", columns).replace("{keys}", ", ".join(["day", *keys]))
        statements[name_sum(keys)] = text
    return statements


TASK_COLUMNS = (*COLUMNS_OF["task"], "rank")
INSERT_TASK = f"INSERT INTO tasks ({', '.join(TASK_COLUMNS)}) VALUES ({', '.join('?' for _ in TASK_COLUMNS)})"  # noqa: S608
"""The statement that inserts a task. Tasks are written often, and parameters by position are faster than named ones."""


@cache
def build_insert(noun: str) -> str:
    """Return the statement that inserts a record with all its fields."""
    return f"INSERT INTO {TABLES[noun]} ({SUBSTITUTIONS[noun]}) VALUES ({SUBSTITUTIONS[f'{noun}_params']})"  # noqa: S608


@cache
def build_update(noun: str, changed: tuple[str, ...], guarded: tuple[tuple[str, bool], ...]) -> str:
    """Return the statement that updates one record if its guards are true.

    A guard is a column and whether the column must be NULL. The parameters are the new values, the id of the record,
    and the values of the other guards.
    """
    columns = COLUMNS_OF[noun]
    assert all(name in columns for name in (*changed, *(name for name, _ in guarded))), (noun, changed, guarded)
    sets = ", ".join(f"{name} = ?" for name in changed)
    tests = "".join(f" AND {name} IS NULL" if null else f" AND {name} = ?" for name, null in guarded)
    return f"UPDATE {TABLES[noun]} SET {sets} WHERE id = ?{tests}"  # noqa: S608 - names checked above, values bound

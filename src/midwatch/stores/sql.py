"""SQL statements: those in `queries/*.sql`, and the inserts and guarded updates that this module builds.

A query file contains named statements: a comment line `-- name: purpose`, and the statement below it. A parameter is
written `:name`. These words in braces are replaced:

- `{task}` and the names of other records: the columns of the record
- any other name: the statement with this name in `part.sql`
- `{list:x}`: a subquery that returns the items of the JSON list in the parameter x
- `{number:x.y}` and `{text:x.y}`: the member y of the JSON object in column x
- `{by:x}`: a hint that SQLite must use the index x
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

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
"""The replacements of `{list:x}`, `{by:x}`, `{number:x.y}` and `{text:x.y}` for one kind of database."""

SQLITE: Dialect = {
    "list": "(SELECT value FROM json_each(:{}))",
    "by": "INDEXED BY {}",
    "number": "CASE WHEN json_type({0}, '$.{1}') IN ('integer', 'real') "
    "THEN CAST(json_extract({0}, '$.{1}') AS REAL) END",
    "text": "CASE WHEN json_type({0}, '$.{1}') = 'text' THEN json_extract({0}, '$.{1}') END",
}
POSTGRES: Dialect = {
    "list": "(SELECT value FROM jsonb_array_elements_text(CAST(:{} AS jsonb)))",
    "by": "",
    # a text of PostgreSQL cannot contain NUL, but JSON can
    "number": "CASE WHEN position('\\u0000' IN {0}) = 0 AND json_typeof(CAST({0} AS json) -> '{1}') = 'number' "
    "THEN CAST(CAST({0} AS json) ->> '{1}' AS DOUBLE PRECISION) END",
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

    def fill(statement: str) -> str:
        text = re.sub(r"\{(\w+)\}", lambda m: SUBSTITUTIONS.get(m[1]) or statements[f"part.{m[1]}"], statement)
        return re.sub(r"\{(\w+):([\w.]+)\}", lambda m: dialect[m[1]].format(*m[2].split(".")), text)

    return {name: fill(statement) for name, statement in statements.items()}


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

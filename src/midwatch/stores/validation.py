"""Check the rows of a SQLite file that somebody may have changed, before they are copied to another database.

Every row must be readable as its record: the columns, the types, the known states, the JSON. The error names the table
and the row, but no value, because a value may be a secret.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from midwatch.base.errors import StoreCorrupt
from midwatch.base.text import cut, escape_controls
from midwatch.domain.event import Event
from midwatch.domain.task import STATUSES
from midwatch.stores.rows import COLUMNS, LOADERS, RECORDS, loads
from midwatch.stores.sql import TABLES
from midwatch.stores.sqlite import MEMORY, open_database

KEY_SHOWN = 100
RECORD_OF: Mapping[str, type] = {TABLES[noun]: record for noun, record in RECORDS.items()} | {"events": Event}
SIGNED = frozenset({"priority", "rank"})
"""The only numbers that may be negative."""
KINDS: Mapping[str, tuple[type, ...]] = {"INTEGER": (int,), "REAL": (float, int), "TEXT": (str,)}
COUNTED = ", ".join(f"(SELECT count(*) FROM tasks WHERE status = '{status}')" for status in STATUSES)  # noqa: S608
WRONG_COUNTS = f"SELECT one FROM event_head WHERE ({', '.join(STATUSES)}) <> ({COUNTED})"  # noqa: S608 - our own names
RULES = (
    ("event_head", "SELECT 1 WHERE NOT EXISTS (SELECT * FROM event_head)", "it is missing"),
    ("event_head", "SELECT one FROM event_head WHERE oldest_seq > last_seq + 1", "the log begins behind its end"),
    ("event_head", WRONG_COUNTS, "a number of tasks is wrong"),
    ("events", "SELECT seq FROM events WHERE seq > (SELECT last_seq FROM event_head)", "it is behind the log's end"),
    ("approvals", "SELECT id FROM approvals WHERE task_id NOT IN (SELECT id FROM tasks)", "its task does not exist"),
    ("steers", "SELECT id FROM steers WHERE task_id NOT IN (SELECT id FROM tasks)", "its task does not exist"),
    ("tasks", "SELECT id FROM tasks WHERE status = 'running' AND lease_owner IS NULL", "no process owns it"),
)
"""For each table, statements that find rows which are not valid, and what is wrong with these rows."""


class Column(NamedTuple):
    """A column of a table, as `PRAGMA table_info` describes it."""

    number: int
    name: str
    kind: str
    required: int
    default: str | None
    key: int


class Invalid(Exception):
    """A row, or a value in it, is not valid. The text explains what is wrong."""


def check_rows(connection: sqlite3.Connection, path: str) -> None:
    """Raise StoreCorrupt if a table is missing or differs from the newest schema, or if a row is not valid."""
    schema = read_schema()
    found = dict(connection.execute("SELECT name, type FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'"))
    for name, kind in found.items():
        if kind in ("view", "trigger") or (kind == "table" and name not in schema):
            raise _refuse(path, f"{kind} {_show(name)} is not known")
    for table, columns in schema.items():
        names = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if names != {column.name for column in columns}:
            raise _refuse(path, f"table {table} has other columns than midwatch's")
    with _read_any_text(connection):
        for table, columns in schema.items():
            _check_table(connection, path, table, columns)
    for table, statement, why in RULES:
        if row := connection.execute(f"{statement} LIMIT 1").fetchone():
            raise _refuse(path, f"row {_show(row[0])} of table {table} is not valid: {why}")


def read_schema() -> dict[str, list[Column]]:
    """Return the columns of all tables of the newest schema."""
    with closing(open_database(MEMORY)) as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        )
        return {
            name: [Column(*row) for row in connection.execute(f"PRAGMA table_info({name})")]
            for (name,) in names.fetchall()
        }


@contextmanager
def _read_any_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Read text that is not UTF-8 without an error. Such text then contains surrogates, which the check refuses."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        connection.text_factory = str


def _check_table(connection: sqlite3.Connection, path: str, table: str, columns: list[Column]) -> None:
    check_record = _checker(table)
    keys = [column.number for column in columns if column.key]
    names = [column.name for column in columns]
    for row in connection.execute(f"SELECT {', '.join(names)} FROM {table}"):  # noqa: S608 - names of our own schema
        try:
            for column in columns:
                _check_value(column, row[column.number])
            check_record(dict(zip(names, row, strict=True)))
        except Invalid as problem:
            key = ", ".join(_show(row[number]) for number in keys)
            raise _refuse(path, f"row {key} of table {table} is not valid: {problem}") from None


def _check_value(column: Column, value: Any) -> None:
    if value is None:
        if column.required or column.key:
            raise Invalid(f"{column.name} has no value")
    elif type(value) not in KINDS[column.kind]:
        raise Invalid(f"{column.name} must be {column.kind}")
    elif column.kind == "TEXT":
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise Invalid(f"{column.name} is not UTF-8")
    elif not math.isfinite(value) or (value < 0 and column.name not in SIGNED):
        raise Invalid(f"{column.name} must not be negative or infinite")


@cache
def _checker(table: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that raises Invalid unless the values of a row are those of the table's record."""
    if table not in RECORD_OF:
        return lambda values: None
    record = RECORD_OF[table]
    columns, loaders = COLUMNS.get(record, Event._fields), LOADERS.get(record, {"payload": loads})
    hints = get_type_hints(record)
    shape: Any = TypedDict(record.__name__, {name: hints[name] for name in columns})  # type: ignore[misc]
    adapter: TypeAdapter[Any] = TypeAdapter(shape)

    def check(values: Mapping[str, Any]) -> None:
        decoded = {name: values[name] for name in columns}
        for name, load in loaders.items():
            if decoded[name] is not None:
                decoded[name] = _decode(name, load, decoded[name])
        try:
            adapter.validate_python(decoded, strict=True)
        except ValidationError as problem:
            raise Invalid(f"{problem.errors()[0]['loc'][0]} has a value that is not allowed") from None

    return check


def _decode(name: str, load: Callable[[Any], Any], value: Any) -> Any:
    if load is bool and value not in (0, 1):
        raise Invalid(f"{name} must be 0 or 1")
    try:
        return load(value)
    except (ValueError, TypeError):
        raise Invalid(f"{name} is not the expected JSON") from None


def _show(key: object) -> str:
    return cut(escape_controls(str(key).encode("utf-8", "replace").decode()), KEY_SHOWN)


def _refuse(path: str, why: str) -> StoreCorrupt:
    return StoreCorrupt(f"{path}: {why}. Nothing was changed; correct the file, or choose another one.")

"""Records as rows: the columns of each record, and the conversion of its values to and from the database.

The type of a field decides how it is stored: a mapping, a tuple or `Any` as JSON text, a bool as 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from midwatch.base.errors import InvalidInput
from midwatch.domain.account import Account
from midwatch.domain.agent import Choice
from midwatch.domain.alert import Alert
from midwatch.domain.approval import Approval
from midwatch.domain.automation import Automation
from midwatch.domain.channel import Delivery
from midwatch.domain.context_item import ContextItem
from midwatch.domain.event import Event
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import Handoff
from midwatch.domain.identity import Token
from midwatch.domain.instance import Instance
from midwatch.domain.rule import Rule
from midwatch.domain.session import Message, Session
from midwatch.domain.steering import Steer
from midwatch.domain.task import Task
from midwatch.domain.trigger import Firing, Trigger
from midwatch.domain.turn_steps import Step
from midwatch.domain.worktree import Worktree

R = TypeVar("R")
Row = tuple[Any, ...]

TASK_JSON = 7
"""Number of the last fields of a task, which are stored as JSON."""
NO_JSON = (None,) * TASK_JSON
PAYLOAD, SEQ = Event._fields.index("payload"), Event._fields.index("seq")
DEEPEST = 50
"""Maximum number of nested levels of a payload. Deeper values are stored as text."""

loads = orjson.loads


def dumps(value: Any) -> str:
    """Return a value as JSON text. Raise InvalidInput if this is not possible."""
    try:
        return orjson.dumps(value, default=_simplify).decode()
    except TypeError as problem:
        raise InvalidInput(f"this value cannot be stored as JSON ({problem}); use only JSON types.") from None


def dump_payload(payload: Any) -> str:
    """Return an event's payload as JSON text. This never fails: a value that JSON does not support becomes text."""
    try:
        return orjson.dumps(payload, default=_simplify).decode()
    except Exception:
        return orjson.dumps(_reduce(payload)).decode()


def _simplify(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | Sequence):
        return list(value)
    return str(value)


def _reduce(value: Any, depth: int = 0) -> Any:
    """Return the value with only JSON types. Other objects, and values that are nested too deeply, become text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {_to_text(name): _reduce(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple) and depth < DEEPEST:
        return [_reduce(item, depth + 1) for item in value]
    return _to_text(value)


def _to_text(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "replace").decode()


def replace_nul(value: Any) -> Any:
    """Return the value; in a text, replace each NUL character, because PostgreSQL cannot store it."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value


def _load_tuple(text: str) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in loads(text))


def _load_choices(text: str) -> tuple[Choice, ...]:
    return tuple(Choice(*item) for item in loads(text))


def _loader(kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts a column to this type, or None if the value needs no conversion."""
    for part in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if part is bool:
            return bool
        if part is Any or get_origin(part) is Mapping:
            return loads
        if get_origin(part) is tuple:
            return _load_choices if Choice in get_args(part) else _load_tuple
    return None


def _loaders(record: type) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that convert the columns of a record, by column. Columns without conversion are left out."""
    kinds = get_type_hints(record)
    loaders = {name: _loader(kinds[name]) for name in COLUMNS[record]}
    return {name: load for name, load in loaders.items() if load is not None}


RECORDS: Mapping[str, type] = {
    record.noun if record is ContextItem else record.__name__.lower(): record
    for record in (
        Task, Session, Message, Delivery, Approval, Rule, Token, Automation, Goal, Instance, Worktree, Step, Steer,
        Handoff, Account, ContextItem, Alert, Trigger, Firing,
    )
}  # fmt: skip
COLUMNS: Mapping[type, tuple[str, ...]] = {
    record: Task._fields if record is Task else tuple(field.name for field in fields(record))
    for record in RECORDS.values()
}
LOADERS = {record: _loaders(record) for record in RECORDS.values()}


ENCODERS = {
    noun: tuple((name, int if load is bool else dumps) for name, load in LOADERS[record].items())
    for noun, record in RECORDS.items()
}


def get_values(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name, without conversion."""
    return {name: getattr(record, name) for name in COLUMNS[type(record)]}


def encode(noun: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record's fields as the database stores them."""
    encoded = dict(values)
    for name, convert in ENCODERS[noun]:
        if encoded.get(name) is not None:
            encoded[name] = convert(encoded[name])
    return encoded


def encode_task(task: Task) -> Row:
    """Return the parameters of the statement `midwatch.stores.sql.INSERT_TASK` for a task."""
    if task[-TASK_JSON:] == NO_JSON:
        return (*task, task.rank)
    tail = (value if value is None else dumps(value) for value in task[-TASK_JSON:])
    return (*task[:-TASK_JSON], *tail, task.rank)


def decode_task(row: Row) -> Task:
    """Convert a row of the database to a task."""
    if row[-TASK_JSON:] == NO_JSON:
        return Task._make(row)
    decoded = (value if value is None else loads(value) for value in row[-TASK_JSON:])
    return Task._make((*row[:-TASK_JSON], *decoded))


def decode_event(row: Row) -> Event:
    """Convert a row of the database to an event."""
    return Event._make((*row[:PAYLOAD], loads(row[PAYLOAD]), *row[PAYLOAD + 1 :]))


def encode_event(event: Event) -> Row:
    """Return the parameters of the statement `event.append` for an event."""
    return (*event[:PAYLOAD], dump_payload(event.payload), *event[PAYLOAD + 1 :])


def _decoder(record: type) -> Callable[[Row], Any]:
    names, loaders = COLUMNS[record], LOADERS[record]

    def decode_row(row: Row) -> Any:
        values = dict(zip(names, row, strict=True))
        for name, load in loaders.items():
            if values[name] is not None:
                values[name] = load(values[name])
        return record(**values)

    return decode_row


DECODERS: Mapping[type, Callable[[Row], Any]] = {
    **{record: _decoder(record) for record in RECORDS.values()}, Task: decode_task, Event: decode_event,
}  # fmt: skip


def decode(record: type[R], row: Row) -> R:
    """Convert a row of the database to a record of this type."""
    decoded: R = DECODERS[record](row)
    return decoded

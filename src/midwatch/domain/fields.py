"""Fields: facts about the fields of records that their types do not contain, and values derived from these facts.

A record is defined once, by the annotated fields of its class. `Input` is how a request sets a field, `Example` is an
example of its value, `Show` changes the value in replies, and `Hidden` excludes a field from replies. A field is a time
if it is called `time` or `since`, or if its name ends with `_at`. From these facts follow the shapes of replies, the
bodies of requests, the examples, and the options of commands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from midwatch.base.clock import iso

AT = "2026-01-02T03:04:05.000000Z"
"""The time that is shown in examples."""


@dataclasses.dataclass(frozen=True)
class Input:
    """The way in which a request sets a field."""

    help: str
    """One line for people: the description of the field in OpenAPI, and the help text of its command-line option."""
    _: dataclasses.KW_ONLY
    name: str = ""
    """The name of the field in requests, if it is not the name of the field in the record."""
    takes: Any = None
    """The type of the field in requests, if it is not the type in the record. This type must allow None."""
    once: bool = False
    """Whether the field is set only when the record is created. Otherwise it can also be changed later."""
    agents: bool = False
    """Whether the agent of a running task may set the field."""
    seconds: bool = False
    """Whether the field is a duration: a number of seconds, or text such as 90m."""
    strict: bool = False
    """Whether only the JSON type itself is accepted, such as `true` but not `"yes"`."""
    least: float | None = None
    most: float | None = None
    """`least` and `most` are the limits of a number."""
    longest: int | None = None
    """The greatest length of a text or a list."""
    example: Any = None


class Example(NamedTuple):
    """The value of a field in examples of replies.

    It is needed if neither the field's default nor the example of its `Input` is suitable.
    """

    value: Any

    def __get_pydantic_json_schema__(self, schema: Any, describe: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Add the example to the JSON schema of a type that is annotated with this object."""
        return {**describe(schema), "examples": [self.value]}


class Show(NamedTuple):
    """How replies show a field.

    `change` converts the value. `name` is the name in replies, if it is not the name of the field.
    """

    change: Callable[[Any], Any] | None = None
    name: str = ""


T = TypeVar("T")
HIDDEN = "hidden"
Hidden = Annotated[T, HIDDEN]
"""The type of a field that no reply shows."""
REQUIRED = dataclasses.MISSING


class Field(NamedTuple):
    """A field with the facts about it."""

    name: str
    type: Any
    default: Any
    marks: tuple[Any, ...]

    @property
    def input(self) -> Input | None:
        """Return how a request sets the field, or None if no request sets it."""
        return next((mark for mark in self.marks if isinstance(mark, Input)), None)

    @property
    def request_name(self) -> str:
        """Return the name of the field in requests."""
        return (self.input and self.input.name) or self.name

    @property
    def show(self) -> Show:
        """Return how replies show the field: a time as ISO 8601, a tuple as a list, other values unchanged."""
        change = iso if self.is_time else list if get_origin(self.type) is tuple else None
        return next((mark for mark in self.marks if isinstance(mark, Show)), Show(change))

    @property
    def reply_name(self) -> str:
        """Return the name of the field in replies."""
        return self.show.name or self.name

    @property
    def is_time(self) -> bool:
        """Return whether the field is a time, which JSON shows as ISO 8601."""
        return self.name.endswith("_at") or self.name in ("time", "since")

    @property
    def optional(self) -> bool:
        """Return whether the field may be None."""
        return NoneType in get_args(self.type)

    @property
    def example(self) -> Any:
        """Return the value of the field in an example of a reply."""
        for mark in self.marks:
            if isinstance(mark, Example):
                return mark.value
        if self.input and self.input.example is not None:
            return self.input.example
        if self.is_time and self.default is not None:
            return AT
        return list(self.default) if isinstance(self.default, tuple) else self.default


@cache
def fields_of(definition: type) -> Mapping[str, Field]:
    """Return the fields of a dataclass, a named tuple or a typed dictionary, by name."""
    fields = {}
    for name, hint in get_type_hints(definition, include_extras=True).items():
        if get_origin(hint) is not ClassVar:
            kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            fields[name] = Field(name, kind, _default(definition, name, kind), tuple(marks))
    return fields


def _default(definition: Any, name: str, kind: Any) -> Any:
    """Return the default of a field.

    In a typed dictionary the default is the empty value of the field's type: None, 0 or False.
    """
    if is_typeddict(definition):
        return None if NoneType in get_args(kind) or not isinstance(kind, type) else kind()
    if not dataclasses.is_dataclass(definition):
        return definition._field_defaults.get(name, REQUIRED)
    field = definition.__dataclass_fields__[name]
    return field.default if field.default_factory is REQUIRED else field.default_factory()


@cache
def list_shown_fields(definition: type) -> tuple[Field, ...]:
    """Return the fields that replies show."""
    return tuple(field for field in fields_of(definition).values() if HIDDEN not in field.marks)


def to_json(record: Any) -> dict[str, Any]:
    """Return a record as JSON shows it."""
    definition: Any = type(record)
    return {
        shown: getattr(record, name) if change is None else change(getattr(record, name))
        for shown, name, change in _changes(definition)
    }


class JsonRecord:
    """Base class of records whose JSON is just their fields."""

    __slots__ = ()

    def snapshot(self) -> dict[str, Any]:
        """Return the record as JSON shows it."""
        return to_json(self)


@cache
def _changes(definition: type) -> tuple[tuple[str, str, Callable[[Any], Any] | None], ...]:
    return tuple((field.reply_name, field.name, field.show.change) for field in list_shown_fields(definition))


def inputs(*definitions: type) -> Iterator[tuple[Field, Input]]:
    """Yield each field of these records that a request may set, with its `Input`."""
    for definition in definitions:
        for field in fields_of(definition).values():
            if field.input is not None:
                yield field, field.input


def settable(*definitions: type) -> frozenset[str]:
    """Return the names of the fields that a request may set when it creates the record."""
    return frozenset(field.name for field, _ in inputs(*definitions))


def changeable(*definitions: type) -> frozenset[str]:
    """Return the names of the fields that a request may change later."""
    return frozenset(field.name for field, given in inputs(*definitions) if not given.once)


def clearable(*definitions: type) -> frozenset[str]:
    """Return the names of the fields that a request may change to None."""
    return frozenset(field.name for field, given in inputs(*definitions) if not given.once and field.optional)


def open_to_agents(*definitions: type) -> frozenset[str]:
    """Return the request names of the fields that the agent of a running task may set."""
    return frozenset(field.request_name for field, given in inputs(*definitions) if given.agents)


def name_as_record(definition: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a request under the names of the record's fields, with lists as tuples."""
    names = {field.request_name: field.name for field, _ in inputs(definition)}
    return {names.get(name, name): tuple(value) if isinstance(value, list) else value for name, value in values.items()}

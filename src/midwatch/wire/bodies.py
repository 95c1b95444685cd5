"""Derive the class of a request's body from the class of the record that the request creates or changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, FailFast, create_model
from pydantic import Field as Value

from midwatch.domain.fields import REQUIRED, Field, Input, fields_of, inputs
from midwatch.wire.fields import Seconds, make_texts
from midwatch.wire.shapes import json_type

Body = TypeVar("Body", bound=BaseModel)


def body_of(*definitions: type, changes: bool = False, seconds: Any = Seconds) -> Callable[[type[Body]], type[Body]]:
    """Return a decorator that adds fields to the class of a request's body.

    Added are all fields of the record classes `definitions` that a request may set when it creates a record, or, with
    `changes`, when it changes a record. `seconds` is the type of fields that are durations. The decorated class may
    declare some of these fields itself; this only helps type checkers.
    """

    def derive(base: type[Body]) -> type[Body]:
        added = {
            field.request_name: _value(field, given, given.takes, changes, seconds)
            for field, given in inputs(*definitions)
            if not (changes and given.once)
        }
        return _extend(base, added)

    return derive


def copy_of(definition: type, names: frozenset[str]) -> Callable[[type[Body]], type[Body]]:
    """Return a decorator that adds the fields `names` of a record to the class of a body.

    The body holds a copy of a record: the fields have the same names and types as in the record.
    """

    def derive(base: type[Body]) -> type[Body]:
        missing = names - base.model_fields.keys()
        fields = [field for name, field in fields_of(definition).items() if name in missing]
        return _extend(base, {field.name: _value(field, field.input or Input(""), None) for field in fields})

    return derive


def _extend(base: type[Body], added: dict[str, Any]) -> type[Body]:
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, __module__=base.__module__, **added)


def _value(field: Field, given: Input, takes: Any, changes: bool = False, seconds: Any = Seconds) -> tuple[Any, Any]:
    """Return the type and the default of a field in a body, as `create_model` takes them."""
    kind = _request_type(takes or field.type, given, seconds)
    default = None if takes else field.default
    if default is REQUIRED and changes:
        kind, default = kind | None, None
    more: dict[str, Any] = {"description": given.help or None, "examples": given.example and [given.example]}
    if isinstance(default, tuple):
        return kind, Value(default_factory=list, **more)
    return kind, Value(... if default is REQUIRED else default, **more)


def _request_type(kind: Any, given: Input, seconds: Any) -> Any:
    """Return the type that a value has in a request, with the limits of the value."""
    if get_origin(kind) in (Union, UnionType):
        if list[str] in get_args(kind):
            return make_texts(given.longest)
        return reduce(or_, (_request_type(part, given, seconds) for part in get_args(kind)))
    if kind is float and given.seconds:
        return seconds
    if kind in (int, float):
        return Annotated[kind, Value(ge=given.least, le=given.most, strict=given.strict or None)]
    if kind is bool:
        return Annotated[bool, Value(strict=given.strict or None)]
    if get_origin(kind) is Literal or kind is NoneType:
        return kind
    kind = json_type(kind)
    if get_origin(kind) is list:
        return Annotated[kind, FailFast(), Value(max_length=given.longest)]
    return kind if get_origin(kind) is dict else Annotated[kind, Value(max_length=given.longest)]

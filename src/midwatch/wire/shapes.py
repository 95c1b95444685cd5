"""Derive the shape of a reply from the class of the record that the reply shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from typing_extensions import TypedDict

from midwatch.domain.fields import REQUIRED, Example, Field, list_shown_fields

Shape = TypeVar("Shape", bound=type[dict[str, Any]])


def shape_of(definition: type, /, *, partial: bool = False, **others: Any) -> Callable[[Shape], Shape]:
    """Return a decorator that makes a class the shape of a record as JSON shows it.

    `others` are more keys, or keys that have another type than in the record. With `partial` each key may be missing
    instead of being null. For type checkers the class stays a plain `dict[str, Any]`, so that the fields of a record
    are declared only once.
    """

    def derive(base: Shape) -> Shape:
        keys = {field.reply_name: reply_type(field, partial) for field in list_shown_fields(definition)} | others
        shape = cast(Any, TypedDict)(base.__name__, keys, total=not partial)
        shape.__doc__, shape.__module__ = base.__doc__, base.__module__
        return cast(Shape, shape)

    return derive


def reply_type(field: Field, partial: bool) -> Any:
    """Return the type of a field as JSON shows it, with an example if the field has one."""
    kind = str | None if field.is_time and field.optional else str if field.is_time else json_type(field.type)
    if partial and field.optional:
        kind = reduce(or_, (part for part in get_args(kind) if part is not NoneType))
    return Annotated[kind, Example(field.example)] if field.example and field.example is not REQUIRED else kind


def json_type(kind: Any) -> Any:
    """Return the JSON type for values of the Python type `kind`; a `Literal` becomes `str`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return reduce(or_, map(json_type, parts))
    if origin is Literal:
        return str
    if origin is tuple:
        return list[json_type(parts[0])]  # type: ignore[misc]  # a type that is known only at run time
    return dict[str, Any] if origin is not None and issubclass(origin, Mapping) else kind

"""Checks of requests: the base class of bodies and queries, and limits on JSON and texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from midwatch.base.errors import InvalidInput
from midwatch.wire.fields import Seconds

Duration = Annotated[
    Seconds,
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "examples": ["90s", "10m"]}]}),
]
MAX_DEPTH = 100
MAX_VALUES = 50_000
MAX_TEXTS = 100_000
LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{401}")


def check_absolute(value: str | None) -> str | None:
    """Return the path of a directory. Raise ValueError if the path is relative."""
    if value is not None and not Path(value).is_absolute():
        raise ValueError("the working directory must be an absolute path")
    return value


def check_json(value: Any, depth: int = 0) -> Any:
    """Return a JSON value. Raise ValueError if the value is nested too deeply or cannot be stored."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the value has more than {MAX_DEPTH} nested levels; use fewer")
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number in the value is too large; write it as text")
    elif isinstance(value, dict):
        for name, part in value.items():
            check_text(name)
            check_json(part, depth + 1)
    elif isinstance(value, list):
        for part in value:
            check_json(part, depth + 1)
    elif isinstance(value, BaseModel):
        check_json(value.model_dump(), depth)
    return value


def check_text(value: str) -> str:
    """Return a text. Raise ValueError if the text contains NUL or is not valid Unicode."""
    if "\0" in value:
        raise ValueError("the text contains a NUL character; remove that character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("the text is not valid Unicode: it contains half of a surrogate pair; remove it") from None
    return value


def check_structure(body: bytes) -> None:
    """Raise InvalidInput if JSON has very many values, because these would take long to parse and to check.

    This counts commas and opening brackets outside of texts, and texts. Long texts cost little.
    """
    if b"\0" in body:  # in UTF-16 and UTF-32, which are not JSON for us, nothing can be counted
        raise InvalidInput("the body must be JSON in UTF-8, without NUL characters.", field="body")
    if len(body) <= MAX_VALUES:
        return
    pieces = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 2 * MAX_TEXTS + 1)
    outside = b"".join(pieces[::2])
    if len(pieces) > 2 * MAX_TEXTS + 1 or sum(outside.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise InvalidInput(f"the body has more than {MAX_VALUES} values; send fewer at a time.", field="body")
    if LONG_NUMBER.search(outside):
        raise InvalidInput("the body has a number with more than 400 digits; write it as text.", field="body")


class Strict(BaseModel):
    """The base class of all bodies and queries. It refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _keep_one_unknown(cls, data: Any) -> Any:
        """Drop all unknown fields but the first, because an error for each of them would take long."""
        known = cls.model_fields
        if not isinstance(data, dict) or len(data) <= len(known):
            return data
        first = next(name for name in data if name not in known)
        return {name: value for name, value in data.items() if name in known or name is first}

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return check_text(value) if isinstance(value, str) else value

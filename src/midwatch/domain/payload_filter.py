"""Conditions on a payload, such as `action = opened`: they decide which deliveries to a webhook start a run.

A condition has a path into the JSON, such as `commits[0].id`, or the name of a header, such as `header:X-GitHub-Event`.
Nothing of it is ever executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from midwatch.base.errors import InvalidInput

MOST_CONDITIONS = 20
LONGEST_CONDITION = 500
LONGEST_COMPARED = 10_000
"""A text with more characters fits no pattern."""

HEADER = "header:"
PATH = r"[^\s\[\]=!~.:]+(?:\[[0-9]{1,6}\])*(?:\.[^\s\[\]=!~.:]+(?:\[[0-9]{1,6}\])*)*"
CONDITION = re.compile(rf"({HEADER}[A-Za-z0-9-]+|{PATH})\s*(?:(=|!=|~)\s*(.*)|\s(exists))", re.DOTALL)
PART = re.compile(r"\[([0-9]+)\]|([^.\[\]]+)")
MISSING = object()


class Condition(NamedTuple):
    """One condition: the path, one of `=`, `!=`, `~` and `exists`, and the value to compare with."""

    path: str
    operator: str
    value: str

    @property
    def text(self) -> str:
        """The condition as text, in the form in which it is stored."""
        quoted = self.value != self.value.strip() or self.value[:1] in ("'", '"')
        value = f'"{self.value}"' if quoted else self.value
        return f"{self.path} {self.operator} {value}".rstrip()


def parse_condition(text: object) -> Condition:
    """Return the condition that a text describes. Raise InvalidInput if it cannot be read."""
    stripped = text.strip() if isinstance(text, str) else ""
    match = CONDITION.fullmatch(stripped) if len(stripped) <= LONGEST_CONDITION else None
    if match is None or not stripped.isprintable():
        raise InvalidInput(
            f"the condition {str(text)[:100]!r} cannot be read; write `action = opened`, `ref != refs/heads/main`, "
            "`ref ~ refs/tags/*`, `issue.labels[0] exists` or `header:X-GitHub-Event = push`.",
            field="triggers",
        )
    path, operator, value, exists = match.groups()
    value = value or ""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return Condition(path, exists or operator, value)


def find_value(payload: Any, path: str) -> Any:
    """Return the value at a path of a payload, or MISSING."""
    for index, name in PART.findall(path):
        if index:
            if not isinstance(payload, list) or int(index) >= len(payload):
                return MISSING
            payload = payload[int(index)]
        elif not isinstance(payload, dict) or name not in payload:
            return MISSING
        else:
            payload = payload[name]
    return payload


def find_unmet(conditions: Iterable[object], payload: Any, headers: Mapping[str, str]) -> str | None:
    """Return the first condition that does not hold, or None if all hold. Names of headers are in lower case."""
    for text in conditions:
        condition = parse_condition(text)
        if condition.path.startswith(HEADER):
            value: Any = headers.get(condition.path.removeprefix(HEADER).lower(), MISSING)
        else:
            value = find_value(payload, condition.path)
        if not _holds(condition, value):
            return condition.text
    return None


def _holds(condition: Condition, value: Any) -> bool:
    if condition.operator == "exists":
        return value is not MISSING
    shown = value if isinstance(value, str) else None if isinstance(value, dict | list) else _write(value)
    if condition.operator == "!=":
        return shown != condition.value
    if shown is None:
        return False
    if condition.operator == "=":
        return shown == condition.value
    return len(shown) <= LONGEST_COMPARED and fnmatchcase(shown, condition.value)


def _write(value: Any) -> str | None:
    """Return a number, a truth value or null as JSON, or None if the value is missing."""
    return None if value is MISSING else json.dumps(value)

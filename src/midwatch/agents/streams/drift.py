"""Drift: the output of a newer program is not what its parser knows. Counts unknown output, and makes the error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from midwatch.agents.streams.reading import get
from midwatch.base.errors import AgentError

MOST_NAMES = 100  # different unknown names that are counted; the others have one common count
NAMES_SHOWN = 8
LONGEST_NAME = 60
DEEPEST = 20
OTHERS = "others"
NUMBER = re.compile(r"\d+")
MARK = "was not understood"
"""These words are in the error of every turn whose stream was not understood. `midwatch doctor` looks for them."""


class Versions(NamedTuple):
    """The oldest and the newest version of a program that midwatch was tested with."""

    oldest: str
    newest: str

    def __str__(self) -> str:
        return self.oldest if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def place(self, version: str) -> Literal["older", "newer"] | None:
        """Return whether a version is older or newer than all tested versions; None if it is neither."""
        found = _numbers(version)
        if found < _numbers(self.oldest):
            return "older"
        return "newer" if found > _numbers(self.newest) else None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without the name of a pre-release."""
    return tuple(int(number) for number in NUMBER.findall(version.partition("-")[0]))


class Words(NamedTuple):
    """What a parser knows of a stream: names of fields, and values of the fields that name a type.

    The content of the fields `free` may be anything, such as the arguments of a tool.
    """

    fields: frozenset[str]
    types: frozenset[str]
    free: frozenset[str] = frozenset()
    type_fields: tuple[str, ...] = ("type",)

    @classmethod
    def of(cls, fields: str, types: str, free: str = "", type_fields: str = "type") -> Words:
        """Return the words in texts that separate them by spaces."""
        known = frozenset(fields.split()) | frozenset(free.split()) | frozenset(type_fields.split())
        return cls(known, frozenset(types.split()), frozenset(free.split()), tuple(type_fields.split()))


class Drift:
    """Counts what a parser did not know in the output of one turn, and what it needed and did not find."""

    def __init__(self, words: Words) -> None:
        self.fields: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self._words = words

    @property
    def seen(self) -> bool:
        """Whether anything was unknown or missing."""
        return bool(self.fields or self.types or self.missing)

    def count(self, data: Any, depth: int = 0) -> None:
        """Count the unknown fields and types in a line of output."""
        if depth > DEEPEST:
            return
        if isinstance(data, list):
            for item in data:
                self.count(item, depth + 1)
        elif isinstance(data, Mapping):
            for name, value in data.items():
                if name not in self._words.fields:
                    _add(self.fields, name)
                elif name in self._words.type_fields:
                    if isinstance(value, str) and value not in self._words.types:
                        _add(self.types, value)
                elif name not in self._words.free and isinstance(value, Mapping | list):
                    self.count(value, depth + 1)

    def need(self, data: Any, *path: str, kind: type | tuple[type, ...] = object) -> Any:
        """Return the value at a path on which the answer depends. If it is not there or not of `kind`, count it."""
        holder = get(data, *path[:-1])
        value = holder.get(path[-1]) if isinstance(holder, Mapping) else None
        if not isinstance(holder, Mapping) or path[-1] not in holder or not isinstance(value, kind):
            self.miss(".".join(path))
        return value

    def need_text(self, data: Any, *path: str) -> str:
        """Return the text at a path on which the answer depends. If there is none, count it, and return no text."""
        value = self.need(data, *path, kind=str)
        return value if isinstance(value, str) else ""

    def miss(self, name: str) -> None:
        """Count a field that is needed and was not found, or has a value that is not known."""
        _add(self.missing, name)

    def describe(self) -> str:
        """Return all counts as text; empty if nothing was unknown or missing."""
        counts = {"missing": self.missing, "unknown fields": self.fields, "unknown types": self.types}
        return "; ".join(f"{what}: {_list(found)}" for what, found in counts.items() if found)


def _add(counts: Counter[str], name: str) -> None:
    name = str(name)[:LONGEST_NAME]
    counts[name if name in counts or len(counts) < MOST_NAMES else OTHERS] += 1


def _list(counts: Counter[str]) -> str:
    names = [name if number == 1 else f"{name} ({number})" for name, number in counts.most_common(NAMES_SHOWN)]
    return ", ".join(names) + (f" and {len(counts) - NAMES_SHOWN} more" if len(counts) > NAMES_SHOWN else "")


class NotUnderstood(AgentError):
    """Raised when the stream of a program was not understood, so that its answer cannot be trusted."""


def make_drift_error(program: str, found: str | None, versions: Versions | None, why: str) -> NotUnderstood:
    """Return the error of a turn whose stream was not understood. `versions` is None for an unknown program."""
    remedy = f"midwatch was not tested with {program}; update midwatch or {program}."
    if versions is not None:
        remedy = (
            f"midwatch was tested with {program} {versions}; update midwatch, or install that version of {program}, "
            "and see `midwatch doctor`."
        )
    return NotUnderstood(
        f"the stream of {program} {found or 'of unknown version'} {MARK}: {why}. {remedy} What it printed is kept as "
        "the result."
    )

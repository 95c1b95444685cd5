"""Write values as TOML, and find the line of a key in a TOML text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")
HEADER = re.compile(r"\s*(\[\[?)\s*(.*?)\s*\]\]?\s*(#.*)?$")
KEY = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)\s*[.=]""")
PART = re.compile(r""""((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+)""")


def write_key(name: str) -> str:
    """Return a key, in quotes if it needs them."""
    return name if BARE.fullmatch(name) else write_text(name)


def write_text(text: str) -> str:
    """Return a text in quotes. A text with several lines is written on several lines."""
    lines = [json.dumps(line, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f") for line in text.split("\n")]
    return f'"{lines[0]}"' if len(lines) == 1 else '"""\n' + "\n".join(lines) + '"""'


def write_value(value: Any) -> str:
    """Return a value on one line, unless it is a text with several lines."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return write_text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{write_key(name)} = {write_inline(part)}" for name, part in value.items() if part is not None)
        return f"{{{', '.join(pairs)}}}"
    return f"[{', '.join(write_inline(part) for part in value)}]"


def write_inline(value: Any) -> str:
    """Return a value that is part of another value, on one line."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else write_value(value)


def write_table(path: tuple[str, ...], table: Mapping[str, Any], *, listed: bool = False) -> str:
    """Return a table with its header; `listed` is whether it is one of a list of tables."""
    name = ".".join(map(write_key, path))
    rows = [f"[[{name}]]" if listed else f"[{name}]"]
    rows += [f"{write_key(key)} = {write_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(rows) + "\n"


def find_line(text: str, field: str) -> int | None:
    """Return the number of the line that sets a field, such as `goals.green-main.deadline`; None if it is not found.

    If the table does not set the field, this is the line of the header of the table.
    """
    best: tuple[int, int] | None = None
    header: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := HEADER.fullmatch(line):
            header = _read_path(match[2])
            path = header
        elif match := KEY.match(line):
            path = (*header, *_read_path(line.partition("=")[0]))
            if header[:1] == ("rules",) and path[-1] == "name":  # a rule is known by its name, not by its place
                header = path = ("rules", *_read_path(line.partition("=")[2])[:1])
        else:
            continue
        name = ".".join(path)
        if (field == name or field.startswith(f"{name}.")) and (best is None or len(name) > best[0]):
            best = (len(name), number)
    return best[1] if best else None


def _read_path(text: str) -> tuple[str, ...]:
    return tuple(quoted or single or bare for quoted, single, bare in PART.findall(text))

"""The arguments of a tool call that a dialog shows as JSON."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, NamedTuple

WHOLE_STRINGS = re.compile(r'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+')


class Arguments(NamedTuple):
    """The arguments by name. They are `certain` if the rows can have only one meaning."""

    values: dict[str, Any]
    certain: bool

    def get(self, name: str) -> str | None:
        """Return an argument that is a text."""
        value = self.values.get(name)
        return value if isinstance(value, str) and value else None

    def diff(self) -> str | None:
        """Return the change that the arguments describe, as a unified diff."""
        path, content = (self.get("path") or "").lstrip("/"), self.get("content")
        old, new = (self.get("before") or "", self.get("after") or "") if content is None else ("", content)
        if not path or old == new:
            return None
        origin = "/dev/null" if content is not None else f"a/{path}"
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), origin, f"b/{path}", lineterm="")
        return "".join(f"{line}\n" for line in lines)


def read_arguments(text: str, columns: int) -> Arguments | None:
    """Read JSON from rows of a screen with so many columns, or return None if it cannot be read.

    A row that ends inside a text was wrapped by the terminal. It was full, so missing columns at its end are blanks.
    """
    joined, filled = "", False
    for row in text.rstrip("\n").split("\n"):
        joined += row
        if WHOLE_STRINGS.fullmatch(joined, joined.rfind("\n") + 1) is None:
            joined += " " * (columns - len(row))
            filled |= len(row) < columns  # a row from before a resize would get blanks that it did not have
        else:
            joined += "\n"
    try:
        values = json.loads(joined)
    except ValueError:
        return None
    return Arguments(values, joined.isascii() and not filled) if isinstance(values, dict) else None

"""Print results: aligned text for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from midwatch.base.text import CONTROLS, CONTROLS_EXCEPT_COLOURS, escape_controls

COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}
STATUS_COLOUR = {
    "done": "green", "running": "blue", "failed": "red", "cancelled": "dim", "pending": "yellow", "granted": "green",
    "denied": "red", "ok": "green", "warn": "yellow", "bad": "red", "sent": "green", "busy": "blue", "asking": "yellow",
    "closed": "dim", "lost": "red", "completed": "green", "in_progress": "blue", "rejected": "red", "expired": "red",
    "accepted": "blue",
}  # fmt: skip
CELL_LENGTH = 60

Field = tuple[str, object]


def say(text: str = "") -> None:
    """Print a line for people on standard output."""
    print(_protect(text, sys.stdout))


def note(text: str) -> None:
    """Print a line that is not part of the result, on standard error."""
    print(_protect(text, sys.stderr), file=sys.stderr)


def _protect(text: str, stream: TextIO) -> str:
    """Return a text without control characters except colours if `stream` is a terminal, else unchanged."""
    return escape_controls(text, CONTROLS_EXCEPT_COLOURS) if stream.isatty() else text


def emit(content: Any) -> None:
    """Print a value as JSON on one line. Characters that could control a terminal are escaped."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(escape_controls(json.dumps(content, ensure_ascii=not utf8, default=str)))


def paint(text: str, colour: str | None, stream: TextIO | None = None) -> str:
    """Return `text` in a colour if `stream` is a terminal with colours, else unchanged."""
    stream = stream or sys.stdout
    plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not colour else f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def paint_status(text: str, status: str) -> str:
    """Return `text` in the colour of a status, if it has one."""
    return paint(text, STATUS_COLOUR.get(status))


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "") -> str:
    """Return a table with aligned columns and coloured statuses, or `empty` if there are no rows."""
    if not rows and empty:
        return empty
    cells = [[shorten(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    lines = ["  ".join(name.ljust(width) for name, width in zip(headers, widths, strict=True)).rstrip()]
    for row in cells:
        padded = (paint_status(text.ljust(width), text) for text, width in zip(row, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def fields(pairs: Sequence[Field]) -> str:
    """Return names and values as text, one pair per line. Pairs without a value are left out."""
    rows = [(name, clean(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in rows), default=0)
    indented = "\n" + " " * (width + 2)
    return "\n".join(f"{name.ljust(width)}  {paint_status(text, text)}".replace("\n", indented) for name, text in rows)


def pick(record: Mapping[str, Any], *names: str, **renamed: str) -> list[Field]:
    """Return fields of a record as names and values; `renamed` maps a new name to a field. Times become local times."""
    labels = {name: name for name in names} | renamed
    return [
        (label.replace("_", " "), format_time(record[name], "") if name.endswith("_at") else record[name])
        for label, name in labels.items()
    ]


def values(record: Mapping[str, object], *names: str) -> list[object]:
    """Return these fields of a record as cells of a row."""
    return [record[name] for name in names]


def join(*parts: str | None) -> str:
    """Join texts with line breaks. Texts that are None are left out."""
    return "\n".join(part for part in parts if part is not None)


def clean(text: str) -> str:
    """Return `text` without control characters, because a text from an agent could otherwise control the terminal."""
    return CONTROLS.sub("", text)


def clean_for_terminal(text: str) -> str:
    """Return `text` without control characters if standard output is a terminal, else unchanged."""
    return clean(text) if sys.stdout.isatty() else text


def shorten(value: object, length: int = CELL_LENGTH) -> str:
    """Return `value` on one line of at most `length` characters."""
    text = " ".join(clean(str("-" if value is None else value)).split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def format_json(value: object) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def format_changes(files: int | None, added: int | None, removed: int | None) -> str:
    """Return the numbers of changed files and of added and removed lines as text."""
    if files is None:
        return "unknown"
    return f"{files} file{'' if files == 1 else 's'} +{added} -{removed}" if files else "no changes"


def suggest_merge(worktree_id: str) -> str:
    """Return the commands that show and merge a worktree, as a line to print."""
    return f"Then: midwatch worktree diff {worktree_id} | midwatch worktree merge {worktree_id}"


def format_time(moment: str | None, missing: str = "-") -> str:
    """Return an ISO time as local time, or `missing` if it is None."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else missing


def format_age(moment: str | None) -> str:
    """Return the age of an ISO time, such as 5m."""
    if not moment:
        return "-"
    return format_duration(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()))


def measure(begin: str | None, end: str | None) -> float | None:
    """Return the seconds between two ISO times, or None if one is unknown."""
    if not begin or not end:
        return None
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def format_duration(duration: float | None, missing: str = "-") -> str:
    """Return seconds as a short text: 0.4s, 12s, 5m, 3h, 2d."""
    if duration is None:
        return missing
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if duration >= 2 * size:
            return f"{duration / size:.0f}{unit}"
    return f"{duration:.0f}s" if duration >= 10 else f"{duration:.1f}s"


def format_money(dollars: float | None) -> str:
    """Return an amount in dollars as text, with four decimals if it is below one dollar."""
    if dollars is None:
        return "unknown"
    return f"${dollars:.2f}" if dollars >= 1 or not dollars else f"${dollars:.4f}"

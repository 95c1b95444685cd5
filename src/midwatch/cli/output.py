"""How the command line speaks: plain aligned text for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}
STATUS_COLOUR = {
    "done": "green", "running": "blue", "failed": "red", "cancelled": "dim", "pending": "yellow", "granted": "green",
    "denied": "red", "ok": "green", "warn": "yellow", "bad": "red", "sent": "green", "busy": "blue", "asking": "yellow",
    "closed": "dim", "lost": "red", "completed": "green", "in_progress": "blue", "rejected": "red", "expired": "red",
    "accepted": "blue",
}  # fmt: skip
SHOWN = 60


def say(text: str = "") -> None:
    """A line for people, on standard output."""
    print(text)


def note(text: str) -> None:
    """A line that is not the result: on standard error."""
    print(text, file=sys.stderr)


def emit(content: Any) -> None:
    """One JSON object on a line of its own."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(content, ensure_ascii=not utf8, default=str))


def coloured(stream: TextIO | None = None) -> bool:
    """Whether colour is welcome there."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str | None, stream: TextIO | None = None) -> str:
    """`text` in a colour, where colour is welcome."""
    if not colour or not coloured(stream):
        return text
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns; statuses are coloured."""
    cells = [[line(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    say("  ".join(name.ljust(width) for name, width in zip(headers, widths, strict=True)).rstrip())
    for row in cells:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        shown = [paint(pad, STATUS_COLOUR.get(text)) for pad, text in zip(padded, row, strict=True)]
        say("  ".join(shown).rstrip())


def fields(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, one pair a line; what is not known is left out."""
    known = [(name, value) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        text = clean(str(value)).replace("\n", "\n" + " " * (width + 2))
        say(f"{name.ljust(width)}  {paint(text, STATUS_COLOUR.get(text))}")


def clean(text: str) -> str:
    """`text` without control characters, so that what an agent wrote cannot command the terminal or reverse a line."""
    return "".join(
        char for char in text if char in "\n\t" or ((char.isprintable() or ord(char) > 0x9F) and char not in BIDI)
    )


BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of what follows."""


def line(value: object, length: int = SHOWN) -> str:
    """`value` on one line of bounded length."""
    text = " ".join(clean(str("-" if value is None else value)).split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def changes(files: int | None, added: int | None, removed: int | None) -> str:
    """How much was changed."""
    if files is None:
        return "not known"
    return f"{files} file{'' if files == 1 else 's'} +{added} -{removed}" if files else "no changes"


def next_steps(worktree_id: str) -> str:
    """What a person may do with a worktree."""
    return f"Then: midwatch worktree diff {worktree_id} | midwatch worktree merge {worktree_id}"


def local(moment: str | None) -> str:
    """A time of the interface as local time for people."""
    if not moment:
        return "-"
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(moment: str | None) -> str:
    """How long ago a time of the interface was, such as 5m."""
    if not moment:
        return "-"
    gone = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    return span(max(0.0, gone))


def span(duration: float | None) -> str:
    """Seconds as people say it: 0.4s, 12s, 5m, 3h, 2d."""
    if duration is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if duration >= 2 * size:
            return f"{duration / size:.0f}{unit}"
    return f"{duration:.0f}s" if duration >= 10 else f"{duration:.1f}s"


def money(dollars: float | None) -> str:
    """Dollars, with what small sums need."""
    if dollars is None:
        return "-"
    return f"${dollars:.2f}" if dollars >= 1 or not dollars else f"${dollars:.4f}"

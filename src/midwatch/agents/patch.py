"""Makes a unified diff of two texts. The size of the diff and the time to make it are limited."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

LONGEST = 20_000  # characters of a patch that are kept
MOST_COMPARED = 4_000
"""The maximum number of changed lines that are compared one by one, because the time grows with the square.

If there are more lines, the patch removes all old lines and adds all new lines.
"""
CONTEXT = 3


def patch(path: str, old: str | None, new: str) -> dict[str, Any]:
    """Return the change from `old` to `new` as a patch.

    The fields are `path`, `patch`, the numbers of `added` and `removed` lines, and `cut`: whether a long patch was cut.
    """
    before, after = _lines(old or ""), _lines(new)
    head = _count_common(before, after)
    tail = _count_common(before[head:][::-1], after[head:][::-1])
    old_lines, new_lines = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(old_lines) + len(new_lines) <= MOST_COMPARED:
        hunks = list(_make_hunks(before, after, head, tail)) if old_lines or new_lines else []
        added = sum(line.startswith("+") for line in hunks)
        removed = sum(line.startswith("-") for line in hunks)
        body: Iterator[str] = iter(hunks)
    else:
        before_counts, after_counts = Counter(old_lines), Counter(new_lines)
        added, removed = (after_counts - before_counts).total(), (before_counts - after_counts).total()
        hunk = f"@@ -{head + 1},{len(old_lines)} +{head + 1},{len(new_lines)} @@"
        body = chain((hunk,), (f"-{line}" for line in old_lines), (f"+{line}" for line in new_lines))
    names = ("/dev/null" if old is None else f"a/{path.lstrip('/')}", f"b/{path.lstrip('/')}")
    text, cut = _take_first(chain((f"--- {names[0]}", f"+++ {names[1]}"), body))
    return {"path": path, "patch": text, "added": added, "removed": removed, "cut": cut}


def _make_hunks(before: list[str], after: list[str], head: int, tail: int) -> Iterator[str]:
    """Yield the lines of the diff. The first `head` and the last `tail` lines are equal and are not compared again."""
    ends = (len(before) - tail, len(after) - tail)
    middle = difflib.SequenceMatcher(None, before[head : ends[0]], after[head : ends[1]]).get_opcodes()
    whole: Any = difflib.SequenceMatcher(None, "", "")
    whole.opcodes = [
        ("equal", 0, head, 0, head),
        *((tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in middle),
        ("equal", ends[0], len(before), ends[1], len(after)),
    ]
    for group in whole.get_grouped_opcodes(CONTEXT):
        yield f"@@ -{_format_range(group[0][1], group[-1][2])} +{_format_range(group[0][3], group[-1][4])} @@"
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[i:j])
            else:
                yield from (f"-{line}" for line in before[i:j])
                yield from (f"+{line}" for line in after[k:m])


def _format_range(start: int, end: int) -> str:
    length = end - start
    return str(start + 1) if length == 1 else f"{start + 1 if length else start},{length}"


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _count_common(first: list[str], second: list[str]) -> int:
    """Return how many lines at the beginning are equal in both lists."""
    shorter = min(len(first), len(second))
    return next((n for n in range(shorter) if first[n] != second[n]), shorter)


def _take_first(lines: Iterator[str]) -> tuple[str, bool]:
    """Return the first lines, at most `LONGEST` characters, and whether lines were cut."""
    first_lines: list[str] = []
    room = LONGEST
    for line in lines:
        if len(line) + 1 > room:
            first_lines.append(line[:room])
            return "\n".join(first_lines), True
        first_lines.append(line)
        room -= len(line) + 1
    return "\n".join(first_lines) + "\n", False

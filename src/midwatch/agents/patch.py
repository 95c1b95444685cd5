"""Patches: what a change of a text looks like as a unified diff, small and quick whatever the size of the text."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

LONGEST = 20_000
"""Characters of a patch that are kept."""
MOST_COMPARED = 4_000
"""Lines that are compared one by one. Of more only the whole block and its counts are told: comparing them takes time
that grows with the square."""
CONTEXT = 3


def patch(path: str, old: str | None, new: str) -> dict[str, Any]:
    """`path`, `patch` (cut when long), `added` and `removed` lines, and whether it was `cut`."""
    before, after = _lines(old or ""), _lines(new)
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    gone, come = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(gone) + len(come) <= MOST_COMPARED:
        told = list(_hunks(before, after, head, tail)) if gone or come else []
        added = sum(line.startswith("+") for line in told)
        removed = sum(line.startswith("-") for line in told)
        body: Iterator[str] = iter(told)
    else:
        here, there = Counter(gone), Counter(come)
        added, removed = (there - here).total(), (here - there).total()
        hunk = f"@@ -{head + 1},{len(gone)} +{head + 1},{len(come)} @@"
        body = chain((hunk,), (f"-{line}" for line in gone), (f"+{line}" for line in come))
    names = ("/dev/null" if old is None else f"a/{path.lstrip('/')}", f"b/{path.lstrip('/')}")
    text, cut = _first(chain((f"--- {names[0]}", f"+++ {names[1]}"), body))
    return {"path": path, "patch": text, "added": added, "removed": removed, "cut": cut}


def _hunks(before: list[str], after: list[str], head: int, tail: int) -> Iterator[str]:
    """The diff of texts whose first `head` and last `tail` lines are the same, and are not compared again."""
    ends = (len(before) - tail, len(after) - tail)
    middle = difflib.SequenceMatcher(None, before[head : ends[0]], after[head : ends[1]]).get_opcodes()
    whole: Any = difflib.SequenceMatcher(None, "", "")
    whole.opcodes = [
        ("equal", 0, head, 0, head),
        *((tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in middle),
        ("equal", ends[0], len(before), ends[1], len(after)),
    ]
    for group in whole.get_grouped_opcodes(CONTEXT):
        yield f"@@ -{_range(group[0][1], group[-1][2])} +{_range(group[0][3], group[-1][4])} @@"
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[i:j])
            else:
                yield from (f"-{line}" for line in before[i:j])
                yield from (f"+{line}" for line in after[k:m])


def _range(start: int, end: int) -> str:
    length = end - start
    return str(start + 1) if length == 1 else f"{start + 1 if length else start},{length}"


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _common(one: list[str], other: list[str]) -> int:
    """How many lines are the same at the beginning."""
    shorter = min(len(one), len(other))
    return next((n for n in range(shorter) if one[n] != other[n]), shorter)


def _first(lines: Iterator[str]) -> tuple[str, bool]:
    """As many lines as fit, and whether some did not."""
    kept: list[str] = []
    room = LONGEST
    for line in lines:
        if len(line) + 1 > room:
            kept.append(line[:room])
            return "\n".join(kept), True
        kept.append(line)
        room -= len(line) + 1
    return "\n".join(kept) + "\n", False

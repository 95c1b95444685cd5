"""Globs for paths, for names of tools, and for names of hosts, compared in linear time."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


def expand_home(path: str) -> str:
    """Return the path with `~` replaced by the user's home. If the user of `~name` is unknown, keep `~name`."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path


def fold_path(path: str) -> str:
    """Return a path in the form that rules which deny are compared with.

    Some systems ignore upper case, characters that nobody sees, and blanks and dots at the end of a name.
    """
    folded = path.casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", folded).casefold()
        folded = "".join(letter for letter in folded if unicodedata.category(letter) != "Cf")
    if " " not in folded and "." not in folded:
        return folded
    return "/".join(step.rstrip(" .") or step.strip() or step for step in folded.split("/"))


class Glob(NamedTuple):
    """A glob for paths: `**` matches any number of directories; `*` and `?` match no slash.

    The time of a comparison is at most the length of the glob multiplied by the length of the path.
    """

    steps: tuple[re.Pattern[str] | None, ...]
    """One expression for each step of a path; None means `**`."""

    @staticmethod
    @lru_cache(256)
    def parse(glob: str) -> Glob:
        """Parse a glob such as `src/**/*.py`."""
        steps = expand_home(glob).rstrip("/").split("/")
        return Glob(tuple(None if step == "**" else compile_step(step) for step in steps))

    def matches(self, path: str) -> bool:
        """Return whether the glob matches the whole path."""
        names = path.split("/")
        last = len(names) - 1
        reached = {0}  # the names in front of these places match the steps so far
        for step in self.steps[:-1]:
            if step is None:
                reached = _pass_directories(reached, names)
            else:
                reached = {at + 1 for at in reached if at < last and step.fullmatch(names[at])}
        end = self.steps[-1]
        if end is None:
            return any(at < last or names[at] for at in reached)
        return last in reached and end.fullmatch(names[last]) is not None

    def may_match_below(self, directory: str) -> bool:
        """Return whether the glob may match a path below a directory; relative paths begin at `.`."""
        names = [] if directory == "." else directory.rstrip("/").split("/")
        if names and set(names) == {".."}:
            return True
        reached = self._skip({0})
        for name in names:
            steps = ((at, self.steps[at]) for at in reached if at < len(self.steps))
            found = {at if step is None else at + 1 for at, step in steps if step is None or step.fullmatch(name)}
            reached = self._skip(found)
        return any(at < len(self.steps) for at in reached)

    def _skip(self, places: set[int]) -> set[int]:
        """Return the places, and those behind each `**`, which may match nothing."""
        for at in sorted(places):
            while at < len(self.steps) and self.steps[at] is None:
                at += 1
                places.add(at)
        return places


MOST_STEPS = 100
CHOICE = re.compile(r"\[[^/\]]*\]|\{[^{}/]*\}|[!@+?]\([^()/]*\)")
"""What other programs read as one of several letters or words."""


def may_meet(glob: str, other: str) -> bool:
    """Return whether two globs may match the same path. In doubt, return True."""
    first, second = CHOICE.sub("*", glob).split("/"), CHOICE.sub("*", other).split("/")
    if len(first) > MOST_STEPS or len(second) > MOST_STEPS or re.search(r"\{[^}]*/", glob):
        return True
    places, seen = [(0, 0)], set[tuple[int, int]]()
    while places:
        place = at, by = places.pop()
        if place in seen:
            continue
        seen.add(place)
        mine = first[at] if at < len(first) else None
        theirs = second[by] if by < len(second) else None
        if mine is None and theirs is None:
            return True
        if "**" in (mine, theirs):
            places += [(at + 1, by)] if mine is not None else []
            places += [(at, by + 1)] if theirs is not None else []
        elif mine is not None and theirs is not None and _steps_may_meet(mine, theirs):
            places.append((at + 1, by + 1))
    return False


def _steps_may_meet(step: str, other: str) -> bool:
    """Return whether two steps of globs may match the same name: their fixed beginnings and ends must agree."""
    first, second = re.split(r"[*?]", step), re.split(r"[*?]", other)
    if len(first) == 1 or len(second) == 1:  # one of them is a plain name
        name, glob = (step, other) if len(first) == 1 else (other, step)
        return compile_step(glob).fullmatch(name) is not None
    begins = first[0].startswith(second[0]) or second[0].startswith(first[0])
    return begins and (first[-1].endswith(second[-1]) or second[-1].endswith(first[-1]))


@lru_cache(1000)
def compile_step(step: str) -> re.Pattern[str]:
    """Return an expression for a step of a glob. Each `*` takes as little as possible and never tries again."""
    first, *others = ("".join("." if sign == "?" else re.escape(sign) for sign in part) for part in step.split("*"))
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{middle}.*{others[-1]}" if others else first, re.DOTALL)


def _pass_directories(reached: set[int], names: Sequence[str]) -> set[int]:
    """Return the places that `**` reaches from the places `reached`: behind any number of names that are not empty."""
    passed = set[int]()
    for at in reached:
        while at not in passed:
            passed.add(at)
            if at == len(names) - 1 or not names[at]:
                break
            at += 1
    return passed

"""Globs for paths, for names of tools, and for names of hosts, compared in linear time."""

from __future__ import annotations

import re
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

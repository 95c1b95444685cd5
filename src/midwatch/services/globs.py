"""Globs for paths, for names of tools, and for names of hosts, compared in linear time."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
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
            places = {at if step is None else at + 1 for at, step in steps if step is None or step.fullmatch(name)}
            reached = self._skip(places)
        return any(at < len(self.steps) for at in reached)

    def _skip(self, places: set[int]) -> set[int]:
        """Return the places, and those behind each `**`, which may match nothing."""
        for at in sorted(places):
            while at < len(self.steps) and self.steps[at] is None:
                at += 1
                places.add(at)
        return places


MOST_STEPS = 100
MOST_READINGS = 50
"""The greatest number of steps in which the choices of a text are replaced by their words."""
CHOICE = re.compile(r"\[[^][(){}]*\]|\{[^][(){}]*\}|[!@+?*]?\([^][(){}]*\)[?*+]?")
"""What other programs read as one of several letters or words, without another choice in it."""
ALL_CHOICES = re.compile(r"[!@+?*]?[\[({].*[\])}]", re.DOTALL)
"""Everything from the first to the last bracket."""
ANYTHING = ("*", "*/**/*")


@lru_cache(1000)
def readings_of(text: str) -> frozenset[str]:
    """Return globs with `*`, `?` and `**` that together match every path that a text may match for other programs.

    A backslash is a slash, or is left out before a letter. A bracket behind a backslash is a letter, and becomes `?`.
    """
    plain = re.sub(r"\\[][(){}]", "?", text)
    unescaped = re.sub(r"\\[*?]", "?", plain).replace("\\", "")
    return frozenset(chain.from_iterable(map(_read_choices, {plain.replace("\\", "/"), unescaped})))


def _read_choices(text: str) -> list[str]:
    """Return globs for all words of the choices in a text, or wider ones if there are too many words."""
    readings = _expand(text, _words_of) or _expand(text, lambda choice: ANYTHING if "/" in choice else ANYTHING[:1])
    if readings is not None:
        return readings
    if "../" in text or "/.." in text:
        return ["**"]
    return [ALL_CHOICES.sub(glob, text, count=1) for glob in ANYTHING]


def _expand(text: str, words_of: Callable[[str], Sequence[str]]) -> list[str] | None:
    """Return the text with each word of each choice, or None if there are too many, or programs read it differently."""
    readings, unread = list[str](), [text]
    for _ in range(MOST_READINGS):
        if not unread:
            return readings
        reading = unread.pop()
        if choice := CHOICE.search(reading):
            before, after = reading[: choice.start()], reading[choice.end() :]
            unread += [f"{before}{word}{after}" for word in words_of(choice[0])]
        elif _is_ambiguous(reading) or ("]" in reading and "[" in text):
            return None
        else:
            readings.append(reading)
    return None


def _is_ambiguous(text: str) -> bool:
    """Return whether a text still has a bracket that another one may close."""
    return any(-1 < text.find(opening) < text.rfind(closing) for opening, closing in ("[]", "{}", "()"))


def _words_of(choice: str) -> Sequence[str]:
    """Return the words that a choice stands for; `?` for a bracket that may be a letter; `*` if they are not known."""
    inner = choice[1:-1]
    if choice[0] in "({" and choice[-1] in ")}" and ".." not in inner:
        return [*inner.split("|" if choice[0] == "(" else ","), f"?{inner}?"]
    return ANYTHING if "/" in inner else ANYTHING[:1]


def may_meet(glob: str, other: str) -> bool:
    """Return whether two globs may match the same path. In doubt, return True."""
    first, second = glob.split("/"), other.split("/")
    if len(first) > MOST_STEPS or len(second) > MOST_STEPS:
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
    places = set[int]()
    for at in reached:
        while at not in places:
            places.add(at)
            if at == len(names) - 1 or not names[at]:
                break
            at += 1
    return places

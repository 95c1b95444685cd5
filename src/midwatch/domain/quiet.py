"""Quiet answers: the answer of a run for which no notice is sent, as a text or as a pattern between slashes.

An agent may be led to write any answer, so the time of a match is bounded: groups are never repeated, and with more
choices in the pattern, less of the answer is read. With q repeated characters and c other choices, the search tries at
most n**q * 2**c ways for the first n characters; n is chosen so that this is at most MOST_WAYS.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from midwatch.base.errors import InvalidInput

READ = 2000
"""The number of characters of an answer that are read."""
LEAST_READ = 100
MOST_WAYS = 2_000_000
MARKS = " \t\r\n*_~`\"'>#"
"""Characters around an answer that do not matter: blanks, quotes and marks of Markdown."""
ENDS = ".!?,;:\u2026"
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_REPEAT = re.compile(r"(?P<group>\)?)(?P<how>[*+?]|\{\d*(?P<range>,)?\d*\})[?+]?")


class Pattern(NamedTuple):
    """A pattern, and how many characters of an answer it reads."""

    regex: re.Pattern[str]
    reads: int


def is_quiet(quiet: str | None, answer: str) -> bool:
    """Return whether no notice is sent for an answer."""
    if not quiet:
        return False
    if (source := _pattern_of(quiet)) is None:
        return len(answer) <= READ and _simplify(answer) == _simplify(quiet)
    try:
        pattern = _compile(source)
    except InvalidInput:  # written by an older version, as a text
        return answer.strip() == quiet.strip()
    text = answer.strip()
    match = pattern.regex.match(text[: pattern.reads])
    return match is not None and (match.end() < pattern.reads or len(text) <= pattern.reads)


def check_quiet(quiet: str | None) -> None:
    """Raise InvalidInput if the value cannot be used as a quiet answer."""
    if quiet is None:
        return
    if not quiet.strip():
        raise InvalidInput("`quiet` is empty; write some text.", field="quiet")
    if (source := _pattern_of(quiet)) is not None:
        _compile(source)


def _simplify(text: str) -> str:
    """Return a text without case, surrounding blanks and marks, and punctuation at its end."""
    plain = text.strip(MARKS).rstrip(MARKS + ENDS) or text.strip()
    return " ".join(plain.casefold().split())


def _pattern_of(quiet: str) -> str | None:
    text = quiet.strip()
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == "/" else None


@lru_cache(maxsize=256)
def _compile(source: str) -> Pattern:
    repeats = choices = 0
    bare = _CLASS.sub("c", _ESCAPE.sub(lambda escape: "\\" if escape[0][1] in "123456789" else "e", source))
    bare = bare.replace("(?:", "(")
    if "\\" in bare or "(?" in bare:
        _refuse(source, "uses a back reference or a special group; use only ( ) and (?: )")
    for match in _REPEAT.finditer(bare):
        if match["how"] == "?":
            choices += 1
        elif match["group"]:
            _refuse(source, "repeats a group; repeat only single characters or classes such as [a-z]")
        elif match["how"] in "*+" or match["range"]:
            repeats += 1
    choices += bare.count("|")
    ways = MOST_WAYS / 2 ** min(choices, 64)
    reads = min(READ, int(ways ** (1 / repeats)) if repeats else READ)
    if reads < LEAST_READ or ways < 1:
        _refuse(source, "has too many repetitions and alternatives; simplify it")
    try:
        return Pattern(re.compile(source, re.IGNORECASE), reads)
    except (re.error, OverflowError, RecursionError):
        _refuse(source, "is not a regular expression; write one like /^(OK|nothing new)/")
        raise AssertionError from None


def _refuse(source: str, why: str) -> None:
    raise InvalidInput(f"the pattern /{source[:80]}/ of `quiet` {why}.", field="quiet")

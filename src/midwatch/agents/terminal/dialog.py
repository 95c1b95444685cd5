"""Questions on the screen of a terminal agent: what is asked, the visible choices, and the keys that make them."""

from __future__ import annotations

import re
from typing import NamedTuple

from midwatch.agent import Answer, Choice, ChoiceKind, Question
from midwatch.agents.terminal.profiles import Profile

FRAME = "│┃║|╭╮╰╯┌┐└┘─━═╌ \t"
NO = re.compile(r"\W*(no\b|n\b|reject|deny|cancel|don.t|abort|skip|exit|quit|stop|never|suggest changes)", re.I)
ALWAYS = re.compile(r"(always|don.t ask|all |every|session|remember|auto)", re.I)
RUNS = re.compile(r"\b(run|execute|execution|command|bash|shell)\b", re.I)
MOST_LINES = 20
BY_HAND = (Choice("answered in the terminal", "allow_once"), Choice("stop", "reject_once"))


class Option(NamedTuple):
    """A choice and its keys."""

    choice: Choice
    keys: str


class Dialog(NamedTuple):
    """A question on the screen. Without options it is one that only a person at the terminal can answer."""

    text: str
    options: tuple[Option, ...]

    def question(self) -> Question:
        """As a person is asked it."""
        choices = tuple(option.choice for option in self.options) or BY_HAND
        return Question(text=self.text, choices=choices, kind="execute" if RUNS.search(self.text) else "other")

    def keys(self, answer: Answer) -> str | None:
        """What to press; None when nothing fits."""
        for option in self.options:
            if option.choice.name == answer.choice:
                return option.keys
        return next((o.keys for o in self.options if o.choice.allows == answer.granted), None)


def dialog(profile: Profile, shown: str) -> Dialog:
    """The question in the last rows of a screen."""
    lines = [line.strip(FRAME) for line in shown.split("\n")]
    if profile.answers:
        options = tuple(Option(Choice(name, _kind(name)), keys) for name, keys in profile.answers.items())
        return Dialog(_above(lines, len(lines)), options)
    first, found = _choices(profile, lines)
    options = tuple(
        Option(Choice(words, _kind(words)), profile.choice_keys.replace("{key}", key)) for key, words in found
    )
    return Dialog(_above(lines, first), options)


def _choices(profile: Profile, lines: list[str]) -> tuple[int, list[tuple[str, str]]]:
    """Where the last run of choices begins, and their keys and words."""
    found: list[tuple[str, str]] = []
    first = len(lines)
    for at, line in enumerate(lines):
        match = re.match(profile.choice, line)
        if match is None:
            continue
        if match[1] == "1":
            first, found = at, []
        if match[1] == str(len(found) + 1):
            found.append((match[1], " ".join(match[2].split())))
    return first, found if len(found) > 1 else []


def _above(lines: list[str], end: int) -> str:
    """The lines of the question."""
    return "\n".join(line for line in lines[max(0, end - MOST_LINES) : end] if line)


def _kind(words: str) -> ChoiceKind:
    if NO.match(words):
        return "reject_once"
    return "allow_always" if ALWAYS.search(words) else "allow_once"

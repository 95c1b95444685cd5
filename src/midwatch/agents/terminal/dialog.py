"""Questions on the screen of a terminal agent: their text, their choices, and the keys for the choices."""

from __future__ import annotations

import re
from typing import NamedTuple

from midwatch.agents.terminal.profile import Profile
from midwatch.domain.agent import Answer, Choice, ChoiceKind, Question

FRAME = "│┃║|╭╮╰╯┌┐└┘─━═╌ \t"
NO = re.compile(r"\W*(no\b|n\b|reject|deny|cancel|don.t|abort|skip|exit|quit|stop|never|suggest changes)", re.I)
ALWAYS = re.compile(r"(always|don.t ask|all |every|session|remember|auto)", re.I)
RUNS = re.compile(r"\b(run|execute|execution|command|bash|shell)\b", re.I)
MOST_LINES = 20
RULE = re.compile(r"^[ ╭┌]*[─━═╌]{10,}[ ╮┐]*$")
UNFRAMED = str.maketrans("│┃║|", "    ")
UNCHOSEN = " ○◯"
UP, DOWN = "\x1b[A", "\x1b[B"
BY_HAND = (Choice("answered in the terminal", "allow_once"), Choice("stop", "reject_once"))


class Option(NamedTuple):
    """A choice and the keys that select it."""

    choice: Choice
    keys: str


class Dialog(NamedTuple):
    """A question on the screen. If `options` is empty, only a person at the terminal can answer the question."""

    text: str
    options: tuple[Option, ...]

    def question(self) -> Question:
        """Return the question to ask a person."""
        choices = tuple(option.choice for option in self.options) or BY_HAND
        return Question(text=self.text, choices=choices, kind="execute" if RUNS.search(self.text) else "other")

    def keys(self, answer: Answer) -> str | None:
        """Return the keys that give this answer, or None if no option fits."""
        for option in self.options:
            if option.choice.name == answer.choice:
                return option.keys
        return next((o.keys for o in self.options if o.choice.allows == answer.granted), None)


def read_dialog(profile: Profile, shown: str) -> Dialog:
    """Return the question in `shown`, the last rows of a screen."""
    raw = shown.split("\n")
    lines = [line.strip(FRAME) for line in raw]
    if profile.answers:
        options = tuple(Option(Choice(name, _judge_kind(name)), keys) for name, keys in profile.answers.items())
        return Dialog(_read_text_above(raw, len(raw)), options)
    first, choices = _read_choices(profile, lines)
    if not choices:
        first, choices = _read_menu(profile, raw)
    return Dialog(
        _read_text_above(raw, first), tuple(Option(Choice(words, _judge_kind(words)), keys) for keys, words in choices)
    )


def _read_choices(profile: Profile, lines: list[str]) -> tuple[int, list[tuple[str, str]]]:
    """Read the last numbered list of choices. Return the number of its first line, and each choice as keys and text."""
    choices: list[tuple[str, str]] = []
    first = len(lines)
    for at, line in enumerate(lines):
        match = re.match(profile.choice, line)
        if match is None:
            continue
        if match[1] == "1":
            first, choices = at, []
        if match[1] == str(len(choices) + 1):
            choices.append((match[1], " ".join(match[2].split())))
    keyed = [(profile.choice_keys.replace("{key}", key), text) for key, text in choices]
    return (first, keyed) if len(keyed) > 1 else (len(lines), [])


def _read_menu(profile: Profile, lines: list[str]) -> tuple[int, list[tuple[str, str]]]:
    """Read the last menu with a pointer, which arrow keys and Enter control. Return the same as `_read_choices`.

    The choices are the lines that have the same indent as the line with the pointer.
    """
    rows = [line.translate(UNFRAMED).rstrip() for line in lines]
    places = [(at, match) for at, row in enumerate(rows) if (match := re.match(profile.pointer, row))]
    if not profile.pointer or not places:
        return len(lines), []
    chosen, match = places[-1]
    indent = match.end()

    def is_choice(at: int) -> bool:
        row = rows[at] if 0 <= at < len(rows) else ""
        return at == chosen or (not row[:indent].strip(UNCHOSEN) and len(row) > indent and not row[indent].isspace())

    first, end = chosen, chosen + 1
    while is_choice(first - 1):
        first -= 1
    while is_choice(end):
        end += 1
    moves = (((DOWN * (at - chosen)) if at > chosen else UP * (chosen - at)) + "\r" for at in range(first, end))
    texts = [" ".join(rows[at][indent:].split()) for at in range(first, end)]
    return (first, list(zip(moves, texts, strict=True))) if len(texts) > 1 else (len(lines), [])


def _read_text_above(raw: list[str], end: int) -> str:
    """Return the text of the question above line `end`.

    It begins below the last horizontal line on the screen, and has at most `MOST_LINES` lines.
    """
    first = next((at for at in range(end - 1, -1, -1) if RULE.search(raw[at])), 0)
    return "\n".join(line.strip(FRAME) for line in raw[max(first, end - MOST_LINES) : end] if line.strip(FRAME))


def _judge_kind(text: str) -> ChoiceKind:
    if NO.match(text):
        return "reject_once"
    return "allow_always" if ALWAYS.search(text) else "allow_once"

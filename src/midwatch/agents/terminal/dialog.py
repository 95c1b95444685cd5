"""Questions on the screen of a terminal agent: their text, their subject, their choices, and the keys for the choices.

A dialog is the last thing on the screen. If the profile describes the dialogs of its program, a menu needs a frame
above it, a mark before its current choice, and nothing but its footer below: text of a reply is no dialog.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from midwatch.agents.terminal.profile import Profile
from midwatch.agents.terminal.subject import Subject, measure, read_subject
from midwatch.agents.tool_question import LONGEST_DIFF, NO, make_absolute, rate_risk, word_question
from midwatch.domain.agent import Answer, Choice, ChoiceKind, Question
from midwatch.domain.host_name import find_hosts

FRAME = "│┃║|╭╮╰╯┌┐└┘─━═╌ \t"
ALWAYS = re.compile(r"\b(always|don.t ask|all\b|every|session|remember|auto)", re.I)
STOPS = "(Esc to stop)"
"""The end of a choice whose own key waits for more text; Escape selects it without one."""
MOST_LINES = 60
WORDED = ("execute", "edit", "read", "fetch")
"""Kinds whose question names the command, file or address. Other questions show the text of the dialog."""
RULE = re.compile(r"^[ ╭┌]*[─━═╌]{10,}[ ╮┐]*$")
UNFRAMED = str.maketrans("│┃║|", "    ")
UNCHOSEN = " ○◯"
UP, DOWN = "\x1b[A", "\x1b[B"
BY_HAND = (Choice("answered in the terminal", "allow_once"), Choice("stop", "reject_once"))


class Option(NamedTuple):
    """A choice, the keys that select it, and the keys that only move the pointer to it."""

    choice: Choice
    keys: str
    moves: tuple[str, ...] = ()


class Dialog(NamedTuple):
    """A question on the screen. If `options` is empty, only a person at the terminal can answer the question.

    `framed` tells whether the dialog has everything that the profile demands of a menu.
    """

    text: str
    options: tuple[Option, ...]
    subject: Subject = Subject()
    framed: bool = False
    refuse: str = ""

    def question(self, root: str | None = None) -> Question:
        """Return the question to ask a person. `root` is the directory of the program."""
        choices = tuple(option.choice for option in self.options) or BY_HAND
        subject, kind = self.subject, self.subject.kind
        if not subject.readable:
            return Question(
                text=self.text, choices=choices, kind=kind, tool=subject.tool, risk="high", root=root, certain=False
            )
        topic = subject.command or " ".join(subject.paths) or subject.url
        paths = subject.paths if root is None else tuple(make_absolute(path, root) for path in subject.paths)
        risk = None if kind == "choice" else rate_risk(kind, subject.command, paths, root or "/")
        return Question(
            text=word_question(kind, topic) if topic and kind in WORDED else self.text,
            choices=choices, kind=kind, tool=subject.tool, command=subject.command, paths=paths,
            diff=subject.diff and subject.diff[:LONGEST_DIFF], risk=subject.risk or risk, root=root,
            certain=subject.certain, hosts=tuple(find_hosts(subject.url or "")), texts=subject.texts,
            unread=subject.unread,
        )  # fmt: skip

    def is_same(self, other: Dialog) -> bool:
        """Return whether both are the same question. A person at the terminal may write something into a choice."""
        return (self.text, self.subject) == (other.text, other.subject)

    def keys(self, answer: Answer) -> tuple[str, ...]:
        """Return the keys that give this answer, to be typed one after the other; none if no option fits.

        An option for one time is preferred.
        """
        named = [option for option in self.options if option.choice.name == answer.choice]
        fitting = [option for option in self.options if option.choice.allows == answer.granted]
        fitting.sort(key=lambda option: option.choice.kind.endswith("always"))
        for option in (*named, *fitting):
            why = "".join(filter(str.isprintable, " ".join((answer.why or "").split())))
            if why and self.subject.reason and not option.choice.allows:
                return (*option.moves, *(keys.replace("{why}", why) for keys in self.subject.reason))
            return (option.keys,)
        return (self.refuse,) if self.refuse and not answer.granted else ()


def read_dialog(profile: Profile, shown: str, columns: int = 120, hidden: int = 0) -> Dialog:
    """Return the question in `shown`, the last rows of a screen with so many columns.

    The first `hidden` rows have scrolled off the screen. If the dialog begins in them, its subject is not certain.
    """
    rows = [row.rstrip(" ") for row in shown.rstrip(" \n").split("\n")]  # other blanks may be part of a command
    if profile.edge:  # a scroll bar comes and goes, and is no part of the question
        rows = [re.sub(profile.edge, "", row) for row in rows]
    if answers := _find_answers(profile, rows):
        first, options = len(rows), tuple((keys, name) for name, keys in answers.items())
        complete = True
    else:
        first, end, found = _read_choices(profile, rows, columns)
        complete = _is_menu(profile, rows, first, end)
        if not found or (profile.dialogs and not complete):
            first, end, found = _read_menu(profile, rows)
            complete = _is_menu(profile, rows, first, end) and _has_footer(profile, rows[end:])
        if profile.dialogs and not complete:
            first, found = len(rows), []
        options = tuple(found)
    top = _find_top(profile, rows, first)
    text = "\n".join(row.strip(FRAME) for row in rows[max(top or 0, first - MOST_LINES) : first] if row.strip(FRAME))
    pointed = next((at for at, (_, words) in enumerate(options) if _is_pointed(profile, rows[first:], words)), 0)
    named = tuple(
        Option(
            Choice(words, _judge_kind(words)),
            profile.refuse if words.endswith(STOPS) else keys,
            (DOWN if at > pointed else UP,) * abs(at - pointed),
        )
        for at, (keys, words) in enumerate(options)
    )
    if top is None or not options:
        return Dialog(text, named, refuse=profile.refuse)
    body = "".join(f"{_remove_border(profile, row)}\n" for row in rows[top:first])
    subject = read_subject(profile, body, "\n".join(rows[first:]), columns)
    if top < hidden:
        subject = subject._replace(certain=False)
    if subject.arrows:
        named = tuple(option._replace(keys="".join((*option.moves, "\r"))) for option in named)
    return Dialog(text, named, subject, complete, profile.refuse)


def _find_top(profile: Profile, rows: list[str], end: int) -> int | None:
    """Return the number of the first row of a dialog that ends above row `end`, or None if its frame is missing."""
    frame = profile.frame or (r"\A" if profile.dialogs else RULE.pattern)
    above = "\n".join(rows[:end])
    last = None
    for match in re.finditer(frame, above, re.MULTILINE):
        last = match
    if last is None:
        return None if profile.dialogs else 0
    return above.count("\n", 0, last.end()) + (1 if last[0] else 0)


def _remove_border(profile: Profile, row: str) -> str:
    return re.sub(profile.border, "", row).rstrip(" ") if profile.border else row


def _find_answers(profile: Profile, rows: list[str]) -> dict[str, str]:
    """Return the choices and their keys of a dialog that does not show each choice on a row of its own."""
    top = _find_top(profile, rows, len(rows))
    text = "\n".join(_remove_border(profile, row) for row in rows[top:]) if top is not None else ""
    last = "\n".join([row for row in rows if row.strip(FRAME)][-2:])
    for kind in profile.dialogs:
        if kind.answers and profile.find(kind.heading, text) and all(name in last for name in kind.answers):
            return kind.answers
    return profile.answers


def _is_menu(profile: Profile, rows: list[str], first: int, end: int) -> bool:
    """Return whether rows `first` to `end` can be a menu: one row has a mark, and only a footer is below."""
    marks = [row for row in rows[first:end] if re.match(profile.pointer, row.translate(UNFRAMED))]
    below = [row for row in rows[end:] if row.strip(FRAME)]
    return len(marks) == 1 and all(profile.find(profile.footer, row) for row in below)


def _is_pointed(profile: Profile, rows: list[str], words: str) -> bool:
    """Return whether the pointer is before the choice with these words."""
    marked = (row for row in rows if profile.pointer and re.match(profile.pointer, row.translate(UNFRAMED)))
    return any(words.startswith(row.strip(FRAME).partition(". ")[2]) for row in marked if ". " in row)


def _has_footer(profile: Profile, rows: list[str]) -> bool:
    return any(profile.find(profile.footer, row) for row in rows)


def _read_choices(profile: Profile, rows: list[str], columns: int) -> tuple[int, int, list[tuple[str, str]]]:
    """Read the last numbered list of choices.

    Return the number of its first row, the number of the row below it, and each choice as keys and text.
    """
    choices: list[tuple[str, str]] = []
    first = end = len(rows)
    wrapped = False  # whether the choice may continue in the next row
    for at, row in enumerate(rows):
        line = row.strip(FRAME)
        match = re.match(profile.choice, line)
        if match is not None and match[1] == "1":
            first, choices = at, []
        if match is not None and match[1] == str(len(choices) + 1):
            choices.append((match[1], " ".join(match[2].split())))
            end = at + 1
        elif choices and line and end == at and row.translate(UNFRAMED).startswith("    "):
            room = columns - (7 if profile.border else 3)
            if wrapped and measure(_remove_border(profile, rows[at - 1])) + 1 + measure(line.split(" ")[0]) > room:
                choices[-1] = (choices[-1][0], f"{choices[-1][1]} {line}")
            end = at + 1
        wrapped = end == at + 1
    keyed = [(profile.choice_keys.replace("{key}", key), text) for key, text in choices]
    return (first, end, keyed) if len(keyed) > 1 else (len(rows), len(rows), [])


def _read_menu(profile: Profile, lines: list[str]) -> tuple[int, int, list[tuple[str, str]]]:
    """Read the last menu with a pointer, which arrow keys and Enter control. Return the same as `_read_choices`.

    The choices are the lines that have the same indent as the line with the pointer.
    """
    rows = [line.translate(UNFRAMED).rstrip() for line in lines]
    places = [(at, match) for at, row in enumerate(rows) if (match := re.match(profile.pointer, row))]
    if not profile.pointer or not places:
        return len(lines), len(lines), []
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
    if len(texts) < 2:
        return len(lines), len(lines), []
    return first, end, list(zip(moves, texts, strict=True))


def _judge_kind(text: str) -> ChoiceKind:
    if NO.match(text):
        return "reject_once"
    return "allow_always" if ALWAYS.search(text) else "allow_once"

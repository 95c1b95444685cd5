"""The subject of a dialog on a screen: the command, the file or the address that it asks about.

A screen does not show everything: a row may end because the program has wrapped it or because the command has several
lines, and a tab looks like blanks. `Subject.certain` tells whether the text can have only one meaning.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from midwatch.agents.terminal.arguments import Arguments, read_arguments
from midwatch.agents.terminal.profile import DialogKind, Profile
from midwatch.domain.agent import QuestionKind

CUT = re.compile(r"…|\+\d+ (more )?lines")
NUMBERED_ROW = re.compile(r" *(\d+)(?: ([ +-]?)(.*))?")
GAP = re.compile(r" *(\.\.\.|⋮|…)")


class Subject(NamedTuple):
    """What a dialog is about. If it is not `readable`, only the text of the dialog tells it."""

    kind: QuestionKind = "execute"  # an unknown dialog may ask for anything
    tool: str | None = None
    command: str | None = None
    path: str | None = None
    url: str | None = None
    diff: str | None = None
    readable: bool = False
    certain: bool = False


def read_subject(profile: Profile, text: str, choices: str, columns: int) -> Subject:
    """Return what the dialog with this text and these choices is about. `columns` is the width of the screen."""
    found = [kind for kind in profile.dialogs for _ in re.finditer(kind.heading, text, re.MULTILINE)]
    if len(found) != 1:
        return Subject()
    (kind,) = found
    match = re.fullmatch(kind.shows, text) if kind.shows else None
    if kind.shows and match is None:
        return Subject(kind.kind, kind.tool or None)
    groups = {name: value for name, value in match.groupdict().items() if value is not None} if match else {}
    subject = Subject(
        kind.kind, tool=groups.get("tool") or kind.tool or None, url=_join_words(groups.get("url")),
        diff=_read_diff(groups, kind.gap), readable=True, certain=True,
    )  # fmt: skip
    if "arguments" in groups:
        return _take_arguments(subject, read_arguments(groups["arguments"], columns))
    if "path" in groups:
        path = groups["path"].strip()
        plain = path.isascii() and " " not in path
        subject = subject._replace(path=path, certain=plain, readable=not CUT.search(path) and "\n" not in path)
    if match is not None and "command" in groups:
        joined = join_rows(_command_rows(match, kind), columns - kind.margin)
        if joined is None or CUT.search(joined.text):
            return subject._replace(readable=False, certain=False)
        certain = joined.certain and _is_certain(joined.text) and _is_proved(kind, joined.text, choices)
        subject = subject._replace(command=joined.text, certain=certain)
    return subject if subject.readable else subject._replace(path=None, certain=False)


def _take_arguments(subject: Subject, arguments: Arguments | None) -> Subject:
    if arguments is None:
        return subject._replace(readable=False, certain=False)
    return subject._replace(
        command=arguments.get("command"), path=arguments.get("path"), url=arguments.get("url"),
        diff=arguments.diff(), certain=arguments.certain,
    )  # fmt: skip


# -- rows ----------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of a command: its indent and its text."""

    indent: int
    text: str

    @property
    def end(self) -> int:
        """The column behind the last character."""
        return self.indent + measure(self.text)


class Joined(NamedTuple):
    """Joined rows, and whether all breaks between them are certain."""

    text: str
    certain: bool


def join_rows(rows: Sequence[Row | None], width: int) -> Joined | None:
    """Join the rows of a text that a program has wrapped at words into `width` columns.

    A row ends with a line feed if the first word of the next row would have fitted. Otherwise the row was probably
    wrapped. Return None if a word may have been broken, blanks may have been lost, or a row has no indent.
    """
    text, certain = "", True
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if row is None:
            return None
        text += row.text
        if following is None:
            continue
        word = following.text.split(" ")[0] or following.text.strip().split(" ")[0]
        may_be_broken = measure(row.text.split(" ")[-1] + word) > width - following.indent
        if not row.text or not word or row.end + 1 + measure(word) <= width:
            text += "\n"
        elif following.text.startswith(" ") or (may_be_broken and (row.end >= width or not row.text[-1].isalnum())):
            return None
        else:
            text, certain = text + " ", False
    return Joined(text.strip("\n"), certain)


def measure(text: str) -> int:
    """Return how many columns a text takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _command_rows(match: re.Match[str], kind: DialogKind) -> list[Row | None]:
    """Return the rows of the command. A row without the indent is None."""
    text, start = match.string, match.start("command")
    began = text.rfind("\n", 0, start) + 1
    rows: list[Row | None] = []
    for number, line in enumerate(match["command"].strip("\n").split("\n")):
        if number == 0 and began != start:
            rows.append(Row(start - began, line))
        elif indent := re.match(kind.indent, line):
            rows.append(Row(indent.end(), line[indent.end() :]))
        else:
            rows.append(None if line else Row(0, ""))
    return rows


def _is_certain(command: str) -> bool:
    """Return whether no other command looks like this one. A tab in a word would look like blanks."""
    try:
        return command.isascii() and len(shlex.split(command)) == len(command.split(" "))
    except ValueError:
        return False


def _is_proved(kind: DialogKind, command: str, choices: str) -> bool:
    if not kind.proof:
        return True
    repeated = re.search(kind.proof, choices, re.MULTILINE)
    return repeated is not None and repeated[1] == command


def _join_words(rows: str | None) -> str | None:
    return None if rows is None else "".join(rows.split())


# -- diffs ---------------------------------------------------------------------------------------------------------


def _read_diff(groups: dict[str, str], gap: int) -> str | None:
    """Return the rows of a change as a unified diff, or None if there is no change or it cannot be read."""
    shown = groups.get("diff") or groups.get("content")
    path = groups.get("path", "").strip().lstrip("/")
    if not shown:
        return None
    hunks: list[list[tuple[int, str]]] = [[]]
    edge = 0  # the column where line numbers end
    for row in shown.strip("\n").split("\n"):
        match = NUMBERED_ROW.fullmatch(row)
        edge = edge or (match.end(1) if match else 0)
        if match is not None and match.end(1) != edge:
            match = None
        if match is None and GAP.fullmatch(row):
            hunks.append([])
        elif match is None:
            if not hunks[-1]:
                return None
            number, line = hunks[-1][-1]  # the program has wrapped the line
            hunks[-1][-1] = (number, line + row.strip())
        elif "content" in groups:
            hunks[-1].append((int(match[1]), "+" + row[match.end(1) + 1 :]))
        else:
            hunks[-1].append((int(match[1]), (match[2] or " ") + (match[3] or "")[gap:]))
    old = "/dev/null" if "content" in groups else f"a/{path}"
    return "".join((f"--- {old}\n+++ b/{path}\n", *(_format_hunk(hunk) for hunk in hunks if hunk)))


def _format_hunk(lines: Iterable[tuple[int, str]]) -> str:
    lines = list(lines)
    old = [number for number, line in lines if not line.startswith("+")]
    new = [number for number, line in lines if not line.startswith("-")]
    ranges = (f"{min(numbers, default=0)},{len(numbers)}" for numbers in (old, new))
    return "@@ -{} +{} @@\n".format(*ranges) + "".join(f"{line}\n" for _, line in lines)

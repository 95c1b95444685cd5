"""The subject of a dialog on a screen: the command, the file or the address that it asks about.

A screen does not show everything: a row may end because the program has wrapped it or because the command has several
lines, and a tab looks like blanks. `Subject.certain` tells whether the text can have only one meaning.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from midwatch.agents.terminal.arguments import Arguments, read_arguments
from midwatch.agents.terminal.profile import DialogKind, Profile
from midwatch.agents.tool_question import LONGEST_COMMAND
from midwatch.domain.agent import QuestionKind, Risk
from midwatch.domain.tool_call import collect_texts

CUT = re.compile(r"…|\+\d+ (more )?lines")
NUMBERED_ROW = re.compile(r" *(\d+)(?: ([ +-]?)(.*))?")
FILE_ROW = re.compile(r"[ •└]*+(?:(?:Edited|Added|Deleted) )?(\S.*) \(\+\d+ -\d+\)")
CONTENT = ("content", "before", "after")
"""Arguments that hold the content of a file."""
GAP = re.compile(r" *(\.\.\.|⋮|…)")


class Hunk(list[tuple[int, str]]):
    """Lines of a diff with their numbers."""


class Subject(NamedTuple):
    """What a dialog is about. If it is not `readable`, only the text of the dialog tells it."""

    kind: QuestionKind = "execute"  # an unknown dialog may ask for anything
    tool: str | None = None
    command: str | None = None
    paths: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # the other arguments of the tool; each may be a path or a command
    unread: bool = False
    url: str | None = None
    diff: str | None = None
    risk: Risk | None = None
    reason: tuple[str, ...] = ()
    arrows: bool = False
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
        return Subject(kind.kind, kind.tool or None, arrows=kind.arrows)
    groups = {name: value for name, value in match.groupdict().items() if value is not None} if match else {}
    subject = Subject(
        kind.kind, tool=groups.get("tool") or kind.tool or None, url=groups.get("url"),
        diff=_read_diff(groups, kind.gap), risk=kind.risk, reason=kind.reason, arrows=kind.arrows, readable=True,
        certain=True,
    )  # fmt: skip
    unread = Subject(kind.kind, subject.tool, arrows=kind.arrows)
    if "arguments" in groups:
        return _take_arguments(subject, read_arguments(groups["arguments"], columns))
    if match is not None and "path" in groups:
        paths = [row and row.text for row in _split_rows(match, "path", kind)]
        if not all(path and not CUT.search(path) for path in paths):
            return unread
        plain = all(path and path.isascii() and " " not in path for path in paths)
        subject = subject._replace(paths=tuple(path for path in paths if path), certain=plain)
    if match is not None and "command" in groups:
        joined = join_rows(_split_rows(match, "command", kind), columns - kind.margin)
        if joined is None or CUT.search(joined.text) or len(joined.text) > LONGEST_COMMAND:
            return unread
        plain = joined.certain and match["command"].isascii()
        certain = plain and _is_certain(joined.text) and _is_proved(kind, joined.text, choices)
        subject = subject._replace(command=joined.text, certain=certain)
    return subject


def _take_arguments(subject: Subject, arguments: Arguments | None) -> Subject:
    if arguments is None:
        return subject._replace(readable=False, certain=False)
    read = {"command", "path", "url", *(CONTENT if arguments.get("path") else ())}
    rest = collect_texts([value for name, value in arguments.values.items() if name not in read])
    return subject._replace(
        command=arguments.get("command"), paths=tuple(filter(None, (arguments.get("path"),))), url=arguments.get("url"),
        diff=arguments.diff(), certain=arguments.certain, texts=rest.get("texts", ()), unread=rest.get("unread", False),
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


def _split_rows(match: re.Match[str], group: str, kind: DialogKind) -> list[Row | None]:
    """Return the rows of a group. A row without the indent is None."""
    text, start = match.string, match.start(group)
    began = text.rfind("\n", 0, start) + 1
    rows: list[Row | None] = []
    for number, line in enumerate(match[group].strip("\n").split("\n")):
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
        return len(shlex.split(command)) == len(command.split(" "))
    except ValueError:
        return False


def _is_proved(kind: DialogKind, command: str, choices: str) -> bool:
    if not kind.proof:
        return True
    repeated = re.search(kind.proof, choices, re.MULTILINE)
    return repeated is not None and repeated[1] == command


# -- diffs ---------------------------------------------------------------------------------------------------------


def _read_diff(groups: Mapping[str, str], gap: int) -> str | None:
    """Return the rows of a change as a unified diff, or None if there is no change or it cannot be read."""
    shown = groups.get("diff") or groups.get("content")
    if not shown:
        return None
    added = "content" in groups
    files = [(groups.get("path", "").strip(), [Hunk()])]
    edge = 0  # the column where line numbers end
    for row in shown.strip("\n").split("\n"):
        match = NUMBERED_ROW.fullmatch(row)
        hunk = files[-1][1][-1]
        if header := FILE_ROW.fullmatch(row):
            files.append((header[1], [Hunk()]))
            edge = 0
        elif match is not None and match.end(1) == (edge := edge or match.end(1)):
            line = f"+{row[match.end(1) + 1 :]}" if added else (match[2] or " ") + (match[3] or "")[gap:]
            hunk.append((int(match[1]), line))
        elif GAP.fullmatch(row):
            files[-1][1].append(Hunk())
        elif row.strip() and not hunk:
            return None
        elif row.strip():  # the program has wrapped the line
            hunk[-1] = (hunk[-1][0], hunk[-1][1] + row.strip())
    return "".join(_format_file(path, hunks, added) for path, hunks in files if hunks[0]) or None


def _format_file(path: str, hunks: Iterable[Hunk], added: bool) -> str:
    name = path.lstrip("/")
    return f"--- {'/dev/null' if added else f'a/{name}'}\n+++ b/{name}\n" + "".join(
        _format_hunk(hunk) for hunk in hunks if hunk
    )


def _format_hunk(lines: Hunk) -> str:
    old = [number for number, line in lines if not line.startswith("+")]
    new = [number for number, line in lines if not line.startswith("-")]
    ranges = (f"{min(numbers, default=0)},{len(numbers)}" for numbers in (old, new))
    return "@@ -{} +{} @@\n".format(*ranges) + "".join(f"{line}\n" for _, line in lines)

"""Whether a text, which may be a command or prose, looks like a command that hides code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from midwatch.domain.hidden_code.command import PASS_TO_SHELL, hides_code, is_known
from midwatch.domain.hidden_code.git import git_hides
from midwatch.domain.hidden_code.program import ASSIGNMENT, TEXT_PROGRAMS, WRAPPERS, is_shell_or_interpreter

PIPE_INTO = re.compile(r"^(?!\s*\|).*\|\s*(?:sudo\s+)?([\w./-]+)(?:\s+-\S*)*\s*(?:$|[;&)'\"`])")
"""A line that pipes something into a program; a row of a Markdown table begins with the sign of a pipe."""
RUNS_TEXT = re.compile(r"(?:alias\s+[\w-]+=|trap\s+['\"]|(?:eval|xargs|crontab|socat|m4)\s+\S)")
"""The beginning of a command that runs a text."""
QUOTED = re.compile(r"\s(?:'[^']*'|\"[^\"]*\")(?:\s|$)")
ENGLISH_WORDS = frozenset({"watch", "script", "screen", "just", "flock"})
"""Programs whose names also begin sentences."""
VARIABLE = re.compile(r"\$[A-Za-z_{(]")
BACKTICK = re.compile(r"(?<!\S)`")
HAS_OPTION = re.compile(r"\s-{1,2}[A-Za-z]")
LONGEST_TEXT = 20_000


def texts_hide_code(texts: Sequence[str]) -> bool:
    """Return whether one of the texts looks like a command that may run something that its words do not show.

    Prose is not a command, even if it names programs.
    """
    has_interpreter = any(is_shell_or_interpreter(text.strip()) for text in texts)
    if has_interpreter and any(re.fullmatch(r"-[a-z]*[cer]", text) for text in texts):
        return True  # the program and its arguments are texts of their own
    if any(re.fullmatch(r"git(?: \S+){1,3}", text) and git_hides(text.split()[1:]) for text in texts):
        return True
    return any(_line_hides(line) for text in texts for line in text[:LONGEST_TEXT].splitlines())


def seems_command(text: str) -> bool:
    """Return whether a text begins with the name of a known program."""
    words = text.split(maxsplit=1)
    return bool(words) and is_known(words[0].rpartition("/")[2])


def _line_hides(line: str) -> bool:
    pipe = PIPE_INTO.match(line)
    if pipe and is_shell_or_interpreter(pipe[1]):
        return True
    return any(_seems_to_hide(part) for part in {line, *re.split(r"[;&|]+", line)})


def _seems_to_hide(part: str) -> bool:
    """Return whether a part of a line begins like a command and hides code."""
    words = part.split()
    if words and words[0] == "env" and HAS_OPTION.search(part):
        return True
    while words and (words[0] in WRAPPERS or ASSIGNMENT.fullmatch(words[0]) or re.fullmatch(r"-.*|\d+", words[0])):
        words.pop(0)
    if not words:
        return False
    if re.match(r"\$[A-Za-z_{(]", words[0]):
        return True
    text, program = " ".join(words), words[0].rpartition("/")[2]  # prose begins with a capital letter
    if RUNS_TEXT.match(text):
        return True
    if program in ENGLISH_WORDS or not is_known(program):
        return False
    if VARIABLE.search(text) or (program not in TEXT_PROGRAMS and BACKTICK.search(text)):  # "find the `x`" is prose
        return True
    if program in PASS_TO_SHELL and QUOTED.search(text):
        return True
    return (HAS_OPTION.search(text) or QUOTED.search(text)) is not None and hides_code(_split(text))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()

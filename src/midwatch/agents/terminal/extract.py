"""Finds the reply to a prompt in the text of a terminal.

The reply is between the last echo of the prompt (the prompt as the program shows it) and the input box.
"""

from __future__ import annotations

import re
import textwrap

from midwatch.agents.terminal.format import WHITE, format_tool_calls, remove_user_input
from midwatch.agents.terminal.profile import Profile

TAIL = 40  # lines at the end in which the input box is searched
HIDDEN = re.compile(r"\d+ (more )?lines? hidden|\+\d+ (more )?lines")
"""Text that a program shows instead of the middle of a long prompt."""
MOST_SHOWN = 100  # lines that are shown at both ends of such a prompt
RECOGNISED = 12  # characters by which the echo of a prompt is recognised
OTHER_SIGN = r"\s*[^\w\s]{1,2}\s+"
"""A sign before an echo that is not the sign of the profile."""


def extract_reply(text: str, prompt: str, profile: Profile) -> str:
    """Return the reply in `text`, the text of the terminal from about the moment when the prompt was sent."""
    reply_text = "\n".join(_remove_markers(read_lines(text, prompt, profile), profile))
    if profile.report_calls:
        reply_text = format_tool_calls(profile.report_calls, reply_text)[0]
    return reply_text.strip("\n")


def read_lines(text: str, prompt: str, profile: Profile) -> list[str]:
    """Return the lines of the reply as the screen shows them, with their markers."""
    lines = text.split("\n")
    if profile.edge:
        lines = [re.sub(profile.edge, "", line) for line in lines]
    return _remove_noise(_cut_box(_skip_echo(lines, prompt, profile), profile), profile)


def has_other_sign(text: str, prompt: str, profile: Profile) -> bool:
    """Return whether the prompt is shown only with another sign than `profile.echo`. Then the reply is not found."""
    lines = text.split("\n")
    if not profile.echo or _find_echo(lines, prompt, profile) is not None:
        return False
    return _find_echo(lines, prompt, profile.model_copy(update={"echo": OTHER_SIGN})) is not None


def read_output(text: str, prompt_line: str, profile: Profile) -> str:
    """Return the text of the terminal without the input box, or without the last line if it begins with the prompt."""
    lines = _cut_box(text.rstrip().split("\n"), profile)
    if prompt_line and not profile.box and lines[-1].startswith(prompt_line):
        lines = lines[:-1]
    return "\n".join(_remove_noise(lines, profile))


def find_added(before: str, now: str) -> str:
    """Return the lines that were added to a text. If the text was drawn again, these begin with the first new line."""
    if now.startswith(before):
        return now[len(before) :].strip("\n")
    known = set(before.split("\n"))
    lines = now.split("\n")
    first = next((at for at, line in enumerate(lines) if line.strip(WHITE) and line not in known), len(lines))
    return "\n".join(lines[first:]).strip("\n")


def _skip_echo(lines: list[str], prompt: str, profile: Profile) -> list[str]:
    """Return the lines after the last echo of the prompt. Without `profile.echo`, the echo is in the first lines."""
    start = _find_echo(lines, prompt, profile) if profile.echo else 0
    if start is None:
        return [] if has_other_sign("\n".join(lines), prompt, profile) else lines
    end = start + 20 + 2 * prompt.count("\n") + len(prompt) // 10  # enough for the longest echo
    head = "\n".join(lines[start:end])
    if profile.pasted and re.search(profile.pasted, lines[start]):
        return lines[start + 1 :]
    if (whole := _count_hidden_echo(lines[start:end], prompt)) is not None:
        return lines[start + whole :]
    without_echo = remove_user_input(head, prompt, "custom")
    head_lines = without_echo.split("\n") if without_echo else []
    return [*head_lines, *lines[end:]] if without_echo != head else lines


def _count_hidden_echo(lines: list[str], prompt: str) -> int | None:
    """Return the number of lines of an echo whose middle the program hides; None if no lines are hidden."""
    hidden = next((at for at, line in enumerate(lines[:MOST_SHOWN]) if HIDDEN.search(line)), None)
    if hidden is None:
        return None
    last = "".join(prompt.rstrip().rpartition("\n")[2].split())
    for at in range(hidden + 1, min(len(lines), hidden + MOST_SHOWN)):
        shown = "".join(lines[at].split())
        if shown and (shown.endswith(last) or (len(shown) >= RECOGNISED and last.endswith(shown))):
            return at + 1
    return None


def _find_echo(lines: list[str], prompt: str, profile: Profile) -> int | None:
    """Return the number of the line where the last echo of the prompt begins, or None."""
    begin = re.compile(profile.echo)
    typed = "".join(prompt.split())[:RECOGNISED]
    for at in range(len(lines) - 1, -1, -1):
        sign = begin.match(lines[at])
        if sign is None:
            continue
        shown = "".join(lines[at][sign.end() :].split())
        if shown and (shown.startswith(typed) or (len(shown) < len(typed) and typed.startswith(shown))):
            return at
        if profile.pasted and re.match(profile.pasted, lines[at][sign.end() :].strip()):
            return at
    return None


def _cut_box(lines: list[str], profile: Profile) -> list[str]:
    if not profile.box:
        return lines
    before, tail = lines[:-TAIL], "\n".join(lines[-TAIL:])
    places = [match.start() for match in re.finditer(profile.box, tail, re.MULTILINE)]
    return before + tail[: places[-1]].split("\n") if places else lines


def _remove_noise(lines: list[str], profile: Profile) -> list[str]:
    """Return the lines without blank lines and lines of `profile.noise` at the beginning and the end."""
    noise = re.compile(profile.noise or r"(?!)")
    filled = [at for at, line in enumerate(lines) if line.strip(WHITE) and not noise.search(line)]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _remove_markers(lines: list[str], profile: Profile) -> list[str]:
    """Return the lines without the markers of `profile.marker` and without their common indent."""
    if profile.marker:
        marker = re.compile(profile.marker)
        lines = [marker.sub(lambda match: " " * len(match[0]), line) for line in lines]
    return textwrap.dedent("\n".join(lines)).split("\n")

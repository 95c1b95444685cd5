"""What of a terminal's text is the reply to a prompt: between the last echo of the prompt and the input box."""

from __future__ import annotations

import re
import textwrap

from midwatch.agents.terminal.format import WHITE, format_tool_calls, remove_user_input
from midwatch.agents.terminal.profiles import Profile

TAIL = 40
"""Lines at the end in which the input box is looked for."""
HIDDEN = re.compile(r"\d+ (more )?lines? hidden|\+\d+ (more )?lines")
"""What stands in place of the middle of a long prompt."""
MOST_SHOWN = 100
"""Lines of each of its ends."""
RECOGNISED = 12
"""Characters by which the echo of a prompt is recognised."""


def reply(text: str, prompt: str, profile: Profile) -> str:
    """The reply of all that stands on the terminal since the prompt was sent, or a little before."""
    lines = text.split("\n")
    if profile.edge:
        lines = [re.sub(profile.edge, "", line) for line in lines]
    body = _without_noise(_before_box(_after_echo(lines, prompt, profile), profile), profile)
    found = "\n".join(_unmarked(body, profile))
    if profile.report_calls:
        found = format_tool_calls(profile.report_calls, found)[0]
    return found.strip("\n")


def _after_echo(lines: list[str], prompt: str, profile: Profile) -> list[str]:
    """What follows the last echo. A program without a sign before it echoes on the line where it was typed."""
    start = _echo(lines, prompt, profile) if profile.echo else 0
    if start is None:
        return lines
    end = start + 20 + 2 * prompt.count("\n") + len(prompt) // 10  # more lines than an echo can have
    head = "\n".join(lines[start:end])
    if profile.pasted and re.search(profile.pasted, lines[start]):
        return lines[start + 1 :]
    if (whole := _after_hidden(lines[start:end], prompt)) is not None:
        return lines[start + whole :]
    left = remove_user_input(head, prompt, "custom")
    kept = left.split("\n") if left else []
    return [*kept, *lines[end:]] if left != head else lines


def _after_hidden(lines: list[str], prompt: str) -> int | None:
    """How many lines an echo has whose middle is not shown; None when it is."""
    hidden = next((at for at, line in enumerate(lines[:MOST_SHOWN]) if HIDDEN.search(line)), None)
    if hidden is None:
        return None
    last = "".join(prompt.rstrip().rpartition("\n")[2].split())
    for at in range(hidden + 1, min(len(lines), hidden + MOST_SHOWN)):
        shown = "".join(lines[at].split())
        if shown and (shown.endswith(last) or (len(shown) >= RECOGNISED and last.endswith(shown))):
            return at + 1
    return None


def _echo(lines: list[str], prompt: str, profile: Profile) -> int | None:
    """The line where the last echo begins."""
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


def _before_box(lines: list[str], profile: Profile) -> list[str]:
    if not profile.box:
        return lines
    before, tail = lines[:-TAIL], "\n".join(lines[-TAIL:])
    places = [found.start() for found in re.finditer(profile.box, tail, re.MULTILINE)]
    return before + tail[: places[-1]].split("\n") if places else lines


def _without_noise(lines: list[str], profile: Profile) -> list[str]:
    """Without blank lines and lines that are none of the reply, at both ends."""
    noise = re.compile(profile.noise or r"(?!)")
    kept = [at for at, line in enumerate(lines) if line.strip(WHITE) and not noise.search(line)]
    return lines[kept[0] : kept[-1] + 1] if kept else []


def _unmarked(lines: list[str], profile: Profile) -> list[str]:
    """Without the signs before its parts, and without the indent that all of it has."""
    if profile.marker:
        marker = re.compile(profile.marker)
        lines = [marker.sub(lambda found: " " * len(found[0]), line) for line in lines]
    return textwrap.dedent("\n".join(lines)).split("\n")

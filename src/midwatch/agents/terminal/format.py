"""Finds the agent's message in the text of a terminal.

The echo of the prompt, the input box and report calls are removed. All functions are pure. They give the same results
as the program agentapi, also in odd cases, because clients of agentapi rely on them. Only `\\n` ends a line.
"""

from __future__ import annotations

from collections.abc import Callable

BLANK = " \t\n\r\f\v"  # characters that are ignored when an echo is compared with the prompt
WHITE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004"
    "\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""Characters that count as blank. Unlike in `str.strip`, the four separator characters of ASCII do not count."""
NAMES = {"q": "amazonq", "cursor-agent": "cursor"}
TYPES = (
    "claude", "goose", "aider", "codex", "gemini", "copilot", "amp", "cursor", "auggie", "amazonq", "opencode",
    "custom",
)  # fmt: skip

PREFIX, WINDOW_LINES, WINDOW_CHARACTERS, REACH = 6, 6, 25, 5
RULES = ("─" * 15, "╌" * 15)
CLAUDE_CALL, CLAUDE_DONE = "coder - coder_report_task (MCP)", '"message": "Thanks for reporting!"'
CODEX_CALL, CODEX_DONE = "Coder.coder_report_task", '{"message": "Thanks for reporting!"}'


def find_agent_type(name: str) -> str:
    """Return the type of an agent in agentapi, from its name; `custom` for an unknown name."""
    kind = NAMES.get(name, name)
    return kind if kind in TYPES else "custom"


# -- the echo of the prompt --------------------------------------------------------------------------------------


def _read_visible(text: str) -> tuple[str, list[int]]:
    """Return the characters that are not blank, and for each character the number of its line."""
    characters = [(char, number) for number, line in enumerate(text.split("\n")) for char in line if char not in BLANK]
    return "".join(char for char, _ in characters), [number for _, number in characters]


def remove_user_input(message: str, user_input: str, agent_type: str) -> str:
    """Return the message without the echo of the user's input.

    The echo is near the beginning of the message. It may be wrapped into several lines and may have a frame.
    """
    (typed, typed_lines), (shown, shown_lines) = _read_visible(user_input), _read_visible(message)
    prefix = typed[: min(PREFIX, typed_lines.count(0))]
    if not prefix:
        return message
    window = max(sum(number < WINDOW_LINES for number in shown_lines), WINDOW_CHARACTERS)
    start = shown[:window].find(prefix)
    if start < 0:
        return message
    lines = message.split("\n")
    last = shown_lines[_find_echo_end(typed, shown, start)]
    return "\n".join(lines[_skip_frame(agent_type, lines, last) + 1 :])


def _find_echo_end(typed: str, shown: str, start: int) -> int:
    """Return the position in `shown` where the echo ends. In the echo, a few characters may be missing or added."""
    at, typed_at = start, 0
    steps = [(ahead, across) for ahead in range(1, REACH + 1) for across in range(1, REACH + 1)]
    while True:
        for ahead, across in steps:
            if typed_at + ahead >= len(typed) or at + across >= len(shown):
                return at
            if typed[typed_at + ahead] == shown[at + across]:
                typed_at, at = typed_at + ahead, at + across
                break
        else:
            return at


def _skip_frame(agent_type: str, lines: list[str], last: int) -> int:
    """Return the number of the last line of the frame around the echo; without a frame, `last`."""
    corners = {"gemini": "╯╰", "copilot": "╯╰", "cursor": "┘└"}.get(agent_type, "")
    if corners and last + 1 < len(lines) and all(corner in lines[last + 1] for corner in corners):
        return last + 1
    return last + 2 if agent_type == "opencode" and last + 2 < len(lines) else last


# -- the input box -----------------------------------------------------------------------------------------------


def _is_rule(line: str) -> bool:
    return any(rule in line for rule in RULES)


def _remove_box(lines: list[str]) -> list[str]:
    """Return the lines before the input box.

    The box is a line with `>` near the end, or a line between two horizontal lines.
    """
    count = len(lines)
    for at in range(count - 1, max(count - 6, 0) - 1, -1):
        if ">" in lines[at]:
            return lines[: at - 1 if at > 0 and _is_rule(lines[at - 1]) else at]
    for at in range(count - 3, max(count - 9, 0) - 1, -1):
        if _is_rule(lines[at]) and any(sign in lines[at + 1] for sign in "|│❯") and _is_rule(lines[at + 2]):
            return lines[:at]
    return lines


def _remove_codex_box(lines: list[str]) -> list[str]:
    return lines[:-3] + lines[-1:] if len(lines) >= 3 and "›" in lines[-3] else lines


def _remove_opencode_box(lines: list[str]) -> list[str]:
    for at in range(len(lines) - 1, 3, -1):
        if lines[at].strip(WHITE).startswith("╹" + "▀" * 17):
            return lines[: at - 4]
    return lines


def _remove_amp_box(lines: list[str]) -> list[str]:
    bare = [line.strip(WHITE) for line in lines]
    bottom = next((at for at in range(len(bare) - 1, -1, -1) if bare[at][:1] == "╰" and bare[at][-1:] == "╯"), -1)
    top = next((at for at in range(bottom - 1, -1, -1) if bare[at][:1] == "╭" and bare[at][-1:] == "╮"), len(lines))
    return lines[:top]


BOXES: dict[str, Callable[[list[str]], list[str]]] = {
    "codex": _remove_codex_box,
    "opencode": _remove_opencode_box,
    "amp": _remove_amp_box,
}


def format_agent_message(agent_type: str, message: str, user_input: str) -> str:
    """Return the agent's message. `message` is the text that appeared since the user's input was sent."""
    shown = remove_user_input(message, user_input, agent_type).split("\n")
    lines = BOXES.get(agent_type, _remove_box)(shown)
    filled = [at for at, line in enumerate(lines) if line.strip(WHITE)]
    text = "\n".join(lines[filled[0] : filled[-1] + 1]) if filled else ""
    return "Welcome to Amp" if agent_type == "amp" and not text else text


# -- report calls ------------------------------------------------------------------------------------------------


def format_tool_calls(agent_type: str, message: str) -> tuple[str, list[str]]:
    """Return the message without report calls, and a list of these calls. The last call is first in the list.

    A report call is a tool call with which the agent reports to Coder, the program that runs it.
    """
    if agent_type == "claude":
        return _remove_claude_calls(message)
    if agent_type == "codex":
        return _remove_codex_calls(message)
    return message, []


def _remove_claude_calls(message: str) -> tuple[str, list[str]]:
    lines = ["", *message.split("\n")]
    bare = [line.strip(WHITE) for line in lines]
    ranges: list[tuple[int, int, bool]] = []
    start, after_blank = -1, -1
    for at in range(1, len(lines) - 1):
        if CLAUDE_CALL in bare[at]:
            start = at
        elif start >= 0 and bare[at] == CLAUDE_DONE and bare[at + 1] == "}" and bare[at - 1].endswith("{"):
            ranges.append((start, at + 2, True))
            start = after_blank = -1
        elif start >= 0 and not bare[at]:
            after_blank = at + 1
    if start >= 0:  # the call is drawn only in part
        ranges.append((start, after_blank if after_blank >= 0 else len(lines), False))
    text, calls = _cut(lines, ranges)
    return text.lstrip("\n"), calls


def _remove_codex_calls(message: str) -> tuple[str, list[str]]:
    lines = message.split("\n")
    bare = [line.strip(WHITE) for line in lines]
    ranges: list[tuple[int, int, bool]] = []
    start = -1
    for at, line in enumerate(bare):
        if line.replace(" ", "") == "•Called" and at + 1 < len(bare) and CODEX_CALL in bare[at + 1]:
            start = at
        elif start >= 0 and line == CODEX_DONE:
            end = next((later for later in range(at + 1, len(bare)) if bare[later]), len(bare))
            ranges.append((start, end, True))
            start = -1
    text, calls = _cut(lines, ranges)
    return text.rstrip("\n"), calls


def _cut(lines: list[str], ranges: list[tuple[int, int, bool]]) -> tuple[str, list[str]]:
    """Return the text without the lines in `ranges`, and the texts of the complete ranges, the last range first."""
    remaining, calls = list(lines), []
    for start, end, whole in reversed(ranges):
        if whole:
            calls.append("\n".join(remaining[start:end]))
        del remaining[start:end]
    return "\n".join(remaining), calls

"""Test which part of a terminal's text is the agent's message: with our own tables, and with recorded screens if
present.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from midwatch.agents.terminal.format import (
    TYPES,
    find_agent_type,
    format_agent_message,
    format_tool_calls,
    remove_user_input,
)

RULE = "─" * 20


# -- recorded screens ---------------------------------------------------------------------------------------------


def vectors() -> Path:
    """Return the directory of recorded screens, which may not exist."""
    folder = os.environ.get("MIDWATCH_VECTORS")
    return Path(folder) if folder else Path(__file__).parents[3] / "shared" / "vectors" / "terminal"


def cases(pattern: str) -> list[Path]:
    """Return the files of one set, or one missing path if there are none."""
    return sorted(vectors().glob(pattern)) or [vectors() / "missing"]


def read(path: Path) -> str:
    """Return the content of a file, or skip the test."""
    if not path.exists():
        pytest.skip(f"{path} is not there; set MIDWATCH_VECTORS")
    return path.read_bytes().decode()


def name(path: Path) -> str:
    """Return the name of a case."""
    return "-".join(path.parts[-3:-1])


def bare(text: str) -> str:
    """Return the text without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.split("\n"))


@pytest.mark.parametrize("path", cases("format/*/*/msg.txt"), ids=name)
def test_recorded_messages_are_extracted(path: Path) -> None:
    message, user = read(path), read(path.with_name("user.txt"))
    kind = path.parts[-3]
    text, calls = format_tool_calls(kind, format_agent_message(kind, message, user))
    assert bare(text) == bare(read(path.with_name("expected.txt")))
    calls_path = path.with_name("expected_tool_calls.txt")
    assert bare("\n---\n".join(calls)) == (bare(read(calls_path)) if calls_path.exists() else "")


@pytest.mark.parametrize("path", cases("remove-user-input/*/msg.txt"), ids=name)
def test_recorded_echoes_are_removed(path: Path) -> None:
    message, user = read(path), read(path.with_name("user.txt"))
    assert bare(remove_user_input(message, user, "custom")) == bare(read(path.with_name("expected.txt")))


# -- the echo -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "typed", "left"),
    [
        pytest.param("> write a poem\n\nRoses", "write a poem", "\nRoses", id="after a prompt sign"),
        pytest.param("│ write a  │\n│ poem      │\nRoses", "write a poem", "Roses", id="wrapped and framed"),
        pytest.param("Roses are red", "write a poem", "Roses are red", id="not echoed"),
        pytest.param("> write a poem", "", "> write a poem", id="nothing typed"),
        pytest.param("> write a poem", "\n\nwrite", "> write a poem", id="first line blank"),
        pytest.param("a\nb\nc\nd\ne\nf\ng" + "x" * 30 + "\nwrite a poem", "write a poem",
            "a\nb\nc\nd\ne\nf\ng" + "x" * 30 + "\nwrite a poem", id="too far below"),
        pytest.param("> one\n  two\nreply", "one\ntwo", "reply", id="two lines"),
        pytest.param("> héllo wörld 你好\nreply", "héllo wörld 你好", "reply", id="not ASCII"),
        pytest.param("> ab\nreply", "ab", "reply", id="shorter than the prefix"),
    ],
)  # fmt: skip
def test_the_echo_of_the_prompt_is_removed(message: str, typed: str, left: str) -> None:
    assert remove_user_input(message, typed, "custom") == left


@pytest.mark.parametrize(
    ("kind", "message", "left"),
    [
        ("gemini", "│ > ask me │\n╰──────╯\nreply", "reply"),
        ("copilot", "│ > ask me │\n╰──────╯\nreply", "reply"),
        ("cursor", "│ > ask me │\n└──────┘\nreply", "reply"),
        ("cursor", "│ > ask me │\n╰──────╯\nreply", "╰──────╯\nreply"),
        ("opencode", "┃ ask me\n┃ you (10:00)\n\nreply", "reply"),
        ("opencode", "┃ ask me\nreply", "reply"),
    ],
)
def test_the_frame_around_the_echo_is_removed(kind: str, message: str, left: str) -> None:
    assert remove_user_input(message, "ask me", kind) == left


# -- the input box ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "screen", "message"),
    [
        ("claude", f"reply\n{RULE}\n> \n{RULE}\n hints", "reply"),
        ("claude", f"reply\n{RULE}\n❯ \n{RULE}\n hints", "reply"),
        ("claude", f"reply\n{RULE}\n│   │\n{RULE}", "reply"),
        ("goose", "\n\nreply\n( O)>", "reply"),
        ("aider", "reply\nwith two lines\n\n> ", "reply\nwith two lines"),
        ("custom", "no box at all", "no box at all"),
        ("custom", "\n".join(["> far above", *"abcdef"]), "\n".join(["> far above", *"abcdef"])),
        ("codex", "reply\n› ask\n\n  hints", "reply\n  hints"),
        ("opencode", "reply\n┃\n┃  ask\n┃\n┃  model\n╹" + "▀" * 20 + "\n hints", "reply"),
        ("amp", "reply\n╭────╮\n│    │\n╰────╯", "reply"),
        ("amp", "╭────╮\n│    │\n╰────╯", "Welcome to Amp"),
    ],
)
def test_the_input_box_is_removed(kind: str, screen: str, message: str) -> None:
    assert format_agent_message(kind, screen, "") == message


def test_ascii_separators_are_not_blank() -> None:
    assert format_agent_message("custom", "\x1c\nreply\n\x1f", "") == "\x1c\nreply\n\x1f"


# -- report calls -------------------------------------------------------------------------------------------------

CLAUDE_CALL = (
    '● coder - coder_report_task (MCP)(summary: "{}")\n  ⎿  {{\n       "message": "Thanks for reporting!"\n     }}'
)
CODEX_CALL = '• Called\n  └ Coder.coder_report_task({})\n    {{"message": "Thanks for reporting!"}}'


def test_report_calls_of_claude_are_removed_and_returned_in_reverse() -> None:
    first_call, second_call = CLAUDE_CALL.format("one"), CLAUDE_CALL.format("two")
    assert format_tool_calls("claude", f"{first_call}\n\n● Hello\n\n{second_call}\n\n● Bye") == (
        "● Hello\n\n\n● Bye",
        [second_call, first_call],
    )


def test_a_half_drawn_report_call_of_claude_is_removed_and_not_returned() -> None:
    half = '● Hello\n● coder - coder_report_task (MCP)(summary:\n  "x"\n\nafter\nthat'
    assert format_tool_calls("claude", half) == ("● Hello\nafter\nthat", [])


def test_report_calls_of_codex_are_removed() -> None:
    first_call, second_call = CODEX_CALL.format("one"), CODEX_CALL.format("two")
    text, calls = format_tool_calls("codex", f"• Hello\n\n{first_call}\n\n• More\n{second_call}\n")
    assert (text, calls) == ("• Hello\n\n• More", [f"{second_call}\n", f"{first_call}\n"])
    half = "• Hello\n• Called\n  └ Coder.coder_report_task(...)"
    assert format_tool_calls("codex", half) == (half, [])


def test_other_agents_have_no_report_calls() -> None:
    text = CLAUDE_CALL.format("one")
    assert format_tool_calls("goose", text) == (text, [])


OTHERS = {"q": "amazonq", "cursor-agent": "cursor", "/usr/bin/claude": "custom", "bash": "custom"}


@pytest.mark.parametrize(("given", "kind"), [*zip(TYPES, TYPES, strict=True), *OTHERS.items()])
def test_an_agent_type_is_derived_from_its_name(given: str, kind: str) -> None:
    assert find_agent_type(given) == kind

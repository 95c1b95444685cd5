"""The profile of Goose in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import CONTROL_C, CONTROL_D, DialogKind, Profile

CALL = (
    r'\A    \{{\n      "tool_name": "{}",\n      "arguments": (?P<arguments>\{{\n(?:.*\n)+?      \}})\n    \}}\n+◆ .*\n'
)
DIALOGS = (
    DialogKind(heading=r'^      "tool_name": "shell",$', kind="execute", tool="shell", shows=CALL.format("shell")),
    DialogKind(heading=r'^      "tool_name": "edit",$', kind="edit", tool="edit", shows=CALL.format("edit")),
    DialogKind(heading=r'^      "tool_name": "write",$', kind="edit", tool="write", shows=CALL.format("write")),
    DialogKind(
        heading=r'^      "tool_name": "(?!(?:shell|edit|write)")',
        shows=CALL.format(r"(?P<tool>\w+)"),
    ),
    DialogKind(
        heading=r"^◆  Share anonymous usage data",
        kind="choice",
        answers={"Yes": "y", "No": "n"},
    ),
)
"""Dialogs of version 1.52.0. It shows the call of a tool as JSON, and the terminal wraps long rows."""

PROFILE = Profile(
    argv=("goose", "session", "--name", "{thread}"),
    resume_argv=("goose", "session", "--resume", "--name", "{thread}"),
    thread="uuid",
    ready=r"^> ",
    asking=r"^◆ ",
    paste_tells=True,
    settle=0.1,
    quit=CONTROL_D,
    pointer=r" *● +(?=\S)",
    frame=r"^  Tool approval request$|^(?=◆  Share )",
    footer=r"^└",
    refuse=CONTROL_C,
    dialogs=DIALOGS,
    echo=r"> ",
    box=r"^ *[━╌]{10,}[^\n]*\n> |^> ",
    noise=r"^ *([◐◓◑◒⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] .*|─{10,}.*|[━╌]{10,}.*|⏱ .*|✓ extensions ready)$",
)

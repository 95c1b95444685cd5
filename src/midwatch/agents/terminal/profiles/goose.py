"""The profile of Goose in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import CONTROL_C, CONTROL_D, DialogKind, Meaning, Profile

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

VERSION = "1.52.0"
"""The version from which the texts below were taken."""
MEANINGS = (
    Meaning(what="error", text=r"(error: )?Ran into this error: .* transient or recoverable error\.$"),
    Meaning(what="failed", text=r"Unable to continue: Context limit"),
    Meaning(what="auth", where="exit", text=r"^ *error: (.*\n)*?.*[Rr]un 'goose configure'.*"),
)
"""What texts on its screen mean."""
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
    failure=r"(?:\A|(?<=\n\n))(?=(error: )?Ran into this error: |· Unable to continue: )",
    box=r"^ *[━╌]{10,}[^\n]*\n> |^> ",
    noise=r"^ *([◐◓◑◒⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] .*|─{10,}.*|[━╌]{10,}.*|⏱ .*|✓ extensions ready)$",
    meanings=MEANINGS,
)

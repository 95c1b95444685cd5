"""The profile of Goose in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import CONTROL_D, Meaning, Profile

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
    echo=r"> ",
    failure=r"(?:\A|(?<=\n\n))(?=(error: )?Ran into this error: |· Unable to continue: )",
    box=r"^ *[━╌]{10,}[^\n]*\n> |^> ",
    noise=r"^ *([◐◓◑◒⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] .*|─{10,}.*|[━╌]{10,}.*|⏱ .*|✓ extensions ready)$",
    meanings=MEANINGS,
)

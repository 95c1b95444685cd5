"""The profile of Aider in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import CONTROL_D, Profile

PROFILE = Profile(
    argv=("aider", "--no-pretty"),
    ready=r"^\S*> ?$",
    asking=r"\(Y\)es/\(N\)o.*: *$",
    paste_tells=True,
    settle=0.05,
    quit=CONTROL_D,
    answers={"yes": "y\r", "no": "n\r"},
    echo=r"\S*> ",
    box=r"^─{10,}\n\S*> ?$|^\S*> ?$",
    noise=r"^(─{10,}|Tokens: .*|[░█ ]+ .*|.*Waiting for .*)$",
)

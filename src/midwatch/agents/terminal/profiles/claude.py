"""The profile of Claude Code in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import BRAILLE, CONTROL_D, ESCAPE, DialogKind, full_screen

QUESTION = r"(?:(?: .*)?\n)*"
DIALOGS = (
    DialogKind(
        heading=r"\A Bash command$",
        kind="execute",
        tool="Bash",
        shows=rf" Bash command\n(?: .*\n)*╌+\n(?P<command>(?: .*\n)+)╌+\n{QUESTION}",
        indent=r" (?:│ ?)?",
        margin=1,
    ),
)
"""Dialogs of version 2.1.325. Rows of a frame begin in the first column; all text is indented."""

PROFILE = full_screen(
    argv=("claude", "--settings", '{"tui":"default"}', "--session-id", "{thread}"),
    resume_argv=("claude", "--settings", '{"tui":"default"}', "--resume", "{thread}"),
    thread="uuid",
    ready=r"^❯",
    busy=r"esc to interrupt",
    asking=r"(Esc to cancel|Enter to confirm|Enter to select)",
    busy_title=BRAILLE,
    idle_title=r"^✳",
    explicit=True,
    frame=r"^─{20,}$",
    footer=r"(Esc to cancel|Enter to (confirm|select|submit)|ctrl[+-]g)",
    refuse=ESCAPE,
    dialogs=DIALOGS,
    quit=CONTROL_D + CONTROL_D,
    echo=r"❯ ",
    pasted=r"\[Pasted text",
    box=r"^─{10,}[^\n]*\n❯",
    noise=r"^\s*([✻✽✶✢·*✳] .*|⎿\s+Tip:.*|.*esc to interrupt.*)$",
    marker=r"^[●⏺] ",
    report_calls="claude",
)

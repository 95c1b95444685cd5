"""The profile of Claude Code in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import BRAILLE, CONTROL_D, full_screen

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
    quit=CONTROL_D + CONTROL_D,
    echo=r"❯ ",
    pasted=r"\[Pasted text",
    box=r"^─{10,}[^\n]*\n❯",
    noise=r"^\s*([✻✽✶✢·*✳] .*|⎿\s+Tip:.*|.*esc to interrupt.*)$",
    marker=r"^[●⏺] ",
    report_calls="claude",
)

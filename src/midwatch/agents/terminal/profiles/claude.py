"""The profile of Claude Code in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import BRAILLE, CONTROL_D, ESCAPE, DialogKind, Meaning, full_screen

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

MEANINGS = (
    Meaning(what="failed", text=r"(Context limit reached|Prompt is too long|Conversation too long)"),
    Meaning(what="limit", text=r"You.ve (hit|reached) your .*limit"),
    Meaning(what="limit", text=r"(Claude( AI)?|5-hour|Weekly|Usage) (usage )?limit reached"),
    Meaning(what="auth", text=r"(Please run /login|Not logged in|Invalid API key|OAuth token (revoked|has expired))"),
    Meaning(what="error", text=r"API Error"),
    Meaning(what="stopped", text=r"Interrupted · What should Claude do instead\?"),
    Meaning(what="limit", where="screen", text=r"^ *⚠ Usage limit reached.*\n.*Esc to cancel", keys=ESCAPE),
    Meaning(what="limit", where="screen", text=r"^ *What do you want to do\?\s*\n.*1\. .*limit to reset", keys=ESCAPE),
    Meaning(what="auth", where="screen", text=r"^ *Select login method:\s*\n *❯ 1\. .*"),
    Meaning(what="error", where="busy", text=r"^[✻✽✶✢·*✳] .* · Retrying in .*"),
    Meaning(what="passing", where="exit", text=r"^ *Unable to connect to Anthropic services$(\s*\n.*)?"),
)
"""Texts of version 2.1.325."""
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
    failure=r"^(● |  ⎿ [ \xa0])",
    meanings=MEANINGS,
)

"""The profile of Codex CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import BRAILLE, Meaning, full_screen

OPTIONS = ("--no-alt-screen", "--no-daemon", "-c", "tui.terminal_resize_reflow_max_rows=0")
"""Without the last option, codex may draw a long answer again, but only its last 1000 rows."""
MEANINGS = (
    Meaning(what="limit", text=r"(You.ve hit your usage limit|Quota exceeded)"),
    Meaning(what="passing", text=r"We.re currently experiencing high demand"),
    Meaning(what="failed", text=r"(Codex ran out of room|.*(context_length_exceeded|invalid_request_error))"),
    Meaning(what="stopped", text=r"Conversation interrupted"),
    Meaning(what="error"),
    Meaning(what="auth", where="screen", text=r"^ *Choose how you want to use Codex\.\s*\n[> ] 1\. Sign in .*"),
    Meaning(what="error", where="busy", text=r"^• Reconnecting\.\.\. .*\n +└ .*"),
)
"""Texts of version 0.166.0."""
PROFILE = full_screen(
    argv=("codex", *OPTIONS),
    resume_argv=("codex", "resume", *OPTIONS, "{thread}"),
    thread=r"rollout-.*-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.jsonl",
    ready=r"^›",
    busy=r"esc to interrupt",
    asking=r"(Press enter to (confirm|continue))",
    busy_title=BRAILLE,
    asking_title=r"Action Required",
    explicit=True,
    echo=r"› ",
    pasted=r"\[Pasted Content",
    box=r"^›",
    noise=r"^( *─? ?Worked for .*|─+|• Working .*|.*esc to interrupt.*)$",
    marker=r"^• ",
    report_calls="codex",
    failure=r"^■ ",
    meanings=MEANINGS,
)

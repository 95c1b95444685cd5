"""The profile of Codex CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import BRAILLE, full_screen

OPTIONS = ("--no-alt-screen", "--no-daemon", "-c", "tui.terminal_resize_reflow_max_rows=0")
"""Without the last option, codex may draw a long answer again, but only its last 1000 rows."""
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
)

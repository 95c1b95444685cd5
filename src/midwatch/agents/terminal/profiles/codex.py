"""The profile of Codex CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import BRAILLE, ESCAPE, DialogKind, Meaning, full_screen

OPTIONS = ("--no-alt-screen", "--no-daemon", "-c", "tui.terminal_resize_reflow_max_rows=0")
"""Without the last option, codex may draw a long answer again, but only its last 1000 rows."""
REASON = r"(?:  Reason: .*\n(?:  (?!\$ ).*\n)*\n)?"
DIALOGS = (
    DialogKind(
        heading=r"^  Would you like to run the following command\?$", kind="execute", tool="shell",
        indent="  ", margin=2,
        shows=r"(?:.*\n)*?  Would you like to run the following command\?\n\n(?:  Environment: local\n\n)?"
        rf"{REASON}  \$ (?P<command>.*\n(?:(?:  .*)?\n)*?)\n*",
        proof=r"commands that start with `(.*)` \(p\)$",
    ),
    DialogKind(
        heading=r"^  Would you like to make the following edits\?$", kind="edit", tool="apply_patch",
        indent="  Destination: ",
        shows=r"\n*(?P<diff>• .*\n(?:.*\n)*?)?\n*  Would you like to make the following edits\?\n\n"
        rf"{REASON}  Description: .*\n(?P<path>(?:  Destination: .*\n)+)\n*",
    ),
    DialogKind(heading=r"^  Update available · ", kind="choice"),
    DialogKind(
        heading=r"\A\n*  Folder access$", arrows=True,
        shows=r"\n*  Folder access\n(?:  /.*\n\n  Note: .*\n(?:  (?!/).*\n)*)?  (?P<path>/.*)\n\n"
        r"  Trust this folder\? .*\n(?:  .*\n)*\n*",
    ),
)  # fmt: skip
"""The dialogs of version 0.166.0. Their text is indented, and everything above them begins in the first column.

A change is shown above its dialog. A command can contain tabs, which the screen does not show, but a choice repeats the
words of the command. In a worktree, the path is that of the repository: codex trusts the whole of it.
"""
VERSION = "0.166.0"
"""The version from which the texts below were taken."""
MEANINGS = (
    Meaning(what="limit", text=r"(You.ve hit your usage limit|Quota exceeded)"),
    Meaning(what="passing", text=r"We.re currently experiencing high demand"),
    Meaning(what="failed", text=r"(Codex ran out of room|.*(context_length_exceeded|invalid_request_error))"),
    Meaning(what="stopped", text=r"Conversation interrupted"),
    Meaning(what="error"),
    Meaning(what="auth", where="screen", text=r"^ *Choose how you want to use Codex\.\s*\n[> ] 1\. Sign in .*"),
    Meaning(what="error", where="busy", text=r"^• Reconnecting\.\.\. .*\n +└ .*"),
)
"""What texts on its screen mean."""
PROFILE = full_screen(
    argv=("codex", *OPTIONS),
    resume_argv=("codex", "resume", *OPTIONS, "{thread}"),
    thread=r"rollout-.*-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.jsonl",
    ready=r"^›",
    busy=r"esc to interrupt",
    asking=r"(Press enter to (confirm|continue)|enter continue · esc (skip|quit))",
    busy_title=BRAILLE,
    asking_title=r"Action Required",
    explicit=True,
    frame=r"\A|^(?!• (Edited|Added|Deleted) )\S.*$",
    footer=r"(Press enter to (confirm|continue)|enter continue · esc (skip|quit))",
    refuse=ESCAPE,
    dialogs=DIALOGS,
    echo=r"› ",
    pasted=r"\[Pasted Content",
    box=r"^›",
    noise=r"^( *─? ?Worked for .*|─+|• Working .*|.*esc to interrupt.*)$",
    marker=r"^• ",
    report_calls="codex",
    failure=r"^■ ",
    meanings=MEANINGS,
)

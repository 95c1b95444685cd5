"""The profile of Claude Code in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import BRAILLE, CONTROL_D, ESCAPE, DialogKind, Meaning, full_screen

AMEND = ("\t", "{why}", "\r")
EDGE = r"╌+\n"
TEXT = r"(?:(?: .*)?\n)*"
ROWS = r"(?: .*\n)+"
FILE = r" (?P<path>(?:.*/)?(?P<name>[^/\n]+))\n"
DIALOGS = (
    DialogKind(
        heading=r"\A Bash command$", kind="execute", tool="Bash", indent=r" (?:│ ?)?", margin=1, reason=AMEND,
        shows=rf" Bash command\n(?:{ROWS})?{EDGE}(?P<command>{ROWS}){EDGE}{TEXT}",
    ),
    DialogKind(
        heading=r"\A Create file$", kind="edit", tool="Write", reason=AMEND,
        shows=rf" Create file\n{FILE}{EDGE}(?P<content>{ROWS}){EDGE} Do you want to create (?P=name)\?\n",
    ),
    DialogKind(
        heading=r"\A Overwrite file$", kind="edit", tool="Write", reason=AMEND,
        shows=rf" Overwrite file\n{FILE}{EDGE}(?P<diff>{ROWS}){EDGE} Do you want to overwrite (?P=name)\?\n",
    ),
    DialogKind(
        heading=r"\A Edit file$", kind="edit", tool="Edit", reason=AMEND,
        shows=rf" Edit file\n{FILE}{EDGE}(?P<diff>{ROWS}){EDGE} Do you want to make this edit to (?P=name)\?\n",
    ),
    DialogKind(
        heading=r"\A Read file$", kind="read", tool="Read", reason=AMEND,
        shows=rf" Read file\n{EDGE} Read\((?P<path>[^·\n]+)\)\n{EDGE} Do you want to proceed\?\n",
    ),
    DialogKind(
        heading=r"\A Fetch$", kind="fetch", tool="WebFetch",
        shows=rf" Fetch\n .*\n{EDGE} url: (?P<url>\S+)\n prompt: .*\n{TEXT}{EDGE}{TEXT}",
    ),
    DialogKind(heading=r"\A Tool use\n (?:│ )?Claude wants to search the web for: ", kind="fetch", tool="WebSearch",
               reason=AMEND),
    DialogKind(
        heading=r"\A Tool use\n (?!(?:│ )?Claude wants)", reason=AMEND,
        shows=rf" Tool use\n (?P<tool>.+) Tool: \(MCP\)\n{EDGE}{TEXT}{EDGE}{TEXT}",
    ),
    DialogKind(heading=r"\A Exit plan mode\?$", kind="switch_mode", tool="ExitPlanMode"),
    DialogKind(heading=r"\A ?(?:← +)?[☐☒]", kind="choice", tool="AskUserQuestion"),
    DialogKind(heading=r"\A Accessing workspace:$", shows=rf" Accessing workspace:\n\n (?P<path>/.*)\n\n{TEXT}"),
    DialogKind(heading=r"\A  New MCP server found in this project: ", risk="high"),
    DialogKind(heading=r"\A  WARNING: Claude Code running in Bypass Permissions mode$", risk="high"),
    DialogKind(heading=r"\A\s*Detected a custom API key in your environment$", kind="choice"),
    DialogKind(heading=r"^ Choose the text style that looks best with your terminal$", kind="choice"),
)  # fmt: skip
"""The dialogs of version 2.1.325. The rows of a frame begin in the first column, and all text is indented.

If a text that the agent has written takes several rows, each of them begins with `│`.
"""

VERSION = "2.1.325"
"""The version from which the texts below were taken."""
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
"""What texts on its screen mean."""
PROFILE = full_screen(
    argv=("claude", "--settings", '{"tui":"default"}', "--session-id", "{thread}"),
    resume_argv=("claude", "--settings", '{"tui":"default"}', "--resume", "{thread}"),
    thread="uuid",
    ready=r"^❯",
    busy=r"esc to interrupt",
    asking=r"(Esc to cancel|Enter to confirm|Enter to select|Choose the text style)",
    busy_title=BRAILLE,
    idle_title=r"^✳",
    explicit=True,
    pointer=r" *❯ (?:✔ )?(?=\S)",
    frame=r"^(─{20,}|\.{5,}.*\.{5,})$",
    footer=r"(Esc to cancel|Enter to (confirm|select)|^ ╌+$|^  \d [ +-]|Syntax theme: )",
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

"""The profile of Qwen Code in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import ESCAPE, DialogKind, Meaning, full_screen

DIFF = r"(?P<diff>(?: +\d+(?: [ +-](?: .*)?)?\n| +⋮.*\n)+)"
CONTENT = r"(?P<content>(?: +\d+(?: .*)?\n)+)"
CHANGE = rf"(?:(?=(?:.*\n)*? +\d+ \+ ){DIFF}|{CONTENT})"
"""A change, or the lines of a new file, which have no signs."""
DIALOGS = (
    DialogKind(
        heading=r"\A  \? Shell ",
        kind="execute",
        tool="Shell",
        shows=r"  \? Shell (?P<command>.{1,100}?)(?: \(.*\))? +←\n\n     (?P=command)\n\n   Allow execution of: .*\n\n",
    ),
    DialogKind(
        heading=r"\A  \? Edit ",
        kind="edit",
        tool="Edit",
        gap=1,
        shows=rf"  \? Edit (?P<path>(?!\S*\.\.\.)\S+) +←\n\n{DIFF}\n   Apply this change\?\n\n",
    ),
    DialogKind(
        heading=r"\A  \? WriteFile ",
        kind="edit",
        tool="WriteFile",
        gap=1,
        shows=rf"  \? WriteFile Writing to (?P<path>(?!\S*\.\.\.)\S+) +←\n\n{CHANGE}\n   Apply this change\?\n\n",
    ),
    DialogKind(
        heading=r"\A  \? WebFetch ",
        kind="fetch",
        tool="WebFetch",
        shows=r"  \? WebFetch (?:.*\n)+?     URLs to fetch:\n      - (?P<url>\S+)\n\n   Do you want to proceed\?\n\n",
    ),
    DialogKind(
        heading=r"^   Allow execution of MCP tool ",
        shows=r"  \? (?P<tool>\S+) \(.* MCP Server\) (?:.*\n)+",
    ),
    DialogKind(heading=r"\A  \? ExitPlanMode ", kind="switch_mode"),
    DialogKind(heading=r"\A  \? AskUserQuestion ", kind="choice"),
    DialogKind(heading=r"^ *│ Do you trust this folder\?"),
    DialogKind(heading=r"^ *│ > Select Theme", kind="choice"),
)
"""Dialogs of version 0.24.4. The box of a long command lacks characters, so only commands of one row are read."""

VERSION = "0.24.4"
"""The version from which the texts below were taken."""
MEANINGS = (
    Meaning(what="denied", text=r"- \w+ "),
    Meaning(what="error", text=r"\[API Error"),
    Meaning(what="error", where="busy", text=r"^  ✕ \[API Error(.*\n)*?.*Retrying in .*"),
    Meaning(what="auth", where="screen", text=r"^ *│ Failed to login\. Message: .*"),
)
"""What texts on its screen mean."""
PROFILE = full_screen(
    argv=("qwen", "--session-id", "{thread}"),
    resume_argv=("qwen", "--resume", "{thread}"),
    thread="uuid",
    ready=r"(Type your message|^─{10,}\n[>*!] )",  # after a cancel the box has the prompt again
    busy=r"esc to cancel",
    asking=r"[›❯] +\d+\. ",
    enter_delay=0.1,
    choice=r"^\W{0,6}(\d\d?)\. +(\S.*?)(?: {2,}.*)?$",
    pointer=r" *[›❯] +(?=\S)",
    frame=r"^(?=  \? )|^ *[╭┌]─{20,}[╮┐]?$",
    footer=r"(Waiting for user confirmation|Enter: Select|Use Enter to select|▼)",
    refuse=ESCAPE,
    dialogs=DIALOGS,
    echo=r" *> ",
    pasted=r"\[Pasted ",
    edge=r"(?<! ) +[█│]$",
    box=r"^─{10,}\n[>*!] ",
    noise=r"^( *[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏◐◓◑◒] .*|[▀▄─]{10,})$",
    marker=r"^ *[✦◆] ",
    failure=r"^  (?=[✕✖-] )",
    meanings=MEANINGS,
)

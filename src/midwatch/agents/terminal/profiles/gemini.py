"""The profile of Gemini CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import ESCAPE, DialogKind, Meaning, full_screen

DIFF = r"(?P<diff>(?: *\d+(?: [ +-](?: .*)?)?\n| *⋮.*\n)+)"
CONTENT = r"(?P<content>(?: *\d+(?: .*)?\n)+)"
CHANGE = rf"(?:(?=(?:.*\n)*? *\d+ \+ ){DIFF}|{CONTENT})"
"""A change, or the lines of a new file, which have no signs."""
DIALOGS = (
    DialogKind(
        heading=r"\A\? Shell ",
        kind="execute",
        tool="Shell",
        shows=r"\? Shell (?:.*\n)+?╭(?P<edge>─+)╮\n(?P<command>(?:.*\n)+)╰(?P=edge)╯\n"
        r"Allow execution of \[.*\]\?\n(?:Redirection detected.*\n)?\n",
        margin=11,
    ),
    DialogKind(
        heading=r"\A\? Edit ",
        kind="edit",
        tool="Edit",
        gap=1,
        shows=rf"\? Edit  (?P<path>(?!\S*\.\.\.)[^\s:]+): (?:.*\n)+?╭(?P<edge>─+)╮\n{DIFF}╰(?P=edge)╯\n"
        r"Apply this change\?\n\n",
    ),
    DialogKind(
        heading=r"\A\? WriteFile ",
        kind="edit",
        tool="WriteFile",
        gap=1,
        shows=rf"\? WriteFile  Writing to (?P<path>(?!\S*\.\.\.)\S+)\n╭(?P<edge>─+)╮\n{CHANGE}╰(?P=edge)╯\n"
        r"Apply this change\?\n\n",
    ),
    DialogKind(
        heading=r"^URLs to fetch:$",
        kind="fetch",
        tool="WebFetch",
        shows=r"Action Required\n\n\?  WebFetch (?:.*\n)+?URLs to fetch:\n - (?P<url>\S+)\n"
        r"Do you want to proceed\?\n\n",
    ),
    DialogKind(
        heading=r"^Allow execution of MCP tool ",
        shows=r"Action Required\n\n\?  (?P<tool>\S+) \(.* MCP Server\) (?:.*\n)+",
    ),
    DialogKind(heading=r"\A\n?Do you trust the files in this folder\?$"),
    DialogKind(heading=r"\AReady to start implementation\?$", kind="switch_mode"),
    DialogKind(heading=r"\AAnswer Questions$", kind="choice"),
    DialogKind(heading=r"\A\n?Usage limit reached for ", kind="choice"),
    DialogKind(heading=r"\A\n?\? Get started$", kind="choice"),
    DialogKind(heading=r"\A\n?> Select Theme", kind="choice"),
)
"""Dialogs of version 0.61.0. A dialog is in a box, and a command or change in a box in it."""

VERSION = "0.61.0"
"""The version from which the texts below were taken."""
MEANINGS = (
    Meaning(what="stopped", text=r"Request cancelled"),
    Meaning(what="error", text=r"(\[API Error|.*\b(error|failed|quota|limit)\b)"),
    Meaning(what="limit", where="screen", text=r"^│ Usage limit reached for (.*\n)+?│ ● 1\. Keep trying", keys="2"),
    Meaning(what="auth", where="screen", text=r"^│ +How would you like to authenticate for this project\?"),
    Meaning(what="auth", where="screen", text=r"^│ +Enter Gemini API Key"),
    Meaning(what="auth", where="screen", text=r"^Please visit the following URL to authorize the application:"),
)
"""What texts on its screen mean."""
PROFILE = full_screen(
    argv=("gemini", "--session-id", "{thread}"),
    resume_argv=("gemini", "--resume", "{thread}"),
    thread="uuid",
    ready=r"Type your message",
    busy=r"esc to cancel",
    asking=r"● +\d+\. ",
    busy_title=r"^✦",
    idle_title=r"^◇",
    asking_title=r"^✋",
    explicit=True,
    enter_delay=0.1,
    choice=r"^\W{0,6}(\d\d?)\. +(\S.*?)(?: {2,}.*)?$",
    pointer=r" *● +(?=\d+\. )",
    frame=r"^ ?╭─{20,}╮$",
    border=r"^ ?│ (?:│ )?|(?: │)? │$",
    footer=r"(Use Enter to select|Enter to select|No authentication|Terms of Services|https://|▼)",
    refuse=ESCAPE,
    dialogs=DIALOGS,
    echo=r"[ │]*> ",
    pasted=r"\[Pasted Text",
    box=r"^▄{10,}\n *[>*!] ",
    noise=r"^( *[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] .*|[▀▄─]{10,}|.*\? for shortcuts.*| *(Shift\+Tab|Press Ctrl\+O|YOLO) .*)$",
    marker=r"^✦ ",
    failure="^(✕|\u2139(?= Request cancelled)) ",
    meanings=MEANINGS,
)

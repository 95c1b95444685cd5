"""The profile of opencode in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import ESCAPE, RIGHT, DialogKind, Meaning, full_screen

PERMISSION = {"Allow once": "\r", "Allow always": RIGHT + "\r", "Reject": ESCAPE}  # wherever the pointer is
BUTTONS = r"\n+ +Allow once   Allow always   Reject .*\n*"
DIFF = r"(?P<diff>(?: *\d+(?: [ +-](?: .*)?)?\n)+)"
DIALOGS = (
    DialogKind(
        heading=r"^   # Shell command$",
        kind="execute",
        tool="bash",
        shows=rf" △ Permission required\n   # Shell command\n\n \$ (?P<command>(?:.*\n)+?){BUTTONS}",
        indent=" ",
        margin=11,
        answers=PERMISSION,
    ),
    DialogKind(
        heading=r"^   → Edit ",
        kind="edit",
        tool="edit",
        gap=1,
        shows=rf" △ Permission required\n   → Edit (?P<path>\S+)\n\n{DIFF}{BUTTONS}",
        answers=PERMISSION,
    ),
    DialogKind(
        heading=r"^   % WebFetch ",
        kind="fetch",
        tool="webfetch",
        shows=rf" △ Permission required\n   % WebFetch \S+\n\n URL: (?P<url>\S+)\n{BUTTONS}",
        answers=PERMISSION,
    ),
    DialogKind(
        heading=r"^   → Read ",
        kind="read",
        tool="read",
        shows=rf" △ Permission required\n   → Read \S+\n\n Path: (?P<path>\S+)\n{BUTTONS}",
        answers=PERMISSION,
    ),
    DialogKind(
        heading=r"^   ← Access external directory ",
        kind="read",
        shows=rf" △ Permission required\n   ← Access external directory (?P<path>\S+)\n(?:.*\n)+?{BUTTONS}",
        answers=PERMISSION,
    ),
    DialogKind(
        heading=r"^   ⚙ Call tool ",
        shows=rf" △ Permission required\n   ⚙ Call tool (?P<tool>\S+)\n(?:.*\n)+?{BUTTONS}",
        answers=PERMISSION,
    ),
    DialogKind(
        heading=r"\A △ Always allow$", kind="execute", shows=r"(?!)", answers={"Confirm": "\r", "Cancel": RIGHT + "\r"}
    ),
    DialogKind(heading=r"\A\n+ (?!Plan at )", kind="choice"),
    DialogKind(heading=r"\A\n+ Plan at (?:.*\n)+? .*Would you like to switch to the build agent", kind="switch_mode"),
)
"""Dialogs of version 1.18.33. `Always allow` asks for a confirmation, which is dangerous whatever it is about."""

VERSION = "1.18.33"
"""The version from which the texts below were taken."""
MEANINGS = (
    Meaning(what="denied", text=r"[$←→#%⚙] "),
    Meaning(what="error", text=r"(?i).*\b(quota|limit|error|failed|key|unauthori[sz]ed|overloaded)\b"),
    Meaning(what="error", where="busy", text=r"^ *[■⬝]{8} .*\[retrying .*"),
)
"""What texts on its screen mean."""
PROFILE = full_screen(
    argv=("opencode",),
    resume_argv=("opencode", "--session", "{thread}"),
    ready=r"(Ask anything|▣ |ctrl\+p commands|^ *╹▀{20,})",
    busy=r"(esc (again to )?interrupt|[■⬝]{8} .*\[retrying )",
    asking=r"(△ (Permission required|Always allow)|enter submit  esc dismiss)",
    interrupt=ESCAPE + ESCAPE,
    pointer=r" *1\. ",
    frame=r"^(?=  ┃  △ )|^$",
    border=r"^  ┃ ?",
    footer=r"(enter submit|esc dismiss|enter confirm)",
    refuse=ESCAPE,
    dialogs=DIALOGS,
    echo=r" *┃ +",
    pasted=r"\[Pasted ",
    failure=r"^( {5}(?=[$←→#%⚙] )|  ┃  (?=.*(\n  ┃.*)*\Z))",
    box=r"^ *┃ *\n.*\n *╹",
    noise=r"^( *▣ .*|.*esc (again to )?interrupt.*|.*ctrl\+p commands.*| *[┃╹▀]+ *)$",
    meanings=MEANINGS,
)

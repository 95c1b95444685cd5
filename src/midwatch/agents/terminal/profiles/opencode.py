"""The profile of opencode in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import ESCAPE, RIGHT, Meaning, full_screen

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
    ready=r"(Ask anything|▣ |ctrl\+p commands)",
    busy=r"(esc (again to )?interrupt|[■⬝]{8} .*\[retrying )",
    asking=r"△ Permission required",
    interrupt=ESCAPE + ESCAPE,
    answers={"Allow once": "\r", "Allow always": RIGHT + "\r", "Reject": RIGHT + RIGHT + "\r"},
    echo=r" *┃ +",
    pasted=r"\[Pasted ",
    failure=r"^( {5}(?=[$←→#%⚙] )|  ┃  (?=.*(\n  ┃.*)*\Z))",
    box=r"^ *┃ *\n.*\n *╹",
    noise=r"^( *▣ .*|.*esc (again to )?interrupt.*|.*ctrl\+p commands.*| *[┃╹▀]+ *)$",
    meanings=MEANINGS,
)

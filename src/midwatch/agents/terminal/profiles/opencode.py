"""The profile of opencode in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import ESCAPE, RIGHT, full_screen

PROFILE = full_screen(
    argv=("opencode",),
    resume_argv=("opencode", "--session", "{thread}"),
    ready=r"(Ask anything|▣ |ctrl\+p commands)",
    busy=r"esc (again to )?interrupt",
    asking=r"△ Permission required",
    interrupt=ESCAPE + ESCAPE,
    answers={"Allow once": "\r", "Allow always": RIGHT + "\r", "Reject": RIGHT + RIGHT + "\r"},
    echo=r" *┃ +",
    pasted=r"\[Pasted ",
    box=r"^ *┃ *\n.*\n *╹",
    noise=r"^( *▣ .*|.*esc (again to )?interrupt.*|.*ctrl\+p commands.*| *[┃╹▀]+ *)$",
)

"""The profile of GitHub Copilot CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import Meaning, full_screen

VERSION = "1.0.102"
"""The version from which the texts below were taken."""
MEANINGS = (Meaning(what="error"),)
"""What texts on its screen mean."""
PROFILE = full_screen(
    argv=("copilot", "--session-id", "{thread}"),
    resume_argv=("copilot", "--resume", "{thread}"),
    thread="uuid",
    ready=r"^╹▀{10,}",
    busy=r"(?i)esc (to )?(cancel|interrupt|stop)",
    asking=r"(?i)(enter to (select|confirm)|confirm with)",
    settle=0.4,
    echo=r" *[❯>┃] +",
    pasted=r"\[Paste",
    box=r"^╻▄{10,}",
    edge=r" *(\d\d:\d\d +)?[┃█]$",
    noise=r"^ *([◎◉○∙●] (Thinking|Working).*|─{10,}|[▀▄]{10,}|[~/].*|Current +Sessions .*|● MCP Servers .*)$",
    marker=r"^ *● ",
    failure=r"^ ✗ ",
    meanings=MEANINGS,
)

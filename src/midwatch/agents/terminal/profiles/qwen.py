"""The profile of Qwen Code in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import Meaning, full_screen

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
    ready=r"Type your message",
    busy=r"esc to cancel",
    asking=r"(Allow execution of|Apply this change|● 1\. )",
    enter_delay=0.1,
    echo=r" *> ",
    pasted=r"\[Pasted ",
    edge=r" +[█│]$",
    box=r"^─{10,}\n[>*!] ",
    noise=r"^( *[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏◐◓◑◒] .*|[▀▄─]{10,})$",
    marker=r"^ *[✦◆] ",
    failure=r"^  (?=[✕✖-] )",
    meanings=MEANINGS,
)

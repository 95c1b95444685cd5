"""The profile of Gemini CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import Meaning, full_screen

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
    asking=r"(Allow execution of|Apply this change|Do you trust|● 1\. )",
    busy_title=r"^✦",
    idle_title=r"^◇",
    asking_title=r"^✋",
    explicit=True,
    enter_delay=0.1,
    echo=r"[ │]*> ",
    pasted=r"\[Pasted Text",
    box=r"^▄{10,}\n *[>*!] ",
    noise=r"^( *[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] .*|[▀▄─]{10,}|.*\? for shortcuts.*| *(Shift\+Tab|Press Ctrl\+O|YOLO) .*)$",
    marker=r"^✦ ",
    failure="^(✕|\u2139(?= Request cancelled)) ",
    meanings=MEANINGS,
)

"""The profile of Gemini CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import full_screen

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
)

"""Profiles: the properties of each terminal agent, as data.

The settings of an agent name a profile and may replace its fields. A sign is a regular expression that is searched in
the last rows of the screen. In a sign, `^` and `$` match at the beginning and the end of each line. Keys are written as
the characters that a terminal sends for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from midwatch.agents.base import KindOptions


def _check_regex(text: str) -> str:
    try:
        re.compile(text, re.MULTILINE)
    except re.error as problem:
        raise ValueError(f"not a regular expression: {problem}") from None
    return text


Regex = Annotated[str, AfterValidator(_check_regex)]
ESCAPE, CONTROL_C, CONTROL_D, CONTROL_U = "\x1b", "\x03", "\x04", "\x15"
RIGHT = "\x1b[C"
BRAILLE = "^[\u2801-\u28ff]"
CODEX_OPTIONS = ("--no-alt-screen", "--no-daemon", "-c", "tui.terminal_resize_reflow_max_rows=0")
"""Options of codex. Without the last option, codex may draw a long answer again, but only its last 1000 rows."""
NUMBERED = r"^\W{0,6}(\d)[.)] +(\S.*?)[ │|]*$"


class Profile(KindOptions):
    """The properties of one terminal agent."""

    argv: tuple[str, ...] = Field((), description="Program and arguments; {thread} is the conversation's id.")
    resume_argv: tuple[str, ...] = Field((), description="Program and arguments to resume the conversation {thread}.")
    thread: Regex = Field(
        "",
        description="Source of {thread}: `uuid`, midwatch creates it; or a regular expression whose group finds it in "
        "the name of a file that the program keeps open.",
    )
    columns: int = Field(120, ge=20, le=1000, description="Width of the terminal.")
    rows: int = Field(40, ge=10, le=1000, description="Height of the terminal.")
    # -- status
    ready: Regex = Field("", description="Sign of the input box.")
    prompt: Regex = Field("", description="The line up to the cursor when it waits for input.")
    busy: Regex = Field("", description="Sign that it works.")
    asking: Regex = Field("", description="Sign that it asks a question and waits for a key.")
    busy_title: Regex = Field("", description="Title of the terminal while it works.")
    idle_title: Regex = Field("", description="Title while it waits for input.")
    asking_title: Regex = Field("", description="Title while it waits for an answer.")
    explicit: bool = Field(False, description="Whether only its title or its program status shows that it is idle.")
    paste_tells: bool = Field(False, description="Whether it accepts pasted text (mode 2004) only while it waits.")
    settle: float = Field(0.3, ge=0, le=60, description="Seconds of silence after which a sign counts.")
    quiet: float = Field(30.0, gt=0, description="Seconds of silence after which it counts as idle without a sign.")
    # -- input
    enter_delay: float = Field(0.03, ge=0, le=10, description="Seconds between a prompt and the key Enter.")
    clear: str = Field(CONTROL_U, description="Keys that empty the input box.")
    interrupt: str = Field(CONTROL_C, description="Keys that stop it.")
    quit: str = Field("", description="Keys that end it when it is idle.")
    choice: Regex = Field(NUMBERED, description="A line with a choice: its groups are the key and the words.")
    choice_keys: str = Field("{key}", description="Keys that select a choice.")
    pointer: Regex = Field(
        r" *[❯›►▸] (?=\S)", description="The pointer before the current choice of a menu with arrows."
    )
    answers: dict[str, str] = Field(
        default_factory=dict, description="Choices and their keys, if each choice has no line of its own."
    )
    # -- output
    echo: Regex = Field("", description="Sign before the echo of a prompt, at the beginning of its line.")
    pasted: Regex = Field("", description="Text that is shown instead of a long prompt.")
    edge: Regex = Field("", description="Characters at the right edge of lines, such as a scroll bar.")
    box: Regex = Field("", description="Sign of the input box, where the reply ends.")
    noise: Regex = Field("", description="Lines around a reply that are not part of it, such as a spinner.")
    marker: Regex = Field("", description="Sign before the first line of each part of the reply.")
    report_calls: Literal["", "claude", "codex"] = Field("", description="Type of the report calls to leave out.")

    def find(self, sign: str, text: str) -> re.Match[str] | None:
        """Return the first match of a sign in a text, or None."""
        return re.search(sign, text, re.MULTILINE) if sign else None

    @property
    def silent(self) -> bool:
        """Whether the profile has no sign that shows that the program is busy."""
        return not (self.busy or self.busy_title or self.paste_tells or self.explicit)


def _full_screen(**fields: Any) -> Profile:
    """Return a profile with these fields. Escape interrupts the program, and Control-C, typed twice, ends it."""
    return Profile(**{"clear": CONTROL_C, "interrupt": ESCAPE, "quit": CONTROL_C + CONTROL_C, **fields})


PROFILES: Mapping[str, Profile] = {
    "claude": _full_screen(
        argv=("claude", "--settings", '{"tui":"default"}', "--session-id", "{thread}"),
        resume_argv=("claude", "--settings", '{"tui":"default"}', "--resume", "{thread}"),
        thread="uuid",
        ready=r"^❯",
        busy=r"esc to interrupt",
        asking=r"(Esc to cancel|Enter to confirm|Enter to select)",
        busy_title=BRAILLE,
        idle_title=r"^✳",
        explicit=True,
        quit=CONTROL_D + CONTROL_D,
        echo=r"❯ ",
        pasted=r"\[Pasted text",
        box=r"^─{10,}[^\n]*\n❯",
        noise=r"^\s*([✻✽✶✢·*✳] .*|⎿\s+Tip:.*|.*esc to interrupt.*)$",
        marker=r"^[●⏺] ",
        report_calls="claude",
    ),
    "codex": _full_screen(
        argv=("codex", *CODEX_OPTIONS),
        resume_argv=("codex", "resume", *CODEX_OPTIONS, "{thread}"),
        thread=r"rollout-.*-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.jsonl",
        ready=r"^›",
        busy=r"esc to interrupt",
        asking=r"(Press enter to (confirm|continue))",
        busy_title=BRAILLE,
        asking_title=r"Action Required",
        explicit=True,
        echo=r"› ",
        pasted=r"\[Pasted Content",
        box=r"^›",
        noise=r"^( *─? ?Worked for .*|─+|• Working .*|.*esc to interrupt.*)$",
        marker=r"^• ",
        report_calls="codex",
    ),
    "gemini": _full_screen(
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
    ),
    "qwen": _full_screen(
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
    ),
    "opencode": _full_screen(
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
    ),
    "aider": Profile(
        argv=("aider", "--no-pretty"),
        ready=r"^\S*> ?$",
        asking=r"\(Y\)es/\(N\)o.*: *$",
        paste_tells=True,
        settle=0.05,
        quit=CONTROL_D,
        answers={"yes": "y\r", "no": "n\r"},
        echo=r"\S*> ",
        box=r"^─{10,}\n\S*> ?$|^\S*> ?$",
        noise=r"^(─{10,}|Tokens: .*|[░█ ]+ .*|.*Waiting for .*)$",
    ),
    "goose": Profile(
        argv=("goose", "session", "--name", "{thread}"),
        resume_argv=("goose", "session", "--resume", "--name", "{thread}"),
        thread="uuid",
        ready=r"^> ",
        asking=r"^◆ ",
        paste_tells=True,
        settle=0.1,
        quit=CONTROL_D,
        pointer=r" *● +(?=\S)",
        echo=r"> ",
        box=r"^ *[━╌]{10,}[^\n]*\n> |^> ",
        noise=r"^ *([◐◓◑◒⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] .*|─{10,}.*|[━╌]{10,}.*|⏱ .*|✓ extensions ready)$",
    ),
    "copilot": _full_screen(
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
    ),
    "cursor": Profile(
        argv=("cursor-agent",),
        ready=r"^ *[│┃]? *→",
        busy=r"(ctrl\+c to stop|esc to stop)",
        asking=r"(Run this command\?|\(y\) )",
        settle=0.5,
        box=r"^ *┌─{10,}",
    ),
    "amp": Profile(
        argv=("amp",),
        ready=r"^╰─+",
        busy=r"(Esc to cancel|Waiting for response|Running tools)",
        asking=r"(Run this command\?|Allow .*\?)",
        settle=0.5,
        interrupt=ESCAPE + ESCAPE,
        box=r"^╭─{10,}",
    ),
    "auggie": Profile(
        argv=("auggie",),
        ready=r"^ *[│|]? *[›>]",
        busy=r"(esc to interrupt|Processing response)",
        settle=0.5,
        interrupt=ESCAPE,
        box=r"^[ ╭]*─{10,}",
    ),
    "amazonq": Profile(
        argv=("q", "chat"),
        ready=r"^.*> ?$",
        busy=r"Thinking\.\.\.",
        asking=r"Allow this action\?",
        answers={"yes": "y\r", "no": "n\r"},
        box=r"^.*> ?$",
    ),
    "custom": Profile(quiet=2.0, settle=0.05),
}

"""A profile: the properties of one terminal agent, as data.

The settings of an agent name a profile and may replace its fields. A sign is a regular expression that is searched in
the last rows of the screen. In a sign, `^` and `$` match at the beginning and the end of each line. Keys are written as
the characters that a terminal sends for them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from midwatch.agents.base import KindOptions
from midwatch.domain.agent import QuestionKind, Risk
from midwatch.wire.fields import Options


def _check_regex(text: str) -> str:
    try:
        re.compile(text, re.MULTILINE)
    except re.error as problem:
        raise ValueError(f"not a regular expression: {problem}") from None
    return text


Regex = Annotated[str, AfterValidator(_check_regex)]
ESCAPE, CONTROL_C, CONTROL_D, CONTROL_U, RIGHT = "\x1b", "\x03", "\x04", "\x15", "\x1b[C"
BRAILLE = "^[\u2801-\u28ff]"
NUMBERED = r"^\W{0,6}(\d)[.)] +(\S.*)$"


What = Literal["limit", "auth", "passing", "failed", "error", "stopped", "denied"]
"""What a text means: a usage limit; not signed in; a temporary failure; a permanent one; an error whose kind its words
tell; that the program was stopped; that it stopped after a denied action, if an action was denied in this turn."""
Place = Literal["reply", "screen", "busy", "exit"]
"""Where a text must be: after the sign `failure` at the end of the reply; on the screen below the last input box, or
without one; on the screen while the program is busy; on the last screen of a program that has ended."""


class Meaning(Options):
    """What one text on the screen means. It counts only in its place, so that a reply may contain the same words."""

    what: What
    where: Place = "reply"
    text: Regex = ""
    keys: str = ""  # keys that close the screen with this text


class DialogKind(BaseModel):
    """One kind of dialog of a program: how it is recognised, and where it shows what it asks about.

    A dialog is the text from the row below the profile's `frame` to the row above its first choice. Its current choice
    has the profile's `pointer` in front, and below its choices is nothing but rows with the profile's `footer`. Each
    row of the text ends with a line feed and has no blanks at its end. `heading` is searched in this text. If the
    headings of all kinds together match it exactly once, the kind is known.

    `shows` must match the whole text. Its named groups tell what the dialog is about:

    - `command`: rows of a command. `indent` is removed from each of them, and rows that the program has wrapped are
      joined: the program leaves `margin` columns at the right edge empty.
    - `path`: a file or directory; or several rows with a path each, from which `indent` is removed.
    - `url`: an address. `tool`: the program's own name for the tool.
    - `diff`: rows with a line number, then ` `, `+` or `-`, then the text of the line. A row such as
      `notes.txt (+1 -1)` begins the change of another file.
    - `content`: rows with a line number and the text of a line of a new file.
    - `arguments`: the arguments of the tool as JSON, in rows that the terminal has wrapped.

    A group that did not take part in the match is not used. If `shows` does not match, or a command or path was cut
    (`…`), people see the text of the dialog, and its risk is high. So write `shows` strictly: it must not match if the
    agent has put text that looks like a part of the dialog into another part.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    heading: Regex
    kind: QuestionKind = "other"
    tool: str = ""
    shows: Regex = ""
    indent: Regex = ""
    margin: int = 0
    risk: Risk | None = None
    reason: tuple[str, ...] = ()
    """Keys that refuse with a reason, `{why}`, when the pointer is on the choice that means no."""
    gap: int = 0
    """The number of blanks between the sign and the text in a row of a diff."""
    arrows: bool = False
    """Whether the numbers of its choices are no keys: arrow keys move the pointer, and Enter selects."""
    answers: dict[str, str] = {}
    """Choices and their keys, if this dialog does not show each choice on a row of its own."""
    proof: Regex = ""
    """A sign among the choices whose group repeats the command. If it differs, rules do not allow the command."""


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
    frame: Regex = Field(
        "",
        description="The last row above a dialog, such as the upper edge of its frame. A sign that matches no "
        "characters, such as `^(?=Allow )`, finds the first row of the dialog itself.",
    )
    border: Regex = Field("", description="The edges of the frame at the left and right of a row of a dialog.")
    footer: Regex = Field("", description="A row below the choices of a dialog, such as `Esc to cancel`.")
    refuse: str = Field("", description="Keys that refuse a dialog without a choice that means no.")
    dialogs: tuple[DialogKind, ...] = Field((), description="The kinds of dialogs that the program shows.")
    # -- output
    echo: Regex = Field("", description="Sign before the echo of a prompt, at the beginning of its line.")
    pasted: Regex = Field("", description="Text that is shown instead of a long prompt.")
    edge: Regex = Field("", description="Characters at the right edge of lines, such as a scroll bar.")
    box: Regex = Field("", description="Sign of the input box, where the reply ends.")
    noise: Regex = Field("", description="Lines around a reply that are not part of it, such as a spinner.")
    marker: Regex = Field("", description="Sign before the first line of each part of the reply.")
    report_calls: Literal["", "claude", "codex"] = Field("", description="Type of the report calls to leave out.")
    # -- failures
    failure: Regex = Field("", description="Sign before a message of the program that is not part of the answer.")
    meanings: tuple[Meaning, ...] = Field((), description="Texts on the screen that mean a failure, and their places.")

    def find(self, sign: str, text: str) -> re.Match[str] | None:
        """Return the first match of a sign in a text, or None."""
        return re.search(sign, text, re.MULTILINE) if sign else None

    @property
    def silent(self) -> bool:
        """Whether the profile has no sign that shows that the program is busy."""
        return not (self.busy or self.busy_title or self.paste_tells or self.explicit)


def full_screen(**fields: Any) -> Profile:
    """Return a profile with these fields. Escape interrupts the program, and Control-C, typed twice, ends it."""
    return Profile(**{"clear": CONTROL_C, "interrupt": ESCAPE, "quit": CONTROL_C + CONTROL_C, **fields})

"""Steps: the reports in the output of an agent program, in the same form for every program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from midwatch.agents.streams.faults import Fault


class Thread(NamedTuple):
    """The id of the conversation in the program."""

    id: str


class Model(NamedTuple):
    """The model that the program uses."""

    name: str


class TextPiece(NamedTuple):
    """A piece of the text that is being written."""

    text: str


class Text(NamedTuple):
    """A whole text, which replaces its pieces."""

    text: str


class TextEnd(NamedTuple):
    """The end of a text. The next piece belongs to another text."""


class ThoughtPiece(NamedTuple):
    """A piece of a thought."""

    text: str


class Thought(NamedTuple):
    """A whole thought."""

    text: str


class Plan(NamedTuple):
    """The current plan."""

    entries: tuple[Mapping[str, Any], ...]


class ToolStart(NamedTuple):
    """A tool call begins."""

    id: str
    name: str
    arguments: Any = None
    title: str | None = None
    locations: tuple[str, ...] = ()


class ToolEnd(NamedTuple):
    """A tool call has ended. `seconds` is set only if the program reports it."""

    id: str
    result: str = ""
    is_error: bool = False
    diffs: tuple[Mapping[str, Any], ...] = ()
    seconds: float | None = None


class Reply(NamedTuple):
    """A model has answered."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None


class Spent(NamedTuple):
    """The usage of this turn, or with `of_thread` of the whole conversation. Several steps are added."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    of_thread: bool = False


class Denied(NamedTuple):
    """A tool call was denied."""

    tool: str


class Retry(NamedTuple):
    """The program retries by itself. `seconds` is its wait, if the program reports it."""

    message: str
    fault: Fault
    seconds: float | None = None


class Note(NamedTuple):
    """An error that does not end the work."""

    message: str


class Failed(NamedTuple):
    """The turn has failed."""

    fault: Fault


class Done(NamedTuple):
    """The turn is over. Without a text, the last text is the answer."""

    text: str | None = None


Step = (
    Thread | Model | TextPiece | Text | TextEnd | ThoughtPiece | Thought | Plan | ToolStart | ToolEnd | Reply | Spent
    | Denied | Retry | Note | Failed | Done
)  # fmt: skip

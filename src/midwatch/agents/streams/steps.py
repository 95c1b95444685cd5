"""Steps: what an agent program reports in its output. A step has the same form for every program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from midwatch.agents.streams.faults import Fault


class Thread(NamedTuple):
    """The id under which the program stores the conversation."""

    id: str


class Model(NamedTuple):
    """The model that the program uses."""

    name: str


class TextPiece(NamedTuple):
    """A piece of the text that the model is writing."""

    text: str


class Text(NamedTuple):
    """A complete text. It replaces the pieces of this text that came before."""

    text: str


class TextEnd(NamedTuple):
    """The end of a text. The next piece belongs to another text."""


class ThoughtPiece(NamedTuple):
    """A piece of a thought."""

    text: str


class Thought(NamedTuple):
    """A complete thought. It replaces the pieces of this thought that came before."""

    text: str


class Plan(NamedTuple):
    """The agent's current plan. It replaces the plan before."""

    entries: tuple[Mapping[str, Any], ...]


class ToolStart(NamedTuple):
    """A tool call begins."""

    id: str
    name: str
    arguments: Any = None
    title: str | None = None
    locations: tuple[str, ...] = ()


class ToolEnd(NamedTuple):
    """A tool call has ended. `seconds` is its duration, if the program reports it."""

    id: str
    result: str = ""
    is_error: bool = False
    diffs: tuple[Mapping[str, Any], ...] = ()
    seconds: float | None = None


class Reply(NamedTuple):
    """The model has answered one request."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None


class Spent(NamedTuple):
    """A usage of this turn; with `of_thread`, the usage of the whole conversation so far.

    A turn may have several such steps. Their usages are added, except with `of_thread`: there the last one counts.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    of_thread: bool = False


class Denied(NamedTuple):
    """A tool call was denied."""

    tool: str


class Retry(NamedTuple):
    """The program retries a model call by itself. `seconds` is its pause before, if the program reports it."""

    message: str
    fault: Fault
    seconds: float | None = None


class Note(NamedTuple):
    """An error that does not end the turn."""

    message: str


class Failed(NamedTuple):
    """The turn has failed."""

    fault: Fault


class Done(NamedTuple):
    """The turn has succeeded. `text` is the answer; if it is None, the last text of the turn is the answer."""

    text: str | None = None


Step = (
    Thread | Model | TextPiece | Text | TextEnd | ThoughtPiece | Thought | Plan | ToolStart | ToolEnd | Reply | Spent
    | Denied | Retry | Note | Failed | Done
)  # fmt: skip

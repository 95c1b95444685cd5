"""Steps: what the output of an agent program reports, whichever program prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midwatch.agents.streams.faults import Fault


@dataclass(frozen=True, slots=True)
class Thread:
    """The id by which the program knows the conversation."""

    id: str


@dataclass(frozen=True, slots=True)
class Model:
    """The model that works."""

    name: str


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the text that is being written."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A whole text, which replaces its pieces."""

    text: str


@dataclass(frozen=True, slots=True)
class TextEnd:
    """The end of a text. The next piece belongs to another text."""


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """A piece of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A whole thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan as it is now."""

    entries: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStart:
    """A tool call begins."""

    id: str
    name: str
    arguments: Any = None
    title: str | None = None
    locations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnd:
    """A tool call has ended. `seconds` is set only if the program reports it."""

    id: str
    result: str = ""
    is_error: bool = False
    diffs: tuple[Mapping[str, Any], ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model has answered."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The usage of this turn, or with `of_thread` of the conversation since its beginning. Several add up."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    of_thread: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """A tool call was denied."""

    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The program tries again by itself. `seconds` is how long it waits, if the program reports it."""

    message: str
    fault: Fault
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """An error that does not end the work."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn has failed."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Done:
    """The turn is over. Without a text, the last text is the answer."""

    text: str | None = None


Step = (
    Thread | Model | TextPiece | Text | TextEnd | ThoughtPiece | Thought | Plan | ToolStart | ToolEnd | Reply | Spent
    | Denied | Retry | Note | Failed | Done
)  # fmt: skip

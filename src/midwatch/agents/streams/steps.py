"""Steps: what the stream of an agent program tells, whichever program prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midwatch.agents.streams.faults import Fault


@dataclass(frozen=True, slots=True)
class Thread:
    """By what id the program knows the conversation."""

    id: str


@dataclass(frozen=True, slots=True)
class Model:
    """Which model works."""

    name: str


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of the text that is being written."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A whole text; it takes the place of its pieces."""

    text: str


@dataclass(frozen=True, slots=True)
class TextEnd:
    """What follows belongs to another text."""


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """More of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A whole thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan as it stands."""

    entries: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStart:
    """A tool is used."""

    id: str
    name: str
    arguments: Any = None
    title: str | None = None
    locations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnd:
    """It has returned. `seconds` only where the program says it."""

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
    """What was consumed: of this turn, or with `of_thread` of the conversation since it began. Several add up."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    of_thread: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """A tool was not allowed."""

    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The program tries again by itself. `seconds` is how long it waits, where it says it."""

    message: str
    fault: Fault
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something went wrong and the work goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn has failed."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Done:
    """The turn is over; without a text the last one told is the answer."""

    text: str | None = None


Step = (
    Thread | Model | TextPiece | Text | TextEnd | ThoughtPiece | Thought | Plan | ToolStart | ToolEnd | Reply | Spent
    | Denied | Retry | Note | Failed | Done
)  # fmt: skip

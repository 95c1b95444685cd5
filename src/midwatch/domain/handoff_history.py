"""Handoff history: the messages of a conversation that the target receives when work is handed over.

A filter takes all messages and returns the messages for the target. The filter of the handoff is used, or else the
filter of the desk; without a filter the target receives all messages. Messages are plain JSON objects with at least
`role` and `content`; calls of tools are in `tool_calls`, and their results have the role `tool`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

Message = Mapping[str, Any]
Messages = tuple[Message, ...]

TOOL_KEYS = frozenset({"tool_calls", "tool_call_id", "function_call", "reasoning", "reasoning_content"})
TOOL_ROLES = frozenset({"tool", "function"})
SYSTEM_ROLES = frozenset({"system", "developer"})
OPENING = "<CONVERSATION HISTORY>"
CLOSING = "</CONVERSATION HISTORY>"
PREAMBLE = "What was said before this was handed over:"
NOTHING = "(nothing was said before)"
RECORD = re.compile(r"\d+\. ")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffContext:
    """The context of the work that is handed over."""

    conversation_id: str | None = None
    messages: Messages = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    parent_handoff: str | None = None

    def data(self) -> dict[str, Any]:
        """Return the context as JSON stores it."""
        return {
            "conversation_id": self.conversation_id,
            "messages": [dict(message) for message in self.messages],
            "variables": dict(self.variables),
            "parent_handoff": self.parent_handoff,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any] | None) -> HandoffContext:
        """Read the context from a record."""
        values = dict(data or {})
        return cls(**{**values, "messages": tuple(values.get("messages") or ())})


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffInputData:
    """The input and the result of a filter.

    `input_history` are the messages before the turn that hands over, `pre_handoff` the messages of that turn, and
    `new_messages` the work itself. The target's model sees `input_history` and then `input_messages`. If
    `input_messages` is None, it sees `pre_handoff` and `new_messages` instead of them. The target's session always
    stores `new_messages`.
    """

    input_history: Messages = ()
    pre_handoff: Messages = ()
    new_messages: Messages = ()
    input_messages: Messages | None = None
    context: HandoffContext = field(default_factory=HandoffContext)

    def clone(self) -> HandoffInputData:
        """Return a deep copy."""
        return deepcopy(self)

    def visible_messages(self) -> Messages:
        """Return the messages that the target's model sees, in order."""
        latest = self.pre_handoff + self.new_messages if self.input_messages is None else self.input_messages
        return self.input_history + latest

    def change(self, map_: Callable[[Messages], Messages]) -> HandoffInputData:
        """Return a copy with `map_` applied to every list of messages."""
        return replace(
            self,
            input_history=map_(self.input_history),
            pre_handoff=map_(self.pre_handoff),
            new_messages=map_(self.new_messages),
            input_messages=None if self.input_messages is None else map_(self.input_messages),
        )


InputFilter = Callable[[HandoffInputData], HandoffInputData | Awaitable[HandoffInputData]]
HistoryMapper = Callable[[Messages], Iterable[Message]]


async def apply_filter(chosen: InputFilter | None, data: HandoffInputData) -> HandoffInputData:
    """Apply a filter to a copy of `data`; raise TypeError if the result of the filter is not valid.

    System prompts of the source are always removed.
    """
    safe = data.change(remove_system)
    if chosen is None:
        return safe
    result = chosen(safe.clone())
    if inspect.isawaitable(result):
        result = await result
    if not isinstance(result, HandoffInputData):
        raise TypeError(f"the filter returned {type(result).__name__} instead of HandoffInputData")
    for message in result.visible_messages():
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TypeError("the filter returned a message that is not an object with a `role`")
    return result.change(remove_system)


def remove_system(messages: Messages) -> Messages:
    """Return the messages without the system prompts of the source."""
    return tuple(message for message in messages if message.get("role") not in SYSTEM_ROLES)


def remove_tools(data: HandoffInputData) -> HandoffInputData:
    """Filter: remove tool calls, their results, and thoughts."""
    return data.change(_without_tools)


def _without_tools(messages: Messages) -> Messages:
    kept = []
    for message in messages:
        if message.get("role") in TOOL_ROLES:
            continue
        plain = {name: value for name, value in message.items() if name not in TOOL_KEYS}
        if plain.get("content") or len(plain) == len(message):
            kept.append(plain)
    return tuple(kept)


def only_user(data: HandoffInputData) -> HandoffInputData:
    """Filter: keep only messages of people."""
    return data.change(lambda messages: tuple(message for message in messages if message.get("role") == "user"))


def last(count: int) -> InputFilter:
    """Return a filter that keeps only the last `count` messages of the history.

    A tool result at the beginning is removed, because the message with its call is missing.
    """
    if count < 0:
        raise ValueError("`count` must be 0 or more")

    def keep(data: HandoffInputData) -> HandoffInputData:
        before = data.input_history + data.pre_handoff
        kept = before[len(before) - count :] if count else ()
        while kept and kept[0].get("role") in TOOL_ROLES:
            kept = kept[1:]
        split = max(0, len(kept) - len(data.pre_handoff))
        return replace(data, input_history=kept[:split], pre_handoff=kept[split:])

    return keep


def map_history(mapper: HistoryMapper) -> InputFilter:
    """Return a filter that replaces the history by the result of `mapper`."""

    def apply(data: HandoffInputData) -> HandoffInputData:
        return replace(data, input_history=tuple(mapper(data.input_history + data.pre_handoff)), pre_handoff=())

    return apply


def nested(data: HandoffInputData) -> HandoffInputData:
    """Filter: put the history into one message of the assistant.

    If the history contains such a message of an earlier handoff, its lines are taken out first, so that such messages
    never contain each other. Texts of people are not split.
    """
    records = [record for message in data.input_history + data.pre_handoff for record in _records(message)]
    return replace(data, input_history=(summary(records),) if records else (), pre_handoff=())


def summary(records: list[str]) -> Message:
    """Return one message that contains the history; each record of the history is one line of it."""
    lines = [f"{number}. {record}" for number, record in enumerate(records, 1)] or [NOTHING]
    return {"role": "assistant", "content": "\n".join((PREAMBLE, OPENING, *lines, CLOSING))}


def _records(message: Message) -> list[str]:
    """Return the records of a message: one for its content, and one for each tool call.

    If the message is a summary of an earlier handoff, return the lines of the summary without their numbers.
    """
    content = message.get("content")
    if message.get("role") == "assistant" and isinstance(content, str):
        lines = content.split("\n")
        if lines[:2] == [PREAMBLE, OPENING] and lines[-1] == CLOSING:
            return [RECORD.sub("", line, count=1) for line in lines[2:-1] if line != NOTHING]
    lines_of_content = [_line(str(message.get("role")), content)] if content else []
    return lines_of_content + [_line("tool_call", call) for call in message.get("tool_calls") or ()]


def _line(role: str, content: Any) -> str:
    plain = isinstance(content, str) and content.splitlines() == [content] and not content.startswith(('"', "{", "["))
    return f"{' '.join(role.split())}: {content if plain else json.dumps(content, ensure_ascii=False)}"


def as_text(messages: Messages) -> str:
    """Return the history as text, for an agent that reads only text; return "" if the history is empty."""
    records = [record for message in messages for record in _records(message)]
    return str(summary(records)["content"]) if records else ""

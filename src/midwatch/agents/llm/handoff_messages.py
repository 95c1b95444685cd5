"""Converts a model's messages to the plain messages of a handoff, and plain messages to a model's messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse

Plain = dict[str, Any]

OPENING = "The following messages were sent before this work was handed over to you."
UNANSWERED = "The result of this call is not known."
MOST_CHARACTERS = 500_000  # characters of messages in a handoff; the oldest messages are left out


def to_messages(messages: Iterable[ModelMessage], without: frozenset[str] = frozenset()) -> list[Plain]:
    """Convert a model's messages to plain messages. Leave out calls and results of the tools in `without`."""
    plain: list[Plain] = []
    for message in messages:
        if message.kind == "response":
            plain += _convert_response(message, without)
            continue
        for part in message.parts:
            if part.part_kind == "user-prompt":
                plain.append({"role": "user", "content": _text(part.content)})
            elif part.part_kind == "tool-return" and part.tool_name not in without:
                plain.append({"role": "tool", "tool_call_id": part.tool_call_id, "content": _text(part.content)})
    return plain


def _convert_response(response: ModelResponse, without: frozenset[str]) -> list[Plain]:
    calls = [
        {"id": call.tool_call_id, "name": call.tool_name, "arguments": call.args_as_json_str()}
        for call in response.tool_calls
        if call.tool_name not in without
    ]
    text = response.text or ""
    if not calls:
        return [{"role": "assistant", "content": text}] if text else []
    return [{"role": "assistant", "content": text, "tool_calls": calls}]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(part if isinstance(part, str) else f"({type(part).__name__})" for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def keep_newest(messages: Sequence[Plain]) -> tuple[Plain, ...]:
    """Return the newest messages that fit into a handoff. They do not begin with a tool result without its call."""
    size, first = 0, len(messages)
    for index in range(len(messages) - 1, -1, -1):
        size += len(json.dumps(messages[index]))
        if size > MOST_CHARACTERS:
            break
        first = index
    while first < len(messages) and messages[first]["role"] == "tool":
        first += 1
    return tuple(messages[first:])


def to_model_messages(messages: Iterable[Mapping[str, Any]]) -> list[ModelMessage]:
    """Convert plain messages to messages for a model.

    A tool call without a result gets one. A tool result without a call is left out.
    """
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    converted: list[ModelMessage] = []
    waiting: dict[str, str] = {}
    for message in messages:
        role, content = message.get("role"), _text(message.get("content") or "")
        if role == "tool":
            name = waiting.pop(str(message.get("tool_call_id")), None)
            if name is not None:
                converted.append(ModelRequest(parts=[ToolReturnPart(name, content, str(message["tool_call_id"]))]))
            continue
        converted += _answer_open_calls(waiting)
        if role == "assistant":
            response = _response(message, content)
            waiting = {call.tool_call_id: call.tool_name for call in response.tool_calls}
            converted += [response] if response.parts else []
        elif content:
            converted.append(ModelRequest(parts=[UserPromptPart(content)]))
    converted += _answer_open_calls(waiting)
    if converted and converted[0].kind == "response":  # some providers require that the first message is from a user
        converted.insert(0, ModelRequest(parts=[UserPromptPart(OPENING)]))
    return converted


def _response(message: Mapping[str, Any], text: str) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    parts: list[Any] = [TextPart(text)] if text else []
    for call in message.get("tool_calls") or ():
        about = call.get("function") or call
        if about.get("name") and call.get("id"):
            parts.append(ToolCallPart(str(about["name"]), about.get("arguments"), str(call["id"])))
    return ModelResponse(parts=parts)


def _answer_open_calls(waiting: dict[str, str]) -> list[ModelMessage]:
    """Return a message with a result for each tool call in `waiting`, and empty `waiting`."""
    from pydantic_ai.messages import ModelRequest, ToolReturnPart

    results = [ToolReturnPart(name, UNANSWERED, call) for call, name in waiting.items()]
    waiting.clear()
    return [ModelRequest(parts=results)] if results else []

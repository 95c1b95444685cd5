"""Hooks around a model call: they see the request and the answer as JSON data, and may change or refuse them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from midwatch.domain.agent import Turn
from midwatch.domain.hook import HookOutcome
from midwatch.domain.hook_patch import find_kept

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

Json = dict[str, Any]

ROLES = {
    "system-prompt": "system", "user-prompt": "user", "tool-return": "tool", "retry-prompt": "tool", "text": "agent",
    "thinking": "thought", "tool-call": "call",
}  # fmt: skip
"""The role of each part of a message that hooks see. Other parts, such as files, are left out."""


SETTINGS = ("temperature", "max_tokens")
"""The settings of a model call that hooks see and may change."""


class StoppedByHook(Exception):
    """A hook ends the turn; the text says which hook and why."""


class Request(NamedTuple):
    """A request to the model. `answer` is set if a hook answers in place of the model."""

    messages: list[ModelMessage]
    parameters: ModelRequestParameters
    settings: Json
    answer: ModelResponse | None = None


async def ask_before_model(turn: Turn, request: Request, model: str, request_id: str) -> Request:
    """Return the request as hooks leave it, or with the answer of a hook. Raise StoppedByHook if a hook refuses it."""
    before: Json = {}

    def describe() -> Json:
        before.update(describe_request(request, model))
        return before

    outcome = _check(await turn.before_model(describe, request_id))
    if outcome.action == "answer":
        return request._replace(answer=make_answer(outcome.text, model))
    return request if outcome.subject is None else change_request(request, before, outcome.subject)


async def ask_after_model(turn: Turn, response: ModelResponse, request_id: str) -> ModelResponse:
    """Return the answer as hooks leave it. Raise StoppedByHook if a hook refuses it."""
    before: Json = {}

    def describe() -> Json:
        before.update(describe_answer(response))
        return before

    outcome = _check(await turn.after_model(describe, request_id))
    return response if outcome.subject is None else change_answer(response, before, outcome.subject)


def _check(outcome: HookOutcome) -> HookOutcome:
    """Return the decision about a model call. A call that is denied leaves nothing to go on with, so the turn ends."""
    if outcome.action in ("deny", "stop"):
        raise StoppedByHook(outcome.words)
    return outcome


def describe_request(request: Request, model: str) -> Json:
    """Return the subject of `before_model`."""
    parameters = request.parameters
    return {
        "model": model,
        "instructions": "\n\n".join(part.content for part in parameters.instruction_parts or ()),
        "messages": [_describe_part(part) for _, _, part in _walk(request.messages)],
        "settings": {name: value for name, value in request.settings.items() if name in SETTINGS},
        "tools": [tool.name for tool in parameters.function_tools],
    }


def change_request(request: Request, before: Mapping[str, Any], after: Mapping[str, Any]) -> Request:
    """Return the request with the changes of hooks. `before` and `after` are its subject before and after them."""
    from pydantic_ai.messages import InstructionPart

    parameters = request.parameters
    if after["tools"] != before["tools"]:
        kept = find_kept(before["tools"], after["tools"]) or []
        parameters = replace(parameters, function_tools=[parameters.function_tools[place] for place in kept])
    if more := after["instructions"][len(before["instructions"]) :].strip():
        parts = [*(parameters.instruction_parts or ()), InstructionPart(content=more)]
        parameters = replace(parameters, instruction_parts=parts)
    others = {name: value for name, value in request.settings.items() if name not in SETTINGS}
    messages = _change_messages(request.messages, before["messages"], after["messages"])
    return request._replace(messages=messages, parameters=parameters, settings={**others, **after["settings"]})


def make_answer(text: str, model: str) -> ModelResponse:
    """Return the answer that a hook gives in place of the model."""
    from pydantic_ai.messages import ModelResponse, TextPart

    return ModelResponse(parts=[TextPart(text)], model_name=model, finish_reason="stop")


def describe_answer(response: ModelResponse) -> Json:
    """Return the subject of `after_model`."""
    calls = [
        {"id": part.tool_call_id, "tool": part.tool_name, "arguments": _read_arguments(part.args)}
        for part in response.tool_calls
    ]
    return {"text": response.text or "", "tool_calls": calls}


def change_answer(response: ModelResponse, before: Mapping[str, Any], after: Mapping[str, Any]) -> ModelResponse:
    """Return the answer with the changes of hooks. `before` and `after` are its subject before and after them."""
    from pydantic_ai.messages import TextPart

    parts: list[Any] = list(response.parts)
    if after["tool_calls"] != before["tool_calls"]:
        kept = find_kept(before["tool_calls"], after["tool_calls"]) or []
        remaining = [response.tool_calls[place] for place in kept]
        parts = [part for part in parts if part.part_kind != "tool-call" or any(part is call for call in remaining)]
    if after["text"] != before["text"]:
        others = [part for part in parts if part.part_kind != "text"]
        place = next((place for place, part in enumerate(others) if part.part_kind == "tool-call"), len(others))
        parts = [*others[:place], *([TextPart(after["text"])] if after["text"] else []), *others[place:]]
    return replace(response, parts=parts)


def _walk(messages: Sequence[ModelMessage]) -> Iterator[tuple[int, int, Any]]:
    """Yield the place of each message, the place of each part in it, and the part, if hooks see the part."""
    for number, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if part.part_kind in ROLES:
                yield number, place, part


def _describe_part(part: Any) -> Json:
    role = ROLES[part.part_kind]
    text = part.args_as_json_str() if role == "call" else part.content
    if not isinstance(text, str):
        text = "\n".join(piece for piece in text if isinstance(piece, str)) if role == "user" else str(text)
    named = {"tool": part.tool_name, "id": part.tool_call_id} if role in ("call", "tool") else {}
    return {"role": role, "text": text, **named}


def _change_messages(
    messages: list[ModelMessage], before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[ModelMessage]:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    changed: list[Any] = list(messages)
    for (number, place, part), old, new in zip(_walk(messages), before, after, strict=False):
        if old["text"] != new["text"]:
            parts: list[Any] = list(changed[number].parts)
            parts[place] = replace(part, content=new["text"])
            changed[number] = replace(changed[number], parts=parts)
    if added := [UserPromptPart(message["text"]) for message in after[len(before) :]]:
        changed.append(ModelRequest(parts=added))
    return changed


def _read_arguments(arguments: str | Mapping[str, Any] | None) -> Any:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments

"""Subjects: the JSON data that hooks get at each seam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.domain.agent import Question
from midwatch.domain.hook import Seam
from midwatch.domain.tool_call import ToolCall, ToolResult

Json = dict[str, Any]


def describe_call(call: ToolCall) -> Json:
    """Return the subject of `before_tool`."""
    shown = {name: getattr(call, name) for name in ("tool", "arguments", "id", "server", "kind", "command")}
    return {**shown, "paths": list(call.paths), "hosts": list(call.hosts)}


def describe_approval(call: ToolCall, question: str | None = None) -> Json:
    """Return the subject of `approve_tool`. If the tool itself asks, `question` is its question to people."""
    return {**describe_call(call), "question": question}


def read_question(question: Question) -> ToolCall:
    """Return the tool call that a question is about, as far as the question tells."""
    return ToolCall(
        tool=question.tool or question.kind, kind=question.kind, command=question.command, paths=question.paths
    )


def describe_result(call: ToolCall, result: ToolResult) -> Json:
    """Return the subject of `after_tool`."""
    return {"tool": call.tool, "arguments": call.arguments, "id": call.id, **result._asdict()}


def make_example(seam: Seam, tool: str, arguments: Mapping[str, Any], text: str) -> Json:
    """Return a subject to test a hook with: a call of `tool`, or a model call with the message `text`."""
    command, paths = arguments.get("command"), [arguments.get(name) for name in ("path", "file_path")]
    call = ToolCall(
        tool=tool, arguments=arguments, id="test", command=command if isinstance(command, str) else None,
        paths=tuple(path for path in paths if isinstance(path, str)),
    )  # fmt: skip
    match seam:
        case "before_model":
            message = {"role": "user", "text": text}
            return {"model": "test", "instructions": "", "messages": [message], "settings": {}, "tools": [tool]}
        case "after_model":
            return {"text": text, "tool_calls": [{"id": "test", "tool": tool, "arguments": dict(arguments)}]}
        case "approve_tool":
            return describe_approval(call)
        case "after_tool":
            return describe_result(call, ToolResult(text))
    return describe_call(call)

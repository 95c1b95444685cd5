"""OpenAI Chat Completions: parse requests, build answers, streams and errors."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fakes.script import Call, Json, ModelRequest, Step, Text, Thought, clean


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or () if part.get("type") == "text")


def read(body: Json) -> ModelRequest:
    """Parse a request."""
    user_texts: list[str] = []
    results: list[str] = []
    system: list[str] = []
    for message in body.get("messages", ()):
        text = _text(message.get("content"))
        if message["role"] == "user" and (typed := clean(text)):
            user_texts.append(typed)
            results = []
        elif message["role"] == "tool":
            results.append(text)
        elif message["role"] in ("system", "developer"):
            system.append(text)
    offered = () if body.get("tool_choice") == "none" else body.get("tools") or ()
    functions = [tool["function"] for tool in offered if tool.get("type") == "function"]
    response_format = body.get("response_format") or {}
    return ModelRequest(
        model=body.get("model", "fake"),
        user_texts=tuple(user_texts),
        system="\n".join(system),
        results=tuple(results),
        tools={function["name"]: function.get("parameters") or {} for function in functions},
        schema=(response_format.get("json_schema") or {}).get("schema"),
        stream=bool(body.get("stream")),
        size=len(json.dumps(body.get("messages", ()))),
    )


def _usage(request: ModelRequest, tokens: int) -> Json:
    input_tokens = request.input_tokens
    return {"prompt_tokens": input_tokens, "completion_tokens": tokens, "total_tokens": input_tokens + tokens}


def _call(call: Call) -> Json:
    function = {"name": call.name, "arguments": call.encoded}
    return {"id": call.id, "type": "function", "function": function}


def _envelope(request: ModelRequest, number: int, kind: str, choices: list[Json], usage: Json | None) -> Json:
    fields = {"id": f"chatcmpl-{number}", "object": kind, "created": int(time.time()), "model": request.model}
    return {**fields, "choices": choices, "usage": usage}


def whole(request: ModelRequest, steps: list[Step]) -> Json:
    """Return the answer in one piece."""
    text = "".join(step.text for step in steps if isinstance(step, Text))
    calls = [_call(step) for step in steps if isinstance(step, Call)]
    message: Json = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return _envelope(request, time.time_ns(), "chat.completion", [choice], _usage(request, len(steps)))


async def stream(request: ModelRequest, steps: AsyncIterator[Step]) -> AsyncIterator[bytes]:
    """Yield the answer as a stream."""
    number = time.time_ns()

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps(_envelope(request, number, 'chat.completion.chunk', [choice], None))}\n\n".encode()

    yield chunk({"role": "assistant", "content": ""})
    tokens, calls = 0, 0
    async for step in steps:
        tokens += 1
        if isinstance(step, Text):
            yield chunk({"content": step.text})
        elif isinstance(step, Thought):
            yield chunk({"reasoning_content": step.text})
        else:
            yield chunk({"tool_calls": [{"index": calls, **_call(step)}]})
            calls += 1
    yield chunk({}, "tool_calls" if calls else "stop")
    last = _envelope(request, number, "chat.completion.chunk", [], _usage(request, tokens))
    yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode()


def refusal(status: int, text: str, reset: float | None) -> tuple[dict[str, str], Json]:
    """Return headers and body of an error; `reset` is the end of a usage limit."""
    kinds = {
        400: ("invalid_request_error", "context_length_exceeded" if "context length" in text else "invalid_value"),
        401: ("invalid_request_error", "invalid_api_key"),
        404: ("invalid_request_error", "model_not_found"),
        429: ("requests", "rate_limit_exceeded"),
    }
    kind, code = kinds.get(status, ("server_error", None))
    if status == 429 and reset is None:
        kind = code = "insufficient_quota"
    error: Json = {"message": text, "type": kind, "param": None, "code": code}
    headers: dict[str, str] = {}
    if reset is not None:
        seconds_left = max(1, round(reset - time.time()))
        headers = {
            "retry-after": str(seconds_left),
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": f"{seconds_left}s",
        }
    return headers, {"error": error}

"""OpenAI Responses: parse requests, build answers, streams and errors."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fakes import openai_chat
from fakes.script import Call, Json, ModelRequest, Step, Text, clean


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or () if isinstance(part, dict))


def read(body: Json) -> ModelRequest:
    """Parse a request."""
    model_input = body.get("input", ())
    items = [{"role": "user", "content": model_input}] if isinstance(model_input, str) else model_input
    user_texts: list[str] = []
    results: list[str] = []
    for item in items:
        if item.get("role") == "user":
            if text := clean(_text(item.get("content"))):
                user_texts.append(text)
                results = []
        elif str(item.get("type", "")).endswith("_call_output"):
            results.append(_text(item.get("output")))
    offered = () if body.get("tool_choice") == "none" else body.get("tools") or ()
    functions = [tool for tool in offered if tool.get("type") == "function"]
    text_format = (body.get("text") or {}).get("format") or {}
    return ModelRequest(
        model=body.get("model", "fake"),
        user_texts=tuple(user_texts),
        system=body.get("instructions") or "",
        results=tuple(results),
        tools={tool["name"]: tool.get("parameters") or {} for tool in functions},
        schema=text_format.get("schema"),
        stream=bool(body.get("stream")),
        size=len(json.dumps(items)),
    )


def _item(step: Text | Call, number: int = 0) -> Json:
    if isinstance(step, Text):
        part = {"type": "output_text", "text": step.text, "annotations": []}
        return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "type": "function_call",
        "id": f"fc_{step.id}",
        "call_id": step.id,
        "name": step.name,
        "arguments": step.encoded,
        "status": "completed",
    }


def _response(request: ModelRequest, status: str, output: list[Json], tokens: int) -> Json:
    total = request.input_tokens + tokens
    usage = {
        "input_tokens": request.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }
    return {
        "id": f"resp_{time.time_ns()}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": request.model,
        "output": output,
        "usage": usage if status == "completed" else None,
    }


def _items(steps: list[Step], number: int) -> list[Json]:
    text = "".join(step.text for step in steps if isinstance(step, Text))
    items = [_item(Text(text), number)] if text else []
    return items + [_item(step) for step in steps if isinstance(step, Call)]


def whole(request: ModelRequest, steps: list[Step], number: int | None = None) -> Json:
    """Return the answer in one piece."""
    return _response(request, "completed", _items(steps, number or time.time_ns()), len(steps))


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def stream(request: ModelRequest, steps: AsyncIterator[Step]) -> AsyncIterator[bytes]:
    """Yield the answer as a stream."""
    yield _event("response.created", response=_response(request, "in_progress", [], 0))
    number = time.time_ns()
    done: list[Step] = []
    written = ""
    async for step in steps:
        done.append(step)
        if not isinstance(step, Text):
            continue
        if not written:
            opened = {**_item(Text(""), number), "status": "in_progress", "content": []}
            yield _event("response.output_item.added", output_index=0, item=opened)
        written += step.text
        where = {"item_id": f"msg_{number}", "output_index": 0, "content_index": 0}
        yield _event("response.output_text.delta", **where, delta=step.text)
    for index, item in enumerate(_items(done, number)):
        if item["type"] == "function_call":
            yield _event("response.output_item.added", output_index=index, item={**item, "arguments": ""})
        yield _event("response.output_item.done", output_index=index, item=item)
    yield _event("response.completed", response=whole(request, done, number))


def refusal(status: int, text: str, reset: float | None) -> tuple[dict[str, str], Json]:
    """Return headers and body of an error; `reset` is the end of a usage limit."""
    headers, body = openai_chat.refusal(status, text, reset)
    if reset is not None:
        seconds_left = max(1, round(reset - time.time()))
        limit = {"type": "usage_limit_reached", "message": "The usage limit has been reached", "plan_type": "pro"}
        body = {"error": {**limit, "resets_at": int(reset) + 1, "resets_in_seconds": seconds_left}}
    return headers, body

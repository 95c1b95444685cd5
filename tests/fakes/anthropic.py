"""Anthropic Messages: parse requests, build answers, streams and errors."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from fakes.script import Call, Json, ModelRequest, Step, Text, Thought, clean

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _text(content: Any) -> str:
    return "\n".join(block.get("text", "") for block in _blocks(content) if block.get("type") == "text")


def _offered(body: Json) -> list[Json]:
    return [] if (body.get("tool_choice") or {}).get("type") == "none" else body.get("tools") or []


def read(body: Json) -> ModelRequest:
    """Parse a request."""
    user_texts: list[str] = []
    results: list[str] = []
    for message in body.get("messages", ()):
        if message["role"] != "user":
            continue
        blocks = _blocks(message["content"])
        returned = [_text(block.get("content")) for block in blocks if block.get("type") == "tool_result"]
        results += returned
        if (text := clean(_text(blocks))) and not returned:
            user_texts.append(text)
            results = []
    output_format = (body.get("output_config") or {}).get("format") or {}
    return ModelRequest(
        model=body.get("model", "fake"),
        user_texts=tuple(user_texts),
        system=_text(body.get("system")),
        results=tuple(results),
        tools={tool["name"]: tool.get("input_schema", {}) for tool in _offered(body)},
        schema=output_format.get("schema"),
        stream=bool(body.get("stream")),
        size=len(json.dumps(body.get("messages", ()))),
    )


def _message(request: ModelRequest, content: list[Json], stop: str | None, tokens: int) -> Json:
    return {
        "id": f"msg_{time.time_ns()}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": request.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": tokens,
        },
    }


def whole(request: ModelRequest, steps: list[Step]) -> Json:
    """Return the answer in one piece."""
    content: list[Json] = []
    if text := "".join(step.text for step in steps if isinstance(step, Text)):
        content.append({"type": "text", "text": text})
    calls = [step for step in steps if isinstance(step, Call)]
    content += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in calls]
    return _message(request, content, "tool_use" if calls else "end_turn", len(steps))


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _thought(thought: Thought, index: int) -> list[bytes]:
    block = {"type": "thinking", "thinking": "", "signature": ""}
    return [
        _event("content_block_start", index=index, content_block=block),
        _event("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": thought.text}),
        _event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": "c2lnbmVk"}),
        _event("content_block_stop", index=index),
    ]


async def stream(request: ModelRequest, steps: AsyncIterator[Step]) -> AsyncIterator[bytes]:
    """Yield the answer as a stream."""
    yield _event("message_start", message=_message(request, [], None, 1))
    index, writing, tokens, stop = 0, False, 0, "end_turn"
    async for step in steps:
        tokens += 1
        if isinstance(step, Text):
            if not writing:
                yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
                writing = True
            yield _event("content_block_delta", index=index, delta={"type": "text_delta", "text": step.text})
            continue
        if writing:
            yield _event("content_block_stop", index=index)
            index, writing = index + 1, False
        if isinstance(step, Thought):
            for event in _thought(step, index):
                yield event
            index += 1
            continue
        stop = "tool_use"
        block = {"type": "tool_use", "id": step.id, "name": step.name, "input": {}}
        yield _event("content_block_start", index=index, content_block=block)
        delta = {"type": "input_json_delta", "partial_json": step.encoded}
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
        index += 1
    if writing:
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": tokens})
    yield _event("message_stop")


def refusal(status: int, text: str, reset: float | None) -> tuple[dict[str, str], Json]:
    """Return headers and body of an error; `reset` is the end of a usage limit."""
    headers: dict[str, str] = {"request-id": f"req_{time.time_ns()}"}
    if reset is not None:
        when = datetime.fromtimestamp(reset, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        headers |= {
            "retry-after": str(max(1, round(reset - time.time()))),
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": when,
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-reset": str(int(reset) + 1),
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
            "anthropic-ratelimit-unified-5h-status": "rejected",
            "anthropic-ratelimit-unified-5h-reset": str(int(reset) + 1),
            "anthropic-ratelimit-unified-5h-utilization": "1.0",
            "anthropic-ratelimit-unified-overage-status": "rejected",
            "anthropic-ratelimit-unified-overage-disabled-reason": "org_level_disabled",
        }
    return headers, {"type": "error", "error": {"type": KINDS.get(status, "api_error"), "message": text}}

"""Gemini generateContent and streamGenerateContent: parse requests, build answers, streams and errors."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator

from fakes.script import Json, ModelRequest, Step, Text, Thought, clean

NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def _text(content: Json | None) -> str:
    return "\n".join(part.get("text", "") for part in (content or {}).get("parts", ()) if not part.get("thought"))


def read(body: Json, model: str, stream: bool) -> ModelRequest:
    """Parse a request. Model and streaming are in its path."""
    user_texts: list[str] = []
    results: list[str] = []
    for content in body.get("contents", ()):
        if content.get("role", "user") not in ("user", "function"):
            continue
        returned = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        results += [json.dumps(response.get("response", {})) for response in returned]
        if (text := clean(_text(content))) and not returned:
            user_texts.append(text)
            results = []
    config = body.get("generationConfig") or {}
    mode = ((body.get("toolConfig") or {}).get("functionCallingConfig") or {}).get("mode")
    offered = () if mode == "NONE" else body.get("tools") or ()
    tools = [declaration for tool in offered for declaration in tool.get("functionDeclarations") or ()]
    return ModelRequest(
        model=model,
        user_texts=tuple(user_texts),
        system=_text(body.get("systemInstruction")),
        results=tuple(results),
        tools={
            declaration["name"]: declaration.get("parametersJsonSchema") or declaration.get("parameters") or {}
            for declaration in tools
        },
        schema=config.get("responseJsonSchema") or config.get("responseSchema"),
        stream=stream,
        size=len(json.dumps(body.get("contents", ()))),
    )


def _part(step: Step) -> Json:
    if isinstance(step, Text):
        return {"text": step.text}
    if isinstance(step, Thought):
        return {"text": step.text, "thought": True}
    if isinstance(step.arguments, str):  # this format cannot carry arguments that are no JSON
        return {"functionCall": {"id": step.id, "name": step.name, "args": {"text": step.arguments}}}
    return {"functionCall": {"id": step.id, "name": step.name, "args": step.arguments}}


def _reply(
    request: ModelRequest, parts: list[Json], tokens: int, finish: str | None, number: int | None = None
) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    used = request.input_tokens
    figures = {"promptTokenCount": used, "candidatesTokenCount": tokens, "totalTokenCount": used + tokens}
    return {
        "candidates": [candidate],
        "usageMetadata": figures,
        "modelVersion": request.model,
        "responseId": f"fake-{number or time.time_ns()}",
    }


def whole(request: ModelRequest, steps: list[Step]) -> Json:
    """Return the answer in one piece."""
    return _reply(request, [_part(step) for step in steps] or [{"text": ""}], len(steps), "STOP")


async def stream(request: ModelRequest, steps: AsyncIterator[Step]) -> AsyncIterator[bytes]:
    """Yield the answer as a stream."""
    tokens, number = 0, time.time_ns()
    async for step in steps:
        tokens += 1
        yield f"data: {json.dumps(_reply(request, [_part(step)], tokens, None, number))}\r\n\r\n".encode()
    yield f"data: {json.dumps(_reply(request, [{'text': ''}], tokens, 'STOP', number))}\r\n\r\n".encode()


def refusal(status: int, text: str, reset: float | None) -> tuple[dict[str, str], Json]:
    """Return headers and body of an error; `reset` is the end of a usage limit."""
    refused, status = status == 401, 400 if status == 401 else status
    error: Json = {"code": status, "message": text, "status": NAMES.get(status, "INTERNAL")}
    if refused:
        reason = {"reason": "API_KEY_INVALID", "domain": "googleapis.com"}
        error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **reason}]
    if reset is not None:
        seconds_left = max(1, round(reset - time.time()))
        quota = {
            "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
            "quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
            "quotaValue": "50",
        }
        error["message"] = f"You exceeded your current quota. Please retry in {seconds_left}s."
        error["details"] = [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [quota]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds_left}s"},
        ]
    return {}, {"error": error}

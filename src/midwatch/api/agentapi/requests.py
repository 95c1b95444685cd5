"""Read and check the messages that agentapi clients send. The errors have the wording of coder/agentapi."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from midwatch.api.agentapi.bodies import ErrorDetail, MessageRequestBody
from midwatch.api.agentapi.replies import INVALID, Refusal, describe_error
from midwatch.api.body_checks import check_structure
from midwatch.api.guard import read_body
from midwatch.base.errors import InvalidInput

LARGEST_BODY = 1024 * 1024
LONGEST_ECHO = 2000
FLAWS = {
    "missing": "expected required property {name} to be present",
    "extra_forbidden": "unexpected property",
    "model_type": "expected object",
    "string_type": "expected string",
    "literal_error": 'expected value to be one of "user, raw"',
}
"""The error texts of coder/agentapi, by the type of the error in pydantic."""


async def read_message(request: Request) -> MessageRequestBody:
    """Return the body of POST /message, or raise Refusal."""
    return parse_message(await read_body(request, LARGEST_BODY), request.headers.get("content-type"))


def parse_message(body: bytes, media: str | None) -> MessageRequestBody:
    """Parse the JSON of a message. Raise Refusal if it is not valid. `media` is the content type."""
    if len(body) >= LARGEST_BODY:
        raise Refusal(413, f"request body is too large limit={LARGEST_BODY} bytes")
    if not body:
        raise Refusal(400, "request body is required")
    check_values(body)
    echo = body[:LONGEST_ECHO].decode("utf-8", "replace")
    kind = (media or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(415, INVALID, describe_error(f"unknown content type: {kind}", "body", echo))
    try:
        fields = json.loads(body.decode())
    except (ValueError, RecursionError) as problem:
        raise Refusal(400, INVALID, describe_error(explain_bad_json(problem), "body", echo)) from None
    try:
        return MessageRequestBody.model_validate(fields)
    except ValidationError as problem:
        raise Refusal(422, INVALID, *(describe_flaw(flaw, fields) for flaw in problem.errors())) from None


def check_values(body: bytes) -> None:
    """Raise Refusal if the JSON has too many values."""
    try:
        check_structure(body)
    except InvalidInput as problem:
        raise Refusal(422, INVALID, describe_error(str(problem), "body")) from None


def explain_bad_json(problem: Exception) -> str:
    """Return why a text is not JSON, in the words of the JSON parser of Go."""
    if not isinstance(problem, json.JSONDecodeError):
        return "invalid UTF-8 in JSON input" if isinstance(problem, UnicodeDecodeError) else "exceeded max depth"
    if problem.pos >= len(problem.doc.rstrip()):
        return "unexpected end of JSON input"
    return f"invalid character {problem.doc[problem.pos]!r} looking for beginning of value"


def describe_flaw(flaw: ErrorDetails, fields: Any) -> ErrorDetail:
    """Return an error of pydantic in the format of agentapi."""
    kind, value, name = flaw["type"], flaw["input"], "".join(map(str, flaw["loc"]))
    location = f"body.{name}"
    if kind == "literal_error" and not isinstance(value, str):
        kind = "string_type"
    if kind not in FLAWS:
        return describe_error("expected text in UTF-8", location)
    if kind in ("missing", "model_type"):
        location = "body"
    if kind == "extra_forbidden":
        value = fields
    return describe_error(FLAWS[kind].format(name=name), location, value)

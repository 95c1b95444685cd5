"""Replies as clients of agentapi know them: JSON that names its schema, and problem documents with their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from midwatch.api.agentapi.feed import Told

UNEXPECTED = "unexpected error occurred"
INVALID = "validation failed"
LARGEST_FRAME = 120 * 1024
"""Bytes of an event; clients read no more than 128 KiB of one."""
CUT = "\n[cut; GET /messages has it whole]"
ESCAPES = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}
WAIT = {409: {"retry-after": "1"}, 503: {"retry-after": "2"}, 504: {"retry-after": "1"}}


class Detail(NamedTuple):
    """One thing that is wrong with a request."""

    message: str
    location: str | None = None
    value: Any = None

    def told(self) -> dict[str, Any]:
        """As JSON shows it, without what is empty."""
        pairs = (("message", self.message), ("location", self.location), ("value", self.value))
        return {name: value for name, value in pairs if value is not None and value != ""}


class Refusal(Exception):
    """A request that is not carried out: its status, why, and what exactly is wrong."""

    def __init__(self, status: int, detail: str, *errors: Detail) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors


def failed(status: int, message: str, *more: str) -> Refusal:
    """A message that was not sent; `more` says what clients of agentapi do not look for, but people do."""
    return Refusal(status, UNEXPECTED, Detail(f"failed to send message: {message}"), *map(Detail, more))


def reply(scope: Scope, name: str, body: Mapping[str, Any], status: int = 200) -> Response:
    """A JSON reply that names its schema."""
    problem = status >= 400
    host = Headers(scope=scope).get("host", "")
    scheme = "http" if host.startswith(("localhost", "127.0.0.1")) else "https"
    prefix: str = scope.get("root_path", "")
    told = {"$schema": f"{scheme}://{host}{prefix}/schemas/{name}.json", **body}
    return Response(
        orjson.dumps(told) + b"\n",
        status,
        media_type="application/problem+json" if problem else "application/json",
        headers={"link": f'<{prefix}/schemas/{name}.json>; rel="describedBy"', **WAIT.get(status, {})},
    )


def refusal(scope: Scope, refused: Refusal) -> Response:
    """A problem document."""
    body: dict[str, Any] = {
        "title": HTTPStatus(refused.status).phrase, "status": refused.status, "detail": refused.detail
    }  # fmt: skip
    if refused.errors:
        body["errors"] = [error.told() for error in refused.errors]
    return reply(scope, "ErrorModel", body, refused.status)


def text_reply(text: str, status: int, **headers: str) -> Response:
    """A reply for people."""
    return Response(text, status, headers=headers, media_type="text/plain; charset=utf-8")


def frame(told: Told) -> bytes:
    """An event of a stream. One that would be too long for its readers is cut."""
    data = _escaped(told.body)
    field = {"message_update": "message", "agent_error": "message", "screen": "screen"}.get(told.name)
    size = LARGEST_FRAME
    while len(data) > LARGEST_FRAME and field is not None:
        data = _escaped({**told.body, field: told.body[field][:size] + CUT})
        size = size * 2 // 3
    return b"event: %s\ndata: %s\n\n" % (told.name.encode(), data)


def _escaped(body: Mapping[str, Any]) -> bytes:
    data = orjson.dumps(body)
    for char, escape in ESCAPES.items():
        if char in data:
            data = data.replace(char, escape)
    return data


def frames(told: Sequence[Told]) -> bytes:
    """Many events."""
    return b"".join(frame(one) for one in told)

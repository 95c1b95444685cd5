"""Replies: JSON, and errors as problem documents (RFC 9457) with a stable `code`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from midwatch.base.errors import (
    Conflict,
    Forbidden,
    HandoffError,
    InvalidInput,
    LimitReached,
    MidwatchError,
    NotFound,
    NotRunning,
    Pruned,
    StoreError,
    Unauthorized,
    UnsupportedMediaType,
    WrongHost,
)

STATUS: dict[type[MidwatchError], int] = {
    InvalidInput: 422,
    UnsupportedMediaType: 415,
    NotFound: 404,
    Pruned: 410,
    Conflict: 409,
    HandoffError: 409,
    LimitReached: 429,
    Unauthorized: 401,
    Forbidden: 403,
    WrongHost: 421,
    StoreError: 503,
    NotRunning: 503,
}
HEADERS: dict[int, dict[str, str]] = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "5"},
    503: {"retry-after": "2"},
}
LONGEST_ECHO = 300


def to_json(content: Any) -> bytes:
    """As JSON bytes; what JSON cannot say is written as text."""
    return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS)


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


class Problem(Json):
    """An error reply."""

    media_type = "application/problem+json"


def problem(error: MidwatchError, status: int | None = None) -> Problem:
    """The reply for an error. Beside the fixed members it carries the error's own attributes."""
    if status is None:
        status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code,
        "detail": str(error),
        "field": None,
        **vars(error),
    }
    return Problem(body, status, headers=HEADERS.get(status))


def invalid(found: RequestValidationError) -> InvalidInput:
    """The first thing wrong with a request, in the words of our own errors."""
    first = found.errors()[0]
    names = [str(part) for part in first["loc"][1:] if isinstance(part, str)]
    field = ".".join(names) or str(first["loc"][0])
    told = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    if first["type"] == "extra_forbidden":
        told = "there is no such field here; see the API page of the documentation"
    if first["type"] == "json_invalid":
        field, told = "body", f"the body is not JSON: {(first.get('ctx') or {}).get('error', told)}"
    return InvalidInput(f"{field}: {told[:LONGEST_ECHO]}.", field=field)


async def refused(request: Request, error: Exception) -> Response:
    """An error raised on purpose."""
    assert isinstance(error, MidwatchError)
    return problem(error)


async def not_valid(request: Request, error: Exception) -> Response:
    """A request whose form is wrong."""
    assert isinstance(error, RequestValidationError)
    return problem(invalid(error))

"""Replies: JSON, and errors as problem documents (RFC 9457) with a stable `code`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from midwatch.base import errors
from midwatch.base.errors import InvalidInput, MidwatchError
from midwatch.wire.flaws import explain_flaw

STATUS: dict[type[MidwatchError], int] = {
    InvalidInput: 422,
    errors.UnsupportedMediaType: 415,
    errors.NotFound: 404,
    errors.Pruned: 410,
    errors.Conflict: 409,
    errors.HandoffError: 409,
    errors.LimitReached: 429,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.WrongHost: 421,
    errors.StoreError: 503,
    errors.NotRunning: 503,
    errors.ForeignExit: 500,
}
HEADERS: dict[int, dict[str, str]] = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "5"},
    503: {"retry-after": "2"},
}
LONGEST_ECHO = 300


def to_json(content: Any) -> bytes:
    """Return a value as JSON in bytes. An object of a type that JSON does not have becomes text."""
    return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS)


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def reply_created(noun: str, shown: Mapping[str, Any]) -> Json:
    """Return the reply to a request that has created a record, with the address of the record."""
    return Json(shown, 201, headers={"location": f"/api/v1/{noun}/{shown['id']}"})


def list_page(noun: str, shown: Sequence[Mapping[str, Any]], following: str | None) -> Json:
    """Return one page of a list. `following` is the `before` of the following page, or None on the last page."""
    return Json({noun: shown, "next": following})


class Problem(Json):
    """An error reply."""

    media_type = "application/problem+json"


def find_status(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def describe_problem(status: int, code: str, detail: str) -> dict[str, Any]:
    """Return the fields that every problem document has."""
    title = HTTPStatus(status).phrase
    return {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, "field": None}


def make_problem(error: MidwatchError, status: int | None = None) -> Problem:
    """Return the reply for an error. The reply includes the attributes of the error."""
    status = status or find_status(error)
    body = {**describe_problem(status, error.code, str(error)), **vars(error)}
    return Problem(body, status, headers=HEADERS.get(status))


def explain_invalid(error: RequestValidationError) -> InvalidInput:
    """Return the first validation error of a request as InvalidInput."""
    first = error.errors()[0]
    names = [str(part) for part in first["loc"][1:] if isinstance(part, str)]
    field = ".".join(names) or str(first["loc"][0])
    message = explain_flaw(first, "an object")
    if first["type"] == "extra_forbidden":
        message = "unknown field; see the API page of the documentation"
    if first["type"] == "json_invalid":
        field, message = "body", f"the body is not valid JSON: {(first.get('ctx') or {}).get('error', message)}"
    return InvalidInput(f"{field}: {message[:LONGEST_ECHO]}.", field=field)


def drop_references(error: BaseException | None) -> None:
    """Drop what the error of a request refers to, so that a large body is freed at once.

    The error and its traceback refer to each other, and the garbage collector would free them much later.
    """
    while error is not None:
        following = error.__cause__ or error.__context__
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error = following


async def handle_error(request: Request, error: Exception) -> Response:
    """Reply to a request that failed with a MidwatchError."""
    assert isinstance(error, MidwatchError)
    return make_problem(error)


async def handle_invalid(request: Request, error: Exception) -> Response:
    """Reply to a request with a wrong field or body."""
    assert isinstance(error, RequestValidationError)
    problem = make_problem(explain_invalid(error))
    drop_references(error)
    return problem


HANDLERS: Any = {MidwatchError: handle_error, RequestValidationError: handle_invalid}

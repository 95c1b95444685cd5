"""Replies in the form of agentapi: JSON that names its schema, and problem documents."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from midwatch.api.agentapi.bodies import ErrorDetail, ErrorModel, LinkedBody
from midwatch.api.reply import find_status
from midwatch.base.errors import MidwatchError

UNEXPECTED = "unexpected error occurred"
INVALID = "validation failed"
RETRY_AFTER = {409: {"retry-after": "1"}, 503: {"retry-after": "2"}, 504: {"retry-after": "1"}}


class Refusal(Exception):
    """Raised to refuse a request. It holds the HTTP status, the reason, and each error in the request."""

    def __init__(self, status: int, detail: str, *errors: ErrorDetail) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors


def describe_error(message: str, location: str = "", value: Any = None) -> ErrorDetail:
    """Return one error of a problem document, without empty fields."""
    fields = {"message": message, "location": location, "value": value}
    return ErrorDetail(**{name: field for name, field in fields.items() if field is not None and field != ""})


def refuse_message(status: int, reason: str, *more: str) -> Refusal:
    """Return the error for a message that was not sent. Clients parse `reason`; the texts in `more` are for people."""
    reasons = (f"failed to send message: {reason}", *more)
    return Refusal(status, UNEXPECTED, *(describe_error(text) for text in reasons))


def reply(request: Request, body: LinkedBody, status: int = 200) -> Response:
    """Return a JSON reply that names its schema."""
    host = request.headers.get("host", "")
    scheme = "http" if host.startswith(("localhost", "127.0.0.1")) else "https"
    path = f"{request.scope.get('root_path', '')}/schemas/{type(body).__name__}.json"
    linked = body.model_copy(update={"schema_": f"{scheme}://{host}{path}"})
    return Response(
        linked.model_dump_json(by_alias=True, exclude_unset=True) + "\n",
        status,
        media_type="application/json" if status < 400 else "application/problem+json",
        headers={"link": f'<{path}>; rel="describedBy"', **RETRY_AFTER.get(status, {})},
    )


def reply_text(text: str, status: int) -> Response:
    """Return a reply in plain text."""
    return Response(text, status, media_type="text/plain; charset=utf-8")


async def handle_refusal(request: Request, error: Exception) -> Response:
    """Reply to a refused request with a problem document."""
    assert isinstance(error, Refusal)
    body = {"title": HTTPStatus(error.status).phrase, "status": error.status, "detail": error.detail}
    errors = {"errors": list(error.errors)} if error.errors else {}
    return reply(request, ErrorModel(**body, **errors), error.status)


async def handle_error(request: Request, error: Exception) -> Response:
    """Reply to a request that failed with a MidwatchError with a problem document."""
    return await handle_refusal(request, Refusal(find_status(error), str(error)))


async def handle_unknown_route(request: Request, error: Exception) -> Response:
    """Reply to an unknown path, or to a method that the path does not allow."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return reply_text("404 page not found\n", 404)
    return Response(status_code=error.status_code, headers=error.headers)


HANDLERS: Any = {Refusal: handle_refusal, MidwatchError: handle_error, HTTPException: handle_unknown_route}

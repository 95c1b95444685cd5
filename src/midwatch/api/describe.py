"""The OpenAPI document: FastAPI describes the routes; this module adds errors, the ways to sign in, and examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from midwatch.wire.system import ProblemInfo

PREFIX = "/api/v1"
NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}

SUMMARY = "Mission control for AI agents: hand work to any agent, watch every step, answer its questions."
PROBLEMS = {
    "400": "The request is malformed.",
    "401": "The token is missing or wrong.",
    "403": "The role does not allow this, or a page of another site sent the request.",
    "404": "The record does not exist.",
    "408": "The request did not arrive in time.",
    "409": "The state of the record does not allow this.",
    "410": "The events were removed from the log; `oldest_seq` is the seq of the oldest event in the log.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "421": "The host header is not a name of this server.",
    "422": "A value is not valid; `field` names it.",
    "429": "Too many tasks, streams or failed attempts; wait, then try again.",
    "431": "The request line and headers are too large.",
    "503": "The database does not answer, or the server is stopping.",
}
EVERYWHERE = ("400", "403", "408", "413", "421", "431", "503")
OF_WRITING = ("409", "415", "429")
MORE = {
    "GET /api/v1/automations/export": ("404",),
    "GET /api/v1/declarations": ("404",),
    "GET /api/v1/schedules/day": ("404",),
    "GET /api/v1/tasks/{task_id}/result": ("409",),
    "GET /api/v1/directories": ("404",),
    "GET /api/v1/worktrees/{worktree_id}/diff": ("409",),
    "GET /api/v1/events": ("404", "410"),
    "POST /api/v1/handoffs": ("404",),
    "POST /api/v1/rules/test": ("404",),
    "GET /api/v1/sessions/{key}/screen": ("409",),
}
OPEN = frozenset({"GET /api/v1/health", "GET /api/v1/ready", "POST /api/v1/sign-in", "POST /api/v1/hooks/{trigger_id}"})
"""The operations that need no token."""
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer"}}}


class DescribedRoute(APIRoute):
    """A route whose replies are described, never checked. Their schemas are built when the document is needed."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        for reply in (options.get("responses") or {}).values():
            if "model" in reply:
                reply["model"].__pydantic_config__ = {"defer_build": True}
        super().__init__(path, endpoint, **options)


def make_router(noun: str) -> APIRouter:
    """Return the router for the routes of a noun."""
    return APIRouter(prefix=PREFIX, tags=[noun], route_class=DescribedRoute)


class DescribedApp(FastAPI):
    """An app with a complete OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        is_new = self.openapi_schema is None
        document = super().openapi()
        if is_new:
            complete_document(document)
        return document


def complete_document(document: dict[str, Any]) -> None:
    """Add the errors, the ways to sign in, and examples to an OpenAPI document."""
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["ProblemInfo"] = TypeAdapter(ProblemInfo).json_schema(mode="serialization")
    examples = {name: [example_of(schema, schemas)] for name, schema in schemas.items()}
    for name, schema in schemas.items():
        schema["examples"] = examples[name]
        for part in schema.get("properties", {}).values():
            part.pop("examples", None)
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "browser": {"type": "apiKey", "in": "cookie", "name": "midwatch"},
    }
    document["security"] = [{"token": []}, {"browser": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _complete_operation(f"{method.upper()} {path}", operation)


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return an example of a schema, built from the examples of its properties."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "properties" in schema:
        return {
            name: example_of(part, schemas)
            for name, part in schema["properties"].items()
            if name in schema.get("required", ()) or "examples" in part
        }
    if "anyOf" in schema:
        return None if {"type": "null"} in schema["anyOf"] else example_of(schema["anyOf"][0], schemas)
    if "$ref" in schema.get("items", ()):
        return [example_of(schema["items"], schemas)]
    return schema.get("enum", [PLAIN.get(schema.get("type", ""))])[0]


PLAIN = {"string": "", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}


def _complete_operation(route: str, operation: dict[str, Any]) -> None:
    operation["summary"] = re.split(r"\.\s", operation["description"])[0].rstrip(".")
    replies = operation["responses"]
    for status in [status for status in replies if status.startswith("2")]:
        if not replies[status].get("description"):
            replies[status]["description"] = "Done."
        content = replies[status]["content"]
        if content.get("application/json", {}).get("schema") == {} and len(content) > 1:
            del content["application/json"]  # FastAPI adds it to every route
    if route in OPEN:
        operation["security"] = []
    for status in _list_problems(route, operation):
        content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemInfo"}}}
        replies[status] = {"description": PROBLEMS[status], "content": content}
        if status in ("429", "503"):
            replies[status]["headers"] = RETRY_AFTER


def _list_problems(route: str, operation: dict[str, Any]) -> list[str]:
    """Return the HTTP statuses of the errors that an operation can return."""
    statuses = {*EVERYWHERE, *MORE.get(route, ())}
    if not route.startswith("GET "):
        statuses |= {*OF_WRITING}
    if "{" in route:
        statuses |= {"404"}
    if operation.get("parameters") or "requestBody" in operation:
        statuses |= {"422"}
    if route not in OPEN or route.startswith("POST "):
        statuses |= {"401"}
    return sorted(statuses)

"""The OpenAPI document of agentapi.

FastAPI describes the routes, and pydantic describes the bodies. Both descriptions are adapted to the style of huma, the
library that coder/agentapi uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from starlette.routing import BaseRoute

from midwatch.api.agentapi import bodies
from midwatch.base.version import __version__

DESCRIPTION = "A conversation with an agent in a terminal, with the interface of agentapi."
REFERENCE = "#/components/schemas/{model}"
MODELS = (
    bodies.ErrorModel, bodies.MessageRequestBody, bodies.MessageResponseBody, bodies.MessagesResponseBody,
    bodies.StatusResponseBody, bodies.UploadResponseBody, bodies.ScreenUpdateBody, *bodies.EVENTS,
)  # fmt: skip
FILE = {"properties": {"file": {"format": "binary", "type": "string"}}, "required": ["file"], "type": "object"}


def refer_to(model: type) -> dict[str, str]:
    """Return a reference to the schema of a model."""
    return {"$ref": REFERENCE.format(model=model.__name__)}


def describe_event(body: type[bodies.EventBody]) -> dict[str, Any]:
    """Return the schema of one kind of event."""
    properties = {"data": refer_to(body), "event": {"const": body.event, "type": "string"}}
    required = sorted(properties)
    return {"properties": properties, "required": required, "title": f"Event {body.event}", "type": "object"}


EVENTS = {"items": {"oneOf": [describe_event(body) for body in bodies.EVENTS]}, "type": "array"}
PROBLEM = {"description": "Error", "content": {"application/problem+json": {"schema": refer_to(bodies.ErrorModel)}}}


def describe_request(media: str, schema: Any) -> dict[str, Any]:
    """Return the description of a body that a route reads without FastAPI."""
    return {"requestBody": {"content": {media: {"schema": schema}}, "required": True}}


class WithoutTitles(GenerateJsonSchema):
    """A schema generator that leaves out the title that pydantic adds to each field."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def describe_bodies() -> dict[str, Any]:
    """Return the schemas of all bodies by name."""
    models: Any = [(model, "validation") for model in MODELS]
    _, definitions = models_json_schema(models, ref_template=REFERENCE, schema_generator=WithoutTitles)
    schemas: dict[str, Any] = dict(sorted(definitions["$defs"].items()))
    for name, schema in schemas.items():
        if "enum" in schema:
            schema.update(title=name, example=schema["enum"][-1])
            continue
        del schema["title"], schema["description"]
        if "required" in schema:
            schema["required"].sort()
        if link := schema["properties"].get("$schema"):
            link["example"] = f"https://example.com/schemas/{name}.json"
    return schemas


def describe_routes(routes: Sequence[BaseRoute], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of the routes. `version` is that of OpenAPI: 3.1.0 or 3.0.3."""
    document = get_openapi(
        title="AgentAPI", version=__version__, openapi_version=version, description=DESCRIPTION, routes=routes
    )
    document["components"] = {"schemas": describe_bodies()}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"]["200"]["description"] = "OK"
            if path != "/events":
                del operation["description"]
    if version.startswith("3.0"):
        stream = document["paths"]["/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
        for event in stream["schema"]["items"]["oneOf"]:
            name = event["properties"]["event"]
            name["enum"] = [name.pop("const")]  # OpenAPI 3.0 has no `const`
    return document


def write_page(document: dict[str, Any]) -> str:
    """Return an HTML page that lists the routes of an OpenAPI document."""
    rows = "".join(
        f"<tr><td><code>{method.upper()} {escape(path)}</code></td><td>{escape(operation['summary'])}</td></tr>"
        for path, operations in sorted(document["paths"].items())
        for method, operation in operations.items()
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>AgentAPI</title></head><body>"
        f"<h1>AgentAPI</h1><p>Described in <a href='openapi.json'>openapi.json</a>.</p><table>{rows}</table>"
        "</body></html>"
    )

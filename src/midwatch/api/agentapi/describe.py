"""The description of the surface: its OpenAPI document, the schemas by name, and a page for people."""

from __future__ import annotations

from html import escape
from typing import Any

from midwatch.base.version import __version__

PROBLEM = {
    "description": "Error",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ErrorModel"}}},
}
EVENTS = {
    "message_update": "MessageUpdateBody",
    "status_change": "StatusChangeBody",
    "agent_error": "ErrorBody",
}


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"description": description, **more, "type": "string"}


def _ref(name: str, description: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}", "description": description}


def _words(name: str, *words: str) -> dict[str, Any]:
    return {"enum": list(words), "example": words[-1], "title": name, "type": "string"}


def _record(name: str, properties: dict[str, Any], *, optional: tuple[str, ...] = (), named: bool = True) -> Any:
    required = sorted(key for key in properties if key not in optional)
    link = _text(
        "Where the schema of this object is.", example=f"https://example.com/schemas/{name}.json", format="uri",
        readOnly=True,
    )  # fmt: skip
    made: dict[str, Any] = {
        "additionalProperties": False,
        "properties": {**({"$schema": link} if named else {}), **properties},
        "type": "object",
    }
    return {**made, "required": required} if required else made


NUMBER = {"description": "Place of the message in the conversation, from 0.", "format": "int64", "type": "integer"}
TIME = _text("When it was written, or last changed.", format="date-time")
ROLE = _ref("ConversationRole", "Whose message it is.")
STATUS = _ref("AgentStatus", "`running` while the agent works, `stable` when it waits for input.")
AGENT_TYPE = _text("What the agent is.")
OK = {"description": "Whether it was done.", "type": "boolean"}

SCHEMAS: dict[str, Any] = {
    "AgentStatus": _words("AgentStatus", "running", "stable"),
    "ConversationRole": _words("ConversationRole", "agent", "user"),
    "ErrorBody": _record(
        "ErrorBody",
        {"level": _ref("ErrorLevel", "How bad it is."), "message": _text("What went wrong."), "time": TIME},
        named=False,
    ),
    "ErrorDetail": _record(
        "ErrorDetail",
        {"location": _text("Where in the request."), "message": _text("What is wrong."), "value": {}},
        optional=("location", "message", "value"),
        named=False,
    ),
    "ErrorLevel": _words("ErrorLevel", "error", "warning"),
    "ErrorModel": _record(
        "ErrorModel",
        {
            "detail": _text("What went wrong."),
            "errors": {"items": {"$ref": "#/components/schemas/ErrorDetail"}, "type": "array"},
            "instance": _text("Not used.", format="uri"),
            "status": {"description": "The HTTP status.", "format": "int64", "type": "integer"},
            "title": _text("The HTTP status in words."),
            "type": _text("Not used.", default="about:blank", format="uri"),
        },
        optional=("detail", "errors", "instance", "status", "title", "type"),
    ),
    "Message": _record(
        "Message",
        {"content": _text("The text of the message."), "id": NUMBER, "role": ROLE, "time": TIME},
        named=False,
    ),
    "MessageRequestBody": _record(
        "MessageRequestBody",
        {
            "content": _text("What to send.", example="Hello, agent!"),
            "type": _ref("MessageType", "`user`: said to the agent; `raw`: keystrokes for its terminal, as they are."),
        },
    ),
    "MessageResponseBody": _record("MessageResponseBody", {"ok": OK}),
    "MessageType": _words("MessageType", "raw", "user"),
    "MessageUpdateBody": _record(
        "MessageUpdateBody",
        {"id": NUMBER, "message": _text("The text of the message so far."), "role": ROLE, "time": TIME},
        named=False,
    ),
    "MessagesResponseBody": _record(
        "MessagesResponseBody",
        {"messages": {"items": {"$ref": "#/components/schemas/Message"}, "type": "array"}},
    ),
    "ScreenUpdateBody": _record("ScreenUpdateBody", {"screen": _text("What the terminal shows.")}, named=False),
    "StatusChangeBody": _record("StatusChangeBody", {"agent_type": AGENT_TYPE, "status": STATUS}, named=False),
    "StatusResponseBody": _record(
        "StatusResponseBody",
        {"agent_type": AGENT_TYPE, "status": STATUS, "transport": _ref("Transport", "How the agent is driven.")},
    ),
    "Transport": _words("Transport", "acp", "pty"),
    "UploadResponseBody": _record("UploadResponseBody", {"filePath": _text("Where the file is now."), "ok": OK}),
}


def _does(id_: str, summary: str, reply: str, **more: Any) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{reply}"}
    good = {"description": "OK", "content": {"application/json": {"schema": schema}}}
    return {"operationId": id_, "summary": summary, **more, "responses": {"200": good, "default": PROBLEM}}


def _event(name: str, schema: str) -> dict[str, Any]:
    properties = {"data": {"$ref": f"#/components/schemas/{schema}"}, "event": {"const": name, "type": "string"}}
    return {"properties": properties, "required": ["data", "event"], "title": f"Event {name}", "type": "object"}


def document(version: str = "3.1.0") -> dict[str, Any]:
    """The OpenAPI document."""
    events = {"items": {"oneOf": [_event(*pair) for pair in EVENTS.items()]}, "type": "array"}
    stream = {"description": "OK", "content": {"text/event-stream": {"schema": events}}}
    message = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/MessageRequestBody"}}}}
    file = {"properties": {"file": {"format": "binary", "type": "string"}}, "required": ["file"], "type": "object"}
    form = {"content": {"multipart/form-data": {"schema": file}}}
    paths = {
        "/events": {
            "get": {
                "operationId": "subscribeEvents",
                "summary": "Subscribe to events",
                "description": "The state of the conversation as events, then every change of it.",
                "responses": {"200": stream, "default": PROBLEM},
            }
        },
        "/message": {
            "post": _does(
                "post-message", "Post message", "MessageResponseBody", requestBody={**message, "required": True}
            )
        },
        "/messages": {"get": _does("get-messages", "Get messages", "MessagesResponseBody")},
        "/status": {"get": _does("get-status", "Get status", "StatusResponseBody")},
        "/upload": {
            "post": _does("upload", "Upload a file", "UploadResponseBody", requestBody={**form, "required": True})
        },
    }
    info = {
        "description": "A conversation with an agent in a terminal, as clients of agentapi know it.",
        "title": "AgentAPI",
        "version": __version__,
    }
    made = {"components": {"schemas": SCHEMAS}, "info": info, "openapi": version, "paths": paths}
    return _without_const(made) if version.startswith("3.0") else made


def _without_const(part: Any) -> Any:
    """As OpenAPI 3.0 says it, which knows no `const`."""
    if isinstance(part, list):
        return [_without_const(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        ("enum" if name == "const" else name): [value] if name == "const" else _without_const(value)
        for name, value in part.items()
    }


def schema(name: str, prefix: str) -> Any:
    """One schema that refers to the others by their address, or None."""
    return _linked(SCHEMAS.get(name), prefix)


def _linked(part: Any, prefix: str) -> Any:
    if isinstance(part, list):
        return [_linked(one, prefix) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        name: f"{prefix}/schemas/{value.rpartition('/')[2]}.json" if name == "$ref" else _linked(value, prefix)
        for name, value in part.items()
    }


def page() -> str:
    """What there is, for people."""
    rows = "".join(
        f"<tr><td><code>{method.upper()} {escape(path)}</code></td><td>{escape(told['summary'])}</td></tr>"
        for path, methods in document()["paths"].items()
        for method, told in methods.items()
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>AgentAPI</title></head><body>"
        f"<h1>AgentAPI</h1><p>Described in <a href='openapi.json'>openapi.json</a>.</p><table>{rows}</table>"
        "</body></html>"
    )

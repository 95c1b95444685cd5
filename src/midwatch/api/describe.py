"""The description of the interface (OpenAPI 3.1): what FastAPI finds out, and what it cannot know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from midwatch import wire

SUMMARY = "Mission control for AI agents: hand work to any agent, watch every step, answer its questions."
PROBLEMS = {
    "401": "The token is missing or wrong.",
    "403": "The role does not allow this, or a page of another site asks.",
    "404": "There is no such thing.",
    "408": "The request did not arrive in time.",
    "409": "It is not in a state that allows this.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "421": "The server was called by a name that is not its own.",
    "422": "Something that was said makes no sense; `field` names it.",
    "429": "Too much is open; `Retry-After` says when to try again.",
    "431": "The head of the request is too large.",
    "503": "The database does not answer, or the server is stopping.",
}
OF_BODIES = frozenset({"408", "409", "413", "415", "429"})
OPEN = frozenset({"health", "ready", "sign_in"})
"""Operations that need no token."""

TASK = {
    "id": "t_06f2m8yq3kq5r0v9x1w2", "status": "done", "status_text": "done", "outcome": "ok", "prompt": "Say hello",
    "result": "Hello.", "error": None, "agent": "demo", "session_key": "bg:t_06f2m8yq3kq5r0v9x1w2",
    "origin_channel": None, "origin_session": None, "route": None, "workdir": None, "cause": "submit",
    "cause_id": None, "priority": 0, "creator": "owner", "timeout_seconds": 1800.0, "on_crash": "rerun",
    "attempt": 1, "failures": 0, "rescues": 0, "interruptions": 0, "max_attempts": 3, "stop_requested": None,
    "wait": None, "root_id": "t_06f2m8yq3kq5r0v9x1w2", "parent_id": None, "retry_of": None, "usage": None,
    "tokens_used": None, "created_at": "2026-01-02T03:04:05.000000Z", "due_at": "2026-01-02T03:04:05.000000Z",
    "started_at": "2026-01-02T03:04:05.002000Z", "completed_at": "2026-01-02T03:04:06.100000Z",
}  # fmt: skip
SESSION = {
    "key": "chat:42", "agent": "demo", "title": "Release notes", "status": "idle", "thread_id": None,
    "workdir": "/home/me/project", "creator": "owner", "created_at": "2026-01-02T03:04:05.000000Z",
    "updated_at": "2026-01-02T03:04:06.000000Z", "queued": 0, "running_task": None,
}  # fmt: skip
EXAMPLES: dict[str, Any] = {
    "TaskInfo": TASK,
    "SessionInfo": SESSION,
    "SubmitBody": {"prompt": "Say hello", "agent": "demo", "timeout": "10m"},
    "SessionBody": {"agent": "demo", "workdir": "/tmp", "title": "Release notes"},  # noqa: S108 - an example
    "MessageBody": {"text": "And now in French, please."},
    "AnswerBody": {"choice": "yes", "why": "looks right"},
    "TokenBody": {"name": "ci", "role": "operator"},
    "EventInfo": {
        "seq": 3, "id": "e_06f2m8yq5s2f8d0c7b1a", "kind": "task_started", "time": "2026-01-02T03:04:05.002000Z",
        "version": 1, "task_id": TASK["id"], "agent_id": "demo", "session_key": TASK["session_key"], "attempt": 1,
        "actor": "owner", "payload": {"agent": "demo", "owner": "i_06f2m8", "host": "desk"},
    },
    "ProblemInfo": {
        "type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found",
        "detail": "there is no task 't_x'; list what there is with `midwatch tasks`.", "field": None,
    },
}  # fmt: skip


def describe(app: FastAPI) -> None:
    """Have the app describe itself completely."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(
                get_openapi(
                    title=app.title, version=app.version, openapi_version="3.1.0", summary=SUMMARY, routes=app.routes
                )
            )
        return plain()

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to change it


def complete(found: dict[str, Any]) -> dict[str, Any]:
    """The description with its errors, its ways to sign in, and examples."""
    schemas = found["components"]["schemas"]
    for left in ("HTTPValidationError", "ValidationError"):
        schemas.pop(left, None)
    schemas["ProblemInfo"] = TypeAdapter(wire.ProblemInfo).json_schema()
    for name, example in EXAMPLES.items():
        if name in schemas:
            schemas[name]["examples"] = [example]
    found["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "browser": {"type": "apiKey", "in": "cookie", "name": "midwatch"},
    }
    found["security"] = [{"token": []}, {"browser": []}]
    for path in found["paths"].values():
        for method, operation in path.items():
            _complete_operation(method, operation)
    return found


def _complete_operation(method: str, operation: dict[str, Any]) -> None:
    name = operation["operationId"]
    if any(name.startswith(f"{one}_api") for one in OPEN):
        operation["security"] = []
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemInfo"}}}
    for status, told in PROBLEMS.items():
        if method == "get" and status in OF_BODIES:
            continue
        if status == "404" and not operation.get("parameters") and "requestBody" not in operation:
            continue
        operation["responses"][status] = {"description": told, "content": problem}
    if "/events" in name or name.startswith("events_"):
        operation["responses"]["410"] = {"description": "The events are not kept any more.", "content": problem}

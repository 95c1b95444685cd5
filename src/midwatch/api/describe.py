"""The description of the interface (OpenAPI 3.1): what FastAPI finds out, and what it cannot know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from midwatch.api.examples import STANDING
from midwatch.wire.identity import Link, Me, SignedIn, SignedOut, TokenInfo, TokenMade, TokenPage
from midwatch.wire.system import ProblemInfo

SUMMARY = "Mission control for AI agents: hand work to any agent, watch every step, answer its questions."
PROBLEMS = {
    "400": "The request is malformed.",
    "401": "The token is missing or wrong.",
    "403": "The role does not allow this, or a page of another site asks.",
    "404": "There is no such thing.",
    "408": "The request did not arrive in time.",
    "409": "It is not in a state that allows this.",
    "410": "The events are not kept any more; `oldest_seq` is the first that is.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "421": "The server was called by a name that is not its own.",
    "422": "Something that was said makes no sense; `field` names it.",
    "429": "Too much is open, or was tried.",
    "431": "The head of the request is too large.",
    "503": "The database does not answer, or the server is stopping.",
}
EVERYWHERE = ("400", "403", "408", "413", "421", "431", "503")
OF_WRITING = ("409", "415", "429")
MORE = {
    "GET /api/v1/automations/export": ("404",),
    "GET /api/v1/schedules/day": ("404",),
    "GET /api/v1/tasks/{task_id}/result": ("409",),
    "GET /api/v1/directories": ("404",),
    "GET /api/v1/worktrees/{worktree_id}/diff": ("409",),
    "GET /api/v1/events": ("404", "410"),
    "POST /api/v1/handoffs": ("404",),
    "GET /api/v1/sessions/{key}/screen": ("409",),
}
OPEN = frozenset({"GET /api/v1/health", "GET /api/v1/ready", "POST /api/v1/sign-in"})
"""Operations that need no token."""
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer"}}}
REPLIES: dict[str, Any] = {
    "GET /api/v1/me": Me,
    "POST /api/v1/sign-in": SignedIn,
    "POST /api/v1/sign-out": SignedOut,
    "POST /api/v1/links": Link,
    "GET /api/v1/tokens": TokenPage,
    "POST /api/v1/tokens": TokenMade,
    "DELETE /api/v1/tokens/{key}": TokenInfo,
}
"""What is said when it goes well, where the route does not tell."""

TASK, AT = "t_06f2m8yq3kq5r0v9x1w2", "2026-01-02T03:04:05.000000Z"
STORE = {"kind": "sqlite", "journal": "wal", "synchronous": "FULL"}
SPENT = {
    "tasks": 1, "done": 1, "failed": 0, "cancelled": 0, "untold": 0, "unpriced": 1, "seconds": 1.098,
    "input_tokens": 1200, "output_tokens": 80, "cost_usd": None,
}  # fmt: skip
EXAMPLES: dict[str, Any] = STANDING | {
    "SessionBody": {"agent": "demo", "workdir": "/tmp", "title": "Release notes"},  # noqa: S108 - an example
    "MessageBody": {"text": "And now in French, please.", "mode": "after_tool"},
    "InterruptBody": {"mode": "stop", "hint": "Say how far you came."},
    "Interrupted": {"interrupted": TASK, "mode": "stop", "resume": None},
    "KeysBody": {"keys": "y\r"},
    "SizeBody": {"columns": 120, "rows": 40},
    "RetryBody": {"budget": {"tokens": 400000, "usd": 3.0}},
    "AnswerBody": {"choice": "yes", "why": "looks right"},
    "TokenBody": {"name": "ci", "role": "operator"},
    "EventInfo": {
        "seq": 3, "id": "e_06f2m8yq5s2f8d0c7b1a", "kind": "task_started", "time": "2026-01-02T03:04:05.002000Z",
        "version": 1, "task_id": TASK, "agent_id": "demo", "session_key": "bg:t_06f2m8yq3kq5r0v9x1w2", "attempt": 1,
        "actor": "owner", "payload": {"agent": "demo", "owner": "i_06f2m8", "host": "desk"},
    },
    "SignInBody": {"code": "mwl_3f9c0a6d51e2"},
    "AgentInfo": {
        "name": "demo", "live": True, "kind": "demo", "description": "built in", "slots": 16, "timeout": 1800.0,
        "on_crash": "rerun", "steerable": False, "problem": None, "target": "built in",
        "handoffs": True,
        "capabilities": [{"name": "talk", "description": "says hello", "task_types": ["greeting"], "priority": 0}],
    },
    "ClusterInfo": {"store": STORE, "processes": []},
    "SettingsInfo": {
        "default_agent": "demo", "notify": "webhook", "channels": ["console", "webhook"],
        "limits": {"slots": 64, "max_open": 1000}, "retention": {"tasks": 10000}, "store": STORE,
    },
    "UsageInfo": {
        "since": AT, "until": "2026-01-03T03:04:05.000000Z", "by": ["actor", "agent"], "zone": "UTC",
        "total": SPENT, "rows": [{"actor": "owner", "agent": "demo", **SPENT}], "left_off": 0,
    },
    "WorktreeDiff": {"id": "w_1a1deb33561a3f9a1c20b7d4", "diff": "diff --git a/a.txt b/a.txt\n...", "truncated": False},
    "RemoveBody": {"force": False},
    "ResultInfo": {"id": TASK, "result": "Hello."},
    "ProblemInfo": {
        "type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found",
        "detail": "there is no task 't_x'; list what there is with `midwatch tasks`.", "field": None,
    },
}  # fmt: skip


def describe(app: FastAPI) -> None:
    """Have the app describe itself completely."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(
                get_openapi(
                    title=app.title, version=app.version, openapi_version="3.1.0", summary=SUMMARY, routes=app.routes
                )
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to change it


def complete(found: dict[str, Any]) -> dict[str, Any]:
    """The description with its errors, its ways to sign in, and examples."""
    schemas = found["components"]["schemas"]
    for left in ("HTTPValidationError", "ValidationError"):
        schemas.pop(left, None)
    known = [ProblemInfo, *REPLIES.values()]
    _, told = TypeAdapter.json_schemas(
        [(name.__name__, "serialization", TypeAdapter(name)) for name in known],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(told["$defs"])
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    found["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "browser": {"type": "apiKey", "in": "cookie", "name": "midwatch"},
    }
    found["security"] = [{"token": []}, {"browser": []}]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            _complete(f"{method.upper()} {path}", operation)
    return found


def _complete(route: str, operation: dict[str, Any]) -> None:
    operation["summary"] = operation["description"].partition(". ")[0].rstrip(".")
    replies = operation["responses"]
    for status in [one for one in replies if one.startswith("2")]:
        if not replies[status].get("description"):
            replies[status]["description"] = "Done."
        content = replies[status]["content"]
        if content.get("application/json", {}).get("schema") == {} and len(content) > 1:
            del content["application/json"]  # said by the framework of what is no JSON
        if route in REPLIES:
            schema = {"$ref": f"#/components/schemas/{REPLIES[route].__name__}"}
            replies[status]["content"] = {"application/json": {"schema": schema}}
    for status in _problems(route, operation):
        content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemInfo"}}}
        replies[status] = {"description": PROBLEMS[status], "content": content}
        if status in ("429", "503"):
            replies[status]["headers"] = RETRY_AFTER


def _problems(route: str, operation: dict[str, Any]) -> list[str]:
    """How an operation can fail."""
    found = {*EVERYWHERE, *MORE.get(route, ())}
    if not route.startswith("GET "):
        found |= {*OF_WRITING}
    if "{" in route:
        found |= {"404"}
    if operation.get("parameters") or "requestBody" in operation:
        found |= {"422"}
    if route in OPEN:
        operation["security"] = []
    if route not in OPEN or route.endswith("/sign-in"):
        found |= {"401"}
    return sorted(found)

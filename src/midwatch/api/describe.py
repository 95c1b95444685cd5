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

TASK = {
    "id": "t_06f2m8yq3kq5r0v9x1w2", "status": "done", "status_text": "done", "outcome": "ok", "prompt": "Say hello",
    "result": "Hello.", "error": None, "agent": "demo", "session_key": "bg:t_06f2m8yq3kq5r0v9x1w2",
    "origin_channel": None, "origin_session": None, "route": None, "workdir": None, "worktree": None, "cause": "submit",
    "cause_id": None, "priority": 0, "creator": "owner", "timeout_seconds": 1800.0, "on_crash": "rerun",
    "attempt": 1, "failures": 0, "rescues": 0, "interruptions": 0, "max_attempts": 3, "stop_requested": None,
    "wait": None, "root_id": "t_06f2m8yq3kq5r0v9x1w2", "parent_id": None, "retry_of": None, "budget": None,
    "transferred_to": None, "usage": None, "tokens_used": None, "created_at": "2026-01-02T03:04:05.000000Z",
    "due_at": "2026-01-02T03:04:05.000000Z", "started_at": "2026-01-02T03:04:05.002000Z",
    "completed_at": "2026-01-02T03:04:06.100000Z",
}  # fmt: skip
SESSION = {
    "key": "chat:42", "agent": "demo", "title": "Release notes", "status": "idle", "thread_id": None, "live": False,
    "epoch": 0,
    "workdir": "/home/me/project", "worktree": None, "creator": "owner", "created_at": "2026-01-02T03:04:05.000000Z",
    "updated_at": "2026-01-02T03:04:06.000000Z", "queued": 0, "running_task": None,
}  # fmt: skip
WORKTREE = {
    "id": "w_1a1deb33561a3f9a1c20b7d4", "status": "kept", "branch": "midwatch/3f9a1c20b7d4",
    "path": "/home/me/.midwatch/worktrees/3f9a1c20b7d4", "repository": "/home/me/project", "target": "main",
    "base": "371918cb96328f47269925f92f4a385369df101a", "host": "desk", "task_id": TASK["id"], "session_key": None,
    "creator": "owner", "files": 3, "added": 120, "removed": 4, "dirty": True, "note": None,
    "created_at": TASK["started_at"], "updated_at": TASK["completed_at"],
}  # fmt: skip
PROCESS = {
    "id": "i_06f2m8", "role": "up", "host": "desk", "pid": 4711, "agents": ["demo"], "slots": 64,
    "started_at": TASK["created_at"], "running": 0, "live": True, "heartbeat_age": None, "leader": True,
}  # fmt: skip
STORE = {"kind": "sqlite", "journal": "wal", "synchronous": "FULL"}
SPENT = {
    "tasks": 1, "done": 1, "failed": 0, "cancelled": 0, "untold": 0, "unpriced": 1, "seconds": 1.098,
    "input_tokens": 1200, "output_tokens": 80, "cost_usd": None,
}  # fmt: skip
STEER = {
    "id": "t_06f2m8yq9a3c5e7g9j1k", "task_id": TASK["id"], "session_key": "chat:42", "mode": "after_tool",
    "text": "And now in French, please.", "status": "queued", "actor": "owner", "became": None,
    "created_at": TASK["started_at"],
}  # fmt: skip
EXAMPLES: dict[str, Any] = STANDING | {
    "TaskInfo": TASK,
    "SessionInfo": SESSION,
    "SessionBody": {"agent": "demo", "workdir": "/tmp", "title": "Release notes"},  # noqa: S108 - an example
    "MessageBody": {"text": "And now in French, please.", "mode": "after_tool"},
    "InterruptBody": {"mode": "stop", "hint": "Say how far you came."},
    "SteerInfo": STEER,
    "SentInfo": {
        **TASK, "status": "running", "status_text": "running", "outcome": None, "result": None, "completed_at": None,
        "mode": "after_tool", "steer": STEER,
    },
    "Interrupted": {"interrupted": TASK["id"], "mode": "stop", "resume": None},
    "ScreenInfo": {
        "text": "Welcome\n> ", "columns": 120, "rows": 40, "cursor": [2, 1], "title": "", "status": "idle",
        "evidence": "prompt", "certain": True, "styled": "",
    },
    "KeysBody": {"keys": "y\r"},
    "SizeBody": {"columns": 120, "rows": 40},
    "RetryBody": {"budget": {"tokens": 400000, "usd": 3.0}},
    "AnswerBody": {"choice": "yes", "why": "looks right"},
    "TokenBody": {"name": "ci", "role": "operator"},
    "EventInfo": {
        "seq": 3, "id": "e_06f2m8yq5s2f8d0c7b1a", "kind": "task_started", "time": "2026-01-02T03:04:05.002000Z",
        "version": 1, "task_id": TASK["id"], "agent_id": "demo", "session_key": TASK["session_key"], "attempt": 1,
        "actor": "owner", "payload": {"agent": "demo", "owner": "i_06f2m8", "host": "desk"},
    },
    "SignInBody": {"code": "mwl_3f9c0a6d51e2"},
    "MessageInfo": {
        "number": 2, "id": f"{TASK['id']}.1", "role": "agent", "author": "demo", "text": "Hello.",
        "time": TASK["completed_at"], "task_id": TASK["id"],
    },
    "ApprovalInfo": {
        "id": "a_06f2m8yq6d1k3h9s", "task_id": TASK["id"], "session_key": TASK["session_key"], "agent": "demo",
        "creator": "owner", "question": "Run git status?", "kind": "execute", "tool": "shell", "command": "git status",
        "paths": [], "diff": None, "diff_bytes": None, "diff_left_out": 0, "risk": "medium",
        "choices": [{"name": "Allow", "kind": "allow_once"}, {"name": "Reject", "kind": "reject_once"}],
        "always": {"kind": "execute", "command": "git status", "path": None, "root": "/home/me/project"},
        "status": "granted", "answer": "Allow", "why": "looks right", "answered_by": "owner", "rule": None,
        "created_at": TASK["started_at"], "expires_at": "2026-01-02T15:04:05.000000Z",
        "resolved_at": TASK["completed_at"],
    },
    "RuleInfo": {
        "id": "r_06f2m8yq9d5h7k3n", "agent": "demo", "effect": "allow", "kind": "execute", "command": "git status",
        "path": None, "root": "/home/me/project", "text": "always allow `git status` for demo in /home/me/project",
        "approval_id": "a_06f2m8yq6d1k3h9s", "created_at": TASK["completed_at"], "created_by": "owner",
        "revoked_at": None, "revoked_by": None,
    },
    "DeliveryInfo": {
        "id": "d_06f2m8yq7v3b5n8x", "task_id": TASK["id"], "channel": "webhook", "notice": "done",
        "text": "Task t_06f2m8yq3kq5r0v9x1w2 is done: Hello.", "status": "sent", "attempts": 1, "due_at": None,
        "sent_at": "2026-01-02T03:04:06.200000Z", "error": None,
    },
    "AgentInfo": {
        "name": "demo", "live": True, "kind": "demo", "description": "built in", "slots": 16, "timeout": 1800.0,
        "on_crash": "rerun", "steerable": False, "problem": None, "target": "built in",
        "handoffs": True,
        "capabilities": [{"name": "talk", "description": "says hello", "task_types": ["greeting"], "priority": 0}],
    },
    "ProcessInfo": PROCESS,
    "ClusterInfo": {"store": STORE, "processes": [PROCESS]},
    "SettingsInfo": {
        "default_agent": "demo", "notify": "webhook", "channels": ["console", "webhook"],
        "limits": {"slots": 64, "max_open": 1000}, "retention": {"tasks": 10000}, "store": STORE,
    },
    "TokenInfo": {
        "id": "k_06f2m8yq8c4g6j2m", "kind": "api", "name": "ci", "actor": "ci", "role": "operator",
        "created_at": TASK["created_at"], "created_by": "owner", "expires_at": None, "last_used_at": None,
        "revoked_at": None,
    },
    "UsageInfo": {
        "since": TASK["created_at"], "until": "2026-01-03T03:04:05.000000Z", "by": ["actor", "agent"], "zone": "UTC",
        "total": SPENT, "rows": [{"actor": "owner", "agent": "demo", **SPENT}], "left_off": 0,
    },
    "WorktreeInfo": WORKTREE,
    "WorktreeDiff": {"id": WORKTREE["id"], "diff": "diff --git a/a.txt b/a.txt\n...", "truncated": False},
    "RemoveBody": {"force": False},
    "ResultInfo": {"id": TASK["id"], "result": "Hello."},
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

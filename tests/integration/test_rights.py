"""Test who may do what: send a request to every route, with every role, about objects of every owner.

The expected replies are in the table of docs/rights.md. A route without a row in this table fails the test.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.types import ASGIApp, Message

from midwatch.api.admission import AGENTAPI
from midwatch.api.agentapi.allowed_origins import HOSTS, ORIGINS, Rules
from midwatch.api.agentapi.app import create_standalone
from midwatch.api.agentapi.console import PREFIX as CONSOLE
from midwatch.api.agentapi.console import ROUTES as CONSOLE_ROUTES
from midwatch.api.agentapi.follower import SessionFollower
from midwatch.api.agentapi.uploads import Uploads
from midwatch.api.app import create_app
from midwatch.desk.config import Settings
from midwatch.domain.agent import AgentTerms, Choice
from midwatch.domain.alert import Alert
from midwatch.domain.approval import Approval
from midwatch.domain.changes import Changes
from midwatch.domain.channel import Delivery
from midwatch.domain.handoff import Handoff
from midwatch.domain.hook import Hook
from midwatch.domain.identity import OWNER
from midwatch.domain.rule import Rule
from midwatch.domain.trigger import Trigger, record_firing
from midwatch.domain.worktree import Worktree
from midwatch.runtime.runtime import Runtime
from midwatch.testing import ScriptedAgent, result
from records import CLOCK, a_goal, an_automation, claim_request, put

PAGE = Path(__file__).parents[2] / "docs" / "rights.md"
COLUMNS = ("no token", "viewer", "operator", "owner", "attempt")
RELATIONS = ("own", "other", "automation")
JSON = "application/json"
SECRET = "a secret of GitLab"
FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--x--\r\n'
BODIES: Mapping[str, Any] = {
    "POST /api/v1/tasks": {"prompt": "x"},
    "POST /api/v1/rules/test": {"agent": "demo", "tool": "read_file"},
    "POST /api/v1/tool_calls/check": {"tool": "Bash", "arguments": {"command": "ls"}, "agent": "demo"},
    "POST /api/v1/automations": {"prompt": "x", "every": "1h"},
    "PATCH /api/v1/automations/{automation_id}": {"title": "x"},
    "POST /api/v1/automations/{automation_id}/trigger": {"payload": {"x": 1}},
    "POST /api/v1/hooks/{trigger_id}": {"x": 1},
    "POST /api/v1/automations/import": {"automations": []},
    "POST /api/v1/goals": {"objective": "x"},
    "PATCH /api/v1/goals/{goal_id}": {"objective": "x"},
    "POST /api/v1/goals/{goal_id}/complete": {"evidence": "x"},
    "POST /api/v1/goals/{goal_id}/delay": {"duration": 60, "reason": "x"},
    "POST /api/v1/hooks/{name}/test": {"seam": "before_tool"},
    "POST /api/v1/handoffs": {"to": "helper", "task": {"description": "x"}},
    "POST /api/v1/sessions": {},
    "POST /api/v1/sessions/{key}/messages": {"text": "x"},
    "POST /api/v1/sessions/{key}/keys": {"keys": "x"},
    "POST /api/v1/sessions/{key}/resize": {"columns": 80, "rows": 24},
    "POST /api/v1/worktrees/{worktree_id}/remove": {"force": True},
    "POST /api/v1/sign-in": {"token": "OWNER"},
    "POST /api/v1/tokens": {"name": "more", "role": "viewer"},
    "POST /sessions/{key}/agentapi/message": {"content": "x", "type": "user"},
    "POST /sessions/{key}/agentapi/upload": FORM,
}
"""Bodies of requests that need one, by method and path."""
QUERIES = {
    "GET /api/v1/events": "session_key={key}",
    "GET /api/v1/usage": "session_key={key}",
    "GET /api/v1/schedules/preview": "every=1h",
}
"""Queries of requests that need one, by method and path."""
NAMES = {
    "/api/v1/agents/{name}/test": "demo",
    "/api/v1/hooks/{name}/test": "hook",
    "/web/{name}": "app.js",
    "/sessions/{key}/agentapi/chat/{name}": "app.js",
    "/sessions/{key}/agentapi/schemas/{name}": "StatusResponseBody.json",
    "/sessions/{key}/agentapi/schemas": None,
}
"""Values of the parameter `name`, by path. With None the path serves nothing."""


class AnyHook(Hook):
    """A hook that people may test."""

    name = "hook"

    async def before_tool(self, subject: Any, meta: Any) -> None:
        """Go on."""


class Call(NamedTuple):
    """A request of the table: method, path with parameters in braces, and what each role may do."""

    method: str
    path: str
    allowed: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def has_object(self) -> bool:
        """Return whether the request is about an object that somebody owns."""
        text = self.path + QUERIES.get(self.name, "")
        noun = r"\{(task|automation|firing|goal|handoff|approval|worktree)_id\}|/sessions/\{key\}|session_key=\{key\}"
        return re.search(noun, text) is not None or "/triggers/" in text

    def expects(self, role: str, relation: str, manage_tasks: str) -> bool:
        """Return whether the request must be allowed, by the table and by the setting `manage_tasks`."""
        cell = self.allowed[role]
        is_task = not re.search(r"\{(automation|firing|trigger|goal)_id\}", self.path)
        shared = manage_tasks == "scope_all" and role == "operator" and relation == "other" and is_task
        return cell == "yes" or (cell == "own" and (relation == "own" or shared or not self.has_object))


def read_table() -> dict[str, dict[str, str]]:
    """Return the cells of the routes on the page about rights, by method and path."""
    rows: dict[str, dict[str, str]] = {}
    for line in PAGE.read_text().partition("## Routes")[2].splitlines():
        if match := re.fullmatch(r"\| ([A-Z, ]+) (.+?) \| `\w+` \| (.+) \|", line):
            cells = dict(zip(COLUMNS, match[3].split(" | "), strict=True))
            rows.update({f"{method} {match[2].strip('`')}": cells for method in match[1].split(", ")})
    return rows


def list_calls(permissions: Any) -> list[Call]:
    """Return a call for every route of the application, with its row of the table."""
    rows, calls, missing = read_table(), [], []
    for method, path, _ in permissions.all:
        shown = path.replace(":path", "")
        is_page = not path.startswith("/api/") and not AGENTAPI.match(path)
        cells = rows.get(f"{method} {'the pages and files of the console' if is_page else shown}")
        if cells is None and shown.endswith("/agentapi"):
            cells = rows.get(f"{method} {shown}/")
        if cells is None:
            missing.append(f"{method} {shown}")
        else:
            calls.append(Call(method, shown, cells))
    assert not missing, f"docs/rights.md has no row for {missing}; run `make docs`"
    return calls


async def send(app: ASGIApp, method: str, target: str, token: str | None, body: Any = None, **more: str) -> int:
    """Return the status of the reply. A stream is ended after its status."""
    path, _, query = target.partition("?")
    media = JSON if not isinstance(body, bytes) else "multipart/form-data; boundary=x"
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    headers = {"host": "localhost", "accept": JSON, "content-length": str(len(content)), **more}
    if content:
        headers["content-type"] = media
    if token:
        headers["authorization"] = f"Bearer {token}"
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "scheme": "http",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    status, sent, ended = 0, False, asyncio.Event()

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await ended.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    async def reply(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            if b"text/event-stream" in dict(message["headers"]).get(b"content-type", b""):
                ended.set()
        elif not message.get("more_body"):
            ended.set()

    async with asyncio.timeout(30):
        running = asyncio.ensure_future(app(scope, receive, reply))
        await asyncio.wait({running, waiting := asyncio.ensure_future(ended.wait())}, return_when="FIRST_COMPLETED")
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
    return status


class Team(NamedTuple):
    """A desk with objects of bob (own), of ann (other) and of ann's automation, and tokens of every role for bob."""

    desk: Runtime
    app: Any
    tokens: Mapping[str, str | None]
    objects: Mapping[str, Mapping[str, str]]

    def fill(self, call: Call, relation: str) -> str:
        """Return the path and query of a call about the object with this relation to bob."""
        values = {"id": "x", "rule_id": "r_1", "delivery_id": "d_1", "alert_id": "al_1", **self.objects[relation]}
        values["name"] = NAMES.get(call.path) or "x"
        if call.path == "/api/v1/tokens/{key}":
            values["key"] = "victim"
        query = QUERIES.get(call.name)
        return (call.path + (f"?{query}" if query else "")).format(**values)

    async def ask(self, call: Call, role: str, relation: str) -> int:
        """Return the status of the reply to a call."""
        body = BODIES.get(call.name)
        if body == {"token": "OWNER"}:
            body = {"token": self.tokens["owner"]}
        proof = {"x-gitlab-token": SECRET} if call.path.startswith("/api/v1/hooks/{t") else {}
        return await send(self.app, call.method, self.fill(call, relation), self.tokens[role], body, **proof)


async def make_objects(
    desk: Runtime, creator: str, key: str, cause: str, agent_of: str | None = None, *, is_open: bool = False
) -> tuple[dict[str, str], str]:
    """Store objects of a creator: the task runs in the session `key`. Return their ids, and the token of the task.

    The task is a message, a step of a goal, or the run of an automation. Its question, worktree and handoff name
    `agent_of` as their creator, but they belong to the automation.
    """
    store, now = desk.store, CLOCK.now()
    kind, _, name = key.partition(":")
    options = {"id": f"tr_{name}", "kind": "webhook", "sign": "gitlab", "per_minute": 600}
    automation = an_automation(
        now, id=f"am_{name}", creator=creator, session_key=f"auto:am_{name}", triggers=(options,)
    )  # fmt: skip
    trigger = Trigger(id=f"tr_{name}", automation_id=automation.id, kind="webhook", options=options, secret=SECRET)
    firing = record_firing(automation, trigger, now, key="x", summary="x", payload="{}")[0]
    goal = a_goal(now, id=f"g_{name}", creator=creator, session_key=f"goal:g_{name}", scope_id=key)
    key = {"auto": automation.session_key, "goal": goal.session_key}.get(kind, key)
    if creator == "bob":  # bob's agent may read the automation, because they have the same session
        automation = replace(automation, session_key=key)
    cause_id = {"goal": goal.id, "automation": automation.id, "message": None}[cause]
    await store.apply(Changes(records=(automation, goal, trigger, firing)))
    task = await put(store, creator=creator, session_key=key, cause=cause, cause_id=cause_id, agent="demo")
    (claim,) = (await store.claim(claim_request(), CLOCK.now())).taken
    assert claim.task.id == task.id
    about = {"task_id": task.id, "session_key": key, "creator": agent_of or creator}
    approval = Approval(
        id=f"a_{task.id}", attempt=1, agent="demo", question="?", choices=(Choice("Allow", "allow_once"),),
        created_at=now, expires_at=now + 10**12, **about,
    )  # fmt: skip
    tree = Worktree(
        id=f"w_{task.id}", status="removed", host="x", repository="/x", path="/x", branch="x", base="x", target=None,
        subdir="", **about,
    )  # fmt: skip
    handoff = Handoff(
        id=f"h_{task.id}",
        status="failed",
        source_task=task.id,
        root_id=task.id,
        creator=about["creator"],
        created_at=now,
        to_agent="helper",
        request={"description": "x"},
    )
    await store.apply(Changes(records=(approval, tree, handoff)))
    if not is_open:
        await desk.sessions.close(key)
    ids = {
        "task_id": task.id, "automation_id": automation.id, "goal_id": goal.id, "account_id": task.id,
        "handoff_id": handoff.id, "approval_id": approval.id, "worktree_id": tree.id, "key": key,
        "trigger_id": trigger.id, "firing_id": firing.id,
    }  # fmt: skip
    return ids, claim.token


@asynccontextmanager
async def open_team(home: Path, **settings: Any) -> AsyncIterator[Team]:
    """Open a desk that runs no tasks, with objects of each relation."""
    loaded = Settings.load(home, detect_agents=False, **settings)
    terms = AgentTerms(submits=True)
    agents = {name: ScriptedAgent(result("done"), name=name, terms=terms) for name in ("demo", "helper")}
    async with Runtime.open(home, settings=loaded, agents=agents, hooks=[AnyHook()], work=False) as desk:
        own, attempt = await make_objects(desk, "bob", "chat:bob", "goal")
        other, _ = await make_objects(desk, "ann", "chat:ann", "message")
        run, _ = await make_objects(desk, "ann", "auto:run", "automation", "bob")
        notice = Delivery(id="d_1", task_id="x", channel="x", notice="x", text="x", status="failed")
        rule = Rule(id="r_1", agent="demo", effect="deny")
        alert = Alert(id="al_1", status="raised", subject="x", kind="silent", text="x", since=1, raised_at=1)
        await desk.store.apply(Changes(records=(rule, alert), deliveries=(notice,)))
        tokens: dict[str, str | None] = {"no token": None, "owner": desk.home.token(), "attempt": attempt}
        for role in ("viewer", "operator"):
            tokens[role] = (await desk.tokens.create(role, role, actor="bob", by=OWNER))[1]
        await desk.tokens.create("victim", "viewer", by=OWNER)
        yield Team(desk, create_app(desk), tokens, {"own": own, "other": other, "automation": run})


@pytest.mark.parametrize("mode", ["creator_only", "scope_all"])
async def test_every_route_does_what_the_table_says(home: Path, mode: str) -> None:
    async with open_team(home, manage_tasks=mode) as team:
        calls = list_calls(team.app.state.permissions)
        assert len(calls) > 100 and sum(call.has_object for call in calls) > 60
        wrong = []
        for call in calls:
            relations = RELATIONS if call.has_object else ("own",)
            cells = [(call.expects(role, relation, mode), role, relation) for role in COLUMNS for relation in relations]
            for allowed, role, relation in sorted(cells):  # first the refusals, because they change nothing
                status = await team.ask(call, role, relation)
                refused = status == (401 if role == "no token" else 403)
                failed = status in (0, 401, 403, 422) or status >= 500 or (status == 404 and not _may_be_missing(call))
                if failed if allowed else not refused:
                    wrong.append(f"{call.name}: {role}, {relation}: {status}, the table says {call.allowed[role]}")
        assert not wrong, "\n".join(wrong)


def _may_be_missing(call: Call) -> bool:
    """Return whether an allowed request may get 404: an earlier one removed the object, or nothing is served there."""
    return call.method == "DELETE" or NAMES.get(call.path, "") is None or call.path.endswith("/result")


async def test_the_chat_page_of_one_session_tells_nothing_of_others(home: Path) -> None:
    """Check every route of the chat page, about its own session, another session and the session of an automation."""
    async with open_team(home) as team:
        own, _ = await make_objects(team.desk, "agentapi", "chat:page", "message")
        session = (await team.desk.sessions.get("chat:page")).session
        follower, uploads = SessionFollower(team.desk, session, kind="demo"), Uploads()
        page = team._replace(
            app=create_standalone(team.desk, follower, Rules(HOSTS, ORIGINS), "/chat", uploads),
            objects={**team.objects, "own": own},
        )
        for query in ("", "?task_id={task_id}", "?session_key=chat:page&task_id={task_id}", "?turn_id=x"):
            for more in ({}, {"accept": "text/event-stream"}):
                target = f"{CONSOLE}/events{query}".format(**page.objects["other"])
                assert await send(page.app, "GET", target, None, **more) == 403, target
                assert await send(page.app, "GET", f"{target}{'&' if query else '?'}state=true", None, **more) == 403
        for method, path, *_ in CONSOLE_ROUTES:
            call = Call(method, f"/api/v1{path}".replace(":path", ""), {})
            body = BODIES.get(call.name)
            for relation in RELATIONS if call.has_object else ("own",):
                target = page.fill(call, relation).replace("/api/v1", CONSOLE, 1)
                status = await send(page.app, method, target, None, body)
                assert (status in (200, 202, 409)) == (relation == "own"), (call.name, relation, status)
                assert await send(page.app, method, target, None, body, origin="http://evil.example") == 403
        uploads.close()


async def test_an_agent_cannot_sign_in_or_make_links(home: Path) -> None:
    async with open_team(home) as team:
        for path, body in (("sign-in", {"token": team.tokens["attempt"]}), ("links", None), ("sign-out", None)):
            assert await send(team.app, "POST", f"/api/v1/{path}", team.tokens["attempt"], body) == 403, path
        assert await team.desk.store.count_tokens("bob", CLOCK.now()) == 0


async def test_an_agent_reaches_no_other_session(home: Path) -> None:
    async with open_team(home) as team:
        desk, token = team.desk, team.tokens["attempt"]
        for path in (
            "tasks/{task_id}", "tasks/{task_id}/page", "tasks/{task_id}/result", "sessions/{key}",
            "sessions/{key}/messages", "sessions/{key}/live", "sessions/{key}/screen", "events?task_id={task_id}",
            "events?session_key={key}", "events", "events?state=true", "approvals/{approval_id}",
            "handoffs/{handoff_id}", "worktrees/{worktree_id}", "goals/{goal_id}", "automations/{automation_id}",
            "tokens", "settings", "now", "budgets", "budgets/{account_id}", "sessions", "goals", "automations",
            "worktrees", "deliveries",
        ):  # fmt: skip
            for relation in ("other", "automation"):
                target = f"/api/v1/{path}".format(**team.objects[relation])
                assert await send(team.app, "GET", target, token) == 403, (path, relation)
        actor = await desk.tokens.bearer(token or "")
        own = await desk.tasks.submit("mine", actor=actor)
        assert {task.id for task in await desk.tasks.list(actor=actor)} == {own.id, team.objects["own"]["task_id"]}
        assert await send(team.app, "GET", f"/api/v1/tasks/{own.id}", token) == 200
        assert await send(team.app, "GET", f"/api/v1/events?task_id={own.id}", token) == 200


@pytest.mark.parametrize("kind", ["auto", "goal"])
async def test_another_operator_cannot_stop_the_session_of_an_automation_or_goal(home: Path, kind: str) -> None:
    async with open_team(home, manage_tasks="scope_all") as team:
        cause = "automation" if kind == "auto" else "goal"
        ids, _ = await make_objects(team.desk, "ann", f"{kind}:x", cause, is_open=True)
        _, ann = await team.desk.tokens.create("ann", "operator", by=OWNER)
        path = f"/api/v1/sessions/{ids['key']}"
        for what, body in (
            ("interrupt", None), ("interrupt", {"mode": "stop"}), ("restart", None), ("close", None),
            ("messages", {"text": "x"}), ("messages", {"text": "x", "mode": "interrupt"}), ("keys", {"keys": "x"}),
        ):  # fmt: skip
            assert await send(team.app, "POST", f"{path}/{what}", team.tokens["operator"], body) == 403, (what, body)
        for field in ("session_key", "origin_session"):
            body = {"prompt": "x", field: ids["key"]}
            assert await send(team.app, "POST", "/api/v1/tasks", team.tokens["operator"], body) == 403, field
        assert (await team.desk.tasks.get(ids["task_id"])).stop_requested is None
        assert (await team.desk.sessions.get(ids["key"])).status == "busy"
        assert await send(team.app, "POST", f"{path}/close", ann) == 200

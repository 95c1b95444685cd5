"""Test that the API matches its description: thousands of requests made from the OpenAPI document, valid and invalid,
against a real server.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from servers import Server

SEEDS = int(os.environ.get("MIDWATCH_ATTACK_SEEDS", "0"))
CHOICES = [("--seed", str(seed)) for seed in range(1, SEEDS + 1)] or [("--generation-deterministic",)]
"""How random values are chosen: the same in each run, or by several seeds."""
REQUESTS = 4000
EXAMPLES_EACH = 25
RARELY_ACCEPTED = {
    "POST /api/v1/sign-in",
    "POST /api/v1/hooks/{trigger_id}",
    "POST /api/v1/sessions/{key}/keys",
    "POST /api/v1/sessions/{key}/resize",
    "GET /api/v1/sessions/{key}/screen",
}
"""Requests that are accepted only with a signature, or only at the right moment: with an unused link, or while nobody
has closed the terminal."""
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "missing_required_header", "unsupported_method",
    "allow_header_conformance", "ignored_auth",
)  # fmt: skip
STREAM = "/api/v1/sessions/{key}/live"
APPLY = "/api/v1/apply"
"""Its body has many bodies of automations and goals; the requests that create these have them, too."""
OPEN_RECORDS = frozenset({"ProblemInfo", "AgentInfo"})
"""Objects with additional members: those of each kind of error, and those of each kind of agent."""
SETTINGS = """
default_agent = "quick"
detect_agents = false
max_open = 1000000
log_level = "warning"
hooks = [{ argv = ["{python}", "{hook}", "hang", "{home}/bad"], name = "demo", seams = ["before_tool", "after_tool"] }]
[agents.quick]
kind = "demo"
slots = 500
[agents.asks]
kind = "function"
target = "asking:work"
path = ["{home}"]
[agents.screen]
kind = "terminal"
argv = ["cat"]
quiet = 0.1
"""
HOOK = Path(__file__).parent.parent / "fakes" / "hook_program.py"
DENY = "POST /api/v1/approvals/{approval_id}/deny"
APPROVE = "POST /api/v1/approvals/{approval_id}/approve"
COMPLETE = "POST /api/v1/goals/{goal_id}/complete"
DELAY = "POST /api/v1/goals/{goal_id}/delay"
RETRY = "POST /api/v1/tasks/{task_id}/retry"
CANCEL_HANDOFF = "POST /api/v1/handoffs/{handoff_id}/cancel"
"""These requests get records of their own: other requests would have ended all records before."""
HALF = '{{ dictionary = "{}", probability = 0.5 }}'
ASKING = """
from midwatch.domain.agent import Question


def work(prompt, turn):
    return turn.ask(Question(text="May I?", kind="execute", command=prompt)).status
"""

SCREENS = tuple(f"chat:screen-{n}" for n in range(8))

Document = dict[str, Any]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    home = tmp_path / "home"
    home.mkdir()
    settings = SETTINGS.replace("{home}", str(home)).replace("{python}", sys.executable)
    (home / "midwatch.toml").write_text(settings.replace("{hook}", str(HOOK)))
    (home / "asking.py").write_text(ASKING)
    server = Server(home)
    await server.start()
    yield server
    assert await server.stop() == 0


@pytest.fixture
async def document(server: Server) -> Document:
    async with server.client() as http:
        reply = await http.get("/openapi.json")
    assert reply.status_code == 200
    return reply.json()


def operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


# -- the document ------------------------------------------------------------------------------------------------------


async def test_the_openapi_document_is_complete(document: Document) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["title"] == "midwatch"
    assert document["info"]["version"]
    assert set(document["components"]["securitySchemes"]) == {"token", "browser"}
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(ids) == len(set(ids)) > 35
    for route, operation in operations(document):
        assert operation["summary"], route
        assert operation["description"], route
        replies = operation["responses"]
        good = [status for status in replies if status.startswith("2")]
        assert good, route
        for status in good:
            assert replies[status]["content"], route
            for media, content in replies[status]["content"].items():
                assert content["schema"], (route, status, media)
        problems = {status: reply for status, reply in replies.items() if not status.startswith("2")}
        assert {"400", "403", "413", "421", "431", "503"} <= set(problems), route
        for status, reply in problems.items():
            assert reply["description"], (route, status)
            ref = reply["content"]["application/problem+json"]["schema"]["$ref"]
            assert ref == "#/components/schemas/ProblemInfo", (route, status)
        for status in {"429", "503"} & set(problems):
            assert problems[status]["headers"]["Retry-After"], (route, status)
        proves = route in ("POST /api/v1/sign-in", "POST /api/v1/hooks/{trigger_id}")
        is_open = proves or route in ("GET /api/v1/health", "GET /api/v1/ready")
        assert (operation.get("security") == []) is is_open, route
        assert ("401" in problems) is (not is_open or proves), route


async def test_every_body_and_record_has_a_valid_example(document: Document) -> None:
    schemas = document["components"]["schemas"]
    bodies = {
        content["schema"].get("$ref", "").rpartition("/")[2] or content["schema"]["anyOf"][0]["$ref"].rpartition("/")[2]
        for _, operation in operations(document)
        if "requestBody" in operation
        for content in operation["requestBody"]["content"].values()
    }
    records = {name for name in schemas if name.endswith("Info")}
    shown = {name for name, schema in schemas.items() if schema.get("examples")}
    assert bodies | records <= shown
    for name in shown:
        whole = {"$ref": f"#/components/schemas/{name}", "components": strict(document)["components"]}
        for example in schemas[name]["examples"]:
            jsonschema_rs.validate(whole, example)


def strict(document: Document) -> Document:
    """Return the description with all undocumented members forbidden."""
    copy: Document = json.loads(json.dumps(document))
    for name, schema in copy["components"]["schemas"].items():
        if schema.get("properties") and name not in OPEN_RECORDS:
            schema.setdefault("additionalProperties", False)
    return copy


# -- requests made from the document -----------------------------------------------------------------------------------


async def create_records(http: httpx2.AsyncClient, folder: Path) -> dict[str, list[str]]:
    """Create tasks, sessions, questions, notices and tokens in all their states, so that requests find records."""

    async def post(path: str, **body: Any) -> Document:
        reply = await http.post(path, json=body)
        assert reply.is_success, reply.text
        return reply.json()

    done = await post("/tasks", prompt="hello", origin_session="chat:a", session_key="chat:b")
    failed = [
        await post("/tasks", prompt="demo:fail", route="webhook", notices="all", session_key="chat:a")
        for _ in range(30)
    ]
    alone = [await post("/tasks", prompt="demo:fail") for _ in range(10)]
    waits = [await post("/tasks", prompt="later", delay="1h") for _ in range(5)]
    hangs = await post("/tasks", prompt="demo:hang")
    asks = [await post("/tasks", prompt="demo:ask") for _ in range(60)]
    for key in ("chat:plain", "chat:x/y|thread:1", "chat:ü/messages"):
        await post("/sessions", key=key)
    await open_screens(http)
    trees = await create_worktrees(http, post, folder)
    tokens = [(await post("/tokens", name=f"made-{n}", role="viewer"))["id"] for n in range(10)]
    webhook = {"kind": "webhook", "sign": "hmac", "per_minute": 600}
    made = [await post("/automations", prompt="look", every="1h", triggers=[webhook]) for _ in range(10)]
    automations = [automation["id"] for automation in made]
    firings = [(await post(f"/automations/{key}/trigger", payload={"x": 1}))["id"] for key in automations]
    goals = [(await post("/goals", objective="demo:hang", scope_id=f"s{n}", agent="demo"))["id"] for n in range(30)]
    for goal in goals[:15]:
        await post(f"/goals/{goal}/pause")
    handoffs = await create_handoffs(post, ["demo:hang"] * 4 + ["demo:fail"] * 20 + ["hello"] * 10)
    await until(http, "/approvals?limit=500", "approvals", len(asks))
    await until(http, "/deliveries?status=failed&limit=500", "deliveries", 2 * len(failed))
    leave = [await post("/tasks", prompt=f"ls {n}", agent="asks", workdir=str(Path.cwd())) for n in range(10)]
    await until(http, "/approvals?limit=500", "approvals", len(asks) + len(leave))
    for approval in (await http.get("/approvals?limit=500")).json()["approvals"]:
        if approval["agent"] == "asks":
            await post(f"/approvals/{approval['id']}/approve", always=True)
    rules = [rule["id"] for rule in (await http.get("/rules")).json()["rules"]]
    assert len(rules) == len(leave)
    approvals = (await http.get("/approvals?limit=500")).json()["approvals"]
    deliveries = (await http.get("/deliveries?limit=500")).json()["deliveries"]
    asked_by = {approval["task_id"]: approval["id"] for approval in approvals}
    reserved = {task["id"] for task in asks[20:]}
    return {
        "path.task_id": [done["id"], hangs["id"], *(task["id"] for task in (*failed, *waits, *asks[:20]))],
        f"{RETRY} path.task_id": [task["id"] for task in alone],
        "path.approval_id": [approval["id"] for approval in approvals if approval["task_id"] not in reserved],
        f"{DENY} path.approval_id": [asked_by[task["id"]] for task in asks[20:40]],
        f"{APPROVE} path.approval_id": [asked_by[task["id"]] for task in asks[40:]],
        "path.rule_id": rules,
        "path.delivery_id": [delivery["id"] for delivery in deliveries],
        "path.automation_id": automations,
        "path.firing_id": firings,
        "path.trigger_id": [automation["triggers"][0]["id"] for automation in made],
        "path.goal_id": goals[:20],
        f"{COMPLETE} path.goal_id": goals[20:25],
        f"{DELAY} path.goal_id": goals[25:],
        "path.handoff_id": handoffs,
        f"{CANCEL_HANDOFF} path.handoff_id": await create_handoffs(post, ["demo:hang"] * 5),
        "path.name": ["quick", "demo"],
        "path.worktree_id": trees,
        "path.key": ["chat:plain", "chat:x/y|thread:1", "chat:ü/messages", "chat:a", "chat:b", *SCREENS, *tokens],
        "query.session_key": ["chat:a", "chat:plain"],
        "query.task_id": [failed[0]["id"]],
    }


async def create_handoffs(post: Callable[..., Awaitable[Document]], prompts: list[str]) -> list[str]:
    """Create a handoff for each prompt."""
    fields = {"to": "quick", "wait": 0, "timeout": "1h"}  # longer than all requests take
    return [(await post("/handoffs", task={"description": prompt}, **fields))["id"] for prompt in prompts]


async def open_screens(http: httpx2.AsyncClient) -> None:
    """Open terminals, also those that requests have closed, ended or restarted."""
    for key in SCREENS:
        await http.post("/sessions", json={"key": key, "agent": "screen"})
        await http.post(f"/sessions/{key}/open")


async def keep_screens_open(http: httpx2.AsyncClient) -> None:
    """Reopen terminals while requests close them."""
    while True:
        with suppress(httpx2.HTTPError):  # opening may fail under this load; then it is tried again
            await open_screens(http)
        await asyncio.sleep(0.2)


async def create_worktrees(
    http: httpx2.AsyncClient, post: Callable[..., Awaitable[Document]], folder: Path
) -> list[str]:
    """Create worktrees of a small repository, as tasks leave them."""
    repository = folder / "repository"
    git = ("git", "-C", repository, "-c", "user.name=me", "-c", "user.email=me@example.org")
    await asyncio.to_thread(subprocess.run, ("git", "init", "-q", repository), check=True)
    await asyncio.to_thread(subprocess.run, (*git, "commit", "-q", "--allow-empty", "-m", "first"), check=True)
    tasks = [await post("/tasks", prompt="look", workdir=str(repository), worktree=True) for _ in range(10)]
    for task in tasks:
        async with asyncio.timeout(120):
            while (await http.get(f"/tasks/{task['id']}")).json()["status"] != "done":
                await asyncio.sleep(0.05)
    return [worktree["id"] for worktree in (await http.get("/worktrees")).json()["worktrees"]]


async def until(http: httpx2.AsyncClient, path: str, name: str, count: int) -> None:
    """Wait until a list has so many entries."""
    async with asyncio.timeout(120):
        while len((await http.get(path)).json()[name]) < count:
            await asyncio.sleep(0.05)


def configuration(ids: dict[str, list[str]]) -> str:
    """Return the configuration of schemathesis: it uses existing ids half of the time and random ones otherwise."""
    bound = {name: f"d{number}" for number, name in enumerate(ids)}
    lines = ["[parameters]"]
    lines += [f'"{name}" = {HALF.format(dictionary)}' for name, dictionary in bound.items() if " " not in name]
    for name, dictionary in bound.items():
        if " " in name:
            operation, _, parameter = name.rpartition(" ")
            lines += ["[[operations]]", f'include-name = "{operation}"']
            lines += [f'parameters = {{ "{parameter}" = {HALF.format(dictionary)} }}']
    for name, values in ids.items():
        lines += [f"[dictionaries.{bound[name]}]", f"values = {json.dumps(values, ensure_ascii=False)}"]
    refused = ["400", "401", "403", "404", "405", "409", "410", "413", "415", "421", "422", "429", "431"]
    lines += ["[checks]", f"negative_data_rejection.expected-statuses = {json.dumps(refused)}"]
    return "\n".join(lines)


@pytest.mark.timeout(640)
@pytest.mark.parametrize("choice", CHOICES, ids="".join)
async def test_thousands_of_random_requests_are_answered_as_documented(
    server: Server, document: Document, tmp_path: Path, choice: tuple[str, ...]
) -> None:
    folder = tmp_path / "schemathesis"
    folder.mkdir()
    (folder / "openapi.json").write_text(json.dumps(strict(document)))
    async with server.client() as http:
        ids = await create_records(http, tmp_path)
        (folder / "schemathesis.toml").write_text(configuration(ids))
        token = http.headers["authorization"]
        opening = asyncio.create_task(keep_screens_open(http))
        ran = await asyncio.to_thread(fuzz, folder, server.url, token, choice)
        opening.cancel()
        report = json.loads((folder / "report.json").read_text())
        assert ran.returncode == 0, ran.stdout[-6000:]
        count = report["test_cases"]["generated"]
        print(f"\n{count} requests to {report['operations']['tested']} operations, as described")
        assert count >= REQUESTS
        assert report["complete"]
        assert report["operations"]["tested"] == len(list(operations(document))) - 2
        assert report["test_cases"]["errored"] == 0
        rates = report["valid_rates"]
        never = {name for name, phases in rates.items() if not sum(phase["accepted"] for phase in phases.values())}
        assert never <= RARELY_ACCEPTED, "these never came to anything"
        assert (await http.get("/health")).status_code == 200
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def fuzz(folder: Path, url: str, token: str, choice: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Send the requests, except to streams, which do not end, and to declared work, which takes long."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", "openapi.json", "--url", url,
            "-H", f"Authorization: {token}", "-H", "Accept: application/json",
            "--exclude-path", STREAM, "--exclude-path", APPLY,
            "--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS),
            "--mode", "all", *choice, "--max-examples", str(EXAMPLES_EACH), "--workers", "1",
            "--request-timeout", "60", "--continue-on-failure", "--no-shrink", "--no-color", "--warnings", "off",
            "--report", "json", "--report-json-path", "report.json",
        ],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip

"""Test `midwatch hook claude` as Claude Code calls it: as a program, with a tool call on standard input."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from midwatch.cli.hook import BLOCKED
from midwatch.client import Client
from servers import Server

pytestmark = pytest.mark.slow

CONFIG = """
detect_agents = false
default_agent = "coder"

[agents.coder]
kind = "command"
argv = ["{python}", "{program}", "{{prompt}}"]

[agents.coder.approvals]
deny = [{{ command = "git push" }}, {{ path = "**/.env" }}]
ask = [{{ command = "make deploy" }}]
allow = [{{ command = "git status" }}]

[agents.claude]
kind = "command"
argv = ["true"]

[agents.claude.approvals]
deny = [{{ tool = "WebFetch" }}]
ask = [{{ command = "make deploy" }}]
"""
PROGRAM = """
import json, subprocess, sys
call = json.loads(sys.argv[1])
hook = [sys.executable, "-m", "midwatch", "hook", "claude"]
done = subprocess.run(hook, input=json.dumps(call), capture_output=True, text=True)
print(json.dumps({"status": done.returncode, "out": done.stdout, "err": done.stderr}))
"""


def describe(tool: str, call_id: str = "toolu_1", **arguments: Any) -> str:
    """Return a tool call as Claude Code describes it."""
    return json.dumps({
        "hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": arguments, "tool_use_id": call_id,
        "cwd": "/tmp", "session_id": "s", "permission_mode": "bypassPermissions",
    })  # fmt: skip


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    program = tmp_path / "coder.py"
    program.write_text(PROGRAM)
    home = tmp_path / "home"
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG.format(python=sys.executable, program=program))
    server = Server(home)
    await server.start()
    yield server
    await server.stop()


def connect(server: Server) -> Client:
    """Return a client of the server."""
    return Client.for_home(server.home)


async def wait_for_end(client: Client, task_id: str) -> Any:
    """Return the task once it has ended."""
    async with asyncio.timeout(60):
        while (task := await client.get(task_id))["status"] in ("pending", "running"):
            await asyncio.sleep(0.05)
    return task


async def run_hook(call: str, home: Path) -> tuple[int | None, str, str]:
    """Run the hook as a person's own Claude Code does, outside of a task."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "midwatch", "hook", "claude", stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"MIDWATCH_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)},
    )  # fmt: skip
    out, err = await child.communicate(call.encode())
    return child.returncode, out.decode(), err.decode()


def read_decision(out: str) -> tuple[str, str]:
    """Return the decision and its reason, as Claude Code reads them."""
    shown = json.loads(out)["hookSpecificOutput"]
    assert shown["hookEventName"] == "PreToolUse"
    return shown["permissionDecision"], shown["permissionDecisionReason"]


async def run_in_task(server: Server, call: str) -> dict[str, Any]:
    """Let an agent call the hook during its turn, and return what the hook did."""
    async with connect(server) as client:
        task = await client.submit(call, {"agent": "coder"})
        ended = await wait_for_end(client, task["id"])
        assert ended["status"] == "done", ended["error"]
        return {**json.loads(ended["result"]), "task": task["id"]}


async def test_rules_decide_inside_a_task(server: Server) -> None:
    denied = await run_in_task(server, describe("Bash", command="cd x && git -C . push origin main"))
    decision, reason = read_decision(denied["out"])
    assert (denied["status"], decision) == (0, "deny")
    assert "git push" in reason
    async with connect(server) as client:
        events = (await client.events(task_id=denied["task"]))["events"]
    skipped = [event["payload"] for event in events if event["kind"] == "tool_exec_skipped"]
    assert [(event["tool"], event["rule"], event["tool_call_id"]) for event in skipped] == [
        ("Bash", "deny `git push`", "toolu_1")
    ]
    assert read_decision((await run_in_task(server, describe("Read", file_path="/tmp/x/../.env")))["out"])[0] == "deny"
    assert read_decision((await run_in_task(server, describe("Bash", command="git status")))["out"])[0] == "allow"
    nobody = await run_in_task(server, describe("Bash", command="ls"))
    assert (nobody["status"], nobody["out"].strip()) == (0, "")


async def test_a_person_answers_while_the_hook_waits(server: Server) -> None:
    async with connect(server) as client:
        task = await client.submit(describe("Bash", command="make deploy"), {"agent": "coder"})
        async with asyncio.timeout(60):
            while not (questions := await client.approvals()):
                await asyncio.sleep(0.05)
        assert questions[0]["command"] == "make deploy"
        await client.approve(questions[0]["id"])
        ended = await wait_for_end(client, task["id"])
        assert read_decision(json.loads(ended["result"])["out"])[0] == "allow"


async def test_rules_decide_outside_of_a_task(server: Server) -> None:
    status, out, _ = await run_hook(describe("WebFetch", url="https://example.org"), server.home)
    assert (status, read_decision(out)[0]) == (0, "deny")
    status, out, _ = await run_hook(describe("Bash", command="make deploy"), server.home)
    assert (status, read_decision(out)[0]) == (0, "ask")
    status, out, _ = await run_hook(describe("Read", file_path="/tmp/x"), server.home)
    assert (status, out.strip()) == (0, "")


@pytest.mark.parametrize("call", ["", "not JSON", "[]", '{"tool_name": "Bash"}', '{"tool_name": 1, "tool_input": {}}'])
async def test_a_call_that_cannot_be_read_is_not_run(call: str, tmp_path: Path) -> None:
    status, out, err = await run_hook(call, tmp_path / "home")
    assert (status, out) == (BLOCKED, "")
    assert "the tool is not run" in err


async def test_without_midwatch_the_tool_is_not_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("this is not a directory")
    status, out, err = await run_hook(describe("Bash", command="ls"), home)
    assert (status, out) == (BLOCKED, "")
    assert "the tool is not run" in err


async def test_the_printed_settings_call_this_program_and_fail_closed() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "midwatch", "hook", "claude", "--settings", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    command = json.loads(out)["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert command == f"{sys.executable} -m midwatch hook claude || exit 2"

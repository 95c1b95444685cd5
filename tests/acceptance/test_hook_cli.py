"""Test `midwatch hook claude` as Claude Code calls it: as a program, with a tool call on standard input."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from midwatch.cli.hook import BLOCKED
from midwatch.client import Client
from servers import PATIENCE, Server, eventually, until

pytestmark = pytest.mark.slow

CONFIG = """
detect_agents = false
shutdown_grace = 0
default_agent = "coder"

[agents.coder]
kind = "command"
argv = ["{python}", "{program}", "{{prompt}}"]

[agents.coder.approvals]
deny = [{{ command = "git push" }}, {{ path = "**/.env" }}, {{ path = "secret/**" }}]
ask = [{{ command = "make deploy" }}]
allow = [{{ command = "git status" }}]

[agents.holder]
kind = "command"
argv = ["{python}", "{holder}", "{{prompt}}"]

[agents.holder.approvals]
ask = [{{ command = "make deploy" }}]

[agents.claude]
kind = "command"
argv = ["true"]

[agents.claude.approvals]
deny = [{{ tool = "WebFetch" }}, {{ path = "secret/**" }}]
ask = [{{ command = "make deploy" }}]
"""
PROGRAM = """
import json, os, subprocess, sys
call = json.loads(sys.argv[1])
call["cwd"] = os.path.join(os.getcwd(), call["cwd"])
hook = [sys.executable, "-m", "midwatch", "hook", "claude"]
done = subprocess.run(hook, input=json.dumps(call), capture_output=True, text=True)
print(json.dumps({"status": done.returncode, "out": done.stdout, "err": done.stderr}))
"""
HOLDER = """
import json, os, sys, time
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(dict(os.environ), file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(3600)
"""


def describe(tool: str, call_id: str = "toolu_1", cwd: str = "", **arguments: Any) -> str:
    """Return a tool call as Claude Code describes it; `cwd` may be relative to the directory of the work."""
    return json.dumps({
        "hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": arguments, "tool_use_id": call_id,
        "cwd": cwd, "session_id": "s", "permission_mode": "bypassPermissions",
    })  # fmt: skip


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    program = tmp_path / "coder.py"
    program.write_text(PROGRAM)
    holder = tmp_path / "holder.py"
    holder.write_text(HOLDER)
    home = tmp_path / "home"
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG.format(python=sys.executable, program=program, holder=holder))
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


async def run_hook(call: str, home: Path, *options: str, **env: str) -> tuple[int | None, str, str]:
    """Run the hook as a person's own Claude Code does, outside of a task."""
    child = await start_hook({"MIDWATCH_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home), **env}, *options)
    out, err = await child.communicate(call.encode())
    return child.returncode, out.decode(), err.decode()


async def start_hook(env: dict[str, str], *options: str) -> asyncio.subprocess.Process:
    """Start the hook, which reads its standard input."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "midwatch", "hook", "claude", *options, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env,
    )  # fmt: skip


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
    for call in (describe("Bash", cwd="secret", command="cat k"), describe("Read", cwd="secret", file_path="k")):
        decision, reason = read_decision((await run_in_task(server, call))["out"])
        assert decision == "deny" and "secret/**" in reason, "the program has changed its directory"
    for call in (describe("Bash", command="ls"), describe("Bash", cwd="/usr", command="ls")):
        nobody = await run_in_task(server, call)
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
    for call in (describe("Read", file_path="/tmp/x"), describe("Write", file_path="/tmp/x", content="x" * 1_000_000)):
        status, out, err = await run_hook(call, server.home)
        assert (status, out.strip()) == (0, ""), err
    inside = describe("Bash", cwd="/tmp/project/secret", command="cat k")
    status, out, _ = await run_hook(inside, server.home, CLAUDE_PROJECT_DIR="/tmp/project")
    assert (status, read_decision(out)[0]) == (0, "deny")


@pytest.mark.parametrize("call", ["", "not JSON", "[]", '{"tool_name": "Bash"}', '{"tool_name": 1, "tool_input": {}}'])
async def test_a_call_that_cannot_be_read_is_not_run(call: str, tmp_path: Path) -> None:
    status, out, err = await run_hook(call, tmp_path / "home")
    assert (status, out) == (BLOCKED, "")
    assert "the tool is not run" in err


async def test_a_misspelt_agent_has_no_rules_so_the_tool_is_not_run(server: Server) -> None:
    status, out, err = await run_hook(describe("Bash", command="ls"), server.home, "--agent", "coderr")
    assert (status, out) == (BLOCKED, "")
    assert "there is no agent 'coderr'; `midwatch agents` lists all agents." in err


async def test_without_midwatch_the_tool_is_not_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("this is not a directory")
    status, out, err = await run_hook(describe("Bash", command="ls"), home)
    assert (status, out) == (BLOCKED, "")
    assert "the tool is not run" in err


async def lose_server(server: Server) -> None:
    await server.kill()


async def stop_server(server: Server) -> None:
    await server.stop()


async def restart_server(server: Server) -> None:
    await server.kill()
    await server.start()


async def suspend_server(server: Server) -> None:
    server.signal(signal.SIGSTOP)


async def do_nothing(server: Server) -> None:
    """Let nobody answer."""


IN_VAIN: dict[Callable[[Server], Awaitable[None]], str] = {
    lose_server: "1h", stop_server: "1h", restart_server: "1h", suspend_server: "20s", do_nothing: "20s",
}  # fmt: skip
"""How long the hook may wait. Only where it has to wait to the end, this is short; but it must be able to ask first."""


@pytest.mark.parametrize(("end", "timeout"), IN_VAIN.items(), ids=[end.__name__ for end in IN_VAIN])
async def test_a_hook_that_waits_in_vain_denies_in_time(
    server: Server, tmp_path: Path, end: Callable[[Server], Awaitable[None]], timeout: str
) -> None:
    found = tmp_path / "environment.json"
    async with connect(server) as client:
        await client.submit(str(found), {"agent": "holder"})
        assert await eventually(found.exists)
        hook = await start_hook(json.loads(found.read_text()), "--timeout", timeout)
        assert hook.stdin is not None
        hook.stdin.write(describe("Bash", command="make deploy").encode())
        hook.stdin.close()
        await until(client.approvals)
    try:
        await end(server)
        async with asyncio.timeout(PATIENCE):
            out, err = await hook.communicate()
    finally:
        if server.process is not None and server.process.poll() is None:
            server.signal(signal.SIGCONT)
    assert out == b"", err
    if end is restart_server and hook.returncode == -signal.SIGKILL:
        return  # the new server has ended all programs of the lost attempt: Claude Code, and with it the hook
    assert hook.returncode == BLOCKED, err
    assert b"so the tool is not run" in err and err.count(b"\n") == 1
    assert (b"no decision within 20 s" in err) == (timeout == "20s")


async def test_a_hook_without_a_call_denies_in_time(tmp_path: Path) -> None:
    hook = await start_hook({"MIDWATCH_HOME": str(tmp_path)}, "--timeout", "1s")
    async with asyncio.timeout(PATIENCE):
        assert await hook.wait() == BLOCKED
    assert hook.stderr is not None and b"no decision within 1 s" in await hook.stderr.read()


async def test_the_printed_settings_call_this_program_and_fail_closed() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "midwatch", "hook", "claude", "--settings", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    (hook,) = json.loads(out)["hooks"]["PreToolUse"][0]["hooks"]
    assert hook["command"] == f"{sys.executable} -m midwatch hook claude --timeout 24h || exit 2"
    assert hook["timeout"] > 24 * 3600, "Claude Code runs the tool if it stops waiting before the hook denies"

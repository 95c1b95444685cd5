"""Commands that other programs call from their own hooks, so that the rules of midwatch hold there."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from midwatch.base import durations
from midwatch.base.errors import InvalidInput, MidwatchError
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk, connect
from midwatch.cli.output import note
from midwatch.cli.parameters import Option

BLOCKED = 2
"""The exit status with which Claude Code does not run the tool. With any other error it would run the tool."""
WAIT_SECONDS = 15.0
LONGEST_TIMEOUT = 7 * 86_400.0
MARGIN_SECONDS = 60
"""Claude Code waits this much longer than the hook. If it stopped waiting first, it would run the tool."""
MOST_INPUT = 20_000_000
NOT_RUN = "midwatch could not decide, so the tool is not run: {}"

app = Group("Programs that other agents' hooks call, so that rules hold there, too.")


@command(app)
async def claude(
    agent: Annotated[
        str | None, Option("--agent", help="Agent whose rules apply outside of a task; default: claude.")
    ] = None,
    settings: Annotated[bool, Option("--settings", help="Print what belongs into Claude Code's settings.")] = False,
    timeout: Annotated[
        str, Option("--timeout", help="Longest wait for a decision: 10m, 1h. Then the tool is not run.")
    ] = "24h",
) -> Reply | int:
    """Decide about one tool of Claude Code by the rules. Claude Code calls this before each tool (PreToolUse).

    Inside a task, a rule that asks sends the question to the inbox, and the hook waits for the answer. If midwatch
    cannot decide, the tool is not run.
    """
    if settings:
        built = build_settings(find_program(), timeout)
        return Reply(built, json.dumps(built, indent=2))
    try:
        with deny_after(parse_timeout(timeout)):
            call = {**read_call(sys.stdin.buffer.read(MOST_INPUT + 1)), "agent": agent or "claude"}
            async with connect() as desk:
                if agent is not None and "MIDWATCH_TASK" not in os.environ:
                    await require_agent(desk, agent)
                decided = await check(desk, call)
    except MidwatchError as problem:
        note(NOT_RUN.format(problem))
        return BLOCKED
    except Exception as problem:
        note(NOT_RUN.format(f"{type(problem).__name__}: {problem}"))
        return BLOCKED
    if decided is None:
        return 0
    decision, reason = decided
    shown = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return Reply({"hookSpecificOutput": shown}, json.dumps({"hookSpecificOutput": shown}))


def build_settings(program: str, timeout: str = "24h") -> dict[str, Any]:
    """Return the part of Claude Code's settings that calls the hook. If it cannot start, the tool is not run either."""
    longest = int(parse_timeout(timeout)) + MARGIN_SECONDS
    command = f"{program} hook claude --timeout {shlex.quote(timeout)} || exit 2"
    hook = {"type": "command", "command": command, "timeout": longest}
    return {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]}}


def parse_timeout(timeout: str) -> float:
    """Return the seconds of a timeout, or raise InvalidInput."""
    seconds = durations.seconds(timeout)
    if not 1 <= seconds <= LONGEST_TIMEOUT:
        raise InvalidInput(f"--timeout is {timeout!r}; write a time from 1s to 7d.", field="timeout")
    return seconds


@contextmanager
def deny_after(seconds: float) -> Iterator[None]:
    """End this process inside a `with` block that lasts too long, so that the tool is not run.

    A thread does this, because reading the standard input blocks the event loop.
    """

    def deny() -> None:
        note(NOT_RUN.format(f"there was no decision within {seconds:g} s."))
        os._exit(BLOCKED)

    timer = threading.Timer(seconds, deny)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def find_program() -> str:
    """Return the command that starts this program, wherever Claude Code calls it from."""
    started = Path(sys.argv[0]).absolute()
    words = [str(started)] if started.name == "midwatch" else [sys.executable, "-m", "midwatch"]
    return shlex.join(words)


def read_call(data: bytes) -> dict[str, Any]:
    """Return the tool call that Claude Code describes on standard input, or raise InvalidInput."""
    try:
        given = json.loads(data) if len(data) <= MOST_INPUT else None
    except (ValueError, RecursionError):
        given = None
    tool, arguments = (given.get("tool_name"), given.get("tool_input")) if isinstance(given, dict) else (None, None)
    if not isinstance(given, dict) or not isinstance(tool, str) or not isinstance(arguments, dict):
        raise InvalidInput("standard input must be the JSON of a PreToolUse hook, with `tool_name` and `tool_input`.")
    used_id, workdir, root = given.get("tool_use_id"), given.get("cwd"), os.environ.get("CLAUDE_PROJECT_DIR")
    return {
        "tool": tool,
        "arguments": arguments,
        "id": used_id if isinstance(used_id, str) else None,
        "workdir": os.path.realpath(workdir) if isinstance(workdir, str) else None,
        "root": os.path.realpath(root) if root else None,
    }


async def require_agent(desk: Desk, name: str) -> None:
    """Raise InvalidInput if there is no such agent: a misspelt name would have no rules of its own."""
    if all(agent["name"] != name for agent in await desk.client.agents()):
        raise InvalidInput(f"there is no agent {name!r}; `midwatch agents` lists all agents.", field="agent")


async def check(desk: Desk, call: dict[str, Any]) -> tuple[str, str] | None:
    """Return the decision about a tool call and its reason; None if nobody decided."""
    while (decision := await desk.client.check_tool_call(call, wait=WAIT_SECONDS))["action"] == "pending":
        pass
    reason = decision["reason"] or decision["by"]
    if decision["action"] == "go_on":
        return ("allow", reason) if reason else None
    return "ask" if decision["action"] == "ask" else "deny", reason or "It is not allowed."

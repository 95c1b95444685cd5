"""Commands that other programs call from their own hooks, so that the rules of midwatch hold there."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from midwatch.base.errors import InvalidInput, MidwatchError
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk, connect
from midwatch.cli.output import note
from midwatch.cli.parameters import Option

BLOCKED = 2
"""The exit status with which Claude Code does not run the tool. With any other error it would run the tool."""
WAIT_SECONDS = 15.0
MOST_INPUT = 20_000_000

app = Group("Programs that other agents' hooks call, so that rules hold there, too.")


@command(app)
async def claude(
    agent: Annotated[str, Option("--agent", help="Agent whose rules apply outside of a task.")] = "claude",
    settings: Annotated[bool, Option("--settings", help="Print what belongs into Claude Code's settings.")] = False,
) -> Reply | int:
    """Decide about one tool of Claude Code by the rules. Claude Code calls this before each tool (PreToolUse).

    Inside a task, a rule that asks sends the question to the inbox, and the hook waits for the answer. If midwatch
    cannot decide, the tool is not run.
    """
    if settings:
        built = build_settings(find_program())
        return Reply(built, json.dumps(built, indent=2))
    try:
        call = {**read_call(sys.stdin.buffer.read(MOST_INPUT + 1)), "agent": agent}
        async with connect() as desk:
            decided = await check(desk, call)
    except MidwatchError as problem:
        note(f"midwatch could not decide, so the tool is not run: {problem}")
        return BLOCKED
    except Exception as problem:
        note(f"midwatch could not decide, so the tool is not run: {type(problem).__name__}: {problem}")
        return BLOCKED
    if decided is None:
        return 0
    decision, reason = decided
    shown = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return Reply({"hookSpecificOutput": shown}, json.dumps({"hookSpecificOutput": shown}))


def build_settings(program: str) -> dict[str, Any]:
    """Return the part of Claude Code's settings that calls the hook. If it cannot start, the tool is not run either."""
    hook = {"type": "command", "command": f"{program} hook claude || exit 2", "timeout": 86400}
    return {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]}}


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
    used_id, workdir = given.get("tool_use_id"), given.get("cwd")
    return {
        "tool": tool,
        "arguments": arguments,
        "id": used_id if isinstance(used_id, str) else None,
        "workdir": workdir if isinstance(workdir, str) else None,
    }


async def check(desk: Desk, call: dict[str, Any]) -> tuple[str, str] | None:
    """Return the decision about a tool call and its reason; None if nobody decided."""
    while (decision := await desk.client.check_tool_call(call, wait=WAIT_SECONDS))["action"] == "pending":
        pass
    reason = decision["reason"] or decision["by"]
    if decision["action"] == "go_on":
        return ("allow", reason) if reason else None
    return "ask" if decision["action"] == "ask" else "deny", reason or "It is not allowed."

"""The dialogs of qwen, and how they are provoked."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from agents.scenarios.common import COLORS, LONG, MCP_SERVER, PROJECT, RM, URL, call, failures
from agents.scenarios.scenario import Scenario, change_json

Asking = partial(Scenario, args=("--approval-mode", "default"), files=PROJECT)
MENU = r"[›●❯] 1\. "
shell = partial(call, "run_shell_command", description="Runs a command", is_background=False)


def with_mcp(home: Path, work: Path, url: str) -> None:
    """Add an MCP server."""
    server = {"command": sys.executable, "args": [str(MCP_SERVER)]}
    change_json(home / ".qwen" / "settings.json", mcpServers={"desk": server})


def without_trust(home: Path, work: Path, url: str) -> None:
    """Ask whether to trust folders."""
    change_json(home / ".qwen" / "settings.json", security={"folderTrust": {"enabled": True}})


def without_auth(home: Path, work: Path, url: str) -> None:
    """Choose no way to sign in."""
    change_json(home / ".qwen" / "settings.json", security=None)


SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=shell(command="touch made.txt"), shows=MENU),
    Asking(kind="long-command", script=shell(command=LONG), shows=MENU),
    Asking(kind="rm", script=shell(command=RM), shows=MENU),
    Asking(
        kind="edit",
        script='[[tool read_file {"file_path": "{work}/notes.txt"}]]'
        + call("edit", file_path="{work}/notes.txt", old_string="two", new_string="2"),
        shows=MENU,
    ),
    Asking(
        kind="overwrite",
        script=call("read_file", file_path="{work}/notes.txt")
        + call("write_file", file_path="{work}/notes.txt", content="one\n2\nthree\n"),
        shows=MENU,
    ),
    Asking(kind="write", script=call("write_file", file_path="{work}/new.txt", content="alpha\nbeta\n"), shows=MENU),
    Asking(kind="fetch", script=call("web_fetch", url=URL, prompt="Read it"), shows=MENU),
    Asking(
        kind="question",
        script=call(
            "ask_user_question",
            questions=[{"question": "Which color?", "header": "Color", "multiSelect": False, "options": COLORS}],
        ),
        shows=MENU,
    ),
    Asking(kind="mcp", script=call("mcp__desk__add", a=1, b=2), prepare=with_mcp, shows=MENU),
    Asking(
        kind="plan",
        args=("--approval-mode", "plan"),
        script=call("exit_plan_mode", plan="# Plan\n\n1. Read notes.txt\n2. Write new.txt"),
        shows=MENU,
    ),
    Asking(kind="trust", prepare=without_trust, shows=MENU),
    Asking(
        kind="login",
        prepare=without_auth,
        env={"OPENAI_API_KEY": None, "OPENAI_BASE_URL": None, "OPENAI_MODEL": None},
        shows="Connect a Provider",
    ),
    Asking(kind="theme", steps=(("Type your message", "/theme"), ("> /theme", "\r")), shows="Select Theme"),
    *failures(
        Asking,
        refused_key="API Error|401",
        limit="esc to cancel",  # it waits for the end of the limit, and its screen tells nothing
        quota="Retrying in",
        error="API Error",
        overloaded="API Error",
    ),
)
MISSING: dict[str, str] = {
    "update": "it asks nothing: it installs an update by itself, or shows a line of text",
    "telemetry": "it has no such dialog",
}

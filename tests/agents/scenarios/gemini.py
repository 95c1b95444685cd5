"""The dialogs of gemini, and how they are provoked."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from agents.scenarios.common import COLORS, LONG, MCP_SERVER, NEWER, PROJECT, RM, URL, call, failures
from agents.scenarios.scenario import Scenario, change_json

Asking = partial(Scenario, args=("-m", "gemini-2.5-pro"), files=PROJECT)
MENU = r"● 1\. "
shell = partial(call, "run_shell_command", description="Runs a command")


def with_mcp(home: Path, work: Path, url: str) -> None:
    """Add an MCP server."""
    server = {"command": sys.executable, "args": [str(MCP_SERVER)]}
    change_json(home / ".gemini" / "settings.json", mcpServers={"desk": server})


def without_auth(home: Path, work: Path, url: str) -> None:
    """Choose no way to sign in."""
    change_json(home / ".gemini" / "settings.json", security=None)


def with_updates(home: Path, work: Path, url: str) -> None:
    """Look for updates, and install none."""
    general = {"enableAutoUpdate": False, "enableAutoUpdateNotification": True}
    change_json(home / ".gemini" / "settings.json", general=general)


SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=shell(command="touch made.txt"), shows=MENU),
    Asking(kind="long-command", script=shell(command=LONG), shows=MENU),
    Asking(kind="rm", script=shell(command=RM), shows=MENU),
    Asking(
        kind="edit",
        script=call("replace", file_path="notes.txt", old_string="two", new_string="2", instruction="Change it"),
        shows=MENU,
    ),
    Asking(kind="overwrite", script=call("write_file", file_path="notes.txt", content="one\n2\nthree\n"), shows=MENU),
    Asking(kind="write", script=call("write_file", file_path="new.txt", content="alpha\nbeta\n"), shows=MENU),
    Asking(
        kind="question",
        script=call(
            "ask_user",
            questions=[{"question": "Which color?", "header": "Color", "type": "choice", "options": COLORS}],
        ),
        shows=MENU,
    ),
    Asking(kind="fetch", script=call("web_fetch", prompt=f"Read {URL}"), shows=MENU),
    Asking(kind="mcp", script=call("mcp_desk_add", a=1, b=2), prepare=with_mcp, shows=MENU),
    Asking(kind="trust", env={"GEMINI_CLI_TRUST_WORKSPACE": None}, shows=MENU),
    Asking(kind="login", prepare=without_auth, env={"GEMINI_API_KEY": None}, shows=MENU),
    Asking(kind="theme", steps=(("Type your message", "/theme"), ("> /theme", "\r")), shows="Select Theme"),
    Asking(kind="update", prepare=with_updates, env=NEWER, shows="update available"),
    Asking(
        kind="plan",
        args=("-m", "gemini-2.5-pro", "--approval-mode", "plan"),
        script=call("write_file", file_path="plan.md", content="# Plan\n\n1. Read notes.txt\n2. Write new.txt\n")
        + call("exit_plan_mode", plan_filename="plan.md"),
        shows=MENU,
    ),
    Asking(kind="no-key", folder="failures", env={"GEMINI_API_KEY": None}, shows="API [Kk]ey"),
    *failures(
        Asking,
        refused_key="API Error",
        limit=MENU,
        # it tries again for more than eight minutes, and its screen tells nothing
        quota="esc to cancel",
        error="esc to cancel",
        overloaded="esc to cancel",
    ),
)
MISSING: dict[str, str] = {
    "telemetry": "it has no such dialog",
}

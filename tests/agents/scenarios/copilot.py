"""The dialogs of copilot, and how they are provoked."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from agents.scenarios.common import LONG, MCP_SERVER, PROJECT, RM, URL, call, failures
from agents.scenarios.scenario import Scenario, change_json


def with_mcp(home: Path, work: Path, url: str) -> None:
    """Add an MCP server."""
    server = {"type": "local", "command": sys.executable, "args": [str(MCP_SERVER)], "tools": ["*"]}
    change_json(home / ".copilot" / "mcp-config.json", mcpServers={"desk": server})


NO_KEY = dict.fromkeys(
    (
        "COPILOT_PROVIDER_BASE_URL",
        "COPILOT_PROVIDER_API_KEY",
        "COPILOT_PROVIDER_TYPE",
        "COPILOT_OFFLINE",
        "COPILOT_MODEL",
    )
)
TRUST = (("trust", "1"),)
Asking = partial(Scenario, files=PROJECT, steps=TRUST)
MENU = r"❯ 1\. "
shell = partial(call, "bash", description="Runs a command")

SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=shell(command="touch made.txt"), shows=MENU),
    Asking(kind="long-command", script=shell(command=LONG), shows=MENU),
    Asking(kind="rm", script=shell(command=RM), shows=MENU),
    Asking(kind="edit", script=call("edit", path="{work}/notes.txt", old_str="two", new_str="2"), shows=MENU),
    Asking(kind="write", script=call("create", path="{work}/new.txt", file_text="alpha\nbeta\n"), shows=MENU),
    Asking(kind="fetch", script=shell(command=f"curl {URL}"), shows=MENU),
    Asking(kind="outside", script=call("view", path="/etc/hostname"), shows=MENU),
    Asking(
        kind="question",
        script=call(
            "ask_user",
            message="Which color?",
            requestedSchema={
                "type": "object",
                "properties": {"color": {"type": "string", "enum": ["Red", "Blue"]}},
                "required": ["color"],
            },
        ),
        shows="Red",
    ),
    Asking(kind="mcp", script=call("desk-note", text="hello"), prepare=with_mcp, shows=MENU),
    Scenario(kind="trust", files=PROJECT, shows=MENU),
    Asking(kind="theme", steps=(*TRUST, (r"^┃", "/theme"), ("/theme", "\r")), shows="GitHub"),
    Asking(
        kind="plan",
        args=("--mode", "plan"),
        script=call("exit_plan_mode", summary="# Plan\n\n1. Read notes.txt\n2. Write new.txt"),
        shows=MENU,
    ),
    Scenario(
        kind="login",
        files=PROJECT,
        steps=(*TRUST, (r"^┃", "/login"), ("/login", "\r")),
        env=NO_KEY,
        shows=r"❯ 1\. |GitHub.com",
    ),
    Scenario(
        kind="no-key",
        folder="failures",
        files=PROJECT,
        steps=TRUST,
        env=NO_KEY,
        shows="Please use /login",
    ),
    *failures(Asking, refused_key="✗ ", limit="✗ ", quota="✗ ", error="✗ ", overloaded="✗ "),
)
MISSING: dict[str, str] = {
    "update": "it installs updates by itself or with `copilot update`; no question was seen",
    "telemetry": "it has no such dialog",
}

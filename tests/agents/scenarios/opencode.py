"""The dialogs of opencode, and how they are provoked."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from agents.scenarios.common import COLORS, LONG, MCP_SERVER, PROJECT, RM, URL, call, failures
from agents.scenarios.scenario import Scenario, change_json
from midwatch.agents.terminal.profile import RIGHT


def ask_always(home: Path, work: Path, url: str) -> None:
    """Ask before every tool."""
    permission = dict.fromkeys(("*", "bash", "edit", "webfetch", "external_directory", "doom_loop"), "ask")
    server = {"type": "local", "command": [sys.executable, str(MCP_SERVER)], "enabled": True}
    change_json(home / ".config" / "opencode" / "opencode.json", permission=permission, mcp={"desk": server})


Asking = partial(Scenario, files=PROJECT, prepare=ask_always)
MENU = r"Permission required"
shell = partial(call, "bash", description="Runs a command")

SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=shell(command="touch made.txt"), shows=MENU),
    Asking(kind="long-command", script=shell(command=LONG), shows=MENU),
    Asking(kind="rm", script=shell(command=RM), shows=MENU),
    Scenario(
        kind="edit",
        files=PROJECT,
        script=call("read", filePath="{work}/notes.txt")
        + call("edit", filePath="{work}/notes.txt", oldString="two", newString="2"),
        shows=MENU,
    ),
    Asking(kind="write", script=call("write", filePath="{work}/new.txt", content="alpha\nbeta\n"), shows=MENU),
    Asking(kind="fetch", script=call("webfetch", url=URL, format="text"), shows=MENU),
    Asking(kind="read", script=call("read", filePath="{work}/notes.txt"), shows=MENU),
    Asking(kind="outside", script=call("read", filePath="/etc/hostname"), shows=MENU),
    Scenario(
        kind="question",
        files=PROJECT,
        script=call("question", questions=[{"question": "Which color?", "header": "Color", "options": COLORS}]),
        shows="Red",
    ),
    Asking(kind="mcp", script=call("desk_add", a=1, b=2), shows=MENU),
    Asking(kind="always", script=shell(command=RM), after=((MENU, RIGHT + "\r"),), shows="[Cc]onfirm +[Cc]ancel"),
    Scenario(
        kind="plan",
        args=("--agent", "plan"),
        env={"OPENCODE_EXPERIMENTAL_PLAN_MODE": "1"},
        script=call("plan_exit"),
        shows=r"1\. Yes",
    ),
    *failures(
        partial(Scenario, files=PROJECT),
        refused_key="Invalid API key",
        limit="retrying|rate limit",
        quota="retrying|quota",
        error="retrying|Internal",
        overloaded="retrying",
    ),
)
MISSING: dict[str, str] = {
    "trust": "it has no such dialog",
    "login": "it asks nothing: without a provider it uses free models; `/connect` opens a list for a person",
    "update": "it asks only the public registry of npm, which tests must not reach",
    "theme": "it asks nothing; `/theme` opens a list for a person",
    "telemetry": "it has no such dialog",
}

"""The dialogs of goose, and how they are provoked."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from agents.scenarios.common import LONG, MCP_SERVER, PROJECT, RM, call, failures
from agents.scenarios.scenario import Scenario, change_json


def with_mcp(home: Path, work: Path, url: str) -> None:
    """Add an MCP server."""
    server = {"type": "stdio", "cmd": sys.executable, "args": [str(MCP_SERVER)], "name": "desk", "enabled": True}
    change_json(home / ".config" / "goose" / "config.yaml", extensions={"desk": {**server, "timeout": 30}})


def without_config(home: Path, work: Path, url: str) -> None:
    """Remove the configuration."""
    (home / ".config" / "goose" / "config.yaml").unlink()


Asking = partial(Scenario, files=PROJECT, env={"GOOSE_MODE": "approve"})
MENU = r"● Allow"
shell = partial(call, "shell")

SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=shell(command="touch made.txt"), shows=MENU),
    Asking(kind="long-command", script=shell(command=LONG), shows=MENU),
    Asking(kind="rm", script=shell(command=RM), shows=MENU),
    Asking(kind="edit", script=call("edit", path="{work}/notes.txt", before="two", after="2"), shows=MENU),
    Asking(kind="write", script=call("write", path="{work}/new.txt", content="alpha\nbeta\n"), shows=MENU),
    Asking(kind="mcp", script=call("desk__add", a=1, b=2), prepare=with_mcp, shows=MENU),
    Scenario(kind="telemetry", files=PROJECT, env={"GOOSE_TELEMETRY_ENABLED": None}, prepare=without_config, shows="●"),
    Scenario(
        kind="no-key",
        folder="failures",
        files=PROJECT,
        env={"GOOSE_PROVIDER": None, "GOOSE_MODEL": None, "OPENAI_HOST": None, "OPENAI_API_KEY": None},
        prepare=without_config,
        shows="No provider",
    ),
    *failures(
        Asking,
        refused_key="this error",
        limit=r"Ctrl\+C to interrupt",
        quota="this error",
        error="this error",
        overloaded="this error",
    ),
)
MISSING: dict[str, str] = {
    "fetch": "it has no tool for web pages; it runs `curl` as a command",
    "plan": "`/plan` answers with a plan and asks nothing",
    "trust": "it has no such dialog",
    "login": "without a provider it ends with an error; `goose configure` is a program of its own",
    "update": "it looks for updates only with `goose update`",
    "theme": "it asks nothing; `/t` changes the theme",
    "question": "it has no such tool",
}

"""The dialogs of claude, and how they are provoked."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from agents.scenarios.common import LONG, PROJECT, RM, URL, call
from agents.scenarios.scenario import Scenario, change_json

DOWN, ENTER = "\x1b[B", "\r"
TRUST = ((r"Yes, I trust this folder", DOWN + ENTER),)
MENU = r"❯ 1\. "
MCP_SERVER = Path(__file__).parents[2] / "fakes" / "mcp_server.py"
SCRIPT = "cat > made.py <<'END'\nimport os\n\nif os.name:\n    print('made')\nEND\npython3 made.py"
"""A command with several lines."""
TRICK = "git log --format=" + "a" * 90 + "\nsome-other-command-with-a-long-name --now"
"""Two commands that look like one long command on a screen: the first row has no space for the next word."""

COLOURS = {
    "question": "Which colour?", "header": "Colour", "multiSelect": False,
    "options": [{"label": "Red", "description": "like fire"}, {"label": "Blue", "description": "like the sea"}],
}  # fmt: skip

Asking = partial(Scenario, files=PROJECT, steps=TRUST, shows=MENU)
bash = partial(call, "Bash", description="Runs a command")


def _first_start(home: Path, _: Path, __: str) -> None:
    (home / ".claude.json").unlink()


def _offer_server(_: Path, work: Path, __: str) -> None:
    server = {"command": sys.executable, "args": [str(MCP_SERVER), "--tools", "add"]}
    (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"sums": server}}))


def _allow_server(home: Path, work: Path, url: str) -> None:
    _offer_server(home, work, url)
    change_json(home / ".claude" / "settings.json", enableAllProjectMcpServers=True)


SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=bash(command="touch made.txt")),
    Asking(kind="long-command", script=bash(command=LONG)),
    Asking(kind="script", script=bash(command=SCRIPT)),
    Asking(kind="trick", script=bash(command=TRICK)),
    Asking(kind="rm", script=bash(command=RM)),
    Asking(kind="tall-command", script=bash(command="\n".join(f"touch file-{n}" for n in range(60)))),
    Asking(
        kind="edit",
        script=call("Read", file_path="{work}/notes.txt")
        + call("Edit", file_path="{work}/notes.txt", old_string="two", new_string="2"),
    ),
    Asking(kind="write", script=call("Write", file_path="{work}/new.txt", content="alpha\nbeta\n")),
    Asking(
        kind="overwrite",
        script=call("Read", file_path="{work}/notes.txt")
        + call("Write", file_path="{work}/notes.txt", content="one\nzwei\n"),
    ),
    Asking(kind="write-outside", script=call("Write", file_path="/tmp/mw-recording-elsewhere/new.txt", content="a\n")),
    Asking(kind="read", script=call("Read", file_path="/etc/hostname")),
    Asking(kind="fetch", script=call("WebFetch", url=URL, prompt="What is it?")),
    Asking(kind="search", script=call("WebSearch", query="what is it")),
    Asking(kind="plan", args=("--permission-mode", "plan"), script=call("ExitPlanMode", plan="1. do this\n2. do that")),
    Asking(kind="choice", script=call("AskUserQuestion", questions=[COLOURS])),
    Asking(kind="mcp", prepare=_allow_server, script=call("mcp__sums__add", a=1, b=2)),
    Scenario(kind="mcp-server", prepare=_offer_server, steps=TRUST, shows=r"❯ Continue without"),
    Scenario(kind="trust", files=PROJECT, shows=r"Yes, I trust this folder"),
    Scenario(kind="theme", prepare=_first_start, env={"CLAUDE_CODE_USE_BEDROCK": "1"}, shows=r"❯ ✔ Dark mode"),
    Scenario(
        kind="api-key",
        steps=TRUST,
        env={"CLAUDE_CODE_OAUTH_TOKEN": None, "ANTHROPIC_API_KEY": "fake-key-of-the-environment"},
        shows=r"API key",
    ),
    Scenario(kind="bypass", args=("--dangerously-skip-permissions",), steps=TRUST, shows=r"❯ (\d\.|No)"),
)
MISSING: dict[str, str] = {
    "plan with its text": "claude reads it from a file whose name only the program knows",
    "update": "claude updates itself and shows no dialog",
    "telemetry": "claude asks nothing about telemetry",
}

"""Parts of scenarios that several agents share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.scenarios.scenario import Scenario

PROJECT = {"notes.txt": "one\ntwo\nthree\nfour\nfive\n"}
"""The files of a project."""
RM = "rm -rf build/cache && echo gone"
LONG = (
    'for number in 1 2 3 4 5 6 7 8 9; do echo "the number is $number" >> numbers-of-a-long-command.txt; done '
    "&& sort -r numbers-of-a-long-command.txt | uniq | head -n 3 && wc -l numbers-of-a-long-command.txt"
)
"""A command that does not fit into one row of a screen."""
MCP_SERVER = Path(__file__).parents[2] / "fakes" / "mcp_server.py"
COLORS = [{"label": "Red", "description": "Like fire"}, {"label": "Blue", "description": "Like water"}]
URL = "https://example.com/page"


def call(tool: str, **arguments: object) -> str:
    """Return the script that makes the fake model call a tool."""
    return f"[[tool {tool} {json.dumps(arguments)}]]"


FAILURES: dict[str, dict[str, Any]] = {
    "refused-key": {"key": "bad-key", "script": "[[say hello]]"},
    "limit": {"script": "[[limit 3600 it]]"},
    "quota": {"script": "[[quota 3600 it]]"},
    "error": {"script": "[[fail 500]]"},
    "overloaded": {"script": "[[fail 529]]"},
}
"""The usual failures: a key that is refused; a usage limit whose end is known, and one without; two errors."""
NEWER = {"npm_config_registry": "{url}/fake/npm/"}
"""The environment in which there is a newer version of every npm package."""


def failures(make: Callable[..., Scenario], **shows: str) -> tuple[Scenario, ...]:
    """Return scenarios of failures: their kinds, with `_` for `-`, and what the screen shows."""
    kinds = {name.replace("_", "-"): text for name, text in shows.items()}
    return tuple(
        make(kind=kind, folder="failures", shows=text, seconds=480.0, **FAILURES[kind]) for kind, text in kinds.items()
    )

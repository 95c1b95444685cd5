"""Test the policies of docs/policy.md: each example is loaded, and decides as the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"
EXAMPLES = dict(re.findall(r"<!-- policy: (\w+) -->\n```toml\n(.*?)```", PAGE.read_text(), re.DOTALL))
CASES: dict[str, list[tuple[dict[str, Any], str | None]]] = {
    "main": [
        ({"command": "git push origin main"}, "deny"),
        ({"command": "sh -c 'cd x && git -C . push -f origin main'"}, "deny"),
        ({"command": "git push origin HEAD:main"}, "ask"),
        ({"command": "git p$(echo ush) origin main"}, "ask"),
        ({"tool": "write_file", "path": ".git/refs/heads/main"}, "deny"),
        ({"tool": "write_file", "path": "src/../.git/config"}, "deny"),
        ({"command": "git status"}, None),
        ({"tool": "write_file", "path": "src/x"}, None),
    ],
    "network": [
        ({"tool": "fetch", "host": "example.org"}, "deny"),
        ({"tool": "WebFetch", "host": "example.org"}, "deny"),
        ({"command": "curl https://example.org"}, "deny"),
        ({"command": "ssh user@example.org"}, "deny"),
        ({"command": "npm install"}, "ask"),
        ({"command": "make test"}, None),
    ],
    "push": [
        ({"command": "git push"}, "ask"),
        ({"command": "bash -lc 'git  push origin x'"}, "ask"),
        ({"tool": "mcp__github__push_files"}, "ask"),
        ({"tool": "github/create_pull_request"}, "ask"),
        ({"tool": "github/get_issue"}, None),
        ({"command": "git commit -m x"}, None),
    ],
    "reviewer": [
        ({"agent": "reviewer", "tool": "read_file", "path": "src/x"}, "allow"),
        ({"agent": "reviewer", "command": "git log --oneline"}, "allow"),
        ({"agent": "reviewer", "tool": "write_file", "path": "src/x"}, "deny"),
        ({"agent": "reviewer", "command": "git push"}, "deny"),
        ({"agent": "reviewer", "tool": "transfer_to_coder"}, "deny"),
        ({"agent": "coder", "command": "git push"}, None),
    ],
}


@pytest.mark.parametrize("name", sorted(CASES))
async def test_an_example_decides_as_the_page_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "midwatch.toml").write_text("detect_agents = false\n" + EXAMPLES[name])
    async with Runtime.open(tmp_path, work=False) as desk:
        for use, expected in CASES[name]:
            trial = await desk.rules.test(**{"agent": "coder", "workdir": str(tmp_path), **use})
            assert trial.verdict == expected, (use, trial)


async def test_the_night_is_capped(tmp_path: Path) -> None:
    (tmp_path / "midwatch.toml").write_text("detect_agents = false\n" + EXAMPLES["night"])
    async with Runtime.open(tmp_path, work=False) as desk:
        assert desk.settings.on_budget == "ask"
        assert desk.settings.day_budget.usd == 5
        task = await desk.tasks.submit("x", agent="coder", budget={"usd": 5, "steps": 300})
        assert task.budget == {"usd": 5.0, "steps": 300}


def test_every_example_is_tested() -> None:
    assert set(EXAMPLES) == {*CASES, "night"}

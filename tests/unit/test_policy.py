"""Test the policies of docs/policy.md: each example is loaded, and decides as the page says."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime
from midwatch.cli.inputs import parse_budget
from midwatch.testing import FakeClock
from servers import until

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
            assert trial.effect == expected, (use, trial)


PRICES = '[prices."m"]\ninput = 1000000\noutput = 1000000\n'
"""One dollar per token."""
CLAUDE = """
import json, signal
print(json.dumps({"type": "system", "subtype": "init", "session_id": "1"}), flush=True)
for number in range(3):
    message = {"model": "m", "usage": {"input_tokens": 1, "output_tokens": 0}}
    tool = {"type": "tool_use", "id": f"{number}", "name": "Read", "input": {}}
    for event in ({"type": "message_start", "message": message}, {"type": "message_stop"}):
        print(json.dumps({"type": "stream_event", "event": event}), flush=True)
    print(json.dumps({"type": "assistant", "message": {"content": [tool]}}), flush=True)
signal.pause()
"""
"""A program that writes as Claude Code does: it makes three calls for one dollar each, and does not end."""


async def test_the_night_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}{CLAUDE}")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    limits = "detect_agents = false\nshutdown_grace = 0\n" + EXAMPLES["night"]
    (tmp_path / "midwatch.toml").write_text(limits + PRICES)
    async with Runtime.open(tmp_path, clock=FakeClock()) as desk, asyncio.timeout(60):  # midnight never comes
        first = await desk.tasks.submit("x", agent="coder")
        (question,) = await until(desk.approvals.list)
        assert question.question.startswith("Its budget of $2.00 is spent"), "the limit of the agent"
        await desk.approvals.answer(question.id, "stop")
        assert (await desk.tasks.wait(first.id)).outcome == "budget"
        (line,) = re.findall(
            r"^midwatch submit .* --agent coder --budget (\S+) --on-budget ask$", PAGE.read_text(), re.M
        )
        second = await desk.tasks.submit("x", agent="coder", budget=parse_budget(line), on_budget="ask")
        assert "the day's budget of $5.00 is spent" in ((await desk.tasks.wait(second.id)).error or "")
        assert await desk.approvals.list() == [], "nobody is asked about a day"
        third = await desk.tasks.submit("x", agent="coder")

        async def waits() -> bool:
            return (await desk.tasks.get(third.id)).wait == "limit"

        await until(waits)
        assert 5 <= sum(account.usd for account in await desk.store.list_accounts() if account.scope == "day") <= 6


def test_every_example_is_tested() -> None:
    assert set(EXAMPLES) == {*CASES, "night"}

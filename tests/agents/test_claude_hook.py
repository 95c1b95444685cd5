"""Test that rules hold for a real Claude Code that would not ask: its own hook calls `midwatch hook claude`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from agents.known import AGENTS, Known
from agents.rig import Rig, start_rig
from midwatch.cli.hook import build_settings

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def known() -> Known:
    return next(known for known in AGENTS if known.name == "claude")


@pytest.fixture
def kind() -> str:
    return "headless"


def write_settings(timeout: str = "24h") -> str:
    """Return the settings of Claude Code with the hook of this installation."""
    return json.dumps(build_settings(f"{shlex.quote(sys.executable)} -m midwatch", timeout))


async def skipped(rig: Rig, task_id: str) -> list[str]:
    """Return the rules that stopped tools of the task."""
    events = (await rig.client.events(task_id=task_id))["events"]
    return [event["payload"]["rule"] for event in events if event["kind"] == "tool_exec_skipped"]


async def test_rules_hold_where_claude_would_not_ask(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        rules = {"deny": [{"command": "touch unmade.txt"}], "ask": [{"command": "touch asked.txt"}]}
        await rig.restart(permissions="all", args=["--settings", write_settings()], approvals=rules)
        key = await rig.open()

        task_id = await rig.send(key, "[[shell touch made.txt]] [[shell touch unmade.txt]] [[say all done]]")
        task = await rig.wait_for_end(task_id)
        assert "all done" in (task["result"] or ""), rig.tell(task)
        assert (rig.work / "made.txt").exists()
        assert not (rig.work / "unmade.txt").exists()
        assert await skipped(rig, task_id) == ["deny `touch unmade.txt`"]

        task_id = await rig.send(key, "[[shell touch asked.txt]] [[say all done]]")
        question = await rig.wait_for_question(task_id)
        assert question["command"] == "touch asked.txt"
        assert not (rig.work / "asked.txt").exists()
        await rig.client.approve(question["id"])
        task = await rig.wait_for_end(task_id)
        assert (rig.work / "asked.txt").exists(), rig.tell(task)

        # Claude Code runs a tool whose hook takes longer than its timeout, so the hook must end earlier
        await rig.restart(permissions="all", args=["--settings", write_settings("3s")], approvals=rules)
        (rig.work / "asked.txt").unlink()
        task = await rig.wait_for_end(await rig.send(await rig.open(), "[[shell touch asked.txt]] [[say all done]]"))
        assert "all done" in (task["result"] or ""), rig.tell(task)
        assert not (rig.work / "asked.txt").exists()

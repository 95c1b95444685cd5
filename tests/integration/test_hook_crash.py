"""Test a crash at any write of a turn with hooks: a stop is not lost, and nobody gets what a hook withholds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crashing import crash_at_every_write, run_crashes
from fakes import script
from fakes.model_server import Model, serve
from midwatch import Hook, HookDecision, HookMeta, Runtime, Settings
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.llm.tools import Tool, tool
from midwatch.domain.task_store import TaskFilter
from midwatch.stores.sqlite import SqliteStore

Subject = dict[str, Any]
SECRET = "key-4711"
PROMPTS = {
    "tools": "[[tool look {}]] [[tool peek {}]] [[tool leave {}]] [[say done]]",
    "model": "[[play secret]]",
}
DECISIONS = {
    "look": HookDecision.change({"text": "***"}),
    "peek": HookDecision.deny("it has a key"),
    "leave": HookDecision.stop("enough"),
}
"""What the hook decides about the results of the tools. Their calls are not repeated, so a crash can lose a result."""


class Guard(Hook):
    """Decides about results and answers."""

    async def after_model(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        return HookDecision.change({"text": "***"}) if SECRET in subject["text"] else None

    async def after_tool(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        return DECISIONS[subject["tool"]]


def make_tool(name: str) -> Tool:
    async def read() -> str:
        """Reads."""
        return f"the key is {SECRET}"

    return tool(name=name)(read)


async def run_scenario(home: Path, name: str) -> None:
    """Run a turn, or continue it."""
    url, tools = os.environ["MODEL_URL"], map(make_tool, DECISIONS)
    it = LlmAgent("it", "anthropic:fake", base_url=url, tools=tools, terms=LlmAgent.terms._replace(on_crash="resume"))
    settings = Settings.load(home, shutdown_grace=0, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"it": it}, hooks=[Guard()]) as desk, asyncio.timeout(60):
        task = await desk.tasks.submit(PROMPTS[name], agent="it", idempotency_key="1")
        await desk.tasks.wait(task.id)


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Model]:
    """Serve the fake model to the processes of the test."""
    monkeypatch.setitem(script.SCRIPTS, "secret", f"[[think it is {SECRET}]] [[say it is {SECRET}]]")
    async with serve() as (url, model):
        monkeypatch.setenv("MODEL_URL", url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-fake-key")
        yield model


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PROMPTS)
async def test_what_hooks_decide_holds_after_a_crash_at_any_write(tmp_path: Path, fake: Model, name: str) -> None:
    crashes = await run_crashes(__file__, str(tmp_path), name)
    assert SECRET not in json.dumps(fake.requests), "the model got what a hook withholds"
    for crash_at in crashes:
        await check_outcome(tmp_path / str(crash_at), name)


async def check_outcome(home: Path, name: str) -> None:
    """Check the data that a crashed process and its successor left."""
    store = await SqliteStore.open(home / "midwatch.db")
    try:
        (task,) = await store.list_tasks(TaskFilter())
        events = [event.snapshot() for event in await store.read_events(0, limit=2000)]
        steps = [step.data for step in await store.list_task_steps(task.id)]
    finally:
        await store.close()
    assert SECRET not in json.dumps(events)
    if name == "tools":
        assert (task.outcome, task.error) == ("error", "hook Guard stopped the turn: enough"), home
        assert SECRET not in json.dumps(steps)
    else:
        assert (task.outcome, task.result) == ("ok", "***"), home


if __name__ == "__main__":
    crash_at_every_write(run_scenario, Path(sys.argv[1]), sys.argv[2], "before")

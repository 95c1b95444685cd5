"""Test one job through agents of four kinds and back: a function, a command, a model and a program in a terminal."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from fakes.model_server import serve
from midwatch import Runtime, Settings, Turn
from midwatch.agents.function import FunctionAgent
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.registry import build
from midwatch.domain.handoff import HandoffFilter
from midwatch.domain.handoff_history import HandoffContext

ECHO = """
while True:
    print("you said", input("> "), flush=True)
"""
SCRIPT = '[[tool delegate_to_screen {"task": "ping"}]]'
EARLIER = ({"role": "system", "content": "be secret"}, {"role": "user", "content": "We met before."})


async def lead(prompt: str, turn: Turn) -> str:
    handoff = await turn.delegate("program", prompt, context=HandoffContext(messages=EARLIER), timeout=60)
    return f"lead heard: {handoff.output}"


def crew(url: str, workdir: Path) -> dict[str, Any]:
    argv = [sys.executable, "-c", "from midwatch.cli.main import main; main()", "handoff", "to", "model", "-", "--wait"]
    program = build("program", "command", {"argv": argv, "workdir": str(workdir)}, submits=True)
    screen = build("screen", "terminal", {"argv": [sys.executable, "-c", ECHO], "prompt": "^> $"})
    model = LlmAgent("model", "openai:fake", base_url=f"{url}/v1", system="You are a model.", delegates=["screen"])
    return {"lead": FunctionAgent("lead", lead), "program": program, "model": model, "screen": screen}


async def test_a_task_is_handed_through_four_kinds_of_agents_and_back(tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    settings = Settings(home=tmp_path / "home", detect_agents=False, slots=1)  # a waiting task holds no slot
    async with serve() as (url, fake), Runtime.open(settings=settings, agents=crew(url, workdir)) as desk:
        task = await desk.tasks.submit(SCRIPT, agent="lead", workdir=str(workdir))
        async with asyncio.timeout(90):
            task = await desk.tasks.wait(task.id)
        assert task.outcome == "ok", task.error
        assert "lead heard: The tool said: you said ping" in (task.result or "")
        handoffs = await desk.handoffs.list(HandoffFilter(root_id=task.id))
        hops = [
            (handoff.from_agent, handoff.to_agent, handoff.status, len(handoff.chain)) for handoff in reversed(handoffs)
        ]
        assert hops == [
            ("lead", "program", "completed", 1),
            ("program", "model", "completed", 2),
            ("model", "screen", "completed", 3),
        ]
        request = fake.requests[-1]
        assert request["system"] == "You are a model."
        last_text = request["said"][-1]
        assert "We met before." in last_text and "be secret" not in last_text  # a program gets the history as text
        assert last_text.count(SCRIPT) == 1
        last = await desk.tasks.get(handoffs[0].task_id or "")
        assert last.prompt == "ping"

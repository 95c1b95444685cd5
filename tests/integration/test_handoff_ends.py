"""What becomes of handed-over work when the task it came from ends first, or is cut off by the death of its process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from midwatch.agent import Turn
from midwatch.agents.function import FunctionAgent
from midwatch.config import Settings
from midwatch.handoff import Handoff
from midwatch.runtime import Runtime
from midwatch.task import AgentTerms

FRAGILE = AgentTerms(on_crash="fail", slots=8)
DIES = """
import asyncio, os, signal, sys
sys.path.insert(0, {tests!r})
from midwatch.config import Settings
from midwatch.runtime import Runtime
from integration.test_handoff_ends import crew

async def main():
    async def target(prompt):
        begun.append(prompt)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()

    begun = []
    async with Runtime.open(settings=Settings(home={home!r}, detect_agents=False), agents=crew(target)) as desk:
        await desk.tasks.submit("go", agent="lead")
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def lead(prompt: str, turn: Turn) -> str:
    """Has one thing done for whoever wants it, and waits for another."""
    await turn.delegate("target", "for others", wait=False)
    return str((await turn.delegate("target", "for me")).output)


def crew(target: Any) -> dict[str, Any]:
    return {
        "lead": FunctionAgent("lead", lead, on_loop=True, terms=FRAGILE),
        "target": FunctionAgent("target", target, on_loop=True),
    }


async def made_by(desk: Runtime) -> dict[str, Handoff]:
    return {one.work.description: one for one in await desk.handoffs.list()}


async def test_what_a_lost_task_waited_for_is_called_off_and_the_rest_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = DIES.format(tests=str(Path(__file__).parents[1]), home=str(home))
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        assert await asyncio.wait_for(child.wait(), 60) == -9
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()

    async def target(prompt: str) -> str:
        return f"did it: {prompt}"

    async with Runtime.open(settings=Settings(home=home, detect_agents=False), agents=crew(target)) as desk:
        made = await made_by(desk)
        source = await desk.tasks.wait(made["for me"].source_task or "")
        assert (source.status, source.outcome) == ("failed", "lost")
        mine = await desk.handoffs.get(made["for me"].id)
        assert (mine.status, mine.reason) == ("cancelled", "the task that waited for it has ended")
        assert (await asyncio.wait_for(desk.tasks.wait(mine.task_id or ""), 10)).status == "cancelled"
        others = await asyncio.wait_for(desk.handoffs.wait(made["for others"].id), 10)
        assert others.output == "did it: for others"

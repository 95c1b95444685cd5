"""Run a desk whose work asks for a larger budget, in a process of its own, for a test that kills it.

Run as a program: `python asking_desk.py HOME [DB]`. It submits a task that delegates to three agents at the same time,
and prints a line when all three wait for an answer.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from midwatch import Runtime, Settings, Turn, TurnResult
from midwatch.agents.function import FunctionAgent
from midwatch.base.clock import Clock, SystemClock
from midwatch.domain.event import LlmRequest, LlmResponse

PARTS = 3
TIMEOUT = 300.0
CALL = 100


async def spend(prompt: str, turn: Turn) -> TurnResult:
    """Call a model until the budget is spent; after a crash, do nothing and never end."""
    if turn.attempt > 1:
        await asyncio.Event().wait()
    while (await turn.reserve()).action == "go_on":
        await turn.emit(LlmRequest(model="m", messages_count=1, tools_count=0))
        await turn.emit(LlmResponse(model="m", usage={"input_tokens": CALL}, finish_reason="stop"))
    return TurnResult(outcome="budget", error="spent")


async def lead(prompt: str, turn: Turn) -> str:
    """Delegate all parts at the same time."""
    parts = [turn.delegate("it", f"part {number}", timeout=TIMEOUT) for number in range(PARTS)]
    return ", ".join(type(part).__name__ for part in await asyncio.gather(*parts, return_exceptions=True))


def open_desk(home: Path, db: str | None, clock: Clock | None = None) -> Any:
    """Open the desk with its agents."""
    agents = {name: FunctionAgent(name, work, on_loop=True) for name, work in (("lead", lead), ("it", spend))}
    settings = Settings(home=home, slots=8, detect_agents=False, db=db, shutdown_grace=0.0)
    return Runtime.open(settings=settings, agents=agents, clock=clock)


async def main(home: Path, db: str | None) -> None:
    """Submit the task, say when its delegates wait, and go on until the process is killed."""
    async with open_desk(home, db, SystemClock()) as desk:
        budget = {"tokens": 4 * CALL}
        await desk.tasks.submit("x", agent="lead", budget=budget, on_budget="ask", on_crash="rerun")
        while [task.wait for task in await desk.tasks.list() if task.agent == "it"] != ["approval"] * PARTS:
            await asyncio.sleep(0.01)
        print("asked", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), (sys.argv[2:] or [None])[0]))

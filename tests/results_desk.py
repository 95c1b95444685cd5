"""Run a desk whose model starts background work in a process of its own, for tests that kill it.

Run as a program: `python results_desk.py HOME MODEL_URL COUNT [DATABASE]`. Each of COUNT conversations starts two
background tasks, and the process exits when nothing is left to do.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from midwatch import Runtime, Settings, Turn
from midwatch.agents.function import FunctionAgent
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.llm.tools import tool

NAMES = ("a", "b")


def prompt(number: int) -> str:
    """Return the prompt of a conversation."""
    return f'turn-{number}: [[also start {{"name": "{number}a"}}]] [[tool start {{"name": "{number}b"}}]] [[say end]]'


async def main(home: Path, url: str, count: int, database: str | None) -> None:
    """Submit the conversations that are missing, and wait until all work has ended."""

    @tool(safe=True)
    async def start(name: str, turn: Turn) -> str:
        """Starts background work."""
        return (await turn.delegate("worker", name, wait=False, wake=True, once=name)).id

    agents: dict[str, Any] = {
        "it": LlmAgent("it", "openai:fake", base_url=f"{url}/v1", tools=[start]),
        "worker": FunctionAgent("worker", lambda name: f"result-{name}"),
    }
    db = {"db": database} if database else {}
    settings = Settings.load(home, slots=16, detect_agents=False, **db)
    async with Runtime.open(settings=settings, agents=agents) as desk:
        for number in range(count):
            key = f"turn-{number}"
            await desk.tasks.submit(prompt(number), agent="it", session_key=f"chat:{number}", idempotency_key=key)
        while await desk.tasks.active_count():
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *(sys.argv[4:] or [None])))

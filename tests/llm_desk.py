"""Run a desk whose agent is a model in a process of its own, for tests that kill it.

Run as a program: `python llm_desk.py HOME MODEL_URL NOTES COUNT`. It submits COUNT tasks once and exits when all have
ended. Each has ten steps; in each its tool writes a line to NOTES.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from midwatch import Runtime, Settings
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.llm.tools import tool

STEPS = 10


def prompt(number: int) -> str:
    """Return the prompt of a task."""
    calls = " ".join(f'[[tool note {{"line": "{number} {step}"}}]]' for step in range(STEPS))
    return f"turn-{number}: {calls} [[say the end]]"


async def main(home: Path, url: str, notes: Path, count: int) -> None:
    """Submit the tasks that are missing, and wait for all of them."""

    @tool
    async def note(line: str) -> str:
        """Writes a line."""
        file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line}\n".encode())
        os.close(file)
        await asyncio.sleep(0.005)
        return f"wrote {line}"

    agent = LlmAgent("it", "openai:fake", base_url=f"{url}/v1", tools=[note])
    settings = Settings(home=home, slots=16, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"it": agent}) as desk:
        tasks = [
            await desk.tasks.submit(prompt(number), agent="it", idempotency_key=f"turn-{number}")
            for number in range(count)
        ]
        for task in tasks:
            await desk.tasks.wait(task.id)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))

"""Run a desk whose agents hand off work in a process of its own, for tests that kill it.

Run as a program: `python handoff_desk.py HOME NOTES COUNT`. It submits COUNT tasks once and exits when all have ended.
Half of them delegate and answer with the results, the others transfer.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from midwatch import Runtime, Settings, Turn, TurnResult
from midwatch.agents.function import FunctionAgent


async def lead(prompt: str, turn: Turn) -> str:
    """Delegate two parts."""
    handoffs = [await turn.delegate("worker", f"{prompt}/{part}") for part in ("a", "b")]
    return " ".join(str(handoff.output) for handoff in handoffs)


async def triage(prompt: str, turn: Turn) -> TurnResult:
    """Transfer the task."""
    return TurnResult(outcome="transferred", transfer=await turn.transfer("worker"))


async def main(home: Path, notes: Path, count: int) -> None:
    """Submit the tasks that are missing, and wait for all of them."""

    async def worker(prompt: str) -> str:
        file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{prompt}\n".encode())
        os.close(file)
        await asyncio.sleep(0.02)
        return f"did {prompt}"

    work = {"lead": lead, "triage": triage, "worker": worker}
    agents = {name: FunctionAgent(name, function, on_loop=True) for name, function in work.items()}
    settings = Settings(home=home, slots=4, detect_agents=False)
    async with Runtime.open(settings=settings, agents=agents) as desk:
        tasks = [
            await desk.tasks.submit(f"w{n}", agent=("lead", "triage")[n % 2], idempotency_key=f"w{n}")
            for n in range(count)
        ]
        for task in tasks:
            await desk.tasks.wait(task.id)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))

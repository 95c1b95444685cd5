"""Run a desk whose agents spend one budget, in a process of its own, for tests that kill it.

Run as a program: `python budget_desk.py HOME NOTES LIMIT [DB]`. It submits one task once and exits when it has ended.
The task delegates to six agents at the same time, one of which transfers its work. Each call of a model writes a line
to NOTES after it was reserved.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from midwatch import Runtime, Settings, Turn, TurnResult
from midwatch.agents.function import FunctionAgent
from midwatch.domain.event import LlmRequest, LlmResponse

CALL = 100
PARTS = 6


async def main(home: Path, notes: Path, limit: int, db: str | None) -> None:
    """Submit the task, if it is missing, and wait for it."""

    async def spend(prompt: str, turn: Turn) -> TurnResult:
        for number in range(40):
            if (await turn.reserve()).action != "go_on":
                return TurnResult(outcome="budget", error="spent")
            file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{turn.task_id} {turn.attempt} {number}\n".encode())
            os.close(file)
            await turn.emit(LlmRequest(model="m", messages_count=1, tools_count=0, request_id=f"r{number}"))
            await asyncio.sleep(0.005)
            usage = {"input_tokens": CALL}
            await turn.emit(LlmResponse(model="m", usage=usage, finish_reason="stop", request_id=f"r{number}"))
        return TurnResult(text="all of it")

    async def move(prompt: str, turn: Turn) -> TurnResult:
        return TurnResult(outcome="transferred", transfer=await turn.transfer("spender"))

    async def lead(prompt: str, turn: Turn) -> str:
        targets = ["mover", *["spender"] * (PARTS - 1)]
        parts = [turn.delegate(to, f"part {number}") for number, to in enumerate(targets)]
        return str(len(await asyncio.gather(*parts, return_exceptions=True)))

    work = {"lead": lead, "mover": move, "spender": spend}
    agents = {name: FunctionAgent(name, function, on_loop=True) for name, function in work.items()}
    settings = Settings(home=home, slots=8, detect_agents=False, db=db, shutdown_grace=0.0)
    async with Runtime.open(settings=settings, agents=agents) as desk:
        budget = {"steps": limit, "tokens": CALL * limit * 2}
        task = await desk.tasks.submit("x", agent="lead", budget=budget, idempotency_key="root", on_crash="rerun")
        await desk.tasks.wait(task.id)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(Path(arguments[0]), Path(arguments[1]), int(arguments[2]), (arguments[3:] or [None])[0]))

"""Run a desk that works on trees with budgets, in a process of its own, for tests that kill it.

Run as a program: `python budget_desk.py FOLDER HOME [DB]`. The file FOLDER/trees has a line of JSON for each tree: its
work and its limits. The file FOLDER/day may have the budget of the day as JSON. When FOLDER/go exists, the program
submits each tree once. It exits when all of them have ended. Each call of a model writes a line to FOLDER/notes after
it was reserved.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from midwatch import Runtime, Settings, Turn, TurnResult
from midwatch.agents.function import FunctionAgent
from midwatch.domain.agent import AgentTerms
from midwatch.domain.event import LlmRequest, LlmResponse

CALL = 10
"""The tokens of each call of the model."""
SLOTS = 8
DAY: Any = {"tokens": 10**9}
"""The budget of the day without the file `day`. It is not reached."""
TERMS = AgentTerms(on_crash="rerun")


async def work(turn: Any, call: Callable[[Turn], Awaitable[None]]) -> TurnResult:
    """Make the calls of a node of a tree, wait for the nodes that run in parallel, then transfer the rest.

    The prompt is the node as JSON.
    """
    node, other = json.loads(turn.prompt), "b" if turn.task.agent == "a" else "a"
    for _ in range(node["calls"]):
        if (await turn.reserve()).action != "go_on":
            return TurnResult(outcome="budget", error="spent")
        await call(turn)
    parts = [
        turn.delegate(other, json.dumps(part), once=f"{number}") for number, part in enumerate(node.get("parallel", ()))
    ]
    await asyncio.gather(*parts, return_exceptions=True)
    if "transfer" in node:
        return TurnResult(outcome="transferred", transfer=await turn.transfer(other, json.dumps(node["transfer"])))
    return TurnResult(text="done")


async def start_call(turn: Turn, name: str) -> None:
    """Report the start of a call of the model."""
    await turn.emit(LlmRequest(model="m", messages_count=1, tools_count=0, request_id=name))


async def end_call(turn: Turn, name: str) -> None:
    """Report the end of a call, with its usage."""
    usage = {"input_tokens": CALL}
    await turn.emit(LlmResponse(model="m", usage=usage, finish_reason="stop", request_id=name))


async def main(folder: Path, home: Path, db: str | None) -> None:
    """Submit the trees that are missing, and wait for all of them."""
    notes = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def call(turn: Turn) -> None:
        account = turn.task.account  # type: ignore[attr-defined]  # a live turn has its task
        os.write(notes, f"{account} {os.getpid()}\n".encode())
        name = os.urandom(8).hex()
        await start_call(turn, name)
        await asyncio.sleep(0.005)
        await end_call(turn, name)

    async def run(prompt: str, turn: Turn) -> TurnResult:
        return await work(turn, call)

    agents = {name: FunctionAgent(name, run, on_loop=True, terms=TERMS) for name in ("a", "b")}
    day = json.loads((folder / "day").read_text()) if (folder / "day").exists() else DAY
    settings = Settings(home=home, slots=SLOTS, detect_agents=False, db=db, shutdown_grace=0.0, day_budget=day)
    async with Runtime.open(settings=settings, agents=agents) as desk:
        (home / "ready").touch()
        while not (folder / "go").exists():
            await asyncio.sleep(0.01)
        wishes = [json.loads(line) for line in (folder / "trees").read_text().splitlines()]
        tasks = [
            await desk.tasks.submit(json.dumps(tree), agent="a", budget=limits, idempotency_key=f"{number}")
            for number, (tree, limits) in enumerate(wishes)
        ]
        for task in tasks:
            await desk.tasks.wait(task.id)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3:] or [None])[0]))

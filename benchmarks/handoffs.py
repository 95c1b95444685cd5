"""What handing work over costs: `make bench-handoffs`, or `python -m benchmarks.handoffs [--count N]`.

A source that does nothing but delegate to a target that does nothing, against two plain tasks of the same agents, one
after another, on SQLite with every step on disk; and 200 sources at once through ten slots. Prints a table and one JSON
object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness import json_line, print_table, sync_milliseconds
from midwatch import Runtime, Settings, Turn
from midwatch.agents.function import FunctionAgent

TARGET_MS = 5.0
AT_ONCE = 200


async def target(prompt: str) -> str:
    """Does nothing."""
    return prompt


async def source(prompt: str, turn: Turn) -> str:
    """Has it done."""
    return str((await turn.delegate("target", prompt)).output)


async def one(desk: Runtime, agent: str) -> float:
    """Milliseconds from handing in a task to its end."""
    began = time.perf_counter()
    await desk.tasks.wait((await desk.tasks.submit("x", agent=agent)).id)
    return (time.perf_counter() - began) * 1000


async def measure(folder: Path, count: int) -> dict[str, float]:
    """The figures."""
    agents = {name: FunctionAgent(name, work, on_loop=True) for name, work in (("target", target), ("source", source))}
    settings = Settings(home=folder, slots=10, detect_agents=False)
    async with Runtime.open(settings=settings, agents=agents) as desk:
        for name in agents:
            await one(desk, name)
        plain, handed = [], []
        for _ in range(count):  # in turns, so that what else goes on meets both
            plain.append(await one(desk, "target"))
            handed.append(await one(desk, "source"))
        began = time.perf_counter()
        many = [await desk.tasks.submit("x", agent="source") for _ in range(AT_ONCE)]
        for task in many:
            await desk.tasks.wait(task.id)
        at_once = time.perf_counter() - began
    task_ms, handoff_ms = statistics.median(plain), statistics.median(handed)
    return {
        "sync_ms": sync_milliseconds(folder),
        "task_ms": task_ms,
        "with_handoff_ms": handoff_ms,
        "overhead_ms": handoff_ms - 2 * task_ms,
        "at_once_s": at_once,
    }


def main() -> None:
    """Run it."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=300)
    count = asked.parse_args().count
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-") as folder:
        figures = asyncio.run(measure(Path(folder), count))
    print_table(("figure", "value"), [(name, f"{value:.2f}") for name, value in figures.items()])
    if figures["overhead_ms"] > TARGET_MS:
        print(f"a handoff costs more than {TARGET_MS:g} ms beside its task: {figures['overhead_ms']:.1f} ms")
    print(json_line({"benchmark": "handoffs", **figures}))


if __name__ == "__main__":
    main()

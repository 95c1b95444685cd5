"""Measure the cost of handoffs: `make bench-handoffs`, or `python -m benchmarks.handoffs [--count N]`.

A source that only delegates to a target that does nothing is compared with two plain tasks of the same agents, one
after another, on SQLite with every step on disk; then 200 sources run at once in ten slots. It prints a table and one
JSON object as its last line.
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

TARGET_MS = 4.0
AT_ONCE = 200


async def target(prompt: str) -> str:
    """Do nothing."""
    return prompt


async def source(prompt: str, turn: Turn) -> str:
    """Delegate to the target."""
    return str((await turn.delegate("target", prompt)).output)


async def time_task(desk: Runtime, agent: str) -> tuple[float, float]:
    """Return the milliseconds from the submission of a task to its end, and the milliseconds of CPU meanwhile."""
    began, cpu = time.perf_counter(), time.process_time()
    await desk.tasks.wait((await desk.tasks.submit("x", agent=agent)).id)
    return (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000


async def measure(folder: Path, count: int) -> dict[str, float]:
    """Return the figures."""
    agents = {name: FunctionAgent(name, work, on_loop=True) for name, work in (("target", target), ("source", source))}
    settings = Settings(home=folder, slots=10, detect_agents=False)
    async with Runtime.open(settings=settings, agents=agents) as desk:
        for name in agents:
            await time_task(desk, name)
        plain, handed = [], []
        for _ in range(count):  # alternately, so that other load on the machine affects both
            plain.append(await time_task(desk, "target"))
            handed.append(await time_task(desk, "source"))
        began = time.perf_counter()
        many = [await desk.tasks.submit("x", agent="source") for _ in range(AT_ONCE)]
        for task in many:
            await desk.tasks.wait(task.id)
        at_once = time.perf_counter() - began
    task_ms, task_cpu_ms = map(statistics.median, zip(*plain, strict=True))
    handoff_ms, handoff_cpu_ms = map(statistics.median, zip(*handed, strict=True))
    return {
        "sync_ms": sync_milliseconds(folder),
        "task_ms": task_ms,
        "with_handoff_ms": handoff_ms,
        "overhead_ms": handoff_ms - 2 * task_ms,
        "overhead_cpu_ms": handoff_cpu_ms - 2 * task_cpu_ms,
        "overhead_ratio": handoff_ms / task_ms - 2,
        "at_once_s": at_once,
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-") as folder:
        figures = asyncio.run(measure(Path(folder), count))
    print_table(("figure", "value"), [(name, f"{value:.2f}") for name, value in figures.items()])
    if figures["overhead_ms"] > TARGET_MS:
        print(f"MISSED: overhead_ms is {figures['overhead_ms']:.1f}, the target is at most {TARGET_MS:g}.")
    print(json_line({"benchmark": "handoffs", **figures}))


if __name__ == "__main__":
    main()

"""Measure agents that use ACP: `make bench-acp`.

It measures the CPU use of twenty idle conversations, and the time midwatch adds to a turn with an agent that answers at
once. It prints a table, a sentence for every missed target, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.harness import busy_seconds, json_line, percentile, print_table, tree_seconds
from midwatch import Runtime, Settings
from midwatch.agents.acp.kind import AcpAgent
from midwatch.agents.acp.options import AcpOptions
from midwatch.testing import RecordingTurn

FAKE = Path(__file__).parents[1] / "tests" / "fakes" / "acp_agent.py"
SESSIONS, IDLE_SECONDS, TURNS, WARM = 20, 20.0, 200, 5
TARGETS = {"idle_percent": 1.0}
"""The maximum of each figure."""


def agent(memory: str) -> AcpAgent:
    """Return an agent that answers at once."""
    argv = (sys.executable, str(FAKE), "--memory", memory)
    return AcpAgent("fake", AcpOptions(argv=argv, workdir=memory))


async def measure_cpu(seconds: float) -> tuple[float, float]:
    """Return the percentage of a core that this process with its children uses while idle, and that of others."""
    before, all_before, began = tree_seconds(os.getpid()), busy_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    spent, took = tree_seconds(os.getpid()) - before, time.monotonic() - began
    return 100 * spent / took, (busy_seconds() - all_before - spent) / took


async def measure_idle(folder: str, sessions: int, seconds: float) -> dict[str, Any]:
    """Measure a desk without conversations and with many idle ones."""
    settings = Settings.load(folder, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"fake": agent(folder)}) as desk:
        await asyncio.sleep(1.0)
        alone, _ = await measure_cpu(seconds)
        for number in range(sessions):
            await desk.sessions.create(agent="fake", key=f"bench:{number}")
            await desk.tasks.wait((await desk.sessions.send(f"bench:{number}", "hello")).id)
        await asyncio.sleep(1.0)
        open_now, foreign = await measure_cpu(seconds)
        took = []
        for number in range(TURNS + WARM):
            began = time.perf_counter()
            await desk.tasks.wait((await desk.sessions.send("bench:0", f"number {number}")).id)
            took.append((time.perf_counter() - began) * 1e3)
    return {
        "desk_percent": alone, "idle_percent": open_now, "foreign_cores": foreign,
        "turn_ms": statistics.median(took[WARM:]), "turn_p99_ms": percentile(took[WARM:], 0.99),
    }  # fmt: skip


async def measure_turns(folder: str) -> dict[str, Any]:
    """Measure a turn without the desk, and the start of a conversation."""
    began = time.perf_counter()
    talk = await agent(folder).open(RecordingTurn().session())
    await talk.turn(RecordingTurn("hello"))
    start = time.perf_counter() - began
    took = []
    for number in range(TURNS + WARM):
        began = time.perf_counter()
        await talk.turn(RecordingTurn(f"number {number}"))
        took.append((time.perf_counter() - began) * 1e3)
    began = time.perf_counter()
    await talk.turn(RecordingTurn("[[flood 50000]]"))
    flood = 50_000 / (time.perf_counter() - began)
    await talk.close()
    return {"start_ms": start * 1e3, "prompt_ms": statistics.median(took[WARM:]), "updates_per_s": flood}


def print_results(figures: dict[str, Any], sessions: int) -> None:
    """Print the table and the missed targets."""
    print_table(
        ("figure", "value"),
        [
            (f"{sessions} idle conversations and the desk, percent of a core", f"{figures['idle_percent']:.2f}"),
            ("the desk alone, percent of a core", f"{figures['desk_percent']:.2f}"),
            ("a turn in an open conversation through the desk, ms", f"{figures['turn_ms']:.1f}"),
            ("the same, 99th percentile, ms", f"{figures['turn_p99_ms']:.1f}"),
            ("a turn in an open conversation without the desk, ms", f"{figures['prompt_ms']:.2f}"),
            ("start, session and first answer of the fake, ms", f"{figures['start_ms']:.0f}"),
            ("updates received per second", f"{figures['updates_per_s']:.0f}"),
        ],
    )
    for name, most in TARGETS.items():
        if figures[name] > most:
            print(f"MISSED: {name} is {figures[name]:.2f}, the target is at most {most:g}.")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--seconds", type=float, default=IDLE_SECONDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = uvloop.run(measure_turns(folder))
        figures |= uvloop.run(measure_idle(folder, arguments.sessions, arguments.seconds))
    print_results(figures, arguments.sessions)
    print(json_line(figures))


if __name__ == "__main__":
    main()

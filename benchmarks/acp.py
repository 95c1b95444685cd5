"""Agents that speak ACP: `make bench-acp`.

What twenty conversations cost while they wait, and what midwatch adds to a turn, with an agent that answers at once.
Prints a table, a sentence for every target that was missed, and one JSON object as its last line.
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
"""What each figure is to be at most."""


def agent(memory: str) -> AcpAgent:
    """One that answers at once."""
    argv = (sys.executable, str(FAKE), "--memory", memory)
    return AcpAgent("fake", AcpOptions(argv=argv, workdir=memory))


async def idle(seconds: float) -> tuple[float, float]:
    """Percent of a core this process and its children take while nothing happens, and what others take."""
    before, all_before, began = tree_seconds(os.getpid()), busy_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    spent, took = tree_seconds(os.getpid()) - before, time.monotonic() - began
    return 100 * spent / took, (busy_seconds() - all_before - spent) / took


async def waiting(place: str, sessions: int, seconds: float) -> dict[str, Any]:
    """A desk without conversations, and with many that wait."""
    settings = Settings.load(place, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"fake": agent(place)}) as desk:
        await asyncio.sleep(1.0)
        alone, _ = await idle(seconds)
        for number in range(sessions):
            await desk.sessions.create(agent="fake", key=f"bench:{number}")
            await desk.tasks.wait((await desk.sessions.send(f"bench:{number}", "hello")).id)
        await asyncio.sleep(1.0)
        open_now, foreign = await idle(seconds)
        took = []
        for number in range(TURNS + WARM):
            began = time.perf_counter()
            await desk.tasks.wait((await desk.sessions.send("bench:0", f"number {number}")).id)
            took.append((time.perf_counter() - began) * 1e3)
    return {
        "desk_percent": alone, "idle_percent": open_now, "foreign_cores": foreign,
        "turn_ms": statistics.median(took[WARM:]), "turn_p99_ms": percentile(took[WARM:], 0.99),
    }  # fmt: skip


async def prompts(place: str) -> dict[str, Any]:
    """A turn without the desk, and the beginning of a conversation."""
    began = time.perf_counter()
    talk = await agent(place).open(RecordingTurn().session())
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


def tell(found: dict[str, Any], sessions: int) -> None:
    """The table, and what was missed."""
    print_table(
        ("figure", "value"),
        [
            (f"{sessions} conversations that wait, and the desk, percent of a core", f"{found['idle_percent']:.2f}"),
            ("the desk alone, percent of a core", f"{found['desk_percent']:.2f}"),
            ("a turn in an open conversation through the desk, ms", f"{found['turn_ms']:.1f}"),
            ("the same, 99 of 100, ms", f"{found['turn_p99_ms']:.1f}"),
            ("a turn in an open conversation without the desk, ms", f"{found['prompt_ms']:.2f}"),
            ("start, session and first answer of the fake, ms", f"{found['start_ms']:.0f}"),
            ("updates taken in, per second", f"{found['updates_per_s']:.0f}"),
        ],
    )
    for name, most in TARGETS.items():
        if found[name] > most:
            print(f"missed: {name} is {found[name]:.2f}, at most {most:g} was wanted.")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--seconds", type=float, default=IDLE_SECONDS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = uvloop.run(prompts(place))
        found |= uvloop.run(waiting(place, asked.sessions, asked.seconds))
    tell(found, asked.sessions)
    print(json_line(found))


if __name__ == "__main__":
    main()

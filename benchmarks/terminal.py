"""Measure agents in a terminal: `make bench-terminal`.

It measures the time midwatch adds to a turn of a program that answers at once, the cost of ten idle terminals, and long
and slow replies; and with the installed real agents, how soon midwatch notices that they have finished. It prints a
table, a sentence for every missed target, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.harness import NOISY_CORES, busy_seconds, json_line, print_table, tree_seconds
from midwatch import Runtime, Settings
from midwatch.agents.registry import build
from midwatch.api.sse import Shape, encode
from midwatch.domain.agent import Answer, Question
from midwatch.domain.event import EventFilter
from midwatch.testing import RecordingTurn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SESSIONS, TURNS, LINES, REPEATS = 10, 30, 50_000, 3
TARGETS = {
    "turn_p50_s": 0.2,
    "idle_percent": 1.0,
    "flood_s": 1.0,
    "flood_lines_lost": 0,
    "wire_ratio": 2.0,
    "finished_to_idle_max_s": 0.7,
    "false_idle": 0,
}
"""The maximum of each figure."""
ECHO = """
import sys, time
while True:
    said = input("> ")
    if said == "flood": print("\\n".join(f"line {n} of a flood" for n in range(50000)))
    elif said == "stream":
        for n in range(900): print(f"{n:4} " + "x" * 76, flush=True); time.sleep(0.005)
    else: print("you said", said)
"""


def settings(folder: str) -> Settings:
    """Return the settings of a desk with the echo program in a terminal."""
    echo = {"kind": "terminal", "argv": [sys.executable, "-c", ECHO], "prompt": "^> $", "slots": SESSIONS}
    return Settings.load(folder, detect_agents=False, agents={"echo": echo}, default_agent="echo")


async def say(desk: Runtime, key: str, text: str) -> str:
    """Run a turn and return its reply."""
    task = await desk.tasks.wait((await desk.sessions.send(key, text)).id)
    assert task.status == "done", task.error
    return task.result or ""


async def time_turn(desk: Runtime, key: str, text: str) -> tuple[float, str]:
    """Return the seconds from sending to the end of the turn, and the reply."""
    began = time.perf_counter()
    answer = await say(desk, key, text)
    return time.perf_counter() - began, answer


async def measure_echo(folder: str, idle_seconds: float) -> dict[str, Any]:
    """Measure everything that needs no real agent."""
    async with Runtime.open(settings=settings(folder)) as desk:
        own = psutil.Process()
        await desk.sessions.create(key="bench:warm")
        await say(desk, "bench:warm", "hello")
        memory = own.memory_info().rss
        for number in range(SESSIONS):
            await desk.sessions.create(key=f"bench:{number}")
            await say(desk, f"bench:{number}", "hello")
        grown = (own.memory_info().rss - memory) / SESSIONS / 1024
        await asyncio.sleep(1.0)
        spent, busy, began = tree_seconds(os.getpid()), busy_seconds(), time.monotonic()
        await asyncio.sleep(idle_seconds)
        idle, took = tree_seconds(os.getpid()) - spent, time.monotonic() - began
        other_cores = (busy_seconds() - busy - idle) / took
        turns = [(await time_turn(desk, "bench:0", f"turn {n}"))[0] for n in range(TURNS)]
        began = time.perf_counter()
        await asyncio.gather(*(say(desk, f"bench:{n}", "at once") for n in range(SESSIONS)))
        parallel = time.perf_counter() - began
        floods = [await time_turn(desk, "bench:1", "flood") for _ in range(REPEATS)]
        expected = [f"line {n} of a flood" for n in range(LINES)]
        lost = sum(len(set(expected) - set(text.split("\n"))) + (text.split("\n") != expected) for _, text in floods)
        return {
            "turn_p50_s": round(statistics.median(turns), 3),
            "turn_max_s": round(max(turns), 3),
            "ten_turns_at_once_s": round(parallel, 3),
            "idle_percent": round(100 * idle / took, 3),
            "memory_per_session_kb": round(grown),
            "flood_s": round(statistics.median(took for took, _ in floods), 3),
            "flood_lines_lost": lost,
            "others_cores": round(other_cores, 2),
            **await measure_stream(desk),
        }


async def measure_stream(desk: Runtime) -> dict[str, Any]:
    """Return the bytes sent to a watcher of the live stream for a reply of 73 KB, relative to its size."""
    sizes: Counter[str] = Counter()

    async def watch() -> None:
        which = EventFilter(session_key="bench:2")
        async with aclosing(desk.bus.follow(desk.bus.known_seq, which, live=True)) as following:
            async for event in following:
                sizes[event.kind] += len(encode(event, Shape(brief=True, scoped=True)))

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.1)
    reply = await say(desk, "bench:2", "stream")
    await asyncio.sleep(0.3)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    size = len(reply.encode())
    return {
        "reply_bytes": size,
        "wire_ratio": round(sum(sizes.values()) / size, 2),
        "of_it_screens": round(sizes["screen_update"] / size, 2),
    }


class GrantingTurn(RecordingTurn):
    """A turn that grants every request."""

    async def ask(self, question: str | Question, *_: Any, **__: Any) -> Answer:
        assert isinstance(question, Question)
        return Answer("granted", next(choice.name for choice in question.choices if choice.allows))


async def measure_agent(agent: Any, folder: Path) -> dict[str, Any]:
    """Measure how soon an agent counts as idle after its model has finished, and how often that was too early."""
    serve = import_module("fakes.model_server").serve
    work = folder / "project"
    work.mkdir(parents=True)
    late, false = [], 0
    async with serve() as (url, model):
        env = agent.environment(folder / "home", url)
        options = {**agent.settings("terminal"), "workdir": str(work)}
        options["env"] = {k: v for k, v in env.items() if k not in ("TERM", "NO_COLOR")} | options.get("env", {})
        del options["kind"]
        talk = await build(agent.name, "terminal", options).open(RecordingTurn().session())
        try:
            began = time.perf_counter()
            await talk.turn(GrantingTurn("[[say ready]]"))
            start = time.perf_counter() - began
            for number, seconds in enumerate((0.5, 0.5, 3.0, 6.0)):
                turn = asyncio.create_task(
                    talk.turn(GrantingTurn(f"Turn {number} [[hold n{number}]] [[say finished]]"))
                )
                await model.until(lambda current, name=f"n{number}": name in current.held, 60.0)
                await asyncio.sleep(seconds)
                false += turn.done()
                model.release(f"n{number}")
                began = time.perf_counter()
                text = (await turn).text
                late.append(time.perf_counter() - began)
                assert "finished" in text, text
        finally:
            await talk.close()
    return {"start": start, "p50": statistics.median(late), "max": max(late), "false": false}


async def main(idle_seconds: float, agents: bool) -> None:
    """Measure and print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        figures = await measure_echo(folder, idle_seconds)
    rows = [(name, f"{value}", f"{TARGETS[name]}" if name in TARGETS else "") for name, value in figures.items()]
    print_table(("echo agent", "figure", "at most"), rows)
    if agents:
        agents_known = import_module("agents.known")
        tried: dict[str, dict[str, Any]] = {}
        agent_rows: list[tuple[str, ...]] = []
        for agent in agents_known.AGENTS:
            if agent.name in ("claude", "codex", "gemini", "goose") and agents_known.program(agent.name):
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    agent_figures = tried[agent.name] = await measure_agent(agent, Path(folder))
                cells = (f"{agent_figures[name]:.2f}" for name in ("start", "p50", "max"))
                agent_rows.append((f"{agent.name} {agent.version}", *cells, f"{agent_figures['false']}"))
        print_table(("agent", "first turn s", "finished to idle p50 s", "max s", "false idle"), agent_rows)
        figures |= {
            "agents": {
                name: {k: round(v, 3) for k, v in agent_figures.items()} for name, agent_figures in tried.items()
            },
            "finished_to_idle_max_s": round(
                max((agent_figures["max"] for agent_figures in tried.values()), default=0.0), 3
            ),
            "false_idle": sum(agent_figures["false"] for agent_figures in tried.values()),
        }
    for name, target in TARGETS.items():
        if name in figures and figures[name] > target:
            print(f"MISSED: {name} is {figures[name]}, the target is {target}.")
    if figures["others_cores"] > NOISY_CORES:
        print(f"DISTURBED: other processes used {figures['others_cores']:.2f} cores.")
    print(json_line(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--no-agents", action="store_true", help="without real agents")
    chosen = parser.parse_args()
    uvloop.run(main(chosen.idle_seconds, not chosen.no_agents))

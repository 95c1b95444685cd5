"""Measure events in one process: the CPU cost of one event from the turn to its subscribers, and the throughput.

    python -m benchmarks.events [--events 20000] [--rate 10000] [--seconds 5] [--subscribers 10] [--dir /var/tmp]

A real turn emits model and tool calls into a store with `synchronous = FULL`. The CPU time is that of the whole
process, including the store's writer thread.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.harness import NOISY_CORES, busy_seconds, json_line, percentile, print_table
from midwatch.agents.function import FunctionAgent
from midwatch.desk.config import Settings
from midwatch.domain.agent import Turn
from midwatch.domain.event import Event, EventFilter, LlmRequest, LlmResponse, Payload, ToolExecEnd, ToolExecStart
from midwatch.runtime.runtime import Runtime, collect_garbage_seldom

TARGETS = {"cpu_us_per_event": 100.0, "lost": 0.0}
STEP: tuple[Payload, ...] = (
    LlmRequest(model="openai:gpt", messages_count=12, tools_count=5, max_tokens=4096, request_id="r_1"),
    LlmResponse(
        model="openai:gpt", content_len=420, tool_calls=1, has_reasoning=False, finish_reason="tool_calls",
        usage={"input_tokens": 1200, "output_tokens": 85}, latency=1.25, request_id="r_1",
    ),
    ToolExecStart(tool="read_file", arguments={"path": "src/main.py"}, tool_call_id="c_1", title="Read main.py"),
    ToolExecEnd(tool="read_file", tool_call_id="c_1", duration=0.01, for_llm_len=300, result="x" * 300),
)  # fmt: skip
"""The events of one step of an agent."""
WORK = EventFilter(kinds=("llm_*", "tool_*"))


class Agent:
    """An agent that runs the function of the benchmark with its turn."""

    def __init__(self) -> None:
        self.work: Callable[[Turn], Awaitable[None]] | None = None

    async def run(self, prompt: str, turn: Turn) -> str:
        assert self.work is not None
        await self.work(turn)
        return "done"


class ArrivalTimes:
    """A subscriber that records the arrival of each event."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    async def __call__(self, run_turn: Event) -> None:
        self.at[run_turn.seq] = time.perf_counter()


class CpuTime:
    """The CPU time of this process and of all others during a block."""

    def __enter__(self) -> CpuTime:
        self._own, self._busy, self._began = self._read_own(), busy_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu = self._read_own() - self._own
        self.wall = time.perf_counter() - self._began
        self.others = max(0.0, (busy_seconds() - self._busy - self.cpu) / self.wall)

    @staticmethod
    def _read_own() -> float:
        return sum(psutil.Process().cpu_times()[:2])


async def run_turn(desk: Runtime, agent: Agent, work: Callable[[Turn], Awaitable[None]], name: str = "loop") -> CpuTime:
    """Run the work in a turn, and return its cost until its end was stored and published."""
    agent.work = work
    with CpuTime() as spent:
        task = await desk.tasks.submit("go", agent=name)
        done = await desk.tasks.wait(task.id)
    assert done.status == "done", done.error
    return spent


async def emit_all(desk: Runtime, agent: Agent, events: int, name: str = "loop") -> CpuTime:
    """Emit as many events as the store takes, without subscribers."""

    async def work(turn: Turn) -> None:
        for number in range(events):
            await turn.emit(STEP[number % len(STEP)])

    return await run_turn(desk, agent, work, name)


async def emit_at_rate(desk: Runtime, agent: Agent, rate: int, count: int) -> CpuTime:
    """Emit so many events per second, in portions of ten milliseconds."""

    async def work(turn: Turn) -> None:
        began, sent = time.perf_counter(), 0
        while sent < count:
            due = min(count, int((time.perf_counter() - began + 0.01) * rate))
            for number in range(sent, due):
                await turn.emit(STEP[number % len(STEP)])
            sent = due
            await asyncio.sleep(0.01)

    return await run_turn(desk, agent, work)


async def fan_out(desk: Runtime, agent: Agent, rate: int | None, count: int, subscribers: int) -> dict[str, Any]:
    """Emit events to many subscriptions, and measure losses and latency.

    Without a rate, emit the events as fast as the store takes them. The rate of the result is counted from the first
    commit to the last arrival.
    """
    commits: dict[int, float] = {}

    def record_commit(commit: Any) -> None:
        now = time.perf_counter()
        for event in commit.events:
            commits[event.seq] = now

    desk.store.on_commit(record_commit)
    arrivals = [ArrivalTimes() for _ in range(subscribers)]
    for number, times in enumerate(arrivals):
        await desk.subscriptions.add(f"bench-{number}", times, WORK)
    spent = await (emit_at_rate(desk, agent, rate, count) if rate else emit_all(desk, agent, count))
    deadline = time.perf_counter() + 30
    while any(len(times.at) < count for times in arrivals) and time.perf_counter() < deadline:
        await asyncio.sleep(0.01)
    late = [(at - commits[seq]) * 1e3 for times in arrivals for seq, at in times.at.items()]
    last_arrival = max(max(times.at.values()) for times in arrivals)
    seconds = last_arrival - min(commits[seq] for times in arrivals for seq in times.at)
    for number in range(subscribers):
        await desk.subscriptions.remove(f"bench-{number}")
    return {
        "rate": count / seconds, "lost": sum(count - len(times.at) for times in arrivals),
        "cores": spent.cpu / spent.wall, "others": spent.others,
        "p50": percentile(late, 0.5), "p99": percentile(late, 0.99),
    }  # fmt: skip


async def main(events: int, rate: int, seconds: float, subscribers: int, parent: str) -> None:
    agent = Agent()
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        settings = Settings.load(Path(folder), detect_agents=False)
        agents = {"loop": FunctionAgent("loop", agent.run, on_loop=True), "thread": FunctionAgent("thread", agent.run)}
        async with Runtime.open(settings=settings, agents=agents) as desk:
            collect_garbage_seldom()
            await emit_all(desk, agent, 2000)  # warm up
            costs = [await emit_all(desk, agent, events) for _ in range(3)]
            threads = [await emit_all(desk, agent, events // 4, "thread") for _ in range(2)]
            stats = await fan_out(desk, agent, rate, int(rate * seconds), subscribers)
            fastest = await fan_out(desk, agent, None, events, subscribers)
    best = min(costs, key=lambda spent: spent.cpu)
    cost = best.cpu / events * 1e6
    thread = min(spent.cpu for spent in threads) / (events // 4) * 1e6
    print_table(
        ["", "events/s", "CPU us each", "cores", "lost", "p50 ms", "p99 ms"],
        [
            ["no subscribers", f"{events / best.wall:.0f}", f"{cost:.1f}", f"{best.cpu / best.wall:.2f}", "", "", ""],
            ["the same from a thread", "", f"{thread:.1f}", "", "", "", ""],
            [f"{subscribers} subscribers", f"{stats['rate']:.0f}", f"{stats['cores'] / stats['rate'] * 1e6:.1f}",
             f"{stats['cores']:.2f}", str(stats["lost"]), f"{stats['p50']:.1f}", f"{stats['p99']:.1f}"],
            ["the same at full speed", f"{fastest['rate']:.0f}", "", "", str(fastest["lost"]), "", ""],
        ],
    )  # fmt: skip
    figures: dict[str, Any] = {
        "cpu_us_per_event": cost, "thread_cpu_us_per_event": thread, "events_per_s": events / best.wall,
        "subscribers": subscribers, "subscribed_rate": stats["rate"], "lost": stats["lost"] + fastest["lost"],
        "subscribed_most": fastest["rate"], "subscribed_cpu_us_per_event": stats["cores"] / stats["rate"] * 1e6,
        "subscribed_cores": stats["cores"], "p50_ms": stats["p50"], "p99_ms": stats["p99"],
    }  # fmt: skip
    for name, target in TARGETS.items():
        if figures[name] > target:
            print(f"MISSED: {name} is {figures[name]:.1f}, the target is {target:.0f}.")
    if figures["subscribed_rate"] < rate:
        print(f"MISSED: {figures['subscribed_rate']:.0f} events/s were delivered, the target is {rate}.")
    if max(best.others, stats["others"]) > NOISY_CORES:
        print(f"DISTURBED: other processes used up to {max(best.others, stats['others']):.2f} cores.")
    print(json_line(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--subscribers", type=int, default=10)
    parser.add_argument("--dir", default="/var/tmp")
    chosen = parser.parse_args()
    uvloop.run(main(chosen.events, chosen.rate, chosen.seconds, chosen.subscribers, chosen.dir))

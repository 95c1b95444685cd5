"""Measure midwatch: `python -m benchmarks.ours WHAT HOME ...` prints its figures as JSON.

All tasks go through `Tasks.submit` and the worker, with the settings and the event loop of `midwatch up`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.harness import CHUNKS, least_cpu_us, percentile
from midwatch.agents.function import Function, FunctionAgent
from midwatch.base.clock import SECOND
from midwatch.desk.config import Settings
from midwatch.domain.claiming import ClaimRequest
from midwatch.runtime.runtime import Runtime

Verb = Callable[..., Coroutine[Any, Any, dict[str, object]]]

PROMPT = "x" * 200
GAP_SECONDS = 0.02
SETTLE_SECONDS = 2.0
SHELL = """
[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
"""
STUBBORN = "trap '' INT TERM; (trap '' INT TERM; sleep 60) & sleep 60"
TIMEOUT_SECONDS = 0.5


async def nothing(prompt: str) -> str:
    """Return a result at once."""
    return "ok"


def up(home: str, function: Function = nothing) -> AbstractAsyncContextManager[Runtime]:
    """Open the runtime of `midwatch up` with one additional agent."""
    return Runtime.open(home, agents={"noop": FunctionAgent("noop", function, on_loop=True)}, role="up")


async def drive(desk: Runtime, count: int, in_flight: int) -> list[float]:
    """Run clients that each submit a task, wait for its end, and continue with the next.

    Return the CPU seconds of this process at the beginning, and after each of CHUNKS parts of the tasks.
    """
    marks, done, step = [time.process_time()], 0, max(1, count // CHUNKS)

    async def client(tasks: int) -> None:
        nonlocal done
        for _ in range(tasks):
            task = await desk.tasks.submit(PROMPT, agent="noop")
            ended_task = await desk.tasks.wait(task.id)
            if ended_task.status != "done":
                raise RuntimeError(f"task {task.id} ended as {ended_task.status}: {ended_task.error}")
            done += 1
            if done % step == 0:
                marks.append(time.process_time())

    await asyncio.gather(*(client(count // in_flight) for _ in range(in_flight)))
    return marks


async def throughput(home: str, count: int, in_flight: int) -> dict[str, object]:
    """Return tasks per second from submit to done."""
    count -= count % in_flight
    async with up(home) as desk:
        await drive(desk, 4 * in_flight, in_flight)  # not measured: first use of everything
        first = (await desk.store.read_log_bounds()).last_seq
        began = time.perf_counter()
        marks = await drive(desk, count, in_flight)
        wall, used = time.perf_counter() - began, marks[-1] - marks[0]
        last = (await desk.store.read_log_bounds()).last_seq
        return {
            "tasks_per_s": count / wall,
            "cores": used / wall,
            "cpu_us_per_task": least_cpu_us(marks, max(1, count // CHUNKS)),
            "events_per_task": (last - first) / count,
            "synchronous": (await desk.store.describe())["synchronous"],
        }


async def latency(home: str, count: int) -> dict[str, object]:
    """Return the time from the call of submit to the call of the agent, on an idle desk."""
    called: list[float] = []

    async def note(prompt: str) -> str:
        called.append(time.perf_counter())
        return "ok"

    async with up(home, note) as desk:
        await drive(desk, 20, 1)
        called.clear()
        submit_times: list[float] = []
        for _ in range(count):
            submit_times.append(time.perf_counter())
            task = await desk.tasks.submit(PROMPT, agent="noop")
            await desk.tasks.wait(task.id)
            await asyncio.sleep(max(0.0, submit_times[-1] + GAP_SECONDS - time.perf_counter()))
    took = [(end - begin) * 1e3 for begin, end in zip(submit_times, called, strict=True)]
    return {"p50_ms": percentile(took, 0.5), "p99_ms": percentile(took, 0.99)}


async def idle(home: str, seconds: float) -> dict[str, object]:
    """Return the share of one core that an idle runtime uses."""
    async with up(home) as desk:
        await drive(desk, 1, 1)
        await asyncio.sleep(SETTLE_SECONDS)
        used, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        return {"cpu_percent": (time.process_time() - used) / (time.perf_counter() - began) * 100}


async def claim(home: str, pending: int) -> dict[str, object]:
    """Return the duration of one durable claim while many tasks are pending, for one free slot and for 64."""
    settings = Settings.load(home, max_open=2 * pending)
    agents = {"noop": FunctionAgent("noop", nothing, on_loop=True)}
    async with Runtime.open(home, agents=agents, settings=settings, work=False) as desk:
        for _ in range(pending // 500):
            await asyncio.gather(*(desk.tasks.submit(PROMPT, agent="noop") for _ in range(500)))

        async def median_ms(free: int, times: int) -> float:
            request, took = ClaimRequest("bench", "bench", free, {"noop": free}), []
            for _ in range(times):
                began = time.perf_counter()
                claims = await desk.store.claim(request, desk.clock.now())
                took.append((time.perf_counter() - began) * 1e3)
                if len(claims.taken) != free:
                    raise RuntimeError(f"{len(claims.taken)} tasks were claimed, not {free}")
            return statistics.median(took)

        return {"one_ms": await median_ms(1, 50), "sixty_four_ms": await median_ms(64, 10)}


async def ends(home: str, times: int) -> dict[str, object]:
    """Return the longest time that a program runs after a cancel by another process, and after its timeout if it
    ignores signals.
    """
    Path(home, "midwatch.toml").write_text(SHELL)
    cancelled, overrun = [], []
    async with Runtime.open(home, role="up") as desk, Runtime.open(home, work=False) as client:
        for _ in range(times):
            task = await desk.tasks.submit("sleep 60", agent="shell")
            while (await desk.tasks.get(task.id)).pgid is None:
                await asyncio.sleep(GAP_SECONDS)
            began = time.perf_counter()
            await client.tasks.cancel(task.id)
            await desk.tasks.wait(task.id)
            cancelled.append(time.perf_counter() - began)
            task = await desk.tasks.submit(STUBBORN, agent="shell", timeout=TIMEOUT_SECONDS)
            late = await desk.tasks.wait(task.id)
            if late.outcome != "timeout" or late.started_at is None or late.completed_at is None:
                raise RuntimeError(f"task {task.id} ended as {late.outcome}: {late.error}")
            overrun.append((late.completed_at - late.started_at) / SECOND - TIMEOUT_SECONDS)
    return {"cancel_s": max(cancelled), "overrun_s": max(overrun)}


def main() -> None:
    what, home, *numbers = sys.argv[1:]
    verbs: dict[str, Verb] = {
        "throughput": throughput, "latency": latency, "idle": idle, "claim": claim, "ends": ends
    }  # fmt: skip
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(verbs[what](home, *map(int, numbers)))))


if __name__ == "__main__":
    main()

"""The cluster beside bare procrastinate: `make bench-cluster`.

One PostgreSQL with fsync on, the same number of worker processes and the same concurrency for both. Prints a table, a
sentence for every target that was missed, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import procrastinate
import psutil
import psycopg
from tests import postgres

import midwatch
from midwatch.event import EventFilter

IN_FLIGHT = 32
CONCURRENCY = 32
TARGETS = {"ratio": (0.5, True), "idle_cpu_percent": (1.5, False), "takeover_s": (12.0, False)}

WORKER = """
import asyncio, signal, sys, uvloop
import midwatch
from midwatch.agents.function import FunctionAgent

async def noop(prompt):
    return "ok"

async def hang(prompt):
    await asyncio.Event().wait()

async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    settings = midwatch.Settings.load(sys.argv[2], db=sys.argv[1], slots=int(sys.argv[3]), shutdown_grace=0)
    agents = {name: FunctionAgent(name, fn, on_loop=True) for name, fn in (("noop", noop), ("hang", hang))}
    async with midwatch.Runtime.open(settings=settings, agents=agents, role="worker"):
        print("ready", flush=True)
        await ended.wait()

uvloop.run(main())
"""
BARE = """
import asyncio, sys
import procrastinate

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=sys.argv[1], max_size=4))

@app.task(name="noop")
async def noop():
    pass

async def main():
    async with app.open_async():
        print("ready", flush=True)
        await app.run_worker_async(concurrency=int(sys.argv[3]), delete_jobs="always", fetch_job_polling_interval=0.5)

asyncio.run(main())
"""


@contextmanager
def workers(code: str, url: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Worker processes that are ready; ended after the block."""
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-") as place:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code, url, str(Path(place) / str(n)), str(CONCURRENCY)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for n in range(count)
        ]
        try:
            for process in started:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield started
        finally:
            for process in started:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in started:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@asynccontextmanager
async def submitting(url: str) -> AsyncIterator[midwatch.Runtime]:
    """A desk that only hands in and watches."""
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-") as home:
        settings = midwatch.Settings.load(home, db=url, max_open=1_000_000)
        async with midwatch.Runtime.open(settings=settings, work=False) as desk:
            yield desk


async def ours(url: str, processes: int, count: int) -> float:
    """Tasks per second, from the first submit to the last end."""
    with workers(WORKER, url, processes):
        async with submitting(url) as desk:

            async def client(number: int) -> None:
                for _ in range(number):
                    task = await desk.tasks.submit("x" * 200, agent="noop")
                    await desk.tasks.wait(task.id)

            await client(20)
            began = time.perf_counter()
            await asyncio.gather(*(client(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
            return count / (time.perf_counter() - began)


async def bare(url: str, processes: int, count: int) -> float:
    """Jobs per second of procrastinate alone, from the first defer to the last end."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=8))
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        with workers(BARE, url, processes):
            left = "SELECT count(*) FROM procrastinate_jobs"
            began = time.perf_counter()

            async def client(number: int) -> None:
                for _ in range(number):
                    await app.configure_task("noop").defer_async()

            await asyncio.gather(*(client(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                while (await (await connection.execute(left)).fetchone() or (0,))[0]:
                    await asyncio.sleep(0.01)
            return count / (time.perf_counter() - began)


async def latency(url: str, count: int) -> tuple[float, float]:
    """Milliseconds from submit to start, one task at a time: p50 and p99. Also the idle CPU of the worker."""
    with workers(WORKER, url, 1) as (worker,):
        async with submitting(url) as desk:
            spent = []
            for _ in range(count):
                began = desk.clock.now()
                task = await desk.tasks.wait((await desk.tasks.submit("x", agent="noop")).id)
                spent.append(((task.started_at or 0) - began) / 1000)
                await asyncio.sleep(0.02)
        process = psutil.Process(worker.pid)
        before = sum(process.cpu_times()[:2])
        await asyncio.sleep(10)
        idle = (sum(process.cpu_times()[:2]) - before) * 10
        return statistics.median(spent[5:]), idle


async def takeover(url: str) -> float:
    """Seconds from the SIGKILL of a worker to its task running elsewhere."""
    with workers(WORKER, url, 2) as processes:
        async with submitting(url) as desk:
            await asyncio.sleep(9)  # who leads may only judge others once it has been connected for eight seconds
            task = await desk.tasks.submit("x", agent="hang", on_crash="rerun")
            starts = desk.bus.follow(0, EventFilter(task_id=task.id, kinds=("task_started",)))
            first = await anext(starts)
            owner = next(i for i in await desk.living() if i.id == first.payload["owner"])
            os.kill(owner.pid, signal.SIGKILL)
            began = time.perf_counter()
            async with asyncio.timeout(60):
                await anext(starts)
            spent = time.perf_counter() - began
            await starts.aclose()
            await desk.tasks.cancel(task.id)
            await desk.tasks.wait(task.id)
            for process in processes:
                process.poll()
            return spent


async def measure(url: str, count: int) -> dict[str, Any]:
    """All figures, each on a database of its own."""

    def database() -> str:
        name = f"bench_{time.monotonic_ns()}"
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{name}"')
        return psycopg.conninfo.make_conninfo(url, dbname=name)

    figures: dict[str, Any] = {}
    figures["procrastinate_tasks_per_s"] = await bare(database(), 1, count)
    figures["tasks_per_s"] = await ours(database(), 1, count)
    figures["procrastinate_tasks_per_s_4"] = await bare(database(), 4, count)
    figures["tasks_per_s_4"] = await ours(database(), 4, count)
    figures["ratio"] = figures["tasks_per_s"] / figures["procrastinate_tasks_per_s"]
    figures["ratio_4"] = figures["tasks_per_s_4"] / figures["procrastinate_tasks_per_s_4"]
    figures["growth"] = figures["tasks_per_s_4"] / figures["tasks_per_s"]
    figures["latency_p50_ms"], figures["idle_cpu_percent"] = await latency(database(), 60)
    figures["takeover_s"] = await takeover(database())
    return figures


def main() -> None:
    """Run it and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1600, help="tasks in each throughput run")
    asked = parser.parse_args()
    postgres.SETTINGS.update(fsync="on", full_page_writes="on")
    with postgres.cluster() as made:
        figures = asyncio.run(measure(made.url, asked.count))
    for name, value in figures.items():
        target = TARGETS.get(name)
        print(f"{name:<30} {value:>10.3f}  {'' if target is None else f'target {target[0]}'}")
    for name, (limit, at_least) in TARGETS.items():
        if (figures[name] < limit) if at_least else (figures[name] > limit):
            print(f"MISSED: {name} is {figures[name]:.3f}, the target is {limit}.")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()

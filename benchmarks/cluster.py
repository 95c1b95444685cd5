"""Compare a cluster with bare procrastinate: `make bench-cluster`.

Both use one PostgreSQL with fsync on, the same number of worker processes and the same concurrency. It prints a table,
a sentence for every missed target, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import procrastinate
import psutil
import psycopg
from tests import postgres

import midwatch
from benchmarks.harness import NOISY_CORES, busy_seconds, json_line, print_table, sync_milliseconds
from midwatch.domain.event import EventFilter

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

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=sys.argv[1]))

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
    """Start worker processes and yield when they are ready; they are ended after the block."""
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-") as folder:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code, url, str(Path(folder) / str(n)), str(CONCURRENCY)],
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
async def open_client(url: str) -> AsyncIterator[midwatch.Runtime]:
    """Open a desk that only submits and waits."""
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-") as home:
        settings = midwatch.Settings.load(home, db=url, max_open=1_000_000)
        async with midwatch.Runtime.open(settings=settings, work=False) as desk:
            yield desk


async def ours(url: str, processes: int, count: int) -> float:
    """Return tasks per second, from the first submit to the last end."""
    with workers(WORKER, url, processes):
        async with open_client(url) as desk:

            async def client(number: int) -> None:
                for _ in range(number):
                    task = await desk.tasks.submit("x" * 200, agent="noop")
                    await desk.tasks.wait(task.id)

            await client(20)
            began = time.perf_counter()
            await asyncio.gather(*(client(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
            return count / (time.perf_counter() - began)


async def bare(url: str, processes: int, count: int) -> float:
    """Return jobs per second of procrastinate alone, from the first defer to the last end."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=8))
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        with workers(BARE, url, processes):
            query = "SELECT count(*) FROM procrastinate_jobs"
            began = time.perf_counter()

            async def client(number: int) -> None:
                for _ in range(number):
                    await app.configure_task("noop").defer_async()

            await asyncio.gather(*(client(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                while (await (await connection.execute(query)).fetchone() or (0,))[0]:
                    await asyncio.sleep(0.01)
            return count / (time.perf_counter() - began)


async def latency(url: str, count: int) -> tuple[float, float]:
    """Return the median milliseconds from submit to start, one task at a time, and the idle CPU use of the worker in
    percent.
    """
    with workers(WORKER, url, 1) as (worker,):
        async with open_client(url) as desk:
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
    """Return the seconds from the SIGKILL of a worker to its task running elsewhere."""
    with workers(WORKER, url, 2) as processes:
        async with open_client(url) as desk:
            await asyncio.sleep(9)  # a leader may declare others dead only after eight seconds with a connection
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


class Noise:
    """The number of cores that other processes use: all except this process, its workers and the database."""

    def __init__(self, postmaster: int) -> None:
        self._ours = (psutil.Process(), psutil.Process(postmaster))

    @contextmanager
    def measure_others(self, into: list[float]) -> Iterator[None]:
        """Append the number of cores that others used during the block."""
        busy, own, began = busy_seconds(), self._own(), time.monotonic()
        yield
        seconds = busy_seconds() - busy - (self._own() - own)
        into.append(max(0.0, seconds / (time.monotonic() - began)))

    def _own(self) -> float:
        """Return the CPU seconds of our processes, including ended ones."""
        spent = 0.0
        for top in self._ours:
            spent += sum(top.cpu_times()[:4])
            for child in top.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    spent += sum(child.cpu_times()[:2])
        return spent


CONTENDERS: dict[str, tuple[Callable[[str, int, int], Awaitable[float]], int]] = {
    "procrastinate_tasks_per_s": (bare, 1),
    "tasks_per_s": (ours, 1),
    "procrastinate_tasks_per_s_4": (bare, 4),
    "tasks_per_s_4": (ours, 4),
}
Rounds = dict[str, list[float]]


async def throughput(fresh: Callable[[], str], rounds: int, count: int, noise: Noise) -> tuple[Rounds, Rounds]:
    """Run all contenders in turn, in reverse order in every second round; return the figures and the noise."""
    results: Rounds = {name: [] for name in CONTENDERS}
    noise_of: Rounds = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        order = list(CONTENDERS) if number % 2 == 0 else list(reversed(CONTENDERS))
        for name in order:
            run, processes = CONTENDERS[name]
            print(f"round {number + 1}: {name} ...", file=sys.stderr)
            with noise.measure_others(noise_of[name]):
                results[name].append(await run(fresh(), processes, count))
    return results, noise_of


def ratio(results: Rounds, name: str, baseline: str) -> float:
    """Return the median of the rounds' ratios: both sides of each were measured within the same minute."""
    return statistics.median(a / b for a, b in zip(results[name], results[baseline], strict=True))


async def measure(url: str, rounds: int, count: int, noise: Noise) -> dict[str, Any]:
    """Return all figures, each measured on a database of its own."""

    def fresh() -> str:
        name = f"bench_{time.monotonic_ns()}"
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{name}"')
        return psycopg.conninfo.make_conninfo(url, dbname=name)

    results, noise_of = await throughput(fresh, rounds, count, noise)
    rows = [
        [name, f"{statistics.median(runs):.0f}", f"{min(runs):.0f} - {max(runs):.0f}",
         f"{statistics.median(noise_of[name]):.2f}"]
        for name, runs in results.items()
    ]  # fmt: skip
    print_table(["contender", "median", "min - max", "others' cores"], rows)
    figures: dict[str, Any] = {name: statistics.median(runs) for name, runs in results.items()}
    figures["ratio"] = ratio(results, "tasks_per_s", "procrastinate_tasks_per_s")
    figures["ratio_4"] = ratio(results, "tasks_per_s_4", "procrastinate_tasks_per_s_4")
    figures["growth"] = ratio(results, "tasks_per_s_4", "tasks_per_s")
    figures["procrastinate_growth"] = ratio(results, "procrastinate_tasks_per_s_4", "procrastinate_tasks_per_s")
    print("latency, idle CPU, takeover ...", file=sys.stderr)
    figures["latency_p50_ms"], figures["idle_cpu_percent"] = await latency(fresh(), 60)
    figures["takeover_s"] = await takeover(fresh())
    figures["foreign_cores"] = max(statistics.median(runs) for runs in noise_of.values())
    return figures


def print_results(figures: Mapping[str, Any]) -> None:
    """Print each figure with its target, and a sentence for each missed one."""
    rows = [
        [name, f"{figures[name]:.3g}", f"{'≥' if at_least else '≤'} {limit:g}",
         "reached" if (figures[name] >= limit) == at_least or figures[name] == limit else "MISSED"]
        for name, (limit, at_least) in TARGETS.items()
    ]  # fmt: skip
    print()
    print_table(["figure", "value", "target", ""], rows)
    for name, value, target, result in rows:
        if result == "MISSED":
            print(f"MISSED: {name} is {value}, the target is {target}.")
    print(
        f"From 1 to 4 worker processes: midwatch {figures['growth']:.2f} times, procrastinate "
        f"{figures['procrastinate_growth']:.2f} times, on {psutil.cpu_count()} cores that clients and PostgreSQL share."
    )
    if figures["foreign_cores"] > NOISY_CORES:
        print(f"DISTURBED: other processes used {figures['foreign_cores']:.2f} cores. Repeat this on a quiet machine.")


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description="Measure the cluster and bare procrastinate.")
    parser.add_argument("--count", type=int, default=1600, help="tasks in each throughput run")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="a directory on the disk to measure on")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers and the database are cleaned up
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    tempfile.tempdir = str(options.dir) if options.dir.is_dir() else None
    postgres.SETTINGS.update(fsync="on", full_page_writes="on")
    with postgres.cluster() as server:
        postmaster = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        print(
            f"{psutil.cpu_count()} cores, Python {sys.version.split()[0]}, fsync on, 4 KiB to disk in "
            f"{sync_milliseconds(Path(tempfile.gettempdir())):.3f} ms (median). {options.rounds} round(s).\n"
        )
        figures = asyncio.run(measure(server.url, max(1, options.rounds), options.count, Noise(postmaster)))
    print_results(figures)
    print(json_line(figures))


if __name__ == "__main__":
    main()

"""Measure thousands of automations: `make bench-automations`.

It measures how long a wake-up of the scheduler takes when no automation is due, and how long two concurrent processes
need to fire many due automations, on SQLite and on a PostgreSQL with fsync on. It prints a table, a sentence for every
missed target, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
from tests import postgres

from benchmarks.harness import Failed, clean_environment, json_line, percentile, print_table
from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.schedule import Schedule
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes
from midwatch.domain.event import EventFilter
from midwatch.domain.store import Store
from midwatch.loops.scheduler import Scheduler
from midwatch.stores.sqlite import SqliteStore

MANY, DUE, WAKES = 100_000, 1000, 300
CHUNK = 2000
TARGETS = {"wake_ms": 1.0, "wake_writes": 0, "rush_s": 2.0, "doubled_or_lost": 0}
"""The maximum of each figure, on both stores."""


async def open_store(kind: str, url: str) -> Store:
    """Open a store of a kind."""
    if kind == "sqlite":
        return await SqliteStore.open(url)
    from midwatch.stores.postgres import PostgresStore

    return await PostgresStore.open(url)


def scheduler_of(store: Store) -> Scheduler:
    """Return a scheduler that acts as the leader."""

    async def terms(agent: str) -> AgentTerms:
        return AgentTerms()

    return Scheduler(store, SystemClock(), lambda: True, terms, terms)


async def fill(store: Store, count: int, first_at: int) -> None:
    """Add automations that run every hour, the first of them at `first_at`."""
    now = SystemClock().now()
    schedule = Schedule.make(every=3600, zone="UTC", anchor=now).snapshot()
    for begin in range(0, count, CHUNK):
        some = tuple(
            Automation(
                id=f"am_{first_at:x}_{n:06}", prompt="x" * 200, agent="noop", schedule=schedule, title=f"number {n}",
                session_key=f"auto:{first_at:x}:{n}", created_at=now, updated_at=now, next_run_at=first_at + n,
            )
            for n in range(begin, min(begin + CHUNK, count))
        )  # fmt: skip
        await store.apply(Changes(records=some))


async def measure_wake_ups(store: Store, count: int) -> dict[str, Any]:
    """Measure the duration and the writes of wake-ups with nothing due."""
    await fill(store, count, SystemClock().now() + 3600 * SECOND)
    scheduler, took, before = scheduler_of(store), [], (await store.read_log_bounds()).last_seq
    commits = 0

    def count_commit(_: object) -> None:
        nonlocal commits
        commits += 1

    store.on_commit(count_commit)
    for _ in range(WAKES):
        began = time.perf_counter()
        await scheduler.look()
        took.append((time.perf_counter() - began) * 1e3)
    written = commits + (await store.read_log_bounds()).last_seq - before
    return {"wake_ms": statistics.median(took), "wake_p99_ms": percentile(took, 0.99), "wake_writes": written}


async def measure_race(store: Store, kind: str, url: str, count: int) -> dict[str, Any]:
    """Measure two processes that fire all due automations at once."""
    await fill(store, count, SystemClock().now() - count)
    async with AsyncExitStack() as ending:
        racers = []
        for _ in range(2):
            argv = [sys.executable, "-m", "benchmarks.automations", "--race", kind, url]
            racer = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment()
            )
            ending.callback(racer.communicate)
            ending.callback(racer.kill)
            racers.append(racer)
        for racer in racers:
            if await asyncio.to_thread(racer.stdout.readline) != "ready\n":  # type: ignore[union-attr]
                raise Failed("a racer did not start.")
        began, cpu = time.perf_counter(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        for racer in racers:
            racer.stdin.write("go\n")  # type: ignore[union-attr]
            racer.stdin.flush()  # type: ignore[union-attr]
        for racer in racers:
            if await asyncio.to_thread(racer.wait, 120):
                raise Failed("a racer failed.")
        took = time.perf_counter() - began
        cpu = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - cpu  # with the start of the two processes
    fired: list[str] = []
    after = 0
    while some := await store.read_events(after, EventFilter(kinds=("automation_fired",)), 1000):
        fired += [event.payload["automation_id"] for event in some]
        after = some[-1].seq or 0
    return {
        "rush_s": took,
        "rush_cpu_s": cpu,
        "doubled_or_lost": abs(len(fired) - count) + len(fired) - len(set(fired)),
    }


async def race(kind: str, url: str) -> None:
    """Run one of the two processes: wait for the start signal, then fire all due automations."""
    store = await open_store(kind, url)
    try:
        scheduler = scheduler_of(store)
        await store.find_next_automation_at()  # connected
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await scheduler.look()
    finally:
        await store.close()


async def measure(kind: str, url: str, many: int, due: int) -> dict[str, Any]:
    """Return all figures of one store."""
    store = await open_store(kind, url)
    try:
        return {**await measure_wake_ups(store, many), **await measure_race(store, kind, url, due)}
    finally:
        await store.close()


def print_results(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Print the table and the missed targets, and return the figures with unique names."""
    names = ("wake_ms", "wake_p99_ms", "wake_writes", "rush_s", "rush_cpu_s", "doubled_or_lost")
    print_table(("", *results), [(name, *(f"{figures[name]:.3g}" for figures in results.values())) for name in names])
    print()
    for kind, figures in results.items():
        for name, most in TARGETS.items():
            if figures[name] > most:
                print(f"MISSED on {kind}: {name} is {figures[name]:.3g}, the target is at most {most:g}.")
    return {f"{kind}_{name}": value for kind, figures in results.items() for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the scheduler with many automations.")
    parser.add_argument("--many", type=int, default=MANY, help="automations of which none is due")
    parser.add_argument("--due", type=int, default=DUE, help="automations that are due at once")
    parser.add_argument("--race", nargs=2, metavar=("KIND", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.race:
        import uvloop

        uvloop.run(race(*options.race))
        return
    print(f"{psutil.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}\n")
    postgres.SETTINGS.update({"fsync": "on", "full_page_writes": "on"})
    results = {}
    disk = Path("/var/tmp")  # unlike /tmp never kept in memory
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-", dir=disk if disk.is_dir() else None) as folder:
        results["sqlite"] = asyncio.run(measure("sqlite", f"{folder}/midwatch.db", options.many, options.due))
    try:
        with postgres.cluster() as server:
            results["postgres"] = asyncio.run(measure("postgres", server.url, options.many, options.due))
    except FileNotFoundError as problem:
        print(f"{problem}\n")
    print(json_line(print_results(results)))


if __name__ == "__main__":
    main()

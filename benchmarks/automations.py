"""Measure thousands of automations: `make bench-automations`.

It measures how long a wake-up of the scheduler takes when no automation is due, how long two concurrent processes need
to fire many due automations and to start the runs of many firings, and what an ended task costs if many triggers wait
for others, on SQLite and on a PostgreSQL with fsync on. The store also has many triggers of each kind. It prints a
table, a sentence for every missed target, and one JSON object as its last line.
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
from midwatch.domain.task import end, new_task
from midwatch.domain.trigger import Kind, record_firing, write_triggers
from midwatch.loops.scheduler import Scheduler
from midwatch.services.chains import Chains
from midwatch.services.triggers import Triggers
from midwatch.stores.sqlite import SqliteStore

MANY, DUE, WAKES, TRIGGERS, ENDS = 100_000, 1000, 300, 1000, 200
CHUNK = 2000
TARGETS = {
    "wake_ms": 1.0, "wake_writes": 0, "rush_s": 2.0, "doubled_or_lost": 0, "firings_s": 2.0,
    "firings_doubled_or_lost": 0, "end_ms": 2.0,
}  # fmt: skip
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


OPTIONS: dict[Kind, dict[str, Any]] = {
    "webhook": {"sign": "github"},
    "file": {"paths": ["/nowhere/*.csv"]},
    "git": {"repository": "/nowhere", "branch": "main"},
    "after": {"automations": ["am_none"], "outcomes": ["ok"]},
    "event": {"kinds": ["task_late"]},
}
"""A trigger of each kind that does not fire by itself here."""


async def add_triggers(store: Store, count: int) -> None:
    """Add automations without times: as many for each kind of trigger."""
    now = SystemClock().now()
    for kind, options in OPTIONS.items():
        for begin in range(0, count, CHUNK):
            some = tuple(
                Automation(
                    id=f"am_{kind}_{n:06}", prompt="x" * 200, agent="noop", schedule={"zone": "UTC"}, created_at=now,
                    updated_at=now, session_key=f"auto:{kind}:{n}",
                    triggers=({"id": f"tr_{kind}_{n:06}", "kind": kind, **options},),
                )
                for n in range(begin, min(begin + CHUNK, count))
            )  # fmt: skip
            steps = [write_triggers(None, automation, now) for automation in some]
            await store.apply(Changes(records=(*some, *(row for step in steps for row in step.records))))


async def measure_ends(store: Store, ends: int) -> dict[str, Any]:
    """Measure what an ended task costs that no trigger waits for, if the events come one at a time."""
    chains, took = Chains(store, SystemClock(), Triggers(store, SystemClock())), []
    now = SystemClock().now()
    for _ in range(ends):
        task = new_task(now, "x", "noop")._replace(status="running", attempt=1)
        await store.apply(Changes(records=(task,)))
        step = end(task, now, outcome="ok", result="done")[1]
        await store.apply(step)
        (event,) = [event for event in step.events if event.kind == "task_finished"]
        began = time.perf_counter()
        await chains.take([event])
        took.append((time.perf_counter() - began) * 1e3)
    return {"end_ms": statistics.median(took)}


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
    took, cpu = await run_racers(kind, url)
    fired = await list_fired(store, 0)
    return {"rush_s": took, "rush_cpu_s": cpu, "doubled_or_lost": count_wrong(fired, count)}


async def measure_firings(store: Store, kind: str, url: str, count: int) -> dict[str, Any]:
    """Measure two processes that start the runs of one firing of each webhook."""
    now, after = SystemClock().now(), (await store.read_log_bounds()).last_seq
    triggers = [trigger for trigger in await store.list_triggers(["webhook"]) if trigger.fired_at is None][:count]
    for trigger in triggers:
        automation = await store.get_automation(trigger.automation_id)
        assert automation is not None
        body: dict[str, Any] = {"key": "d1", "summary": "push to main", "payload": "x" * 2000}
        await store.apply(record_firing(automation, trigger, now, **body)[1])
    took, _ = await run_racers(kind, url)
    fired = await list_fired(store, after)
    return {"firings_s": took, "firings_doubled_or_lost": count_wrong(fired, len(triggers))}


def count_wrong(fired: list[str], count: int) -> int:
    """Return how many automations have no run, and how many runs are too many."""
    return abs(len(fired) - count) + len(fired) - len(set(fired))


async def list_fired(store: Store, after: int) -> list[str]:
    """Return the automation of each run that started after a place in the log."""
    fired: list[str] = []
    while some := await store.read_events(after, EventFilter(kinds=("automation_fired",)), 1000):
        fired += [event.payload["automation_id"] for event in some]
        after = some[-1].seq or 0
    return fired


async def run_racers(kind: str, url: str) -> tuple[float, float]:
    """Let two processes look for due work at once, and return the time and the CPU time until both have ended."""
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
    return took, cpu


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
        await add_triggers(store, TRIGGERS)
        return {
            **await measure_wake_ups(store, many), **await measure_race(store, kind, url, due),
            **await measure_firings(store, kind, url, due), **await measure_ends(store, ENDS),
        }  # fmt: skip
    finally:
        await store.close()


def print_results(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Print the table and the missed targets, and return the figures with unique names."""
    names = tuple(next(iter(results.values())))
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

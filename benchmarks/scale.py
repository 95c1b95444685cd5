"""Measure a store that has grown for a year: `make bench-scale`.

It fills a SQLite store by the store's own verbs. Then it measures what a user waits for: the verbs of a task, the lists
of the HTTP interface, a backup and a restore, and a submit while old events are pruned. It prints a table, a sentence
for each missed target, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil
import uvloop

from benchmarks.harness import (
    children_seconds,
    clean_environment,
    json_line,
    percentile,
    print_table,
    process,
    sync_milliseconds,
)
from midwatch.base.clock import SECOND, SystemClock, iso
from midwatch.base.home import Home
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.event import TurnEnd, TurnStart, event
from midwatch.domain.task import Task, end, meta, new_task
from midwatch.loops.pruner import Pruner, Retention
from midwatch.stores.sqlite import SqliteStore

TASKS = 100_000
FULL_SIZE = 1_000_000
PRUNED_EVENTS = 1_000_000
PRUNED_TASKS = 10_000
EVENTS_PER_TASK = 5
GROUP = 500
DAYS = 29
PROMPT = "x" * 200
RESULT = "y" * 300
AGENTS = ("alpha", "beta", "gamma", "delta")
SAMPLES = 300
REQUESTS = 5
GAP_SECONDS = 0.01
DAY = 86400.0
OWNER = "bench"
KEPT = """
detect_agents = false
[retention]
tasks = 1000000000
task_age = "1000d"
events = 1000000000
event_age = "1000d"
"""
SERVER = """
import sys
from midwatch import Settings
from midwatch.runtime.serve import serve
serve(Settings.load(sys.argv[1], port=0, log_level="error"), lambda info, runtime: print(info.url, flush=True))
"""
LISTS = {
    "now": "/now",
    "metrics": "/metrics",
    "summary": "/summary",
    "usage of a month": "/usage?since={month}",
    "usage of a month by day and agent": "/usage?since={month}&by=day&by=agent",
    "usage of a month by day and agent, Asia/Kolkata": "/usage?since={month}&by=day&by=agent&zone=Asia/Kolkata",
    "usage of a month by day and session": "/usage?since={month}&by=day&by=session",
    "usage of a month by day and session, Asia/Kolkata": "/usage?since={month}&by=day&by=session&zone=Asia/Kolkata",
    "tasks": "/tasks",
    "tasks, status pending": "/tasks?status=pending",
    "tasks, status failed": "/tasks?status=failed",
    "tasks of an agent": "/tasks?agent=beta",
    "tasks of an unknown agent": "/tasks?agent=nobody",
    "tasks of a creator": "/tasks?creator=person7",
    "tasks of an unknown creator": "/tasks?creator=nobody",
    "tasks of a session": "/tasks?session_key=chat:7",
    "task page": "/tasks/{task}/page",
    "events": "/events",
    "events, a rare kind": "/events?kind=agent_error",
    "events of a task": "/events?task_id={task}",
    "events of a session": "/events?session_key=chat:7",
    "events of an actor": "/events?actor=person7",
    "events of an unknown actor": "/events?actor=nobody",
    "newest events": "/events?before=1000000000",
    "sessions": "/sessions",
    "messages": "/sessions/chat:7/messages",
    "approvals": "/approvals",
    "deliveries": "/deliveries",
    "handoffs": "/handoffs",
    "automations": "/automations",
    "goals": "/goals",
    "worktrees": "/worktrees",
    "rules": "/rules",
    "tokens": "/tokens",
}
"""The lists of the HTTP interface, each with its address."""


class Target(NamedTuple):
    """The largest good value of a figure."""

    figure: str
    meaning: str
    most: float


TARGETS = (
    Target("prune_submit_p99_ms", "submit while events are pruned, p99", 20.0),
    Target("prune_tasks_submit_p99_ms", "submit while tasks are pruned, p99", 20.0),
    Target("slowest_list_ms", "the slowest list, median", 100.0),
    Target("backup_s_per_gb", "backup, seconds for each GB", 45 / 2.8),
)


# -- fill --------------------------------------------------------------------------------------------------------------


def make_task(number: int, now: int) -> Task:
    """Return a task like those of a busy desk: one in ten belongs to a conversation."""
    key = f"chat:{number % 1000}" if number % 10 == 7 else None
    task = new_task(now, PROMPT, AGENTS[number % len(AGENTS)], key)
    return task._replace(creator=f"person{number % 20}")


async def finish(store: SqliteStore, number: int, task: Task, now: int) -> None:
    """End a claimed task, with the events of its turn. One in twenty fails."""
    turn = {"turn_id": f"{task.id}.1", **meta(task)}
    payloads = (TurnStart(user_message=PROMPT), TurnEnd(status="completed", duration=1.0))
    events = (event(payload, now, **turn) for payload in payloads)
    usage = {"model": f"model{number % 3}", "input_tokens": 1000, "output_tokens": 200, "cost_usd": 0.01}
    if number % 20 == 3:
        changes = end(task, now, outcome="error", error="it failed", usage=usage)[1]
    else:
        changes = end(task, now, outcome="ok", result=RESULT, usage=usage)[1]
    await store.apply(changes._replace(events=(*events, *changes.events)))


def claim_request(free: int) -> ClaimRequest:
    return ClaimRequest(OWNER, OWNER, free, dict.fromkeys(AGENTS, free))


async def fill(store: SqliteStore, count: int) -> None:
    """Submit, claim and end tasks, many at once. Their times are spread over the last weeks."""
    begin, step = SystemClock().now() - int(DAYS * DAY * SECOND), int(DAYS * DAY * SECOND) // count
    reported = time.monotonic()
    for first in range(0, count, GROUP):
        now = begin + first * step
        numbers = range(first, min(first + GROUP, count))
        await asyncio.gather(*(store.submit(make_task(number, now + number - first)) for number in numbers))
        left = len(numbers)
        while left:  # tasks of one conversation are claimed one after the other
            taken = (await store.claim(claim_request(left), now + GROUP)).taken
            await asyncio.gather(*(finish(store, n, claim.task, now + 2 * SECOND) for n, claim in enumerate(taken)))
            left -= len(taken)
        if time.monotonic() > reported + 20:
            reported = time.monotonic()
            print(f"filled {first + GROUP} of {count} tasks", file=sys.stderr, flush=True)


# -- measure -----------------------------------------------------------------------------------------------------------


async def time_calls(call: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Return the milliseconds of each call."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def measure_verbs(store: SqliteStore) -> dict[str, float]:
    """Return the times of submit, claim and finish, one at a time."""
    clock, claimed = SystemClock(), list[Task]()

    async def claim() -> None:
        claimed.extend(claim.task for claim in (await store.claim(claim_request(1), clock.now())).taken)

    async def finish_next() -> None:
        await finish(store, 0, claimed.pop(), clock.now())

    figures: dict[str, float] = {}
    calls = {"submit": lambda: store.submit(make_task(0, clock.now())), "claim": claim, "finish": finish_next}
    for name, call in calls.items():
        took = await time_calls(call, SAMPLES)
        figures |= {f"{name}_p50_ms": percentile(took, 0.5), f"{name}_p99_ms": percentile(took, 0.99)}
    return figures


async def submit_until(store: SqliteStore, work: asyncio.Future[Any]) -> list[float]:
    """Submit a task every few milliseconds until `work` has ended, and return how long each submit took."""
    took: list[float] = []
    clock = SystemClock()
    while not work.done():
        took += await time_calls(lambda: store.submit(make_task(0, clock.now())), 1)
        await asyncio.sleep(GAP_SECONDS)
    return took


async def measure_disturbance(store: SqliteStore, name: str, work: asyncio.Future[Any]) -> dict[str, float]:
    """Return how long `work` takes, and how long a submit takes meanwhile."""
    began = time.perf_counter()
    took = await submit_until(store, work)
    await work
    return {
        f"{name}_s": time.perf_counter() - began,
        f"{name}_submit_p50_ms": percentile(took, 0.5),
        f"{name}_submit_p99_ms": percentile(took, 0.99),
        f"{name}_submit_max_ms": max(took),
    }


def start_pruning(store: SqliteStore, *, tasks: int = 10**9, events: int = 10**9) -> asyncio.Future[Any]:
    """Prune all but these numbers of tasks and events in small steps, as the server does."""
    retention = Retention(tasks, 1000 * DAY, events, 1000 * DAY)
    return asyncio.ensure_future(Pruner(store, SystemClock(), lambda: True, retention).prune())


async def measure_task_prune(store: SqliteStore, most: int) -> dict[str, float]:
    """Prune the oldest tasks."""
    counts = await store.count_tasks()
    ended = counts.total - counts.active
    count = min(most, ended // 2)
    figures = await measure_disturbance(store, "prune_tasks", start_pruning(store, tasks=ended - count))
    return {**figures, "pruned_tasks": float(count)}


async def measure_prune(store: SqliteStore, home: Home, most: int) -> dict[str, float]:
    """Prune the oldest events, and let the file shrink."""
    before = home.database.stat().st_size
    oldest, last = await store.read_log_bounds()
    count = min(most, (last - oldest) * 9 // 10)
    used = time.process_time()
    figures = await measure_disturbance(store, "prune", start_pruning(store, events=last - oldest + 1 - count))
    return {
        **figures,
        "pruned_events": float(count),
        "prune_cpu_us_per_event": (time.process_time() - used) / count * 1e6,
        "prune_file_shrank_mb": (before - home.database.stat().st_size) / 1e6,
    }


async def run_command(home: Path, *arguments: object) -> None:
    """Run a command of midwatch in a process of its own."""
    env = {**clean_environment(), "MIDWATCH_HOME": str(home)}
    command = [sys.executable, "-m", "midwatch", *map(str, arguments), "--json"]
    child = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.DEVNULL)
    if await child.wait() != 0:
        raise RuntimeError(f"{' '.join(command[1:])} failed")


async def measure_backup(store: SqliteStore, home: Home, file: Path) -> dict[str, float]:
    """Write a backup while tasks are submitted."""
    size = home.database.stat().st_size / 1e6
    used = children_seconds()
    backup = asyncio.ensure_future(run_command(home.path, "backup", file))
    figures = await measure_disturbance(store, "backup", backup)
    return {
        **figures,
        "backup_cpu_s": children_seconds() - used,
        "backup_mb_per_s": size / figures["backup_s"],
        "backup_s_per_gb": figures["backup_s"] / size * 1e3,
        "database_mb": size,
    }


async def measure_restore(file: Path, folder: Path) -> dict[str, float]:
    """Restore a backup into an empty home."""
    began, used, size = time.perf_counter(), children_seconds(), file.stat().st_size / 1e6
    await run_command(folder, "restore", file)
    took = time.perf_counter() - began
    return {"restore_s": took, "restore_cpu_s": children_seconds() - used, "restore_mb_per_s": size / took}


@contextmanager
def serve(home: Path) -> Iterator[httpx2.AsyncClient]:
    """Start a server of this home and yield a client of its HTTP interface."""
    env = {**clean_environment(), "MIDWATCH_HOME": str(home)}
    with process([sys.executable, "-c", SERVER, str(home)], stdout=subprocess.PIPE, env=env) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        headers = {"authorization": f"Bearer {(home / 'token').read_text().strip()}", "accept": "application/json"}
        yield httpx2.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=120.0)


async def measure_lists(home: Path, task: str) -> dict[str, float]:
    """Return the median milliseconds of a request for each list."""
    found = {}
    month = iso(SystemClock().now() - int(DAYS * DAY * SECOND))
    with serve(home) as connection:
        async with connection as client:
            for name, path in LISTS.items():
                address = path.format(task=task, month=month)

                async def get(address: str = address) -> None:
                    (await client.get(address)).raise_for_status()

                found[name] = percentile(await time_calls(get, REQUESTS), 0.5)
    return found


async def run(folder: Path, count: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Fill a store and return its figures, and the times of its lists."""
    home = Home(folder / "home")
    home.prepare()
    (home.path / "midwatch.toml").write_text(KEPT)
    store = await SqliteStore.open(home.database)
    began, used = time.perf_counter(), time.process_time()
    await fill(store, count)
    figures: dict[str, Any] = {"tasks": count, "events": (await store.read_log_bounds()).last_seq}
    figures["fill_tasks_per_s"] = count / (time.perf_counter() - began)
    figures["fill_cpu_us_per_task"] = (time.process_time() - used) / count * 1e6
    figures |= await measure_verbs(store)
    task = (await store.submit(make_task(0, SystemClock().now()))).task
    lists = await measure_lists(home.path, task.id)
    figures |= await measure_backup(store, home, folder / "backup.db")
    figures |= await measure_restore(folder / "backup.db", folder / "other")
    figures |= await measure_task_prune(store, PRUNED_TASKS)
    figures |= await measure_prune(store, home, PRUNED_EVENTS)
    await store.close()
    return figures | {"slowest_list_ms": max(lists.values())}, lists


def print_figures(figures: dict[str, Any], lists: dict[str, float]) -> None:
    """Print the figures, and a sentence for each missed target."""
    print_table(["list", "median ms"], [[name, f"{took:.1f}"] for name, took in lists.items()])
    print()
    targets = {target.figure: f"≤ {target.most:.3g}" for target in TARGETS}
    print_table(
        ["figure", "value", "target"],
        [[name, f"{value:.4g}" if isinstance(value, float) else str(value), targets.get(name, "")]
         for name, value in figures.items()],
    )  # fmt: skip
    print()
    if figures["tasks"] < FULL_SIZE:
        print(f"This is a small store: the targets are meant for --tasks {FULL_SIZE}.")
    if figures["pruned_events"] < PRUNED_EVENTS:
        print(f"Only {figures['pruned_events']:.0f} events were pruned, not {PRUNED_EVENTS}.")
    for target in TARGETS:
        if figures[target.figure] > target.most:
            print(f"MISSED: {target.meaning}: {figures[target.figure]:.3g}, target ≤ {target.most:.3g}.")
    slow = [name for name, took in lists.items() if took > 100.0]
    if slow:
        print(f"MISSED: lists above 100 ms: {', '.join(slow)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a store with very many tasks and events.")
    text = f"number of tasks, with {EVENTS_PER_TASK} events each ({TASKS}; the full size is {FULL_SIZE})"
    parser.add_argument("--tasks", type=int, default=TASKS, help=text)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="a directory on the disk to measure on")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the directory is removed
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-", dir=options.dir) as scratch:
        sync = sync_milliseconds(Path(scratch))
        print(f"{psutil.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, 4 KiB to disk in {sync:.3f} ms (median).\n")
        figures, lists = uvloop.run(run(Path(scratch), max(GROUP, options.tasks)))
    figures["disk_sync_ms"] = sync
    print_figures(figures, lists)
    print(json_line(figures | {f"list {name} ms": took for name, took in lists.items()}))


if __name__ == "__main__":
    main()

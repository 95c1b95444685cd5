"""Measure the command line: `make bench-cli`, or `python -m benchmarks.cli [--times N]`.

Each command runs some times with compiled modules, beside a running server and without one. Then the starts of both
kinds of servers are measured, and the CPU and the memory of a server that has nothing to do. It prints tables, a
sentence for every missed target, and one JSON object as its last line. See docs/benchmarks.md.
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
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.harness import (
    NOISY_CORES,
    ROOT,
    Failed,
    Target,
    busy_seconds,
    children_seconds,
    clean_environment,
    json_line,
    print_table,
    process,
    tree_seconds,
)
from midwatch.base.home import Home
from midwatch.client import Client

PROGRAM = str(Path(sys.executable).with_name("midwatch"))
TASKS = 30
STARTS = 5
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 2.0
READY_SECONDS = 30.0
BARE_GET = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1])
connection.request("GET", "/api/v1/health")
assert connection.getresponse().read()
"""
TARGETS = (
    *(Target(f"{name}_cpu_s", False, 0.15, f"CPU of `midwatch {words}`") for name, words in {
        "help": "--help", "status": "status", "tasks": "tasks", "show": "show ID", "submit": "submit",
    }.items()),
    Target("up_s", False, 0.8, "`midwatch up` until it answers"),
    Target("agentapi_s", False, 0.6, "`midwatch agentapi server` until it answers"),
    Target("idle_cpu_percent", False, 0.2, "idle server: part of one core"),
    Target("idle_memory_mb", False, 70, "idle server: memory"),
)  # fmt: skip


class Cost(NamedTuple):
    """The cost of a command: the least CPU of all runs, which others disturbed least, and the median of their times."""

    cpu: float
    wall: float


def measure_command(command: Sequence[str], env: Mapping[str, str], times: int) -> Cost:
    """Run a command some times and return its cost."""
    cpu, wall = [], []
    for _ in range(times):
        used, began = children_seconds(), time.perf_counter()
        with process(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            _, problem = child.communicate(timeout=60)
        wall.append(time.perf_counter() - began)
        cpu.append(children_seconds() - used)
        if child.returncode != 0:
            raise Failed(f"`{' '.join(command)}` failed: {problem.strip()}")
    return Cost(min(cpu), statistics.median(wall))


@contextmanager
def server(env: Mapping[str, str]) -> Iterator[tuple[int, float]]:
    """Start a server for the block, and yield its pid and the seconds until its first answer."""
    home = Home(Path(env["MIDWATCH_HOME"]))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began = time.perf_counter()
    with process([PROGRAM, "up", "--port", "0"], env=env, **quiet) as child:
        while not answers(home):
            if child.poll() is not None or time.perf_counter() - began > READY_SECONDS:
                raise Failed("`midwatch up` did not start; try it by hand.")
            time.sleep(0.005)
        yield child.pid, time.perf_counter() - began
        child.send_signal(signal.SIGTERM)
        child.wait(30)


def answers(home: Home) -> bool:
    """Return whether the server of this home answers."""
    info = home.server() if (home.path / "run").exists() else None
    return info is not None and get(f"{info.url}/api/v1/health")


def get(url: str) -> bool:
    """Return whether a server answers at this address."""
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def start_agentapi(folder: Path) -> float:
    """Return the seconds from the start of an agentapi server until it answers."""
    env = {**clean_environment(), "TMPDIR": str(folder)}
    command = [PROGRAM, "agentapi", "server", "--port", "0", "--json", "--", "cat"]
    began = time.perf_counter()
    with process(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line or not get(f"{json.loads(line)['url']}/status"):
            raise Failed("`midwatch agentapi server` did not start; try it by hand.")
        took = time.perf_counter() - began
        child.send_signal(signal.SIGTERM)
        child.wait(30)
    return took


def measure_idle(pid: int) -> dict[str, float]:
    """Return the CPU and the memory of a server that has nothing to do."""
    time.sleep(SETTLE_SECONDS)
    used, began = tree_seconds(pid), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    share = (tree_seconds(pid) - used) / (time.perf_counter() - began)
    return {"idle_cpu_percent": share * 100, "idle_memory_mb": psutil.Process(pid).memory_info().rss / 1e6}


async def add_tasks(home: str) -> str:
    """Submit some tasks, and return the id of the last one when it has ended."""
    async with Client.for_home(home) as client, asyncio.timeout(60):
        for number in range(TASKS):
            task = await client.submit(f"task {number}", {"agent": "demo"})
        while (await client.get(task["id"]))["status"] in ("pending", "running"):
            await asyncio.sleep(0.05)
    return str(task["id"])


def measure_all(folder: Path, times: int) -> tuple[dict[str, Cost], dict[str, Any]]:
    """Return the costs of all commands and the other figures."""

    def environment(name: str, **more: str) -> dict[str, str]:
        return {**clean_environment(), "MIDWATCH_HOME": str(folder / name), **more}

    env, alone = environment("home", MIDWATCH_DETECT_AGENTS="false"), environment("alone")
    starts = []
    for number in range(STARTS):
        with server(environment(f"up{number}")) as (_, took):
            starts.append(took)
    agentapi = [start_agentapi(folder) for _ in range(STARTS)]
    with server(env) as (pid, _):
        idle = measure_idle(pid)
        task = asyncio.run(add_tasks(env["MIDWATCH_HOME"]))
        info = Home(folder / "home").server()
        assert info is not None
        commands = {
            "--help": "help", "version": "version", "status": "status", "tasks": "tasks", f"show {task}": "show",
            "submit hello": "submit", "events": "events", "automation list": "automation_list",
        }  # fmt: skip
        costs = {name: measure_command([PROGRAM, *words.split()], env, times) for words, name in commands.items()}
        bare = [sys.executable, "-c", BARE_GET, info.url.rpartition("/")[2]]
        costs["bare_get"] = measure_command(bare, env, times)
    for words, name in {"tasks": "tasks_alone", "submit hello": "submit_alone"}.items():
        costs[name] = measure_command([PROGRAM, *words.split()], alone, times)
    return costs, {"up_s": statistics.median(starts), "agentapi_s": statistics.median(agentapi), **idle}


def print_figures(costs: Mapping[str, Cost], figures: Mapping[str, Any]) -> None:
    """Print the tables, and a sentence for each missed target."""
    targets = {target.figure: target for target in TARGETS}
    limits = {figure: str(target) for figure, target in targets.items()}
    rows = [
        [name, f"{cost.cpu * 1000:.0f} ms", f"{cost.wall * 1000:.0f} ms", limits.get(f"{name}_cpu_s", "")]
        for name, cost in costs.items()
    ]
    print_table(["command", "CPU, least", "time, median", "target, s of CPU"], rows)
    print()
    others = [name for name in figures if name in limits and not name.endswith("_cpu_s")]
    print_table(
        ["figure", "value", "target"],
        [[f"{name}: {targets[name].meaning}", f"{figures[name]:.3g}", limits[name]] for name in others],
    )
    print()
    for target in TARGETS:
        if not target.is_met_by(figures[target.figure]):
            print(f"MISSED: {target.figure} ({target.meaning}) is {figures[target.figure]:.3g}, target {target}.")
    if figures["others_cores"] > NOISY_CORES:
        print(f"DISTURBED: other processes used {figures['others_cores']:.2f} cores.")


def main() -> None:
    """Measure everything and print the figures."""
    parser = argparse.ArgumentParser(description="Measure the command line, and servers that start or are idle.")
    parser.add_argument("--times", type=int, default=10, help="runs of each command (10)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers and homes are cleaned up
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(ROOT / "src" / "midwatch")], check=True)
    print(f"{psutil.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}.\n")
    busy, own, began = busy_seconds(), children_seconds() + time.process_time(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-") as folder:
        try:
            costs, figures = measure_all(Path(folder), max(1, options.times))
        except Failed as problem:
            sys.exit(f"The benchmark could not be finished: {problem}")
    own = children_seconds() + time.process_time() - own
    figures["others_cores"] = max(0.0, (busy_seconds() - busy - own) / (time.monotonic() - began))
    for name, cost in costs.items():
        figures |= {f"{name}_cpu_s": cost.cpu, f"{name}_s": cost.wall}
    print_figures(costs, figures)
    print(json_line(figures))


if __name__ == "__main__":
    main()

"""Measure the embedded engine: `make bench-embedded`, or `python -m benchmarks.embedded [--rounds N] [--quick]`.

midwatch, DBOS on SQLite and a bare sqlite3 loop run in turn on the same disk, each time in a new process with a new
database. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.harness import (
    NOISY_CORES,
    Failed,
    Target,
    contend,
    json_line,
    print_table,
    quietest,
    sync_milliseconds,
)

IDLE_SECONDS = 10
ENDS = 10
PENDING = 10_000
NOT_A_DISK_MS = 0.02
SAME, LEAST = "bare sqlite3 loop, the same rows", "bare sqlite3 loop, the least rows"
OURS, OURS_SERIAL = "midwatch, 64 in flight", "midwatch, 1 in flight"
DBOS_DEFAULT = "DBOS queue, default setting"
DBOS_BEST = ("DBOS queue, best setting, 1 enqueuer", "DBOS queue, best setting, 16 enqueuers")
DBOS_SERIAL = "DBOS queue, best setting, 1 in flight"
DBOS_DIRECT, DBOS_DIRECT_SERIAL = "DBOS without queue, 64 in flight", "DBOS without queue, 1 in flight"


class Contender(NamedTuple):
    """A program that runs tasks: a command of a module, and the number of tasks in a full run."""

    name: str
    module: str
    verb: str
    tasks: int
    rest: tuple[int, ...] = ()


CONTENDERS = (
    Contender(OURS, "ours", "throughput", 12_800, (64,)),
    Contender(DBOS_BEST[0], "on_dbos", "queue-1", 600),
    Contender(DBOS_BEST[1], "on_dbos", "queue-16", 600),
    Contender(SAME, "bare", "same", 12_800),
    Contender(LEAST, "bare", "least", 12_800),
    Contender(OURS_SERIAL, "ours", "throughput", 800, (1,)),
    Contender(DBOS_SERIAL, "on_dbos", "queue-serial", 150),
    Contender(DBOS_DIRECT_SERIAL, "on_dbos", "direct-serial", 600),
    Contender(DBOS_DIRECT, "on_dbos", "direct-64", 600),
    Contender(DBOS_DEFAULT, "on_dbos", "queue-default", 1000),
)
LATENCY = Contender("midwatch, idle: submit to agent called", "ours", "latency", 300)
QUICK = 4
"""A quick run has this many times fewer tasks."""


TARGETS = (
    Target("ratio_dbos", True, 12, "64 in flight, times DBOS's queue at its best setting"),
    Target("ratio_raw", True, 0.36, "64 in flight, times a bare sqlite3 loop writing the same rows"),
    Target("cpu_ratio_raw", False, 2.8, "CPU per task, times that of the bare loop"),
    Target("ratio_dbos_serial", True, 6, "1 in flight, times DBOS's queue at its best setting"),
    Target("latency_p50_ms", False, 2, "idle: submit to agent called, median"),
    Target("latency_p99_ms", False, 10, "idle: submit to agent called, 99th percentile"),
    Target("idle_cpu_percent", False, 1, "idle: part of one core"),
    Target("claim_10000_ms", False, 2, "one durable claim with 10 000 pending"),
    Target("cancel_s", False, 1, "a cancel by another process to the program's end, at most"),
    Target("overrun_s", False, 1, "past its timeout to the end of a program that ignores signals, at most"),
)

Runs = dict[str, list[dict[str, Any]]]


def measure(folder: Path, rounds: int, quick: bool) -> Runs:
    """Run all contenders in turn, in reverse order in every second round."""
    runs: Runs = {}
    field = (*CONTENDERS, LATENCY)
    for number in range(rounds):
        for contender in field if number % 2 == 0 else reversed(field):
            print(f"round {number + 1} of {rounds}: {contender.name} ...", file=sys.stderr)
            tasks = contender.tasks // QUICK if quick else contender.tasks
            runs.setdefault(contender.name, []).append(
                fresh(folder, contender.module, contender.verb, tasks, *contender.rest)
            )
    return runs


def fresh(folder: Path, module: str, verb: str, *numbers: int) -> dict[str, Any]:
    """Return the figures of a contender in an empty directory."""

    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=folder) as home:
            return contend(module, verb, home, *numbers)

    return quietest(run)


def values(runs: Runs, name: str, figure: str = "tasks_per_s") -> list[float]:
    """Return one figure of all rounds."""
    return [run[figure] for run in runs[name]]


def middle(runs: Runs, name: str, figure: str = "tasks_per_s") -> float:
    """Return the median of one figure over the rounds."""
    return statistics.median(values(runs, name, figure))


def ratio(runs: Runs, name: str, baseline: str, figure: str = "tasks_per_s") -> float:
    """Return the median of the rounds' ratios: both sides of each were measured within the same minute."""
    pairs = zip(values(runs, name, figure), values(runs, baseline, figure), strict=True)
    return statistics.median(a / b for a, b in pairs)


def throughput_figures(runs: Runs) -> dict[str, Any]:
    """Return the figures of the rounds."""
    best = max(DBOS_BEST, key=lambda name: middle(runs, name))
    everyone = [name for name in runs if name.startswith("DBOS")]
    fastest = max(everyone, key=lambda name: middle(runs, name))
    return {
        "tasks_per_s": middle(runs, OURS),
        "dbos_tasks_per_s": middle(runs, best),
        "raw_tasks_per_s": middle(runs, SAME),
        "ratio_dbos": ratio(runs, OURS, best),
        "ratio_dbos_serial": ratio(runs, OURS_SERIAL, DBOS_SERIAL),
        "ratio_raw": ratio(runs, OURS, SAME),
        "cpu_ratio_raw": ratio(runs, OURS, SAME, "cpu_us_per_task"),
        "raw_cpu_us_per_task": min(values(runs, SAME, "cpu_us_per_task")),
        "latency_p50_ms": middle(runs, LATENCY.name, "p50_ms"),
        "latency_p99_ms": middle(runs, LATENCY.name, "p99_ms"),
        "synchronous": " and ".join(sorted({run["synchronous"] for run in runs[OURS]})),
        "events_per_task": middle(runs, OURS, "events_per_task"),
        "serial_tasks_per_s": middle(runs, OURS_SERIAL),
        "dbos_default_tasks_per_s": middle(runs, DBOS_DEFAULT),
        "dbos_serial_tasks_per_s": middle(runs, DBOS_SERIAL),
        "dbos_direct_tasks_per_s": middle(runs, DBOS_DIRECT),
        "dbos_direct_serial_tasks_per_s": middle(runs, DBOS_DIRECT_SERIAL),
        "raw_least_tasks_per_s": middle(runs, LEAST),
        "ratio_dbos_default": ratio(runs, OURS, DBOS_DEFAULT),
        "ratio_dbos_fastest": ratio(runs, OURS, fastest),
        "ratio_dbos_direct_serial": ratio(runs, OURS_SERIAL, DBOS_DIRECT_SERIAL),
        "ratio_raw_least": ratio(runs, OURS, LEAST),
        "cores": middle(runs, OURS, "cores"),
        "cpu_us_per_task": min(values(runs, OURS, "cpu_us_per_task")),
        "foreign_cores": max(run["foreign_cores"] for done in runs.values() for run in done),
    }


# -- other figures -----------------------------------------------------------------------------------------------


def other_figures(folder: Path, idle_seconds: int) -> dict[str, Any]:
    """Return the figures of an idle runtime, of a claim, and of programs that are ended."""
    print("idle CPU, claim, ends ...", file=sys.stderr)
    idle = contend("ours", "idle", folder / "idle", idle_seconds)
    claimed = fresh(folder, "ours", "claim", PENDING)
    end_times = fresh(folder, "ours", "ends", ENDS)
    return {
        "idle_cpu_percent": idle["cpu_percent"],
        "claim_10000_ms": claimed["one_ms"],
        "claim_64_of_10000_ms": claimed["sixty_four_ms"],
        "cancel_s": end_times["cancel_s"],
        "overrun_s": end_times["overrun_s"],
    }


# -- output ------------------------------------------------------------------------------------------------------


def print_rounds(runs: Runs) -> None:
    """Print the result of each contender and the noise."""
    rows = []
    for name, done in runs.items():
        noise = statistics.median(run["foreign_cores"] for run in done)
        figure, unit = ("tasks_per_s", "tasks/s") if name != LATENCY.name else ("p50_ms", "ms")
        numbers = values(runs, name, figure)
        digits = 0 if unit == "tasks/s" else 2
        spread = f"{min(numbers):.{digits}f} - {max(numbers):.{digits}f}"
        rows.append([name, f"{statistics.median(numbers):.{digits}f} {unit}", spread, f"{noise:.2f}"])
    print_table(["contender", "median", "min - max", "others' cores"], rows)


def print_targets(figures: Mapping[str, Any]) -> None:
    """Print each figure beside its target, and a sentence for each missed one."""
    measured = [target for target in TARGETS if figures.get(target.figure) is not None]
    rows = [
        [f"{target.figure}: {target.meaning}", f"{figures[target.figure]:.3g}", str(target),
         "reached" if target.is_met_by(figures[target.figure]) else "MISSED"]
        for target in measured
    ]  # fmt: skip
    print_table(["figure", "value", "target", ""], rows)
    if figures["foreign_cores"] > NOISY_CORES:
        print(
            f"DISTURBED: other processes used up to {figures['foreign_cores']:.2f} cores during a run, so the "
            "results are not reliable. Repeat this on a quiet machine."
        )
    print(f"\nDurable: synchronous = {figures['synchronous']}, {figures['events_per_task']:g} events per task.")
    if figures["synchronous"] != "FULL":
        print("MISSED: synchronous is not FULL, so the figures are not those of durable tasks.")
    for target in measured:
        if not target.is_met_by(figures[target.figure]):
            print(
                f"MISSED: {target.figure} ({target.meaning}) is {figures[target.figure]:.3g}, target {target}."
                f"{limited_by(figures) if target.figure in ('ratio_dbos', 'ratio_raw') else ''}"
            )
    print(
        f"Without a target: DBOS without its queue (started at once in the calling process) runs "
        f"{figures['dbos_direct_serial_tasks_per_s']:.0f} tasks/s one at a time; midwatch, which queues and claims, "
        f"{figures['ratio_dbos_direct_serial']:.2g} times as many, and with 64 in flight "
        f"{figures['ratio_dbos_fastest']:.2g} times as many as DBOS in its fastest setting."
    )


def limited_by(figures: Mapping[str, Any]) -> str:
    """Return what limited the run with 64 tasks in flight."""
    if figures["cores"] >= 0.85:
        return (
            f" The limit is Python's single running thread: {figures['cores']:.2f} cores were used, "
            f"{figures['cpu_us_per_task']:.0f} µs of CPU per task; a sync takes {figures['disk_sync_ms']:.2f} ms here."
        )
    return (
        f" It waited for the disk or for a core that other processes used: only {figures['cores']:.2f} cores were used."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the embedded engine beside DBOS and a bare sqlite3 loop.")
    parser.add_argument("--rounds", type=int, default=None, help="number of rounds (3; quick: 1)")
    parser.add_argument("--quick", action="store_true", help="fewer tasks: checks that the benchmark works")
    parser.add_argument("--dir", type=Path, default=None, help="a directory on the disk to measure on (/var/tmp)")
    options = parser.parse_args()
    rounds = max(1, options.rounds or (1 if options.quick else 3))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that contenders and databases are cleaned up
    disk = Path("/var/tmp")  # unlike /tmp never kept in memory
    base = options.dir or (disk if disk.is_dir() else None)
    if importlib.util.find_spec("dbos") is None:
        sys.exit("DBOS is not installed: run `make bench-embedded`, or `pip install --group bench`.")
    with tempfile.TemporaryDirectory(prefix="midwatch-bench-", dir=base) as scratch:
        folder = Path(scratch)
        sync = sync_milliseconds(folder)
        print(
            f"{psutil.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}, "
            f"4 KiB to disk in {sync:.3f} ms (median). {rounds} round(s). midwatch is on uvloop, as its server is.\n"
        )
        if sync < NOT_A_DISK_MS:
            print("A sync takes almost no time here, so this is not a disk; choose a directory on a disk with --dir.\n")
        try:
            runs = measure(folder, rounds, options.quick)
            print_rounds(runs)
            idle_seconds = IDLE_SECONDS // QUICK if options.quick else IDLE_SECONDS
            figures = {**throughput_figures(runs), **other_figures(folder, idle_seconds)}
        except Failed as problem:
            sys.exit(f"The benchmark could not be finished: {problem}")
    figures["disk_sync_ms"] = sync
    print()
    print_targets(figures)
    print(json_line(figures))


if __name__ == "__main__":
    main()

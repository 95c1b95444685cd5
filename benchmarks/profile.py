"""Show where the time of a task goes: `make profile`, or `python -m benchmarks.profile [--tasks N] [--functions N]`.

midwatch runs tasks of an agent that returns at once, 64 in flight. Meanwhile py-spy looks at the stack of each thread
that uses a CPU, some hundred times a second. The table shows the CPU time of one task by module. A second table shows
the functions, each with the time of everything that it calls.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.harness import Failed, contend, json_line, print_table, process

RATE = 400
"""Looks per second. More looks would slow down the tasks."""
BEGINNINGS = {"SqliteStore._serve": "writer", "drive": "event loop", "Runner.run": "event loop"}
"""The functions that tell which thread a stack belongs to. Other stacks belong to the start of the program."""

Stacks = dict[tuple[str, ...], int]


def record(tasks: int) -> Stacks:
    """Run the tasks, and return how often each stack was seen. The first function of a stack comes first."""
    with tempfile.TemporaryDirectory(prefix="midwatch-profile-", dir="/var/tmp") as folder:
        seen = Path(folder, "stacks")
        spy = [str(Path(sys.executable).with_name("py-spy")), "record", "--format", "raw", "--output", str(seen)]
        ours = [sys.executable, "-m", "benchmarks.ours", "throughput", str(Path(folder, "home")), str(tasks), "64"]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with process([*spy, "--rate", str(RATE), "--", *ours], **quiet) as child:
            said, _ = child.communicate(timeout=600)
        if child.returncode != 0 or not seen.exists():
            raise Failed(f"py-spy failed; it may need root: {said.strip()[-300:]}")
        stacks: Stacks = {}
        for line in seen.read_text().splitlines():
            frames, _, count = line.rpartition(" ")
            stacks[tuple(frames.split(";"))] = int(count)
        return stacks


def thread_of(stack: tuple[str, ...]) -> str | None:
    """Return the name of the thread that a stack belongs to; None for the start of the program."""
    names = [frame.partition(" ")[0] for frame in stack]
    if "_find_and_load" in names:
        return None
    return next((thread for name, thread in BEGINNINGS.items() if name in names), None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show where the time of a task goes.")
    parser.add_argument("--tasks", type=int, default=50_000, help="number of tasks (50 000)")
    parser.add_argument("--functions", type=int, default=30, help="number of functions to show (30)")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            cpu_us = contend("ours", "throughput", folder, 6400, 64)["cpu_us_per_task"]
        stacks = record(options.tasks)
    except Failed as problem:
        sys.exit(f"The profile could not be made: {problem}")
    modules: Counter[tuple[str, str]] = Counter()
    functions: Counter[str] = Counter()
    for stack, count in stacks.items():
        if thread := thread_of(stack):
            modules[thread, stack[-1].partition("(")[2].rpartition(":")[0]] += count
            calls = {frame.rpartition(":")[0].replace(" (", "  ") for frame in stack if "(midwatch/" in frame}
            functions.update(dict.fromkeys(calls, count))
    total = modules.total()
    if not total:
        sys.exit("The profile could not be made: py-spy has seen no task; use more --tasks.")

    def share(count: int) -> list[str]:
        return [f"{count / total * cpu_us:.1f}", f"{count / total:.1%}"]

    print(f"A task takes {cpu_us:.0f} µs of CPU. {total} looks, all of SQLite's work included.\n")
    rows = [[name, thread, *share(n)] for (thread, name), n in modules.most_common(40)]
    print_table(["module", "thread", "µs", ""], rows)
    print()
    shown = [[name, *share(n)] for name, n in functions.most_common(options.functions)]
    print_table(["function, with everything that it calls", "µs", ""], shown)
    by_module: Counter[str] = Counter()
    for (_, name), count in modules.items():
        by_module[name] += count
    print(json_line({"cpu_us_per_task": cpu_us, **{n: c / total * cpu_us for n, c in by_module.most_common(20)}}))


if __name__ == "__main__":
    main()

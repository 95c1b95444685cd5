"""Functions of all benchmarks: contenders in processes of their own, noise of other processes, medians."""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).parent.parent
FOREIGN = ("MIDWATCH_", "DBOS")
"""Environment variables that would change a contender's defaults."""


NOISY_CORES = 0.25
"""The CPU use of others in cores above which a run cannot be compared."""
QUIET_SECONDS = 5.0
CHUNKS = 10
"""The number of parts of a run for which CPU time is measured."""


class Failed(Exception):
    """A contender did not finish."""


class Target(NamedTuple):
    """The target of a figure."""

    figure: str
    at_least: bool
    limit: float
    meaning: str

    def is_met_by(self, value: float) -> bool:
        """Return whether the value meets the target."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that configure a contender."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


@contextmanager
def process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a group of its own; nothing of the group survives the block."""
    options.setdefault("env", clean_environment())
    child = subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **options)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError, PermissionError):  # the group has already ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def contend(module: str, *arguments: object, timeout: float = 180.0) -> dict[str, Any]:
    """Run `benchmarks.<module>` with these arguments and return the figures of the JSON object on its last line.

    `foreign_cores` is added: the number of cores that other processes used meanwhile.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    busy, own, began = busy_seconds(), children_seconds(), time.monotonic()
    with process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command[1:])} did not finish within {timeout:.0f} s.") from None
    if child.returncode != 0 or not out.strip():
        lines = err.strip().splitlines() or ["it said nothing"]
        raise Failed(f"{' '.join(command[1:])} failed: {lines[-1]}")
    wall = time.monotonic() - began
    foreign = (busy_seconds() - busy - (children_seconds() - own)) / wall
    figures: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return {**figures, "foreign_cores": max(0.0, foreign)}


def quietest(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run when other processes leave the CPU alone; otherwise run once more and keep the run with less noise."""
    _await_quiet()
    first = run()
    if first["foreign_cores"] <= NOISY_CORES:
        return first
    _await_quiet()
    return min(first, run(), key=lambda figures: float(figures["foreign_cores"]))


def _await_quiet() -> None:
    """Wait a limited time until other processes are quiet."""
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        busy, began = busy_seconds(), time.monotonic()
        time.sleep(0.5)
        if (busy_seconds() - busy) / (time.monotonic() - began) <= NOISY_CORES:
            return


def busy_seconds() -> float:
    """Return the CPU seconds of all processes on this machine since its start, including stolen time."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def children_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its live children."""
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(time.clock_gettime(~each << 3 | 2) for each in pids)  # the CPU clock of a process, exact to 1 ns


def sync_milliseconds(folder: Path, count: int = 200) -> float:
    """Return the median time of a durable write of 4 KiB."""
    file, took = folder / "probe", []
    handle = os.open(file, os.O_CREAT | os.O_RDWR)
    try:
        for page in range(count):
            os.pwrite(handle, b"x" * 4096, page * 4096)
            began = time.perf_counter()
            os.fdatasync(handle)
            took.append(time.perf_counter() - began)
    finally:
        os.close(handle)
        file.unlink()
    return statistics.median(took) * 1e3


def percentile(values: Iterable[float], part: float) -> float:
    """Return the smallest value that at least `part` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


def least_cpu_us(marks: Sequence[float], tasks: int) -> float:
    """Return the CPU time of one task in microseconds: the least of all chunks, which others disturbed least.

    `marks` are the CPU seconds at the beginning and after each chunk of so many `tasks`.
    """
    return min(after - before for before, after in pairwise(marks)) / tasks * 1e6


def round_figure(value: Any, digits: int = 3) -> Any:
    """Return a figure with a reasonable number of digits."""
    if isinstance(value, float):
        return round(value) if abs(value) >= 1000 else round(value, digits)
    return value


def json_line(figures: Mapping[str, Any]) -> str:
    """Return the last line of a benchmark."""
    return json.dumps({name: round_figure(value) for name, value in figures.items()})


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with columns as wide as needed, the first one aligned left, the others right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())

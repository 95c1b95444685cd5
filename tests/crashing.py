"""Crash a desk at every write: a child process that dies at its n-th write, and a second one that continues."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from midwatch.stores.sqlite import SqliteStore

CRASH_STATUS = 77

FEWEST_WRITES = 8
"""A scenario with fewer writes tests nothing."""

Scenario = Callable[[Path, str], Awaitable[None]]


def list_crash_cases(scenarios: Iterable[str]) -> list[tuple[str, str]]:
    """Return each scenario with a crash before every write, and the first one also with a crash after every write. Both
    leave the same store; only the work between two writes has not started after the earlier crash.
    """
    deaths = [(name, "before") for name in scenarios]
    return [*deaths, (deaths[0][0], "after")]


def exit_at_write(crash_at: int, *, after: bool) -> None:
    """End this process at its n-th write: before it, or when it is durable and nobody has its result."""
    real, count = SqliteStore.write, itertools.count(1)

    async def write(store: SqliteStore, verb: Callable[..., Any], *args: Any) -> Any:
        if next(count) == crash_at:
            if after:
                await real(store, verb, *args)
            os._exit(CRASH_STATUS)
        return await real(store, verb, *args)

    SqliteStore.write = write  # type: ignore[assignment, method-assign]


def run_in_child(run_scenario: Scenario, home: Path, name: str, crash_at: int, *, after: bool) -> int:
    """Run the scenario in a child process that dies at a write, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            exit_at_write(crash_at, after=after)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            asyncio.run(run_scenario(home, name))  # type: ignore[arg-type]  # a coroutine function
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crash_at_every_write(run_scenario: Scenario, folder: Path, name: str, after: str, *, every: int = 1) -> None:
    """Crash at the first write and continue, crash at the second and continue, until a run has no more writes.

    With `every`, crash only at each so many writes of a long scenario.

    A first run in this process loads libraries and builds schemas, so that the children need not.
    """
    whole = folder / "whole"
    whole.mkdir()
    asyncio.run(run_scenario(whole, name))  # type: ignore[arg-type]  # a coroutine function
    crash_at, codes = 0, [CRASH_STATUS]
    while codes[0] == CRASH_STATUS:
        crash_at += every
        home = folder / str(crash_at)
        home.mkdir()
        codes = [
            run_in_child(run_scenario, home, name, crash_at, after=after == "after"),
            run_in_child(run_scenario, home, name, 0, after=False),
        ]
        print(json.dumps([crash_at, *codes]), flush=True)


async def run_crashes(file: str, *arguments: str) -> list[int]:
    """Run a test file as a program that crashes at every write, and return the numbers of the writes.

    `arguments` are those of the program. It crashes in a process of its own, because only there it can fork. At each
    number but the last the first child has died, and the second one has ended the work.
    """
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    program = subprocess.Popen([sys.executable, file, *arguments], env=env, text=True, stdout=subprocess.PIPE)
    out, _ = await asyncio.to_thread(program.communicate)
    assert program.returncode == 0
    deaths = [json.loads(line) for line in out.splitlines()]
    assert [codes for _, *codes in deaths] == [[CRASH_STATUS, 0]] * (len(deaths) - 1) + [[0, 0]]
    assert len(deaths) > FEWEST_WRITES
    return [crash_at for crash_at, *_ in deaths]

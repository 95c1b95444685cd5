"""The reaper: finds and ends the processes of a process group, of a cgroup, or all processes of an attempt.

A process group is identified by its number and by a mark, which contains the boot id of the machine and the start time
of the group's first process, the leader. So if the system gives the number to another process later, that process gets
no signal. All processes of an attempt, also outside of the group, have the attempt in their variable MIDWATCH_TASK,
unless they clear their environment. Where the attempt has a cgroup, all its processes are in the cgroup.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from midwatch.base.home import boot_id

PROC = Path("/proc")
PATIENCE = 10.0  # seconds to wait after SIGKILL; only a process blocked in the kernel needs longer
TICKS = os.sysconf("SC_CLK_TCK")
LOADING_SECONDS = 1.0
ATTEMPTS_BY_GROUP: dict[int, str] = {}
"""The attempts of the groups that this process has started; after a `:` the cgroup of the attempt, if it has one."""


def identify(pgid: int) -> str:
    """Return the mark of a process group. A later group with the same number has another mark.

    The mark is empty if the system has no /proc or the group has no leader. The mark of a child of this process ends
    with the attempt for which the child was started and with the cgroup of that attempt, because later attempts may use
    the same child.
    """
    try:
        return f"{boot_id()}:{read_stat(pgid)[19].decode()}:{ATTEMPTS_BY_GROUP.get(pgid, '')}"
    except OSError:
        return ""


async def reap(task_id: str, attempt: int, pgid: int | None, mark: str | None) -> int:
    """End all processes of an attempt whose midwatch process died, and return how many processes were ended."""
    ended = await end_group(pgid, mark) if pgid else 0
    boot, _, opener, cgroup = [*(mark or "").split(":", 3), "", "", ""][:4]
    if cgroup and boot == boot_id():
        ended += await end_cgroup(Path(cgroup))
    first, _, number = opener.partition("/")
    if number.isdecimal() and (first, int(number)) != (task_id, attempt):
        ended += await end_strays(first, int(number))  # the conversation was started by an earlier task
    return ended + await end_strays(task_id, attempt)


async def end_group(pgid: int, mark: str | None) -> int:
    """Send SIGKILL to a process group if it still has this mark, and return how many processes it had."""
    if not mark or not _is_marked(pgid, mark):
        return 0
    count = len(await asyncio.to_thread(members, pgid))
    signal_group(pgid, signal.SIGKILL)
    await _wait_for_end(pgid, PATIENCE)
    return count


def _is_marked(pgid: int, mark: str) -> bool:
    """Return whether the process group has this mark.

    If the leader has ended, only the boot id is compared. This is safe: the system does not reuse the number of a group
    that still has processes.
    """
    now, boot = identify(pgid), mark.partition(":")[0]
    if now:
        return now.split(":")[:2] == mark.split(":")[:2]
    return boot == boot_id() and bool(members(pgid))


async def end_cgroup(path: Path, patience: float = PATIENCE) -> int:
    """Kill all processes in a cgroup and in the cgroups below it, remove these cgroups, and return how many were ended.

    If a process is still alive after `patience` seconds, its cgroup stays.
    """
    ended: set[int] = set()
    give_up = time.monotonic() + patience
    pause = 0.001
    while pids := list_cgroup(path):
        ended |= pids
        with suppress(OSError):
            (path / "cgroup.kill").write_text("1")
        if time.monotonic() > give_up:
            break
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
    remove_empty(path)
    return len(ended)


def remove_empty(path: Path) -> None:
    """Remove a cgroup and the cgroups below it, except those that contain processes."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()


def list_cgroup(path: Path) -> set[int]:
    """Return the ids of the processes that are alive in a cgroup and in the cgroups below it."""
    pids = set()
    for folder, _, _ in os.walk(path):
        with suppress(OSError):
            pids |= {int(pid) for pid in (Path(folder) / "cgroup.procs").read_text().split()}
    return pids


async def end_strays(task_id: str, attempt: int) -> int:
    """Send SIGKILL to all processes with this attempt in their MIDWATCH_TASK, and return how many were ended."""
    variable = f"MIDWATCH_TASK={task_id}/{attempt}".encode()
    ended: set[int] = set()
    give_up = time.monotonic() + PATIENCE
    while (pids := await asyncio.to_thread(_find_carriers, variable)) or any(_is_running(pid) for pid in ended):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= pids
        if time.monotonic() > give_up:
            break
        await asyncio.sleep(0.01)
    return len(ended)


async def end_members(pgid: int, *, grace: float, patience: float) -> bool:
    """End the processes of a group whose leader has ended, and return whether all of them have ended.

    They get SIGTERM, and after `grace` seconds SIGKILL. Then wait at most `patience` seconds for their end.
    """
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, patience)):
        if not signal_group(pgid, number) or await _wait_for_end(pgid, seconds):
            return True
    return False


def signal_group(pgid: int, number: int) -> bool:
    """Send a signal to a group and return whether there was a process to signal."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def members(pgid: int) -> set[int]:
    """Return the ids of the processes of a group that are alive. Zombies are left out."""
    pids = set()
    for pid in _pids():
        with suppress(OSError, IndexError):
            state, _, group = read_stat(pid)[:3]
            if int(group) == pgid and state not in (b"Z", b"X"):
                pids.add(pid)
    return pids


async def _wait_for_end(pgid: int, seconds: float) -> bool:
    """Wait at most `seconds` for the end of a group, and return whether it has ended."""
    give_up = time.monotonic() + seconds
    pause = 0.005
    while signal_group(pgid, 0):
        if not await asyncio.to_thread(_is_alive, pgid):
            return True
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _is_alive(pgid: int) -> bool:
    """Return whether the group has a process that is alive and not a zombie.

    If the system has no /proc, nobody can know this, and the result is True.
    """
    return not PROC.is_dir() or bool(members(pgid))


def _find_carriers(variable: bytes) -> set[int]:
    pids = set()
    for pid in _pids():
        with suppress(OSError):
            if variable in read_environment(pid).split(b"\0"):
                pids.add(pid)
    return pids - {os.getpid()}


def read_environment(pid: int) -> bytes:
    """Return the environment of a process, and wait a moment if the system is still loading the process's program."""
    while not (environment := (PROC / str(pid) / "environ").read_bytes()):
        started, memory = map(int, read_stat(pid)[19:21])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / TICKS
        if not memory or age > LOADING_SECONDS:  # a kernel thread, a process that ends, or one without variables
            break
        time.sleep(0.001)
    return environment


def _is_running(pid: int) -> bool:
    """Return whether a process still runs.

    This needs a test of its own: a process that is ending has no environment any more, but still runs for a moment.
    """
    try:
        return read_stat(pid)[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _pids() -> Iterator[int]:
    if PROC.is_dir():
        yield from (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def read_stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the program's name: state, parent, group and so on.

    The program's name is in parentheses and may contain any character, so the fields begin after the last `)`.
    """
    return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()

"""Finds and ends processes: those of a group, or those of a task wherever they went.

A process group is known by its number and by a mark made of the boot and the start time of its leader. So a number that
was given to another process is never signalled. The processes of a task have MIDWATCH_TASK in their environment.
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
PATIENCE = 10.0  # seconds to wait after SIGKILL; only a process that hangs in the kernel needs longer
ATTEMPTS_BY_GROUP: dict[int, str] = {}  # for the groups that this process started, as their processes carry it


def identify(pgid: int) -> str:
    """Return the mark that tells the leader of this group from a later process with the same number.

    It is empty where the system cannot say. For our own children it ends with the attempt they were started for,
    because a later attempt may use them now.
    """
    try:
        return f"{boot_id()}:{_stat(pgid)[19].decode()}:{ATTEMPTS_BY_GROUP.get(pgid, '')}"
    except OSError:
        return ""


async def reap(task_id: str, attempt: int, pgid: int | None, mark: str | None) -> int:
    """End all processes of a dead attempt and return how many there were."""
    ended = await end_group(pgid, mark) if pgid else 0
    first, _, number = (mark or "").rpartition(":")[2].partition("/")
    if number.isdecimal() and (first, int(number)) != (task_id, attempt):
        ended += await end_strays(first, int(number))  # of a conversation that was begun by an earlier task
    return ended + await end_strays(task_id, attempt)


async def end_group(pgid: int, mark: str | None) -> int:
    """Send SIGKILL to the group if it is still the one that was marked, and return how many processes it had."""
    if not mark or not _is_marked(pgid, mark):
        return 0
    count = len(await asyncio.to_thread(members, pgid))
    signal_group(pgid, signal.SIGKILL)
    await _group_gone(pgid, PATIENCE)
    return count


def _is_marked(pgid: int, mark: str) -> bool:
    """Whether this is the group that was marked.

    Without a leader the boot decides, because a number that is in use as a group is not given to a new process.
    """
    now, boot = identify(pgid), mark.partition(":")[0]
    if now:
        return now.split(":")[:2] == mark.split(":")[:2]
    return boot == boot_id() and bool(members(pgid))


async def end_strays(task_id: str, attempt: int) -> int:
    """Send SIGKILL to every process with this attempt in its environment, and return how many there were."""
    wanted = f"MIDWATCH_TASK={task_id}/{attempt}".encode()
    ended: set[int] = set()
    give_up = time.monotonic() + PATIENCE
    while (pids := await asyncio.to_thread(_carriers, wanted)) or any(_lives(pid) for pid in ended):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= pids
        if time.monotonic() > give_up:
            break
        await asyncio.sleep(0.01)
    return len(ended)


async def end_members(pgid: int, *, grace: float, patience: float) -> bool:
    """End a group whose leader is gone: SIGTERM, then SIGKILL after `grace` seconds. Return whether it is gone."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, patience)):
        if not signal_group(pgid, number) or await _group_gone(pgid, seconds):
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
    """Return the living processes of a group. Zombies do not count."""
    pids = set()
    for pid in _pids():
        with suppress(OSError, IndexError):
            state, _, group = _stat(pid)[:3]
            if int(group) == pgid and state not in (b"Z", b"X"):
                pids.add(pid)
    return pids


async def _group_gone(pgid: int, seconds: float) -> bool:
    """Wait and return whether the group had no living process within `seconds`."""
    give_up = time.monotonic() + seconds
    pause = 0.005
    while signal_group(pgid, 0):
        if not await asyncio.to_thread(_has_life, pgid):
            return True
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _has_life(pgid: int) -> bool:
    """Whether a process of the group lives.

    Zombies do not count; if the system cannot say, the group counts as alive.
    """
    return not PROC.is_dir() or bool(members(pgid))


def _carriers(wanted: bytes) -> set[int]:
    pids = set()
    for pid in _pids():
        with suppress(OSError):
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                pids.add(pid)
    return pids - {os.getpid()}


def _lives(pid: int) -> bool:
    """Whether a process still runs.

    A process that ends loses its environment first, so it may run for a moment without its mark.
    """
    try:
        return _stat(pid)[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _pids() -> Iterator[int]:
    if PROC.is_dir():
        yield from (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the program's name: state, parent, group and so on.

    The name may hold any character.
    """
    return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()

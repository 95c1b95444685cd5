"""Finding and ending processes: of a group, or of a task wherever they went.

A process group is known by its number and a mark made of the boot and the leader's start time, so that a number that
was given to another process meanwhile is never signalled. A task's processes carry MIDWATCH_TASK in their environment.
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
PATIENCE = 10.0
"""Seconds to wait for what has got SIGKILL; only a process stuck in the kernel needs longer."""
BORN: dict[int, str] = {}
"""Of the groups this process started: the attempt, as its processes carry it."""


def identify(pgid: int) -> str:
    """What tells this group's leader from a later process with the same number; empty where the system cannot say. Of
    our own children it ends with the attempt they were started for: a later one may work with them now."""
    try:
        return f"{boot_id()}:{_stat(pgid)[19].decode()}:{BORN.get(pgid, '')}"
    except OSError:
        return ""


async def reap(task_id: str, attempt: int, pgid: int | None, mark: str | None) -> int:
    """End whatever is left of a dead attempt. Returns how many processes there were."""
    ended = await end_group(pgid, mark) if pgid else 0
    first, _, number = (mark or "").rpartition(":")[2].partition("/")
    if number.isdecimal() and (first, int(number)) != (task_id, attempt):
        ended += await end_strays(first, int(number))  # of a conversation that was begun by an earlier task
    return ended + await end_strays(task_id, attempt)


async def end_group(pgid: int, mark: str | None) -> int:
    """SIGKILL the group if it is still the one that was marked. Returns how many processes it had."""
    if not mark or not _is_marked(pgid, mark):
        return 0
    found = len(await asyncio.to_thread(members, pgid))
    signal_group(pgid, signal.SIGKILL)
    await _group_gone(pgid, PATIENCE)
    return found


def _is_marked(pgid: int, mark: str) -> bool:
    """Whether it is the group that was marked. Without its leader the boot decides: a number that is in use as a group
    is not given to a new process."""
    now, boot = identify(pgid), mark.partition(":")[0]
    if now:
        return now.split(":")[:2] == mark.split(":")[:2]
    return boot == boot_id() and bool(members(pgid))


async def end_strays(task_id: str, attempt: int) -> int:
    """SIGKILL every process that carries this attempt's mark in its environment. Returns how many there were."""
    wanted = f"MIDWATCH_TASK={task_id}/{attempt}".encode()
    ended: set[int] = set()
    give_up = time.monotonic() + PATIENCE
    while (found := await asyncio.to_thread(_carriers, wanted)) or any(_lives(pid) for pid in ended):
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= found
        if time.monotonic() > give_up:
            break
        await asyncio.sleep(0.01)
    return len(ended)


async def end_members(pgid: int, *, grace: float, patience: float) -> bool:
    """End a group whose leader is gone: SIGTERM, SIGKILL after `grace`. Whether it is gone."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, patience)):
        if not signal_group(pgid, number) or await _group_gone(pgid, seconds):
            return True
    return False


def signal_group(pgid: int, number: int) -> bool:
    """Whether there was somebody to signal."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def members(pgid: int) -> set[int]:
    """The living processes of a group; zombies do not count."""
    found = set()
    for pid in _pids():
        with suppress(OSError, IndexError):
            state, _, group = _stat(pid)[:3]
            if int(group) == pgid and state not in (b"Z", b"X"):
                found.add(pid)
    return found


async def _group_gone(pgid: int, seconds: float) -> bool:
    """Whether the group had no living process within `seconds`."""
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
    """False when only zombies are left that nobody collects; unknown counts as life."""
    return not PROC.is_dir() or bool(members(pgid))


def _carriers(wanted: bytes) -> set[int]:
    found = set()
    for pid in _pids():
        with suppress(OSError):
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def _lives(pid: int) -> bool:
    """One that dies loses its environment first: without its mark it may still run for a moment."""
    try:
        return _stat(pid)[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _pids() -> Iterator[int]:
    if PROC.is_dir():
        yield from (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the program's name, which may hold anything: state, parent, group, ..."""
    return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()

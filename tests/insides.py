"""The parts inside a running desk, for tests that hold one of them by the hand, or let the desk die."""

from __future__ import annotations

from typing import Any

from midwatch import Runtime
from midwatch.loops.scheduler import Scheduler
from midwatch.running.worker import Worker


def worker_of(desk: Runtime) -> Worker:
    """What runs its tasks."""
    return desk.crew.worker


def engine_of(desk: Runtime) -> Any:
    """What hands out tasks to it, of whichever kind."""
    return desk.crew.engine


def scheduler_of(desk: Runtime) -> Scheduler:
    """What fires its automations and wakes its goals."""
    return desk.crew.scheduler


def heartbeat_of(desk: Runtime) -> Any:
    """How it tells on a shared database that it lives."""
    return engine_of(desk)._heartbeat


def watchers_of(desk: Runtime) -> int:
    """How many are offered live events here."""
    return len(desk.bus._watchers)


def simulate_crash(desk: Runtime) -> None:
    """Its process dies: no handler runs, nothing more is written."""
    worker = worker_of(desk)
    for lost in list(worker._tasks):
        lost.cancel()
    worker.running.clear()

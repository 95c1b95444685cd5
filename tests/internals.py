"""Return internal parts of a running desk, for tests."""

from __future__ import annotations

from typing import Any

from midwatch import Runtime
from midwatch.loops.scheduler import Scheduler
from midwatch.running.worker import Worker


def worker_of(desk: Runtime) -> Worker:
    """Return the worker, which runs tasks."""
    return desk.crew.worker


def engine_of(desk: Runtime) -> Any:
    """Return the engine, which assigns tasks to the worker."""
    return desk.crew.engine


def scheduler_of(desk: Runtime) -> Scheduler:
    """Return the scheduler of automations and goals."""
    return desk.crew.scheduler


def heartbeat_of(desk: Runtime) -> Any:
    """Return the heartbeat that the engine sends to a shared database."""
    return engine_of(desk)._heartbeat


def watchers_of(desk: Runtime) -> int:
    """Return the number of watchers of live events in this process."""
    return len(desk.bus._watchers)


def simulate_crash(desk: Runtime) -> None:
    """Stop all tasks as if the process had been killed: no handler runs and nothing is written."""
    worker = worker_of(desk)
    for lost in list(worker._tasks):
        lost.cancel()
    worker.running.clear()

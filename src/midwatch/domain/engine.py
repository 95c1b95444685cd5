"""Engines: give the worker its next task, and know which processes are alive.

The embedded engine claims tasks as soon as a commit wakes it. How a task runs is the same under every engine; this is
in `midwatch.running.worker`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from midwatch.domain.instance import Instance


class Engine(Protocol):
    """Port: gives tasks to the worker while the engine runs."""

    async def start(self) -> None:
        """Begin to take tasks."""

    async def stop_taking(self) -> None:
        """Take no more tasks; running tasks continue."""

    async def stop(self) -> None:
        """Stop the engine and release everything that it holds. The worker has ended all turns before this call."""

    def wake(self) -> None:
        """Look for tasks now, because a task may have become claimable."""

    def offer(self, instance: Instance) -> None:
        """Claim tasks also for the agents that `instance` names now; tasks for new agents may be waiting already."""

    def leads(self) -> bool:
        """Return whether this process is the leader, which runs the loops.

        If there is no leader, this process becomes the leader.
        """

    def dead(self, owners: Iterable[str]) -> set[str]:
        """Return the ids in `owners` whose process has certainly ended."""

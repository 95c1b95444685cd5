"""Engines: give the worker its next task, and know which processes are alive.

The embedded engine claims as soon as a commit wakes it. Everything about how a task runs is in
`midwatch.running.worker` and is the same under every engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from midwatch.domain.instance import Instance


class Engine(Protocol):
    """Port: hands tasks to the worker while it runs."""

    async def start(self) -> None:
        """Begin to take tasks."""

    async def stop_taking(self) -> None:
        """Take no more tasks; running tasks continue."""

    async def stop(self) -> None:
        """Release everything. The worker has ended all turns by now."""

    def wake(self) -> None:
        """Look for work: a task may have become claimable."""

    def offer(self, instance: Instance) -> None:
        """Serve the agents that this process has now; tasks for new agents may wait already."""

    def leads(self) -> bool:
        """Return whether this process is the leader, which runs the loops. It becomes the leader if there is none."""

    def dead(self, owners: Iterable[str]) -> set[str]:
        """Return the ids in `owners` whose process has certainly ended."""

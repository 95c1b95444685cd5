"""Engines: who hands the worker its next task, and who knows which processes live.

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
        ...

    async def stop_taking(self) -> None:
        """Take no more tasks; what runs goes on."""
        ...

    async def stop(self) -> None:
        """Let go of everything. The worker has ended all turns by now."""
        ...

    def wake(self) -> None:
        """Look for work: something may have become possible."""
        ...

    def offer(self, instance: Instance) -> None:
        """The agents of this process are others now; tasks of new ones may wait."""
        ...

    def leads(self) -> bool:
        """Whether this process runs the loops (courier, rescuer, ...) now. Takes the lead when it is free."""
        ...

    def dead(self, owners: Iterable[str]) -> set[str]:
        """Those of `owners` whose process has certainly ended."""
        ...

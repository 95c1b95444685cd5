"""Engines: who hands the worker its next task, and who knows which processes live.

The embedded engine claims as soon as a commit wakes it. Everything about how a task runs is in `worker.py` and is the
same under every engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from midwatch.clock import iso

Role = Literal["up", "library", "run", "worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A process that runs tasks."""

    noun: ClassVar[str] = "instance"

    id: str
    role: Role
    host: str
    boot_id: str
    pid: int
    agents: tuple[str, ...]
    slots: int
    started_at: int

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "id": self.id,
            "role": self.role,
            "host": self.host,
            "pid": self.pid,
            "agents": list(self.agents),
            "slots": self.slots,
            "started_at": iso(self.started_at),
        }


class InstanceStore(Protocol):
    """Port: which processes there are. A row alone does not mean that its process lives: ask the engine."""

    async def add_instance(self, instance: Instance) -> None:
        """Make this process known."""
        ...

    async def remove_instances(self, ids: Iterable[str]) -> None:
        """Forget processes that have ended."""
        ...

    async def list_instances(self) -> list[Instance]:
        """All that are known, oldest first."""
        ...


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

    def leads(self) -> bool:
        """Whether this process runs the loops (courier, watchdog, ...) now. Takes the lead when it is free."""
        ...

    def dead(self, owners: Iterable[str]) -> set[str]:
        """Those of `owners` whose process has certainly ended."""
        ...

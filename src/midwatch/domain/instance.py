"""Instances: the processes that run tasks, how they show that they are alive, and the sessions open in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.domain.changes import Fence
from midwatch.domain.fields import Example, Hidden, JsonRecord

Role = Literal["up", "library", "run", "worker"]
DEAD_SECONDS = 8.0
"""A process that sends heartbeats counts as dead if its last one is older than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance(JsonRecord):
    """A process that runs tasks."""

    noun: ClassVar[str] = "instance"

    id: Annotated[str, Example("i_06f2m8")]
    role: Annotated[Role, Example("up")]
    host: Annotated[str, Example("desk")]
    boot_id: Hidden[str]
    pid: Annotated[int, Example(4711)]
    agents: Annotated[tuple[str, ...], Example(["demo"])]
    slots: Annotated[int, Example(64)]
    started_at: int
    terms: Hidden[Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    """The terms of its agents by name, for processes that submit tasks to agents of other processes."""


class InstanceStore(Protocol):
    """Port: the stored processes. A stored process may be dead: ask the engine."""

    async def add_instance(self, instance: Instance) -> None:
        """Store this process."""

    async def remove_instances(self, ids: Collection[str]) -> None:
        """Remove processes that have ended."""

    async def list_instances(self) -> list[Instance]:
        """Return all stored processes, oldest first."""


class Beat(NamedTuple):
    """The result of one heartbeat."""

    known: bool
    """Whether this process was still stored; if not, another process found it dead and removed it."""
    leases: frozenset[Fence]
    """The attempts this process owns."""
    leads: bool
    alive: frozenset[str]
    """The processes with a recent heartbeat."""


class Pulse(Protocol):
    """Port: the heartbeats of a process on a shared database. All methods block; one separate thread calls them."""

    def beat(self) -> Beat:
        """Send a heartbeat, renew or take the lead, and return the state; or raise StoreError."""

    def resign(self) -> None:
        """Give up the lead at once, so that another process can take it."""

    def close(self) -> None:
        """Close the connection; a later heartbeat opens another."""


class LiveStore(Protocol):
    """Port: sessions whose conversation is open in a process."""

    async def hold_session(self, key: str, owner: str, fence: Fence | None) -> int:
        """Store that process `owner` has opened the conversation, and return its new epoch.

        `fence` is the attempt, or None before the first one. From now on only that process takes tasks of the session,
        until it releases the session or dies.
        """

    async def release_session(self, key: str, owner: str) -> None:
        """Store that `owner` has closed the conversation. Does nothing if another process has opened it meanwhile."""

    async def list_live_sessions(self, owner: str) -> dict[str, int]:
        """Return the epochs of the sessions that are live in `owner` and not closed, by key."""

    async def restart_session(self, key: str) -> bool:
        """Raise the epoch of a live session, so that its process closes it; return False if no process has it open."""

    async def has_live_work(self, owner: str, now: int) -> bool:
        """Return whether a due task waits in a session that is live in `owner`."""

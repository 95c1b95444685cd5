"""Instances: the processes that run tasks, how they show that they are alive, and the sessions open in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.domain.changes import Fence
from midwatch.domain.fields import Example, Hidden, JsonRecord

Role = Literal["up", "library", "run", "worker"]
DEAD_SECONDS = 8.0
"""A process that sends heartbeats counts as dead if its last heartbeat is more than this many seconds old."""


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
    """The terms of the process's agents, by name; other processes need them to submit tasks to these agents."""


class InstanceStore(Protocol):
    """Port: the stored processes. A stored process may be dead; only the engine knows this."""

    async def add_instance(self, instance: Instance) -> None:
        """Store the process `instance`."""

    async def remove_instances(self, ids: Collection[str]) -> None:
        """Remove the processes `ids`, which have ended."""

    async def list_instances(self) -> list[Instance]:
        """Return all stored processes, oldest first."""


class Beat(NamedTuple):
    """The result of one heartbeat."""

    known: bool
    """Whether this process was still stored. If not, another process thought that it was dead and removed it."""
    leases: frozenset[Fence]
    """The attempts that this process owns."""
    leads: bool
    alive: frozenset[str]
    """The ids of the processes with a recent heartbeat."""


class Pulse(Protocol):
    """Port: the heartbeats of a process on a shared database.

    All methods block, so they are called in a separate Python thread.
    """

    def beat(self) -> Beat:
        """Send a heartbeat, become or stay the leader if possible, and return the state; or raise StoreError."""

    def resign(self) -> None:
        """Stop being the leader at once, so that another process can become the leader."""

    def close(self) -> None:
        """Close the connection to the database; a later heartbeat opens a new connection."""


class LiveStore(Protocol):
    """Port: sessions whose conversation is open in a process."""

    async def hold_session(self, key: str, owner: str, fence: Fence | None) -> int:
        """Store that process `owner` has opened the conversation, and return the new epoch of the session.

        `fence` is the attempt that opened it, or None if there is no attempt yet. From now on only this process takes
        tasks of the session, until the process releases the session or dies.
        """

    async def release_session(self, key: str, owner: str) -> None:
        """Store that process `owner` has closed the conversation.

        Does nothing if another process has opened the conversation meanwhile.
        """

    async def list_live_sessions(self, owner: str) -> dict[str, int]:
        """Return the epoch of each session, by key, whose conversation is open in process `owner`."""

    async def restart_session(self, key: str) -> bool:
        """Raise the epoch of a session, so that the process that has its conversation open closes it.

        Return False if no process has the conversation open.
        """

    async def has_live_work(self, owner: str, now: int) -> bool:
        """Return whether a task is due in a session whose conversation is open in process `owner`."""

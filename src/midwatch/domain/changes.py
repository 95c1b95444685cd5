"""Changes: one business step, computed purely by a service and written in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from midwatch.domain.channel import Delivery
from midwatch.domain.event import Event, Payload, event
from midwatch.domain.session import Message, Session


class Fence(NamedTuple):
    """Proof of ownership: this attempt of this task. The step it guards is refused unless it still runs."""

    task_id: str
    attempt: int


class Record(Protocol):
    """A record that is stored as one row of its noun's table. `noun` names the table."""

    @property
    def noun(self) -> str:
        """Return the name of the table."""


@dataclass(frozen=True, slots=True)
class Update:
    """Set `fields` of one record, only if every field of `guard` still has the given value."""

    noun: str
    id: str
    fields: Mapping[str, Any]
    guard: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """One business step, computed purely and written in one transaction, whole or not at all.

    A failed fence raises LeaseLost, a failed guard Conflict. Deliveries that exist already (same task, channel and
    notice) are left as they are, and the prompt of a task is stored as a message only once.
    """

    fence: Fence | None = None
    updates: tuple[Update, ...] = ()
    records: tuple[Record, ...] = ()
    """New rows: tasks, approvals, ..."""
    sessions: tuple[Session, ...] = ()
    messages: tuple[Message, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    events: tuple[Event, ...] = ()

    def plus(self, more: Changes) -> Changes:
        """Return both steps as one, with the fence of this step."""
        return Changes(fence=self.fence, **{name: getattr(self, name) + getattr(more, name) for name in _PARTS})


_PARTS = tuple(field.name for field in fields(Changes) if field.name != "fence")


class RevisedRecord(Record, Protocol):
    """A record that has a status and counts its changes."""

    @property
    def id(self) -> str:
        """Return its id."""

    @property
    def status(self) -> str:
        """Return its status."""

    @property
    def revision(self) -> int:
        """Return how often it was changed."""


class AgentRecord(RevisedRecord, Protocol):
    """A record with an agent, a session and a creator, such as a goal."""

    @property
    def session_key(self) -> str:
        """Return its session."""

    @property
    def agent(self) -> str:
        """Return its agent."""

    @property
    def creator(self) -> str | None:
        """Return the actor who created it."""


def update_record(record: RevisedRecord, now: int, **fields: Any) -> Update:
    """Return the update of some fields; it is refused if the record was changed meanwhile."""
    guard: dict[str, Any] = {"revision": record.revision}
    if "status" in fields:
        guard["status"] = record.status
    return Update(record.noun, record.id, {**fields, "updated_at": now, "revision": record.revision + 1}, guard)


def event_about(
    record: AgentRecord, payload: Payload, now: int, actor: str | None = None, task_id: str | None = None
) -> Event:
    """Return an event about a record; by default `actor` is its creator."""
    about = {"session_key": record.session_key, "agent_id": record.agent, "actor": actor or record.creator}
    return event(payload, now, task_id=task_id, **about)


def change_record(record: AgentRecord, payload: Payload, now: int, actor: str | None = None, **fields: Any) -> Changes:
    """Return the step that changes some fields of a record and writes the event about it."""
    updates = (update_record(record, now, **fields),)
    return Changes(updates=updates, events=(event_about(record, payload, now, actor),))

"""Changes: the records and events that one step writes in one transaction.

A service computes a step without reading or writing anything else, and the store writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from midwatch.domain.channel import Delivery
from midwatch.domain.event import Event, Payload, event
from midwatch.domain.session import Message, Session


class Fence(NamedTuple):
    """The task and the attempt for which a step is written.

    The store refuses the step unless this attempt still runs.
    """

    task_id: str
    attempt: int


class Record(Protocol):
    """A record that is stored as one row of a table. `noun` is the name of the table."""

    @property
    def noun(self) -> str:
        """Return the name of the record's table."""


class Update(NamedTuple):
    """Set `fields` of one record, but only if every field in `guard` still has the value that `guard` gives."""

    noun: str
    id: str
    fields: Mapping[str, Any]
    guard: Mapping[str, Any] = MappingProxyType({})


class Removal(NamedTuple):
    """Remove a goal, if it still has this revision."""

    id: str
    revision: int


class Charge(NamedTuple):
    """An amount that is added to the spending of an account. It may be negative, if a step is given back."""

    account_id: str
    tokens: float = 0
    usd: float = 0.0
    steps: float = 0
    seconds: float = 0.0


class Changes(NamedTuple):
    """One step: it is written in one transaction, completely or not at all.

    If the fence fails, the store raises LeaseLost; if a guard fails, it raises Conflict. A delivery that exists already
    (same task, channel and notice) is left as it is. The prompt of a task is stored as a message only once.
    """

    fence: Fence | None = None
    updates: tuple[Update, ...] = ()
    records: tuple[Record, ...] = ()
    """New records, such as tasks or approvals."""
    sessions: tuple[Session, ...] = ()
    messages: tuple[Message, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    events: tuple[Event, ...] = ()
    charges: tuple[Charge, ...] = ()
    """What is added to the spending of accounts. An account that does not exist is left out."""
    removals: tuple[Removal, ...] = ()

    def plus(self, more: Changes) -> Changes:
        """Return this step and `more` as one step, with the fence of this step."""
        return Changes(
            self.fence, self.updates + more.updates, self.records + more.records, self.sessions + more.sessions,
            self.messages + more.messages, self.deliveries + more.deliveries, self.events + more.events,
            self.charges + more.charges, self.removals + more.removals,
        )  # fmt: skip


class RevisedRecord(Record, Protocol):
    """A record that has a status and counts its changes."""

    @property
    def id(self) -> str:
        """Return the id of the record."""

    @property
    def status(self) -> str:
        """Return the status of the record."""

    @property
    def revision(self) -> int:
        """Return how often the record was changed."""


class AgentRecord(RevisedRecord, Protocol):
    """A record with an agent, a session and a creator, such as a goal."""

    @property
    def session_key(self) -> str:
        """Return the key of the record's session."""

    @property
    def agent(self) -> str:
        """Return the name of the record's agent."""

    @property
    def creator(self) -> str | None:
        """Return the actor who created the record."""


def update_record(record: RevisedRecord, now: int, **fields: Any) -> Update:
    """Return the update that sets `fields` of a record.

    The store refuses the update if the record was changed after it was read.
    """
    guard: dict[str, Any] = {"revision": record.revision}
    if "status" in fields:
        guard["status"] = record.status
    return Update(record.noun, record.id, {**fields, "updated_at": now, "revision": record.revision + 1}, guard)


def event_about(
    record: AgentRecord, payload: Payload, now: int, actor: str | None = None, task_id: str | None = None
) -> Event:
    """Return an event about a record; if `actor` is None, the event names the creator of the record."""
    about = {"session_key": record.session_key, "agent_id": record.agent, "actor": actor or record.creator}
    return event(payload, now, task_id=task_id, **about)


def change_record(record: AgentRecord, payload: Payload, now: int, actor: str | None = None, **fields: Any) -> Changes:
    """Return the step that sets `fields` of a record and writes an event about the change."""
    updates = (update_record(record, now, **fields),)
    return Changes(updates=updates, events=(event_about(record, payload, now, actor),))

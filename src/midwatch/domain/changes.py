"""Changes: one business step, computed purely by a service and written in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from midwatch.domain.channel import Delivery
from midwatch.domain.event import Event
from midwatch.domain.session import Message, Session


class Fence(NamedTuple):
    """Proof of ownership: this attempt of this task. The step it guards is refused unless it still runs."""

    task_id: str
    attempt: int


class Record(Protocol):
    """A record that is stored as one row of its noun's table. `noun` names the table."""

    @property
    def noun(self) -> str:
        """The table."""


@dataclass(frozen=True, slots=True)
class Update:
    """Set `fields` of one record, only where every field of `guard` still has that value."""

    noun: str
    id: str
    fields: Mapping[str, Any]
    guard: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """One business step, computed purely and written in one transaction, whole or not at all.

    A failed fence raises LeaseLost, a failed guard Conflict. Deliveries that exist already (same task, channel and
    notice) are left as they are; of a task's own prompt one message is kept.
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
        """Return both as one step, under this one's fence."""
        return Changes(fence=self.fence, **{name: getattr(self, name) + getattr(more, name) for name in _PARTS})


_PARTS = tuple(field.name for field in fields(Changes) if field.name != "fence")

"""States: the first data for a client that starts to watch.

A state shows the store at one moment: it includes every event up to `as_of_seq`, and no later event.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from midwatch.domain.event import Event
from midwatch.domain.session import Fault, Message, View
from midwatch.domain.steering import Steer
from midwatch.domain.task import Task
from midwatch.domain.task_store import Summary

MESSAGES_SHOWN = 200


class TaskState(NamedTuple):
    """A task and its last event."""

    as_of_seq: int
    task: Task
    last: Event | None

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON shows it."""
        return {"as_of_seq": self.as_of_seq, "task": self.task.snapshot()}


class SessionState(NamedTuple):
    """A conversation: its last messages in order, running and waiting tasks, and recent errors."""

    as_of_seq: int
    view: View
    messages: list[Message]
    running: Task | None
    queue: list[Task]
    errors: list[Fault]
    steers: list[Steer]
    """Messages of people that the running turn has not taken yet."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON shows it."""
        return {
            "as_of_seq": self.as_of_seq,
            "session": self.view.snapshot(),
            "messages": [message.snapshot() for message in self.messages],
            "running": self.running.snapshot() if self.running else None,
            "queue": [task.snapshot() for task in self.queue],
            "errors": [fault.snapshot() for fault in self.errors],
            "steers": [steer.snapshot() for steer in self.steers],
        }


class DeskState(NamedTuple):
    """The overview: the number of tasks by status, and the running tasks, each with its last event."""

    as_of_seq: int
    summary: Summary
    running: list[tuple[Task, Event | None]]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON shows it."""
        return {
            "as_of_seq": self.as_of_seq,
            "summary": self.summary._asdict(),
            "running": [task.snapshot() for task, _ in self.running],
        }


State = TaskState | SessionState | DeskState


class StateStore(Protocol):
    """Port: states, each of which shows the store at one moment."""

    async def read_task_state(self, task_id: str) -> TaskState | None:
        """Return the state of a task, or None."""

    async def read_session_state(self, key: str) -> SessionState | None:
        """Return the state of a conversation, or None."""

    async def read_desk_state(self) -> DeskState:
        """Return the state of the whole desk."""

"""Steering: messages that people send into a turn while it runs.

A message is attached to the running task and taken by its turn once: at its next step (`interrupt`), or when the tool
it uses has returned (`after_tool`). `stop` asks for no more tools and one closing answer. What a turn has not taken
when it ends becomes a task of the session, in the same transaction. `after_turn` is such a task from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from midwatch.clock import iso

Mode = Literal["interrupt", "after_tool", "stop"]
Status = Literal["queued", "injected", "passed_on", "dropped"]
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "queued": frozenset({"injected", "passed_on", "dropped"}),
    "injected": frozenset(),
    "passed_on": frozenset(),
    "dropped": frozenset(),
}
MOST_QUEUED = 10
"""Messages a turn may leave untaken before the next sender is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """One message for a running turn. `passed_on` ones became a task, `dropped` ones ended with their session."""

    id: str
    task_id: str
    number: int
    """Its place among the messages of its task, from 1."""
    session_key: str
    mode: Mode
    text: str
    created_at: int
    status: Status = "queued"
    actor: str | None = None
    attempt: int | None = None
    """Of the turn that took it."""
    became: str | None = None
    """The task it became."""

    @property
    def noun(self) -> str:
        """Its table."""
        return "steer"

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "id": self.id,
            "task_id": self.task_id,
            "session_key": self.session_key,
            "mode": self.mode,
            "text": self.text,
            "status": self.status,
            "actor": self.actor,
            "became": self.became,
            "created_at": iso(self.created_at),
        }


class SteerStore(Protocol):
    """Port: messages for running turns."""

    async def queued_steers(self, task_id: str) -> list[Steer]:
        """Those its turn has not taken, oldest first."""
        ...

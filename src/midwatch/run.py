"""Runs: the handles of one task that runs here. What counts is in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midwatch.agent import Conversation, Interrupt, TurnResult
from midwatch.approval import Approval
from midwatch.clock import Timer
from midwatch.task import Claim, Task
from midwatch.turn import LiveTurn
from midwatch.verdict import Reason, Verdict
from midwatch.waiting import together
from midwatch.worktree import Worktree

LADDER: Mapping[bool, tuple[tuple[Interrupt, float], ...]] = {
    False: (("stop", 5.0), ("terminate", 5.0), ("kill", 1.0)),
    True: (("terminate", 0.5), ("kill", 0.3)),  # a timeout or a lost lease: nobody waits for a graceful end
}
"""How to interrupt, and how many seconds to wait before the next step."""


@dataclass(slots=True)
class Run:
    """Handles of one running task."""

    claim: Claim
    task: Task
    ended: asyncio.Future[None]
    """Done when the turn has ended, or was given up."""
    slot_given: asyncio.Future[None]
    """Done when the slot was given back for the first time."""
    conversation: Conversation | None = None
    turn: LiveTurn | None = None
    making: asyncio.Task[Worktree] | None = None
    body: asyncio.Task[TurnResult] | None = None
    reason: Reason | None = None
    timer: Timer | None = None
    remaining: float | None = None
    time_up: Reason = "timeout"
    """Why it is stopped when its time is over."""
    usage: dict[str, Any] | None = None
    """What its task has used, once the turn is over."""
    ladder: asyncio.Task[None] | None = None
    question: asyncio.Future[Approval | None] | None = None
    steered: bool = False
    """Whether somebody may have sent something before there was a turn to hear it."""
    goal_id: str | None = None
    """The goal it works on, also in the place of another agent."""
    has_slot: bool = True

    @property
    def over(self) -> bool:
        """Whether the turn has nothing more to do than to end."""
        return self.reason is not None or self.ended.done()

    def end(self, _: object = None) -> None:
        """The turn is over."""
        if not self.ended.done():
            self.ended.set_result(None)

    def used(self, verdict: Verdict) -> dict[str, Any] | None:
        """What the task has used with this attempt: what its agent told in the end, or else as it went."""
        told = verdict.result.usage.data() if verdict.result else None
        return together(self.task.usage, self.turn.meter.usage(told) if self.turn else told)

    async def ends_within(self, seconds: float) -> bool:
        """Whether the turn is over in time."""
        await asyncio.wait({self.ended}, timeout=seconds)
        return self.ended.done()

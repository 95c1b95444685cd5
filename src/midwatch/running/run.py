"""Runs: one task that runs here, its handles, its time and its interruption. What counts is in the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midwatch.base.clock import SECOND, Clock, Timer, iso
from midwatch.domain.agent import Conversation, Interrupt, TurnResult
from midwatch.domain.approval import Approval
from midwatch.domain.changes import Changes
from midwatch.domain.event import TaskInterrupted, TaskWaiting
from midwatch.domain.task import Claim, Task, end, pause_before
from midwatch.domain.worktree import Worktree
from midwatch.running.outcome import Reason, Verdict, back, park, put_off, together
from midwatch.running.turn import LiveTurn

log = logging.getLogger("midwatch.worker")

ABANDON_SECONDS = 0.2
CLOSE_SECONDS = 5.0
LADDER: Mapping[bool, tuple[tuple[Interrupt, float], ...]] = {
    False: (("stop", 5.0), ("terminate", 5.0), ("kill", 1.0)),
    True: (("terminate", 0.5), ("kill", 0.3)),  # a timeout or a lost lease: nobody waits for a graceful end
}
"""How to interrupt, and how many seconds to wait before the next step."""


@dataclass(slots=True)
class Run:
    """One running task."""

    clock: Clock
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

    def interrupt(self, reason: Reason) -> None:
        """Make the turn end. The first reason counts, but a cancel outranks what would let the task go on."""
        if self.reason is None or (reason == "cancel" and self.reason in ("yield", "shutdown")):
            first = self.reason is None
            self.reason = reason
            if self.turn is not None:
                self.turn.stop(reason)
            if first and self.body is not None:
                self.climb()
            elif self.making is not None:
                self.making.cancel()

    def climb(self) -> None:
        """Interrupt the agent, harder and harder; a question it waits for is left."""
        self.ladder = asyncio.get_running_loop().create_task(self._interrupt_harder())
        if self.question is not None and not self.question.done():
            self.question.set_result(None)

    async def _interrupt_harder(self) -> None:
        assert self.conversation is not None and self.body is not None
        for mode, patience in LADDER[self.reason in ("timeout", "lost")]:
            asked = asyncio.get_running_loop().create_task(self.conversation.interrupt(mode))
            over = await self.ends_within(patience)
            asked.cancel()  # harmless when it has returned; an interrupt that hangs is not waited for
            if problem := (await asyncio.gather(asked, return_exceptions=True))[0]:
                log.warning("agent %s was not interrupted (%s): %r", self.task.agent, mode, problem)
            if over:
                return
        self.body.cancel()
        await self.ends_within(ABANDON_SECONDS)
        self.end()

    def limit_time(self, turn: LiveTurn) -> None:
        """How long it may work: its timeout, or what is left of its budget if that is less."""
        limit, left = self.task.timeout_seconds, turn.meter.left()
        if left is not None and (limit is None or left < limit):
            self.time_up, limit = "budget", left
        if limit is not None:
            self.arm(limit)

    def arm(self, seconds: float) -> None:
        """Let it work for so long from now on."""
        assert self.turn is not None
        self.remaining = seconds
        self.turn.deadline = self.clock.monotonic() + seconds
        self.timer = self.clock.call_later(seconds, self._end_of_time)

    def _end_of_time(self) -> None:
        if self.turn is not None and self.time_up == "budget":
            self.turn.time_is_up()
        self.interrupt(self.time_up)

    async def closes_in_time(self, talk: Conversation) -> bool:
        """Whether its conversation closes before it is left behind."""
        task = asyncio.current_task()
        assert task is not None
        timer = self.clock.call_later(CLOSE_SECONDS, task.cancel)
        try:
            await talk.close()
            return True
        except asyncio.CancelledError:
            task.uncancel()
            return False
        finally:
            timer.cancel()

    def step(self, verdict: Verdict) -> Changes:
        """What the verdict means for the task: it ends, or goes back to wait."""
        task, now = self.task, self.clock.now()
        usage = self.usage = self.used(verdict)
        done = verdict.outcome in ("ok", "silent", "transferred")
        if self.reason == "cancel":
            return end(task, now, outcome="cancelled", error=None, usage=usage)[1]
        if self.reason == "timeout":
            limit = f"it worked longer than its timeout of {task.timeout_seconds:g} s and was ended."
            return end(task, now, outcome="timeout", error=limit, usage=usage)[1]
        if verdict.rest is not None:
            return put_off(task, verdict.rest, now)
        if (self.reason == "budget" or verdict.outcome == "budget") and not done:
            spent = self.turn.over.words if self.turn and self.turn.over else verdict.error
            return end(task, now, outcome="budget", error=spent, usage=usage)[1]
        if self.reason in ("yield", "shutdown") and not done:
            if task.on_crash == "fail":
                why = f"midwatch was stopped while it worked; half-done work is not repeated. ({self.reason})"
                return end(task, now, outcome="lost", error=why, usage=usage)[1]
            told = TaskInterrupted(reason=self.reason)
            return back(task, told, now, interruptions=task.interruptions + 1, usage=usage)
        if verdict.limit is not None:
            return park(task, verdict.limit, now, usage)
        if verdict.transient and task.failures + 1 < task.max_attempts:
            due = now + int(pause_before(task) * SECOND)
            waits = TaskWaiting(wait="backoff", until=iso(due), reason=verdict.error)
            return back(task, waits, now, wait="backoff", due_at=due, failures=task.failures + 1, usage=usage)
        how, to = verdict.outcome, verdict.successor
        return end(task, now, outcome=how, result=verdict.text, error=verdict.error, usage=usage, transferred_to=to)[1]

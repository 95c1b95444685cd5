"""A run: one task that runs in this process, with its slot, its working time and its interruption.

A run keeps handles, never a status: the store has the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from midwatch.base.clock import SECOND, Timer, iso
from midwatch.base.errors import LeaseLost, StoreUnavailable
from midwatch.domain.agent import Conversation, Interrupt, TurnResult
from midwatch.domain.approval import Approval
from midwatch.domain.budget import Meter, Over, Scope
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.event import TaskInterrupted, TaskWaiting
from midwatch.domain.task import Claim, TaskStep, end, pause_before
from midwatch.domain.worktree import Worktree
from midwatch.running.delegation import Delegations
from midwatch.running.host import Host
from midwatch.running.inbox import Inbox
from midwatch.running.outcome import Reason, TurnOutcome, add_usage, park, postpone, requeue

log = logging.getLogger("midwatch.worker")

ABANDON_SECONDS = 0.2
CLOSE_SECONDS = 5.0
NOTE_SECONDS = 0.02
"""A wait that is shorter than this is not noted in the store."""
SCOPES: Mapping[str, Scope] = {"goal": "goal", "automation": "automation"}
LADDER: Mapping[bool, tuple[tuple[Interrupt, float], ...]] = {
    False: (("stop", 5.0), ("terminate", 5.0), ("kill", 1.0)),
    True: (("terminate", 0.5), ("kill", 0.3)),  # a timeout or a lost lease: nobody waits for a graceful end
}
"""How to interrupt, and how many seconds to wait before the next step."""


class Run:
    """One running task."""

    def __init__(self, host: Host, claim: Claim) -> None:
        loop = asyncio.get_running_loop()
        self.claim = claim
        self.task = claim.task
        self.fence = Fence(claim.task.id, claim.task.attempt)
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the turn has ended, or was given up."""
        self.slot_given: asyncio.Future[None] = loop.create_future()
        """Done when the slot was given back for the first time."""
        self.inbox = Inbox()
        self.delegations = Delegations(host.handoffs, claim.task, self.wait_for_handoff)
        self.conversation: Conversation | None = None
        self.worktree: asyncio.Task[Worktree] | None = None
        """Prepares the task's worktree."""
        self.body: asyncio.Task[TurnResult] | None = None
        """The agent's turn."""
        self.reason: Reason | None = None
        """Why the turn is being stopped."""
        self.deadline: float | None = None
        self.over: Over | None = None
        """The budget that is spent."""
        self.usage: dict[str, Any] | None = None
        """What the task has used, once the turn is over."""
        self.goal_id: str | None = None
        """The goal the task works on, also when another agent handed it the work."""
        self._host = host
        self._has_slot = True
        self._left = False
        self._waits = 0
        """How many things the turn waits for now."""
        self._pausing = asyncio.Lock()
        self._question: str | None = None
        """The id of the open question."""
        self._noting: asyncio.Task[None] | None = None
        self._noted = False
        """Whether the store shows that the turn waits for another agent."""
        self._timer: Timer | None = None
        self._remaining: float | None = None
        self._time_up: tuple[Reason, Callable[[], None]] = ("timeout", lambda: None)
        self._ladder: asyncio.Task[None] | None = None
        self._works_since: float | None = host.clock.monotonic()
        self._worked = 0.0
        task = claim.task
        self.meter = Meter(task.budget, task.usage, SCOPES.get(task.cause, "task"), self.worked)

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether the turn has nothing more to do than to end."""
        return self.reason is not None or self.ended.done()

    def end(self, _: object = None) -> None:
        """Note that the turn is over."""
        if not self.ended.done():
            self.ended.set_result(None)

    async def wait_for_end(self, seconds: float | None = None) -> bool:
        """Wait until the turn is over, for so long at most. Return whether it is."""
        await asyncio.wait({self.ended}, timeout=seconds)
        return self.ended.done()

    def stop_timers(self) -> None:
        """Stop the clock and the interruption of a turn that has ended."""
        for handle in (self._timer, self._ladder, self._noting):
            if handle is not None:
                handle.cancel()

    def leave(self) -> None:
        """Give the slot back for good."""
        if self._left:
            return
        self._left = True
        if self._has_slot:
            self._host.slots.give(self.task.agent, self.task.actor)
        else:
            self._host.slots.end_paused()
        if not self.slot_given.done():
            self.slot_given.set_result(None)

    async def close_conversation(self) -> bool:
        """Close the conversation. Return False when that takes too long."""
        task = asyncio.current_task()
        assert task is not None and self.conversation is not None
        timer = self._host.clock.call_later(CLOSE_SECONDS, task.cancel)
        try:
            await self.conversation.close()
            return True
        except asyncio.CancelledError:
            task.uncancel()
            return False
        finally:
            timer.cancel()

    # -- interruption --------------------------------------------------------------------------------------------

    def interrupt(self, reason: Reason) -> None:
        """Make the turn end. The first reason counts, but a cancel outranks what would let the task go on."""
        if self._left or not (self.reason is None or (reason == "cancel" and self.reason in ("yield", "shutdown"))):
            return
        first, self.reason = self.reason is None, reason
        self.delegations.stop(reason)
        if first and self.body is not None:
            self.interrupt_agent()
        elif self.worktree is not None:
            self.worktree.cancel()

    def interrupt_agent(self) -> None:
        """Interrupt the agent, harder and harder. An open question is left."""
        self._ladder = asyncio.get_running_loop().create_task(self._climb())
        if self._question is not None:
            self._host.waiter.wake(self._question)

    async def _climb(self) -> None:
        assert self.conversation is not None and self.body is not None
        for mode, patience in LADDER[self.reason in ("timeout", "lost")]:
            interrupting = asyncio.get_running_loop().create_task(self.conversation.interrupt(mode))
            over = await self.wait_for_end(patience)
            interrupting.cancel()  # harmless when it has returned; an interrupt that hangs is not waited for
            if problem := (await asyncio.gather(interrupting, return_exceptions=True))[0]:
                log.warning("agent %s was not interrupted (%s): %r", self.task.agent, mode, problem)
            if over:
                return
        self.body.cancel()
        await self.wait_for_end(ABANDON_SECONDS)
        self.end()

    # -- working time --------------------------------------------------------------------------------------------

    def worked(self) -> float:
        """Return the seconds the turn has worked. While it waits, its time stands still."""
        since = self._works_since
        return self._worked + (self._host.clock.monotonic() - since if since is not None else 0.0)

    def limit_time(self, spend_budget: Callable[[], None]) -> None:
        """Limit the working time by the timeout, or by the budget if less is left of it; then call `spend_budget`."""
        limit, left = self.task.timeout_seconds, self.meter.remaining_seconds()
        if left is not None and (limit is None or left < limit):
            self._time_up, limit = ("budget", spend_budget), left
        if limit is not None:
            self._arm(limit)

    def _arm(self, seconds: float) -> None:
        self._remaining = seconds
        self.deadline = self._host.clock.monotonic() + seconds
        self._timer = self._host.clock.call_later(seconds, self._end_time)

    def _end_time(self) -> None:
        reason, notify = self._time_up
        notify()
        self.interrupt(reason)

    # -- waiting -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Give back the slot and stop the clock, for as long as the turn waits for anything."""
        async with self._pausing:
            if not self._waits:
                self._pause()
            self._waits += 1
        try:
            yield
        finally:
            async with self._pausing:
                self._waits -= 1
                if not self._waits:
                    await self._resume()

    def _pause(self) -> None:
        self._host.slots.pause(self.task.agent, self.task.actor)
        self._has_slot = False
        if not self.slot_given.done():
            self.slot_given.set_result(None)
        if self._timer is not None and self.deadline is not None:
            self._timer.cancel()
            self._remaining = max(0.0, self.deadline - self._host.clock.monotonic())
            self._timer = None
        self._worked, self._works_since = self.worked(), None

    async def _resume(self) -> None:
        if not self._left:
            await self._host.slots.resume(self.task.agent, self.task.actor, at_once=self.ending)
            self._has_slot = True
            if self._remaining is not None and not self.ending:
                self._arm(self._remaining)
        self._works_since = self._host.clock.monotonic()

    @asynccontextmanager
    async def wait_for_handoff(self) -> AsyncIterator[None]:
        """Pause while the turn waits for work it has handed over, and show that in the store."""
        async with self.pause():
            noting = asyncio.get_running_loop().create_task(self._note_wait("handoff"))
            try:
                yield
            finally:
                noting.cancel()
                await asyncio.gather(noting, return_exceptions=True)
        if self._noted and not self._waits:
            self._noting = asyncio.get_running_loop().create_task(self._note_wait(None))

    async def _note_wait(self, wait: str | None) -> None:
        await asyncio.sleep(NOTE_SECONDS)
        self._noted = wait is not None
        update = Update("task", self.task.id, {"wait": wait})
        with suppress(StoreUnavailable):
            try:
                await self._host.store.apply(Changes(fence=self.fence, updates=(update,)))
            except LeaseLost:
                self.interrupt("lost")

    async def wait_for_answer(self, approval: Approval) -> Approval:
        """Return the question once it is answered or expired, or as it is when the task is being stopped."""
        read, self._question = lambda: self._host.approvals.get(approval.id), approval.id
        try:
            return await self._host.waiter.wait(
                approval.id, read, lambda current: current.status != "pending" or self.reason is not None
            )
        finally:
            self._question = None

    # -- the step that ends the attempt --------------------------------------------------------------------------

    def end_attempt(self, outcome: TurnOutcome) -> TaskStep:
        """Return what the turn's outcome means for the task: it ends, or goes back to wait."""
        task, now = self.task, self._host.clock.now()
        reported = outcome.result.usage.data() if outcome.result else None
        usage = self.usage = add_usage(task.usage, self.meter.usage(reported))
        done = outcome.outcome in ("ok", "silent", "transferred")
        if self.reason == "cancel":
            return TaskStep(*end(task, now, outcome="cancelled", error=None, usage=usage))
        if self.reason == "timeout":
            limit = f"it worked longer than its timeout of {task.timeout_seconds:g} s and was ended."
            return TaskStep(*end(task, now, outcome="timeout", error=limit, usage=usage))
        if outcome.day_spent is not None:
            return postpone(task, outcome.day_spent, now)
        if (self.reason == "budget" or outcome.outcome == "budget") and not done:
            spent = self.over.words if self.over else outcome.error
            return TaskStep(*end(task, now, outcome="budget", error=spent, usage=usage))
        if self.reason in ("yield", "shutdown") and not done:
            if task.on_crash == "fail":
                why = f"midwatch was stopped while it worked; half-done work is not repeated. ({self.reason})"
                return TaskStep(*end(task, now, outcome="lost", error=why, usage=usage))
            interrupted = TaskInterrupted(reason=self.reason)
            return requeue(task, interrupted, now, interruptions=task.interruptions + 1, usage=usage)
        if outcome.limit is not None:
            return park(task, outcome.limit, now, usage)
        if outcome.transient and task.failures + 1 < task.max_attempts:
            due = now + int(pause_before(task) * SECOND)
            waiting = TaskWaiting(wait="backoff", until=iso(due), reason=outcome.error)
            return requeue(task, waiting, now, wait="backoff", due_at=due, failures=task.failures + 1, usage=usage)
        return TaskStep(
            *end(
                task, now, outcome=outcome.outcome, result=outcome.text, error=outcome.error, usage=usage,
                transferred_to=outcome.successor,
            )
        )  # fmt: skip

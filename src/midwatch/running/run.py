"""A run: one task that runs in this process, with its slot, its working time and its interruption.

A run has the objects that the running task needs. It does not have the task's status, which is only in the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from midwatch.base.clock import SECOND, Stopwatch, Timer, iso
from midwatch.base.errors import LeaseLost, StoreUnavailable
from midwatch.base.foreign import CONTAIN_AGENT
from midwatch.domain.agent import Conversation, Interrupt, TurnResult
from midwatch.domain.approval import Approval
from midwatch.domain.backoff import pause_before
from midwatch.domain.budget import Meter, Over
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.event import TaskInterrupted, TaskWaiting
from midwatch.domain.probe import CommandResult
from midwatch.domain.task import end, has_past
from midwatch.domain.task_step import TaskStep
from midwatch.domain.task_store import Claim
from midwatch.running.delegation import Delegations
from midwatch.running.host import Host
from midwatch.running.inbox import Inbox
from midwatch.running.outcome import Reason, TurnOutcome, add_usage, park, postpone, requeue

log = logging.getLogger("midwatch.worker")

ABANDON_SECONDS = 0.2
CLOSE_SECONDS = 5.0
LATE_SECONDS, LATE_GRACE_SECONDS = 0.5, 5.0
"""If the end of the working time is noticed this late, the turn has the second time to end by itself."""
WRITE_WAIT_SECONDS = 0.02
"""If the turn waits for a handoff shorter than this, the wait is not written to the store."""
ESCALATION: Mapping[bool, tuple[tuple[Interrupt, float], ...]] = {
    False: (("stop", 5.0), ("terminate", 5.0), ("kill", 1.0)),
    True: (("terminate", 0.5), ("kill", 0.3)),  # after a timeout or a lost lease, without a graceful end
}
"""The modes in which an agent is interrupted, one after another, each with the seconds to wait for the turn's end."""


class Run:
    """One running task."""

    def __init__(self, host: Host, claim: Claim) -> None:
        loop = asyncio.get_running_loop()
        self.claim = claim
        self.task = claim.task
        self.fence = Fence(claim.task.id, claim.task.attempt)
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the turn has ended, or when midwatch stops waiting for an agent that cannot be stopped."""
        self.slot_released: asyncio.Future[None] = loop.create_future()
        """Done when the slot was released for the first time."""
        # an agent can have background work only after an earlier turn, a transfer, or the beginning of this turn
        self.inbox = Inbox(results=has_past(claim.task) or claim.task.source == "transfer")
        self.delegations = Delegations(host.handoffs, claim.task)
        self.conversation: Conversation | None = None
        self.worktree: asyncio.Task[Any] | None = None
        """The asyncio task that prepares the task's worktree."""
        self.command: asyncio.Task[CommandResult] | None = None
        """The asyncio task that runs a command of the task, before or after the turn."""
        self.check: CommandResult | None = None
        """The result of the command that checks the goal of the task, if it ran after the turn."""
        self.body: asyncio.Task[TurnResult] | None = None
        """The asyncio task in which the agent works on the turn."""
        self.reason: Reason | None = None
        """Why the turn is being stopped, or None."""
        self._stopped_by: str | None = None
        """Which hook stops the turn and why, or None."""
        self.deadline: float | None = None
        self.over: Over | None = None
        """The budget that is spent, or None."""
        self.limited = False
        """Whether a budget limits the task, other than that of the day."""
        self.goal_id: str | None = None
        """The id of the goal that the task is a step of, or that a step handed over to the task; or None."""
        self._host = host
        self._has_slot = True
        self._released = False
        self._waits = 0
        """The number of questions and handoffs that the turn waits for now."""
        self._pausing = asyncio.Lock()
        self._question: str | None = None
        """The id of the question that the turn waits for, or None."""
        self._writing_wait: asyncio.Task[None] | None = None
        self._wait_written = False
        """Whether the store says that the turn waits for a handoff."""
        self._timer: Timer | None = None
        self._limits: tuple[float, Callable[[], float | None], Callable[[], None]] | None = None
        """How long the run had worked when its time was limited first, and the two functions of `limit_time`."""
        self._time_up: tuple[Reason, Callable[[], None]] = ("timeout", lambda: None)
        self._escalation: asyncio.Task[None] | None = None
        self._prepared = 0.0
        """How long the run had worked when its time was limited first."""
        self._working_time = Stopwatch(host.clock)
        """The time of the turn, without the time in which the turn waited."""
        self.meter = Meter(self._working_time.read)

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether the turn has ended or is being stopped."""
        return self.reason is not None or self.ended.done()

    def end(self, _: object = None) -> None:
        """Mark the turn as ended. The argument is ignored, so that the method can be a callback."""
        if not self.ended.done():
            self.ended.set_result(None)

    async def wait_for_end(self, seconds: float | None = None) -> bool:
        """Wait until the turn has ended, but at most `seconds`, and return whether it has ended."""
        await asyncio.wait({self.ended}, timeout=seconds)
        return self.ended.done()

    def stop_timers(self) -> None:
        """Stop the timers of a turn that has ended: its timeout, its interruption and the write of its wait."""
        self._limits, self._time_up = None, ("timeout", lambda: None)  # they refer to the turn
        for handle in (self._timer, self._escalation, self._writing_wait):
            if handle is not None:
                handle.cancel()

    def release_slot(self) -> None:
        """Release the slot at the end of the run; the run takes no slot again."""
        if self._released:
            return
        self._released = True
        if self._has_slot:
            self._host.slots.give(self.task.agent, self.task.actor)
        else:
            self._host.slots.end_paused()
        if not self.slot_released.done():
            self.slot_released.set_result(None)

    async def close_conversation(self) -> bool:
        """Close the conversation, and return True; return False if it is not closed after CLOSE_SECONDS."""
        task = asyncio.current_task()
        assert task is not None and self.conversation is not None
        timer = self._host.clock.call_later(CLOSE_SECONDS, task.cancel)
        try:
            with CONTAIN_AGENT:
                await self.conversation.close()
            return True
        except asyncio.CancelledError:
            task.uncancel()
            return False
        finally:
            timer.cancel()

    # -- interruption --------------------------------------------------------------------------------------------

    def interrupt(self, reason: Reason) -> None:
        """Stop the turn. If it is being stopped already, the first reason stays.

        Only "cancel" replaces the reasons "yield" and "shutdown", after which the task would continue later.
        """
        if self._released or not (self.reason is None or (reason == "cancel" and self.reason in ("yield", "shutdown"))):
            return
        first, self.reason = self.reason is None, reason
        self.delegations.stop(reason)
        if self._question is not None:
            self._host.waiter.wake(self._question)
        if first and self.body is not None and not self.ended.done():
            self.interrupt_agent()
        else:
            for preparing in (self.command, self.worktree):
                if preparing is not None:
                    preparing.cancel()

    def stop_by_hook(self, words: str) -> None:
        """Stop the turn with an error, because a hook decided so. `words` say which hook and why."""
        self._stopped_by = self._stopped_by or words
        self.interrupt("hook")

    def interrupt_agent(self) -> None:
        """Interrupt the agent in ever stronger modes."""
        self._escalation = asyncio.get_running_loop().create_task(self._escalate())

    async def _interrupt_once(self, conversation: Conversation, mode: Interrupt) -> None:
        with CONTAIN_AGENT:
            await conversation.interrupt(mode)

    async def _escalate(self) -> None:
        assert self.conversation is not None and self.body is not None
        for mode, patience in ESCALATION[self.reason in ("timeout", "lost")]:
            interrupting = asyncio.get_running_loop().create_task(self._interrupt_once(self.conversation, mode))
            over = await self.wait_for_end(patience)
            interrupting.cancel()  # do not wait for an interrupt that hangs
            if problem := (await asyncio.gather(interrupting, return_exceptions=True))[0]:
                log.warning("agent %s could not be interrupted in mode %s: %r", self.task.agent, mode, problem)
            if over:
                return
        self.body.cancel()
        await self.wait_for_end(ABANDON_SECONDS)
        self.end()

    @property
    def worked_seconds(self) -> float:
        """For how many seconds of monotonic time the turn has worked, without waits and without its preparation.

        If the preparation has not ended, these are the seconds of the preparation.
        """
        return self._working_time.read() - self._prepared

    # -- working time --------------------------------------------------------------------------------------------

    def limit_time(self, remaining: Callable[[], float | None], spend_budget: Callable[[], None]) -> None:
        """Limit the working time by the task's timeout or the rest of its budget, whichever is shorter.

        `remaining` returns the rest of the budget in seconds. If the budget is the shorter limit, `spend_budget` is
        called when it is spent.
        """
        self._prepared = self._working_time.read()
        self._limits = self._prepared, remaining, spend_budget
        self._arm()

    def _arm(self) -> None:
        """Start the timer for the time that is left now."""
        if self._limits is None:
            return
        began, remaining, spend_budget = self._limits
        timeout, rest = self.task.timeout_seconds, remaining()
        left = None if timeout is None else max(0.0, timeout - self._working_time.read() + began)
        self._time_up = ("timeout", lambda: None)
        if rest is not None and (left is None or rest < left):
            self._time_up, left = ("budget", spend_budget), rest
        self.deadline = None if left is None else self._host.clock.monotonic() + left
        if left is not None:
            self._timer = self._host.clock.call_later(left, self._end_time)

    def _end_time(self, *, may_be_late: bool = True) -> None:
        """Stop the turn, because its working time is over.

        If this process was suspended meanwhile, the program may have ended in time, and only its end was not noticed
        yet. Then the turn keeps its result.
        """
        late = self._host.clock.monotonic() - self.deadline if self.deadline is not None else 0.0
        if may_be_late and late > LATE_SECONDS:
            self._timer = self._host.clock.call_later(LATE_GRACE_SECONDS, lambda: self._end_time(may_be_late=False))
            return
        reason, notify = self._time_up
        notify()
        self.interrupt(reason)

    # -- waiting -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Release the slot and stop the clock of the working time, while the turn waits in the `async with` block."""
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
        if not self.slot_released.done():
            self.slot_released.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._working_time.stop()

    async def _resume(self) -> None:
        if self._released:
            return
        who = self.task.agent, self.task.actor
        try:
            await self._host.slots.resume(*who, at_once=self.ending)
        except asyncio.CancelledError:
            if not self._released:
                await self._host.slots.resume(*who, at_once=True)  # the turn goes on, so it needs its slot
            raise
        finally:
            self._has_slot = not self._released
            self._working_time.start()
            if not self.ending:
                self._arm()

    @asynccontextmanager
    async def wait_for_handoff(self) -> AsyncIterator[None]:
        """Call `pause` while the turn waits for a handoff, and write to the store that the turn waits."""
        async with self.pause():
            writing = asyncio.get_running_loop().create_task(self._write_wait("handoff"))
            try:
                yield
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
        if self._wait_written and not self._waits:
            self._writing_wait = asyncio.get_running_loop().create_task(self._write_wait(None))

    async def _write_wait(self, wait: str | None) -> None:
        await asyncio.sleep(WRITE_WAIT_SECONDS)
        self._wait_written = wait is not None
        update = Update("task", self.task.id, {"wait": wait})
        with suppress(StoreUnavailable):
            try:
                await self._host.store.apply(Changes(fence=self.fence, updates=(update,)))
            except LeaseLost:
                self.interrupt("lost")

    async def wait_for_answer(self, approval: Approval) -> Approval:
        """Wait until a question is answered or has expired, and return it.

        If the task is being stopped, return the question with the status "pending".
        """
        read, self._question = lambda: self._host.approvals.get(approval.id), approval.id
        try:
            return await self._host.waiter.wait(
                approval.id, read, lambda current: current.status != "pending" or self.reason is not None
            )
        finally:
            self._question = None

    # -- the step that ends the attempt --------------------------------------------------------------------------

    def end_attempt(self, outcome: TurnOutcome) -> TaskStep:
        """Return the step of the task after the turn: the task ends, or becomes pending again."""
        task, now = self.task, self._host.clock.now()
        reported = outcome.result.usage.data() if outcome.result else None
        usage = add_usage(task.usage, self.meter.usage(reported, limited=self.limited))
        done = outcome.outcome in ("ok", "silent", "transferred", "skipped")
        if self.reason == "cancel":
            return TaskStep(*end(task, now, outcome="cancelled", error=None, usage=usage))
        if self.reason == "timeout":
            limit = f"the task worked longer than its timeout of {task.timeout_seconds:g} s and was stopped."
            return TaskStep(*end(task, now, outcome="timeout", error=limit, usage=usage))
        if outcome.day_spent is not None:
            return postpone(task, outcome.day_spent, now)
        if outcome.may_go_on and self.reason is None:
            raised = TaskInterrupted(reason="budget")
            return requeue(task, raised, now, interruptions=task.interruptions + 1, usage=usage)
        if (self.reason == "budget" or outcome.outcome == "budget") and not done:
            spent = self.over.words if self.over else outcome.error
            if outcome.cannot_ask:
                spent = f"{spent}. People could not be asked, because agent {task.agent} cannot resume a stopped turn"
            return TaskStep(*end(task, now, outcome="budget", error=spent, usage=usage, over=self.over))
        if self.reason == "hook":
            return TaskStep(*end(task, now, outcome="error", error=self._stopped_by, usage=usage))
        if self.reason in ("yield", "shutdown") and not done:
            agent_began = self.conversation is not None
            if task.on_crash == "fail" and agent_began:
                why = f"midwatch was stopped during the task; half-done work is not repeated. ({self.reason})"
                return TaskStep(*end(task, now, outcome="lost", error=why, usage=usage))
            interrupted = TaskInterrupted(reason=self.reason)
            return requeue(task, interrupted, now, interruptions=task.interruptions + agent_began, usage=usage)
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

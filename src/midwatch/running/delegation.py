"""Delegations: the handoffs of one turn. Each has a name, so that an attempt that starts again finds it again."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any

from midwatch.base.errors import AgentError, MidwatchError
from midwatch.domain.agent import Delegation
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.task import Task
from midwatch.services.handoffs import HandoffOptions, Handoffs

LEAVE_SECONDS = 5.0


@dataclass(slots=True)
class _Wait:
    """A wait that lasts longer than one request of the agent."""

    waiting: asyncio.Task[None]
    linger: float
    requests: int = 0
    timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Count a request that waits."""
        self.requests += 1
        if self.timer is not None:
            self.timer.cancel()

    def end(self) -> None:
        """Stop waiting soon after the last request has ended."""
        self.requests -= 1
        if not self.requests and not self.waiting.done():
            self.timer = asyncio.get_running_loop().call_later(self.linger, self.waiting.cancel)


class Delegations:
    """The handoffs of one turn."""

    def __init__(self, handoffs: Handoffs, task: Task, pause: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """`pause` gives the turn's slot back while the agent waits for a handoff by requests."""
        self._handoffs = handoffs
        self._task = task
        self._pause = pause
        self._stop_reason: str | None = None
        self._pending: set[asyncio.Task[Handoff]] = set()
        """Delegations that the agent waits for."""
        self._waits: dict[str, _Wait] = {}
        """Handoffs that the agent waits for by requests."""
        self._closed = False
        self._leaves_work = False
        self._stopped: set[asyncio.Task[Handoff]] = set()
        """Delegations that were pending when the turn was stopped."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._names: Counter[str] = Counter()

    @property
    def leave_work(self) -> bool:
        """Whether the turn may leave open handoffs that nobody waits for any more."""
        return self._leaves_work or bool(self._pending)

    async def find_source(self) -> Handoff | None:
        """Return the handoff that made this task, if one did."""
        task = self._task
        return await self._handoffs.get(task.cause_id) if task.cause == "handoff" and task.cause_id else None

    async def delegate(self, to: str | None, work: HandoffTask, wish: Delegation) -> Handoff:
        """Hand work over and wait for it. When the turn is stopped the wait ends, and the handoff is cancelled."""
        options = self._options(to, work, wish)
        pending = asyncio.get_running_loop().create_task(self._handoffs.handoff(options))
        self._pending.add(pending)
        try:
            return await pending
        except asyncio.CancelledError:
            leaving = asyncio.get_running_loop().create_task(self._leave(pending, options.once or ""))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            while not leaving.done():  # the turn may be stopped more than once
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(leaving)
            current = asyncio.current_task()
            if self._stop_reason and not (current is not None and current.cancelling()):
                raise AgentError("the work was handed over, but the task is being stopped.") from None
            raise
        finally:
            self._pending.discard(pending)

    async def transfer(self, to: str | None, work: HandoffTask, wish: Delegation) -> Transfer:
        """Have another agent take over the work."""
        self._leaves_work = True
        return await self._handoffs.transfer(self._options(to, work, wish))

    async def attend(self, handoff: Handoff) -> None:
        """Return when a handoff of this turn has ended and the turn may go on.

        The agent asks for it by one request after the other. The turn holds no slot from the first request until a
        moment after the last. If the handoff ends between two requests, the turn may still wait for its slot.
        """
        self._leaves_work = self._leaves_work or handoff.open
        wait = self._waits.get(handoff.id)
        if wait is None:
            if self._closed or not handoff.open:
                return
            waiting = asyncio.get_running_loop().create_task(self._wait_for(handoff.id))
            wait = _Wait(waiting, self._handoffs.limits.linger)
            self._waits[handoff.id] = wait
        wait.begin()
        try:
            await asyncio.wait({wait.waiting})
        finally:
            wait.end()

    async def _wait_for(self, handoff_id: str) -> None:
        try:
            with suppress(MidwatchError):  # the request itself gets the error
                async with self._pause():
                    await self._handoffs.wait(handoff_id)
        finally:
            del self._waits[handoff_id]

    async def close(self) -> None:
        """End the waits of the agent's requests; the turn is over."""
        self._closed = True
        if waiting := {wait.waiting for wait in self._waits.values()}:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    def stop(self, reason: str) -> None:
        """Stop waiting for delegations, because the turn is being stopped."""
        self._stop_reason = reason
        self._stopped |= self._pending
        for pending in self._pending:
            pending.cancel()

    async def wait_until_left(self) -> None:
        """Wait until stopped delegations are left. So the task never ends before the work it waited for."""
        if not self._pending and not self._leaving:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                while left := (self._stopped & self._pending) | self._leaving:
                    await asyncio.wait(left)

    def _options(self, to: str | None, work: HandoffTask, wish: Delegation) -> HandoffOptions:
        named: dict[str, Any] = {**wish, "once": wish.get("once") or self._name(to, work)}
        task = self._task
        return HandoffOptions(
            task=work, to=to, source_task=task.id, from_agent=task.agent, actor=task.creator, **named
        )  # fmt: skip

    def _name(self, to: str | None, work: HandoffTask) -> str:
        text = json.dumps([to, work.data()], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        self._names[digest] += 1
        return f"{digest}.{self._names[digest]}"

    async def _leave(self, pending: asyncio.Task[Handoff], once: str) -> None:
        """Cancel a delegation nobody waits for, unless a later attempt will wait for it again."""
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        goes_on = self._stop_reason in ("yield", "shutdown") and self._task.on_crash != "fail"
        if not goes_on and self._stop_reason != "lost":
            with suppress(MidwatchError):
                await self._handoffs.cancel_unattended(self._task.id, once)

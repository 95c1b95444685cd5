"""Delegations: the handoffs of one turn. Each handoff has a key, by which a later attempt finds the handoff again."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any

from midwatch.base.errors import AgentError, InvalidInput, MidwatchError
from midwatch.domain.agent import Delegation
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.task import Task
from midwatch.services.handoffs import HandoffOptions, Handoffs

CANCEL_SECONDS = 5.0

Pause = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class _Wait:
    """The wait of an agent for a handoff. The agent waits with several HTTP requests, one after another."""

    waiting: asyncio.Task[None]
    linger: float
    requests: int = 0
    timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Count a request that begins to wait, and keep the wait alive."""
        self.requests += 1
        if self.timer is not None:
            self.timer.cancel()

    def end(self) -> None:
        """Count a request that has ended. If no other request waits, cancel the wait after `linger` seconds.

        A wait is cancelled only once: after that it waits for its slot, which must not be interrupted.
        """
        self.requests -= 1
        if not self.requests and not self.waiting.done() and not self.waiting.cancelling():
            self.timer = asyncio.get_running_loop().call_later(self.linger, self.waiting.cancel)


class Delegations:
    """The handoffs of one turn."""

    def __init__(self, handoffs: Handoffs, task: Task) -> None:
        self._handoffs = handoffs
        self._task = task
        self._stop_reason: str | None = None
        self._pending: set[asyncio.Task[Handoff]] = set()
        """The running calls of `delegate`."""
        self._waits: dict[str, _Wait] = {}
        """The waits of the agent with HTTP requests, by the id of the handoff."""
        self._closed = False
        self._leaves_work = False
        self._stopped: set[asyncio.Task[Handoff]] = set()
        """The calls of `delegate` that ran when the turn was stopped."""
        self._cancelling: set[asyncio.Task[None]] = set()
        self._names: dict[str, int] = {}

    @property
    def may_leave_handoffs(self) -> bool:
        """Whether the turn may leave handoffs that are still open and that nobody waits for."""
        return self._leaves_work or bool(self._pending)

    async def find_source(self) -> Handoff | None:
        """Return the handoff that created this task, or None."""
        task = self._task
        return await self._handoffs.get(task.cause_id) if task.cause == "handoff" and task.cause_id else None

    async def delegate(self, to: str | None, work: HandoffTask, wish: Delegation) -> Handoff:
        """Hand work over to an agent and wait for the result. If the turn is stopped, the handoff is cancelled."""
        options = self._options(to, work, wish)
        pending = asyncio.get_running_loop().create_task(self._handoffs.handoff(options))
        self._pending.add(pending)
        try:
            return await pending
        except asyncio.CancelledError:
            cancelling = asyncio.get_running_loop().create_task(self._cancel(pending, options.once or ""))
            self._cancelling.add(cancelling)
            cancelling.add_done_callback(self._cancelling.discard)
            while not cancelling.done():  # the turn may be stopped more than once
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(cancelling)
            current = asyncio.current_task()
            if self._stop_reason and not (current is not None and current.cancelling()):
                raise AgentError("the handoff has no result, because the task is being stopped.") from None
            raise
        finally:
            self._pending.discard(pending)

    async def transfer(self, to: str | None, work: HandoffTask, wish: Delegation) -> Transfer:
        """Prepare the transfer of this task's work to another agent."""
        self._leaves_work = True
        return await self._handoffs.transfer(self._options(to, work, wish))

    async def attend(self, handoff: Handoff, pause: Pause) -> None:
        """Wait until a handoff of this turn has ended and the turn has its slot again.

        The agent waits with repeated HTTP requests, and each request calls this method. `pause` releases the turn's
        slot from the first request until shortly after the last request. If the handoff ends between two requests, the
        second request waits until the turn has its slot again.
        """
        self._leaves_work = self._leaves_work or handoff.open
        wait = self._waits.get(handoff.id)
        if wait is None:
            if self._closed or not handoff.open:
                return
            waiting = asyncio.get_running_loop().create_task(self._wait_for(handoff.id, pause))
            wait = _Wait(waiting, self._handoffs.limits.linger)
            self._waits[handoff.id] = wait
        wait.begin()
        try:
            await asyncio.wait({wait.waiting})
        finally:
            wait.end()

    async def _wait_for(self, handoff_id: str, pause: Pause) -> None:
        try:
            with suppress(MidwatchError):  # the request itself gets the error
                async with pause():
                    await self._handoffs.wait(handoff_id)
        finally:
            del self._waits[handoff_id]

    async def close(self) -> None:
        """End all waits for handoffs, because the turn has ended."""
        self._closed = True
        if waiting := {wait.waiting for wait in self._waits.values()}:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    def stop(self, reason: str) -> None:
        """Cancel all running calls of `delegate`, because the turn is being stopped."""
        self._stop_reason = reason
        self._stopped |= self._pending
        for pending in self._pending:
            pending.cancel()

    async def wait_until_cancelled(self) -> None:
        """Wait until the handoffs of a stopped turn are cancelled, so that the task does not end before their work."""
        if not self._pending and not self._cancelling:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                while open_work := (self._stopped & self._pending) | self._cancelling:
                    await asyncio.wait(open_work)

    def _options(self, to: str | None, work: HandoffTask, wish: Delegation) -> HandoffOptions:
        named: dict[str, Any] = {**wish, "once": wish.get("once") or self._name(to, work)}
        wake, waits = named.pop("wake", False), named.get("wait", True)
        if wake and waits:
            raise InvalidInput("an agent that waits cannot be woken; set `wait=False`, or leave out `wake`.")
        if not waits:
            named["returns"] = "wake" if wake else "context"
        task = self._task
        return HandoffOptions(
            task=work, to=to, source_task=task.id, from_agent=task.agent, actor=task.creator, **named
        )  # fmt: skip

    def _name(self, to: str | None, work: HandoffTask) -> str:
        text = json.dumps([to, work.data()], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        self._names[digest] = self._names.get(digest, 0) + 1
        return f"{digest}.{self._names[digest]}"

    async def _cancel(self, pending: asyncio.Task[Handoff], once: str) -> None:
        """End a call of `delegate` and cancel its handoff, unless a later attempt will wait for the handoff again."""
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        goes_on = self._stop_reason in ("yield", "shutdown") and self._task.on_crash != "fail"
        if not goes_on and self._stop_reason != "lost":
            with suppress(MidwatchError):
                await self._handoffs.cancel_unattended(self._task.id, once)

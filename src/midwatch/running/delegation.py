"""What a turn hands over: each piece under a name, so that an attempt that begins anew finds it again."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from midwatch.base.errors import AgentError, MidwatchError
from midwatch.domain.agent import Delegation
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.task import Task
from midwatch.services.handoffs import HandoffOptions, Handoffs

LEAVE_SECONDS = 5.0


@dataclass(slots=True)
class _Held:
    """A wait that lasts longer than one request."""

    waiting: asyncio.Task[None]
    linger: float
    requests: int = 0
    timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Somebody asks."""
        self.requests += 1
        if self.timer is not None:
            self.timer.cancel()

    def end(self) -> None:
        """Nobody asks any more, unless soon."""
        self.requests -= 1
        if not self.requests and not self.waiting.done():
            self.timer = asyncio.get_running_loop().call_later(self.linger, self.waiting.cancel)


class Giving:
    """The handoffs of one turn."""

    def __init__(self, handoffs: Handoffs, task: Task) -> None:
        self._handoffs = handoffs
        self._task = task
        self._stopped: str | None = None
        """Why the turn is being stopped."""
        self._given: set[asyncio.Task[Handoff]] = set()
        """What is waited for."""
        self._held: dict[str, _Held] = {}
        """What its agent waits for by requests."""
        self._over = False
        self._loose = False
        self._left: set[asyncio.Task[Handoff]] = set()
        """What was waited for when it was stopped."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._names: Counter[str] = Counter()

    @property
    def loose(self) -> bool:
        """Whether the turn may leave something that nobody waits for any more."""
        return self._loose or bool(self._given)

    async def brought(self) -> Handoff | None:
        """What brought the work here."""
        task = self._task
        return await self._handoffs.get(task.cause_id) if task.cause == "handoff" and task.cause_id else None

    async def delegate(self, to: str | None, work: HandoffTask, wish: Delegation) -> Handoff:
        """Hand it over and wait; it is left when the turn is stopped."""
        options = self._options(to, work, wish)
        given = asyncio.get_running_loop().create_task(self._handoffs.handoff(options))
        self._given.add(given)
        try:
            return await given
        except asyncio.CancelledError:
            leaving = asyncio.get_running_loop().create_task(self._leave(given, options.once or ""))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            while not leaving.done():  # whoever stops the turn may do so more than once
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(leaving)
            me = asyncio.current_task()
            if self._stopped and not (me is not None and me.cancelling()):
                raise AgentError("the work was handed over, but the task is being stopped.") from None
            raise
        finally:
            self._given.discard(given)

    async def transfer(self, to: str | None, work: HandoffTask, wish: Delegation) -> Transfer:
        """Have another agent take it over."""
        self._loose = True
        return await self._handoffs.transfer(self._options(to, work, wish))

    async def attend(self, handoff: Handoff) -> None:
        """Return when a handoff of this turn has ended and the turn may go on. Its agent asks for that from outside, by
        one request after the other, and holds no slot from the first until a moment after the last. If it has ended
        between two of them, the turn may still be waiting for its slot."""
        self._loose = self._loose or handoff.open
        held = self._held.get(handoff.id)
        if held is None:
            if self._over or not handoff.open:
                return
            waiting = asyncio.get_running_loop().create_task(self._hold(handoff.id))
            held = _Held(waiting, self._handoffs.limits.linger)
            self._held[handoff.id] = held
        held.begin()
        try:
            await asyncio.wait({held.waiting})
        finally:
            held.end()

    async def _hold(self, handoff_id: str) -> None:
        try:
            with suppress(MidwatchError):  # whoever asks hears it
                async with self._handoffs.pausing(self._task.id):
                    await self._handoffs.wait(handoff_id)
        finally:
            del self._held[handoff_id]

    async def end(self) -> None:
        """The turn is over, and nobody asks any more."""
        self._over = True
        if waiting := {held.waiting for held in self._held.values()}:
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)

    def stop(self, why: str) -> None:
        """The turn is being stopped: nothing is waited for any more."""
        self._stopped = why
        self._left |= self._given
        for given in self._given:
            given.cancel()

    async def settled(self) -> None:
        """Return when what it was stopped in is left, which goes on when the agent itself has ended. So its task never
        ends before what it had waited for."""
        if not self._given and not self._leaving:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                while left := (self._left & self._given) | self._leaving:
                    await asyncio.wait(left)

    def _options(self, to: str | None, work: HandoffTask, wish: Delegation) -> HandoffOptions:
        own: dict[str, Any] = {**wish, "once": wish.get("once") or self._name(to, work)}
        task = self._task
        return HandoffOptions(
            task=work, to=to, source_task=task.id, from_agent=task.agent, actor=task.creator, **own
        )  # fmt: skip

    def _name(self, to: str | None, work: HandoffTask) -> str:
        said = json.dumps([to, work.data()], sort_keys=True, default=str)
        digest = hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:16]
        self._names[digest] += 1
        return f"{digest}.{self._names[digest]}"

    async def _leave(self, given: asyncio.Task[Handoff], once: str) -> None:
        """Nobody waits for it any more; if the task will go on later, it will again."""
        given.cancel()
        await asyncio.gather(given, return_exceptions=True)
        goes_on = self._stopped in ("yield", "shutdown") and self._task.on_crash != "fail"
        if not goes_on and self._stopped != "lost":
            with suppress(MidwatchError):
                await self._handoffs.leave(self._task.id, once)

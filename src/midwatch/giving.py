"""What a turn hands over: each piece under a name, so that an attempt that begins anew finds it again."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from contextlib import suppress
from typing import Any

from midwatch.agent import Delegation
from midwatch.errors import AgentError, MidwatchError
from midwatch.handoff import Handoff, HandoffTask, Transfer
from midwatch.handoffs import HandoffOptions, Handoffs
from midwatch.task import Task


class Giving:
    """The handoffs of one turn."""

    def __init__(self, handoffs: Handoffs, task: Task) -> None:
        self._handoffs = handoffs
        self._task = task
        self._stopped: str | None = None
        """Why the turn is being stopped."""
        self._given: set[asyncio.Task[Handoff]] = set()
        """What is waited for."""
        self._names: Counter[str] = Counter()

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
        return await self._handoffs.transfer(self._options(to, work, wish))

    def stop(self, why: str) -> None:
        """The turn is being stopped: nothing is waited for any more."""
        self._stopped = why
        for given in self._given:
            given.cancel()

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

"""Hooks: told of every task that has ended, after it was committed, at least once, also over a restart.

A hook is an async function of this process or a program. How far it has been told is kept, so that what ended while
nobody was there is told at the next start. A hook that fails or hangs harms nobody; it is not told again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Protocol

from midwatch.errors import StoreError
from midwatch.event import EventFilter, EventLog, Follower
from midwatch.task import Task, TaskStore

log = logging.getLogger("midwatch.hooks")

Hook = Callable[[Task], Awaitable[object]]

ENDED = EventFilter(kinds=("task_finished",))
HOOK_SECONDS = 60.0
PAUSE_SECONDS = 1.0


class Store(EventLog, TaskStore, Protocol):
    """What hooks need of the store."""


class Hooks:
    """Loop: one for each hook of this process."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self._store = store
        self._follower = follower
        self._loops: dict[str, asyncio.Task[None]] = {}

    async def add(self, name: str, hook: Hook, leads: Callable[[], bool] = lambda: True) -> None:
        """Tell `hook` of every task that ends from now on, or from where a hook of this name was told last. It is told
        while `leads` says so."""
        if await self._store.get_cursor(name) is None:
            await self._store.set_cursor(name, (await self._store.log_bounds()).last_seq)
        self._loops[name] = asyncio.get_running_loop().create_task(self._run(name, hook, leads))

    async def stop(self) -> None:
        """Tell no more. Safe twice."""
        for loop in self._loops.values():
            loop.cancel()
        for loop in self._loops.values():
            with suppress(asyncio.CancelledError):
                await loop
        self._loops.clear()

    async def _run(self, name: str, hook: Hook, leads: Callable[[], bool]) -> None:
        while True:
            try:
                after = await self._store.get_cursor(name) or 0
                async with aclosing(self._follower.follow(after, ENDED)) as events:
                    async for told in events:
                        if told.kind == "gap" or not leads():
                            break
                        await self._tell(name, hook, told.task_id or "")
                        await self._store.set_cursor(name, told.seq)
                    else:
                        return  # the desk is closing
            except StoreError as problem:
                log.warning("hook %s waits for the store: %s", name, problem)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _tell(self, name: str, hook: Hook, task_id: str) -> None:
        task = await self._store.get_task(task_id)
        if task is None:
            return
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await hook(task)
        except TimeoutError:
            log.warning("hook %s took longer than %.0f s over task %s", name, HOOK_SECONDS, task_id)
        except Exception as problem:
            log.warning("hook %s failed over task %s", name, task_id, exc_info=problem)

"""A Python thread with an event loop of its own, for a hook that only observes: if it blocks, nothing else waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any

from midwatch.base.foreign import ContainExit

log = logging.getLogger("midwatch.hooks")

STOP_SECONDS = 2.0
"""How long the end of midwatch waits for a hook that blocks. Its thread then ends with the process."""


class HookThread:
    """The thread of one hook. It starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a call of the hook on the thread. If the caller is cancelled, the call is cancelled when it waits."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name=f"hook {self._name}", daemon=True
            )  # fmt: skip
            self._thread.start()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._contain(call), self._loop))

    async def _contain(self, call: Coroutine[Any, Any, None]) -> None:
        with ContainExit(f"hook {self._name}"):
            await call

    async def stop(self) -> None:
        """End the thread. A later call starts a new one."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join, STOP_SECONDS)
        if thread.is_alive():
            log.warning("hook %s blocks its thread and was left behind", self._name)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()

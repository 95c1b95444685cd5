"""A Python thread with an event loop of its own, on which a hook observes: if it blocks, nothing else waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from midwatch.base.foreign import ContainExit, describe_source

log = logging.getLogger("midwatch.hooks")

STOP_SECONDS = 2.0
"""How long the end of midwatch waits for a hook that blocks. Its thread then ends with the process."""


class HookThread:
    """The thread of one hook. It starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._ended: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call a method of the hook on the thread. If the caller is cancelled, the call is cancelled when it waits.

        Raise RuntimeError if the hook has ended its event loop before the call has ended.
        """
        if self._loop is None or self._ended is None or self._ended.done():
            self._loop, self._ended = self._start()
        ended, contained = self._ended, self._contain(call)
        try:
            called = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(contained, self._loop))
        except RuntimeError:
            contained.close()
            raise
        try:
            await asyncio.wait((called, ended), return_when=asyncio.FIRST_COMPLETED)
            if not called.done():
                contained.close()
                raise RuntimeError("its event loop has ended")
            called.result()
        finally:
            called.cancel()

    def _start(self) -> tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]:
        """Start a thread, and return its event loop and a future that is done when the thread has ended."""
        caller, loop, self._stopped = asyncio.get_running_loop(), asyncio.new_event_loop(), asyncio.Event()
        ended = caller.create_future()

        def serve(stopped: asyncio.Event) -> None:
            _serve(self._name, loop, stopped)
            with suppress(RuntimeError):  # the loop of the caller is closed
                caller.call_soon_threadsafe(ended.set_result, None)

        self._thread = threading.Thread(target=serve, args=(self._stopped,), name=f"hook {self._name}", daemon=True)
        self._thread.start()
        return loop, ended

    async def _contain(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.sleep(0)  # if the caller was cancelled while the hook blocked, this call ends here
        with ContainExit(f"hook {self._name}"):
            await call()

    async def stop(self) -> None:
        """Cancel all calls and end the thread. A later call starts a new one."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with suppress(RuntimeError):  # the hook has ended its loop itself
            loop.call_soon_threadsafe(self._stopped.set)
        await asyncio.to_thread(thread.join, STOP_SECONDS)
        if thread.is_alive():
            log.warning("hook %s blocks its thread and was left behind", self._name)


def _serve(name: str, loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Run the loop until it is stopped. At the end, its tasks are cancelled and may clean up."""
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_wait(stopped))
    except BaseException as problem:  # anything that a task of the hook raised ends only this thread
        why = describe_source(problem)
        log.warning("hook %s ended its event loop (%s); its next event starts a new one", name, why)


async def _wait(stopped: asyncio.Event) -> None:
    await stopped.wait()

"""Calls of functions that may block for a long time, each on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], *, seconds: float | None = None) -> T:
    """Call a function on a new Python thread and return its result. Raise TimeoutError after `seconds`.

    A function that hangs does not block other work, nor the exit of the process. If the caller is cancelled or stops
    waiting, the function continues, and its result is ignored.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # a running future cannot be cancelled by a caller that stops waiting

    def main() -> None:
        try:
            future.set_result(function())
        except StopIteration as stopped:  # a future of asyncio does not accept StopIteration
            future.set_exception(RuntimeError(f"the function raised {stopped!r}"))
        except BaseException as problem:
            future.set_exception(problem)

    threading.Thread(target=main, name="midwatch-call", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await asyncio.wrap_future(future)

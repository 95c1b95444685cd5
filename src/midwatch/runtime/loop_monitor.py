"""The loop monitor: a thread that notices when the event loop of the server stands still.

While the loop stands still, the server answers nobody. The monitor logs what every thread does and counts the event.
If the loop does not go on, the monitor ends the process, so that its supervisor starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from midwatch.running.hook_chain import find_hook

EXIT_STATUS = 71
REPORT_SECONDS = 5.0
LOG_SECONDS = 2.0
"""How long the process waits for its last log lines. The loop may stand still because the log cannot be written."""
STDERR = 2

logger = logging.getLogger(__name__)


class LoopMonitor:
    """Watches the running event loop inside a `with` block.

    A time counts only while this thread makes progress or the process uses the CPU. So a process that was stopped, or a
    machine that was suspended, does not look like a loop that stands still.
    """

    def __init__(self, end_seconds: float, count: Callable[[], None], end: Callable[[int], object] = os._exit) -> None:
        """Prepare to call `count` for each standstill. If one lasts `end_seconds`, end the process; 0 means never."""
        self._end_seconds = end_seconds
        self._report_seconds = min(REPORT_SECONDS, end_seconds / 2) if end_seconds else REPORT_SECONDS
        self._count = count
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._left = threading.Event()
        self._turned = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-monitor", daemon=True)

    def __enter__(self) -> None:
        if self._end_seconds:
            faulthandler.register(signal.SIGPROF, STDERR, all_threads=True, chain=True)
        self._start_timer()
        self._thread.start()

    def __exit__(self, *problem: object) -> None:
        self._left.set()
        self._thread.join()
        if self._end_seconds:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.unregister(signal.SIGPROF)

    def _watch(self) -> None:
        try:
            self._watch_turns()
        finally:
            if self._end_seconds:
                signal.setitimer(signal.ITIMER_PROF, 0)  # nobody would start it again

    def _watch_turns(self) -> None:
        tick, stood, reported = self._report_seconds / 5, 0.0, False
        self._ask()
        clock, cpu = time.monotonic(), time.process_time()
        while not self._left.wait(tick):
            self._start_timer()
            clock_before, clock, cpu_before, cpu = clock, time.monotonic(), cpu, time.process_time()
            if self._turned.is_set():
                stood, reported = 0.0, False
                self._ask()
                continue
            stood += min(clock - clock_before, max(tick, cpu - cpu_before))
            if stood >= self._report_seconds and not reported:
                reported = True
                self._count()
                _log_in_time(f"the event loop stands still for {stood:.1f} s{_name_hook()}\n{format_stacks()}")
            if self._end_seconds and stood >= self._end_seconds:
                why = _name_hook()
                _log_in_time(f"the event loop stands still for {stood:.1f} s{why}; the process ends\n{format_stacks()}")
                self._end(EXIT_STATUS)
                return

    def _start_timer(self) -> None:
        """Let the system end the process if this thread cannot run, because other code lets no thread run."""
        if self._end_seconds:
            signal.setitimer(signal.ITIMER_PROF, self._end_seconds)

    def _ask(self) -> None:
        """Ask the loop to set `_turned` in its next turn."""
        self._turned.clear()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._turned.set)


def _name_hook() -> str:
    """Return which hook the main thread calls now, as the end of a sentence, or nothing."""
    name = find_hook(sys._current_frames().get(threading.main_thread().ident or 0))
    return f", because hook {name} blocks it" if name else ""


def format_stacks() -> str:
    """Return what every Python thread does now, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = (
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )
    return "\n".join(stacks)


def _log_in_time(text: str) -> None:
    """Write an error to the log, but do not wait for long: the loop may hold the lock of the log."""
    writer = threading.Thread(target=logger.error, args=(text,), daemon=True)
    try:
        writer.start()
    except RuntimeError:  # the system has no thread left
        os.write(STDERR, text.encode(errors="backslashreplace"))
    else:
        writer.join(LOG_SECONDS)

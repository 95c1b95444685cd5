"""Delay threads and stall the event loop at random, in every Python process of a test: `make jitter`.

Python imports this module first when its directory is on PYTHONPATH. The one test that must fail with it checks what a
child imports.
"""

import asyncio.base_events
import os
import random
import threading
import time
from typing import Any

LATE = (0.002, 0.01, 0.04, 0.08)
STALLED = (0.005, 0.02, 0.06, 0.15)

Loop: Any = asyncio.base_events.BaseEventLoop
chance = random.Random(f"{os.getpid()} {time.time_ns()}")
call_soon_threadsafe, run_once = Loop.call_soon_threadsafe, Loop._run_once


def call_late(loop: Any, *args: Any, **options: Any) -> Any:
    """Delay the answer of another thread."""
    if threading.get_ident() != loop._thread_id and chance.random() < 0.25:
        time.sleep(chance.choice(LATE))
    return call_soon_threadsafe(loop, *args, **options)


def run_stalled(loop: Any) -> None:
    """Run one iteration of the loop, sometimes after a pause."""
    if chance.random() < 0.004:
        time.sleep(chance.choice(STALLED))
    run_once(loop)


Loop.call_soon_threadsafe, Loop._run_once = call_late, run_stalled

"""Late threads and a loop that stalls, at random, in every Python process of a test: `make jitter`.

Python imports this before anything else when this directory is on PYTHONPATH. The one test that must fail with it looks
at what a child imports.
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


def late(loop: Any, *args: Any, **options: Any) -> Any:
    """What another thread answers."""
    if threading.get_ident() != loop._thread_id and chance.random() < 0.25:
        time.sleep(chance.choice(LATE))
    return call_soon_threadsafe(loop, *args, **options)


def stalled(loop: Any) -> None:
    """One round of the loop."""
    if chance.random() < 0.004:
        time.sleep(chance.choice(STALLED))
    run_once(loop)


Loop.call_soon_threadsafe, Loop._run_once = late, stalled

"""Threads that answer while the clock of a test still moves, at random: `make jitter`."""

import asyncio
import random

from midwatch import testing
from midwatch.testing import clock

MOMENTS = (0.0, 0.0, 0.001, 0.004)
settle = clock.settle


async def longer(turns: int = 20) -> None:
    """Let everything that can run do so, and now and then also what other threads are about to say."""
    await settle(turns)
    await asyncio.sleep(random.choice(MOMENTS))
    await settle(turns)


clock.settle = testing.settle = longer

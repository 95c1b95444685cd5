"""Let threads answer at random moments while the fake clock moves: `make jitter`."""

import asyncio
import random

from midwatch import testing
from midwatch.testing import clock

MOMENTS = (0.0, 0.0, 0.001, 0.004)
settle = clock.settle


async def settle_longer(turns: int = 20) -> None:
    """Let everything run that can, and sometimes also wait for answers of other threads."""
    await settle(turns)
    await asyncio.sleep(random.choice(MOMENTS))
    await settle(turns)


clock.settle = testing.settle = settle_longer

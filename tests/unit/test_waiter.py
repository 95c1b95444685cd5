"""The waiter: it reads a record again when it may have changed, and lets go when the caller or the desk ends."""

from __future__ import annotations

import asyncio

import pytest

from midwatch.base.errors import StoreUnavailable
from midwatch.domain.event import HandoffAccepted, event
from midwatch.services.waiter import Waiter


class Record:
    """A stored status, and how often it was read."""

    def __init__(self) -> None:
        self.status = "open"
        self.reads = asyncio.Semaphore(0)

    async def read(self) -> str:
        self.reads.release()
        return self.status


def is_over(status: str) -> bool:
    return status == "done"


async def test_an_event_about_the_record_ends_the_wait() -> None:
    waiter, record = Waiter(), Record()
    wait = asyncio.create_task(waiter.wait("h_1", record.read, is_over))
    await record.reads.acquire()
    record.status = "done"
    waiter.notify(event(HandoffAccepted(handoff_id="h_1", to_agent="a"), 1))
    assert await wait == "done"


async def test_without_an_event_the_record_is_read_again_after_the_patience() -> None:
    waiter, record = Waiter(), Record()
    wait = asyncio.create_task(waiter.wait("h_1", record.read, is_over, lambda status: 0.01))
    await record.reads.acquire()
    await record.reads.acquire()
    record.status = "done"
    assert await wait == "done"


@pytest.mark.parametrize("loop_turns", [0, 1, 2, 3])
async def test_a_cancel_that_comes_with_an_event_ends_the_wait(loop_turns: int) -> None:
    waiter, record = Waiter(), Record()
    wait = asyncio.create_task(waiter.wait("h_1", record.read, is_over, lambda status: 3600.0))
    await record.reads.acquire()
    await asyncio.sleep(0)
    waiter.wake("h_1")
    for _ in range(loop_turns):
        await asyncio.sleep(0)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await wait
    assert wait.cancelled()


async def test_closing_ends_every_wait() -> None:
    waiter, record = Waiter(), Record()
    wait = asyncio.create_task(waiter.wait("h_1", record.read, is_over))
    await record.reads.acquire()
    waiter.close()
    with pytest.raises(StoreUnavailable):
        await wait

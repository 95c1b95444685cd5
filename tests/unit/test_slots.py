"""Slots: never more turns than there are slots, and who waits for its own comes before anybody new."""

from __future__ import annotations

import asyncio
import random

import pytest

from midwatch.slots import Slots
from midwatch.testing import settle


def used(slots: Slots) -> dict[str, int]:
    """Turns in their slots, by agent."""
    return {agent: count for agent, count in slots._used.items() if count}


def test_free_slots_are_counted_in_all_and_per_agent() -> None:
    slots = Slots(3, {"a": 2, "b": 9})
    assert (slots.free(), slots.free_by_agent()) == (3, {"a": 2, "b": 9})
    slots.take("a")
    slots.take("b")
    assert (slots.free(), slots.free_by_agent()) == (1, {"a": 1, "b": 8})
    slots.give("a")
    assert (slots.free(), slots.free_by_agent()) == (2, {"a": 2, "b": 8})


async def test_a_slot_that_is_free_is_taken_back_at_once() -> None:
    slots = Slots(2, {"a": 2})
    slots.take("a")
    slots.give("a")
    await slots.take_back("a")
    assert (slots.free(), slots.free_by_agent()) == (1, {"a": 1})


async def test_who_wants_its_slot_back_comes_before_anybody_new() -> None:
    slots = Slots(1, {"a": 1, "b": 1})
    slots.take("b")
    back = asyncio.create_task(slots.take_back("a"))
    await settle()
    assert not back.done()
    slots.give("b")
    assert slots.free() == 0  # it is the waiting one's from this moment, before that has run again
    await back
    assert used(slots) == {"a": 1}
    slots.give("a")
    assert slots.free() == 1


async def test_those_who_wait_get_theirs_in_the_order_they_asked() -> None:
    slots = Slots(1, {"a": 5})
    slots.take("a")
    order: list[int] = []

    async def back(number: int) -> None:
        await slots.take_back("a")
        order.append(number)
        slots.give("a")

    waiting = [asyncio.create_task(back(number)) for number in range(5)]
    await settle()
    slots.give("a")
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert slots.free() == 1


async def test_one_whose_agent_is_full_does_not_hold_up_the_next() -> None:
    slots = Slots(3, {"a": 1, "b": 2})
    slots.take("a")
    slots.take("b")
    slots.take("b")
    first, second = asyncio.create_task(slots.take_back("a")), asyncio.create_task(slots.take_back("b"))
    await settle()
    slots.give("b")
    await second
    assert not first.done()
    slots.give("a")
    await first
    assert used(slots) == {"a": 1, "b": 2}


async def test_one_who_stops_waiting_leaves_nothing_behind() -> None:
    slots = Slots(1, {"a": 1})
    slots.take("a")
    back = asyncio.create_task(slots.take_back("a"))
    await settle()
    back.cancel()
    with pytest.raises(asyncio.CancelledError):
        await back
    assert slots.free() == 0
    slots.give("a")
    assert (slots.free(), used(slots)) == (1, {})


async def test_one_who_is_cancelled_with_the_slot_in_hand_gives_it_to_the_next() -> None:
    slots = Slots(1, {"a": 1})
    slots.take("a")
    first, second = asyncio.create_task(slots.take_back("a")), asyncio.create_task(slots.take_back("a"))
    await settle()
    slots.give("a")  # the first one's
    first.cancel()  # before it could run
    await second
    assert first.cancelled()
    assert used(slots) == {"a": 1}
    slots.give("a")
    assert slots.free() == 1


async def test_one_who_was_cancelled_just_before_a_slot_came_gives_nothing_back() -> None:
    slots = Slots(1, {"a": 1})
    slots.take("a")
    back = asyncio.create_task(slots.take_back("a"))
    await settle()
    back.cancel()
    slots.give("a")  # in the same turn of the loop
    await asyncio.wait({back})
    assert slots.free_by_agent() == {"a": 1}
    slots.take("a")
    assert slots.free() == 0


async def test_one_whose_agent_is_full_does_not_keep_others_from_starting() -> None:
    slots = Slots(2, {"a": 1, "b": 1})
    slots.take("a")
    back = asyncio.create_task(slots.take_back("a"))
    try:
        await settle()
        assert slots.free() == 1  # b could run
    finally:
        back.cancel()


@pytest.mark.parametrize("seed", range(20))
async def test_a_random_walk_never_exceeds_the_limits_and_ends_where_it_began(seed: int) -> None:
    """Turns start, ask, are answered, are cancelled while they wait for their slot, and end, in any order."""
    chance = random.Random(seed)
    limits = {"a": chance.randint(1, 3), "b": chance.randint(1, 3), "c": 1}
    total = chance.randint(1, 5)
    slots = Slots(total, limits)
    running: list[str] = []
    asking: list[str] = []
    back: dict[asyncio.Task[None], str] = {}
    for _ in range(300):
        step = chance.randrange(6)
        if step <= 1:
            agent = chance.choice(list(limits))
            if slots.free() > 0 and slots.free_by_agent()[agent] > 0:
                slots.take(agent)
                running.append(agent)
        elif step == 2 and running:  # asks
            asking.append(running.pop(chance.randrange(len(running))))
            slots.give(asking[-1])
        elif step == 3 and asking:  # is answered
            agent = asking.pop()
            back[asyncio.create_task(slots.take_back(agent))] = agent
        elif step == 4 and running:  # ends
            slots.give(running.pop(chance.randrange(len(running))))
        elif step == 5 and back:  # is stopped while it waits
            await settle(3)  # not in the same turn of the loop as a slot that is given: see above
            waiting = chance.choice(list(back))
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
                del back[waiting]
        await settle(3)
        running += [back.pop(done) for done in list(back) if done.done()]
        assert used(slots) == {agent: running.count(agent) for agent in limits if agent in running}
        assert len(running) <= total
        assert all(running.count(agent) <= most for agent, most in limits.items())
        stuck = [agent for agent in back.values() if running.count(agent) < limits[agent] and len(running) < total]
        assert not stuck, "a slot is free and somebody waits for it"
    for agent in running:
        slots.give(agent)
    await settle()
    while back:
        done = [task for task in back if task.done()]
        assert done, "nobody who waits gets a slot any more"
        for task in done:
            slots.give(back.pop(task))
        await settle()
    assert (slots.free(), slots.free_by_agent()) == (total, limits)

"""Test slots: turns never exceed the slots, returning tasks come before new ones, and actors share the slots fairly."""

from __future__ import annotations

import asyncio
import random

import pytest

from midwatch.domain.claiming import FreeSlots, Shares
from midwatch.running.slots import REMEMBERED, Slots
from midwatch.testing import settle
from records import a_task, claim_request


def count_used(slots: Slots) -> dict[str, int]:
    """Return the number of turns in slots by agent."""
    return {agent: count for agent, count in slots._used.items() if count}


def test_free_slots_are_counted_in_total_and_per_agent() -> None:
    slots = Slots(3, {"a": 2, "b": 9})
    assert (slots.free(), slots.free_by_agent()) == (3, {"a": 2, "b": 9})
    slots.take("a")
    slots.take("b")
    assert (slots.free(), slots.free_by_agent()) == (1, {"a": 1, "b": 8})
    slots.give("a")
    assert (slots.free(), slots.free_by_agent()) == (2, {"a": 2, "b": 8})


async def test_a_free_slot_is_reacquired_at_once() -> None:
    slots = Slots(2, {"a": 2})
    slots.take("a")
    slots.give("a")
    await slots.take_back("a")
    assert (slots.free(), slots.free_by_agent()) == (1, {"a": 1})


async def test_a_task_that_reacquires_its_slot_comes_before_a_new_one() -> None:
    slots = Slots(1, {"a": 1, "b": 1})
    slots.take("b")
    back = asyncio.create_task(slots.take_back("a"))
    await settle()
    assert not back.done()
    slots.give("b")
    assert slots.free() == 0  # the slot belongs to the waiting task at once, before that task has run again
    await back
    assert count_used(slots) == {"a": 1}
    slots.give("a")
    assert slots.free() == 1


async def test_waiting_tasks_reacquire_slots_in_order() -> None:
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


async def test_a_full_agent_does_not_delay_the_next_waiting_task() -> None:
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
    assert count_used(slots) == {"a": 1, "b": 2}


async def test_a_task_that_stops_waiting_leaves_nothing_behind() -> None:
    slots = Slots(1, {"a": 1})
    slots.take("a")
    back = asyncio.create_task(slots.take_back("a"))
    await settle()
    back.cancel()
    with pytest.raises(asyncio.CancelledError):
        await back
    assert slots.free() == 0
    slots.give("a")
    assert (slots.free(), count_used(slots)) == (1, {})


async def test_a_task_cancelled_with_a_slot_passes_it_on() -> None:
    slots = Slots(1, {"a": 1})
    slots.take("a")
    first, second = asyncio.create_task(slots.take_back("a")), asyncio.create_task(slots.take_back("a"))
    await settle()
    slots.give("a")  # the slot of the first
    first.cancel()  # before it could run
    await second
    assert first.cancelled()
    assert count_used(slots) == {"a": 1}
    slots.give("a")
    assert slots.free() == 1


async def test_a_task_cancelled_before_its_slot_came_releases_nothing() -> None:
    slots = Slots(1, {"a": 1})
    slots.take("a")
    back = asyncio.create_task(slots.take_back("a"))
    await settle()
    back.cancel()
    slots.give("a")  # in the same iteration of the event loop
    await asyncio.wait({back})
    assert slots.free_by_agent() == {"a": 1}
    slots.take("a")
    assert slots.free() == 0


async def test_a_full_agent_does_not_block_tasks_of_others() -> None:
    slots = Slots(2, {"a": 1, "b": 1})
    slots.take("a")
    back = asyncio.create_task(slots.take_back("a"))
    try:
        await settle()
        assert slots.free() == 1  # b could run
    finally:
        back.cancel()


@pytest.mark.parametrize("seed", range(20))
async def test_random_operations_never_exceed_the_limits_and_return_all_slots(seed: int) -> None:
    """Turns start, ask, get answers, are cancelled while they wait for a slot, and end, in any order."""
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
        elif step == 2 and running:  # a turn asks
            asking.append(running.pop(chance.randrange(len(running))))
            slots.give(asking[-1])
        elif step == 3 and asking:  # a turn gets its answer
            agent = asking.pop()
            back[asyncio.create_task(slots.take_back(agent))] = agent
        elif step == 4 and running:  # a turn ends
            slots.give(running.pop(chance.randrange(len(running))))
        elif step == 5 and back:  # a turn is stopped while it waits
            await settle(3)  # not in the same loop iteration as a slot that is assigned: see above
            waiting = chance.choice(list(back))
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
                del back[waiting]
        await settle(3)
        running += [back.pop(done) for done in list(back) if done.done()]
        assert count_used(slots) == {agent: running.count(agent) for agent in limits if agent in running}
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


# -- actors ------------------------------------------------------------------------------------------------------


def choose_actor(
    heads: str,
    *,
    free: int = 1,
    agents: dict[str, int] | None = None,
    held: dict[str, int] | None = None,
    started: str = "",
    spare: int = 0,
    most: int | None = None,
) -> str:
    """Return the actor that gets the next slot. A head is an actor and perhaps an agent, as in `a b:y`; the default
    agent is x.
    """
    pairs = {_pair(name): count for name, count in (held or {}).items()}
    starts = {_pair(name): number for number, name in enumerate(started.split(), 1)}
    shares = Shares(pairs, starts, spare, most)
    room = FreeSlots(claim_request(free, agents=agents or {"x": free}, shares=shares))
    choice = room.choose_fairest(
        [a_task(creator=actor or None, agent=agent) for agent, actor in map(_pair, heads.split())]
    )
    return "nobody" if choice is None else choice.actor if choice.agent == "x" else f"{choice.actor}:{choice.agent}"


def _pair(name: str) -> tuple[str, str]:
    actor, _, agent = name.partition(":")
    return agent or "x", actor.removeprefix("nobody")


def test_the_last_slot_goes_to_a_waiting_actor_without_one() -> None:
    assert choose_actor("a b", held={"a": 3}) == "b"
    assert choose_actor("a b", held={"a": 2, "c": 1}) == "b"  # not only when one actor has all other slots
    assert choose_actor("a b", held={"b": 3}) == "a"


def test_claim_order_decides_between_actors_with_slots() -> None:
    assert choose_actor("a b", held={"a": 2, "b": 1}) == "a"
    assert choose_actor("b a", held={"a": 2, "b": 1}) == "b"


def test_a_single_actor_may_use_every_slot() -> None:
    assert choose_actor("a", held={"a": 3}) == "a"


def test_claim_order_decides_while_there_are_enough_slots() -> None:
    assert choose_actor("a b", free=2, held={"a": 2}) == "a"
    assert choose_actor("a b c", free=2, held={"a": 2}) == "b"  # one slot is reserved for b and one for c
    assert choose_actor("a b c", free=3, held={"a": 2}) == "a"


def test_among_actors_without_a_slot_the_one_served_longest_ago_gets_it() -> None:
    assert choose_actor("a b", started="a") == "b"
    assert choose_actor("a b", started="a b") == "a"
    assert choose_actor("a b c", started="c a b") == "c"
    assert choose_actor("a b") == "a"  # no actor ever had a slot


def test_slots_are_reserved_within_an_agent() -> None:
    plenty = {"x": 1, "y": 40}
    assert choose_actor("a b", free=40, agents=plenty, held={"a": 3}) == "b"
    assert choose_actor("a b", free=40, agents=plenty, held={"a": 3, "b:y": 5}) == "b"  # has no slot of x
    assert choose_actor("a b:y", free=40, agents=plenty, held={"a": 3}) == "a"  # needs no slot of x
    assert choose_actor("b:y a", free=40, agents=plenty, held={"a": 3}) == "b:y"
    assert choose_actor("a b", free=40, agents=plenty, started="b a b:y") == "b"  # its last slot of x is older


def test_slots_of_the_process_are_reserved_across_all_agents() -> None:
    assert choose_actor("a b:y", agents={"x": 4, "y": 4}, held={"a": 3}) == "b:y"
    assert choose_actor("a b", agents={"x": 1, "y": 1}, held={"b:y": 1}) == "a"
    holdings = {"a:y": 1, "b:y": 1}
    assert (
        choose_actor("a b", agents={"x": 1, "y": 1}, held=holdings, started="b a") == "b"
    )  # then slots per agent decide
    assert choose_actor("a:y a b", agents={"x": 4, "y": 4}, started="a") == "b"


def test_a_spare_slot_can_be_used_by_any_actor() -> None:
    assert choose_actor("a b", held={"a": 3}, agents={"x": 3}, spare=2) == "a"
    assert choose_actor("a b", held={"a": 3}, agents={"x": 3}, spare=0) == "b"


def test_no_actor_exceeds_the_limit_per_actor() -> None:
    assert choose_actor("a b", free=9, held={"a": 2}, most=2) == "b"
    assert choose_actor("a", free=9, held={"a": 1, "a:y": 1}, most=2) == "nobody"
    assert choose_actor("a", free=9, held={"a": 1}, most=2) == "a"


def test_tasks_without_an_actor_count_as_one_actor() -> None:
    assert choose_actor("a nobody", held={"a": 3}) == ""
    assert choose_actor("nobody a", held={"nobody": 3}) == "a"


def test_a_slot_that_does_not_exist_is_never_assigned() -> None:
    assert choose_actor("a b", free=0, agents={"x": 3}) == "nobody"
    assert choose_actor("a b", free=3, agents={"x": 0}) == "nobody"
    assert choose_actor("a b", free=3, agents={"y": 3}) == "nobody"


def test_a_claim_gets_present_and_past_slot_holders() -> None:
    slots = Slots(5, {"x": 4, "y": 4}, 3)
    for agent, actor in (("x", "a"), ("x", "b"), ("y", "a"), ("x", "a")):
        slots.take(agent, actor)
    slots.give("x", "b")
    held_counts, started, spare, most = slots.shares(1)
    assert held_counts == {("x", "a"): 2, ("y", "a"): 1}
    assert sorted(started, key=lambda pair: started[pair]) == [("x", "b"), ("y", "a"), ("x", "a")]
    assert (spare, most) == (1, 3)
    slots.take("x", "c")
    assert ("x", "c") not in held_counts  # this was true at that moment


def test_only_the_latest_starts_are_kept() -> None:
    slots = Slots(1, {"x": 1})
    for number in range(REMEMBERED + 5):
        slots.take("x", f"actor {number}")
        slots.give("x", f"actor {number}")
    started = slots.shares(0).started
    assert len(started) == REMEMBERED
    assert ("x", "actor 4") not in started and ("x", "actor 5") in started


async def test_an_actor_at_its_limit_waits_and_delays_nobody() -> None:
    slots = Slots(4, {"x": 4}, 1)
    slots.take("x", "a")
    own, other_task = asyncio.create_task(slots.take_back("x", "a")), asyncio.create_task(slots.take_back("x", "b"))
    await settle()
    assert other_task.done() and not own.done()
    assert slots.free() == 2
    slots.give("x", "b")
    await settle()
    assert not own.done()
    slots.give("x", "a")
    await own
    assert count_used(slots) == {"x": 1}


async def test_one_released_slot_can_serve_two_waiting_tasks() -> None:
    slots = Slots(9, {"x": 1, "y": 9}, 1)
    slots.take("x", "a")
    agents, actors = asyncio.create_task(slots.take_back("x", "b")), asyncio.create_task(slots.take_back("y", "a"))
    await settle()
    assert not agents.done() and not actors.done()
    slots.give("x", "a")
    await asyncio.gather(agents, actors)
    assert count_used(slots) == {"x": 1, "y": 1}

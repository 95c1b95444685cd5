"""Slots: never more turns than there are slots, who waits for its own comes before anybody new, and actors share."""

from __future__ import annotations

import asyncio
import random

import pytest

from midwatch.domain.claiming import Room, Shares
from midwatch.running.slots import REMEMBERED, Slots
from midwatch.testing import settle
from records import a_task, asking


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


# -- actors ------------------------------------------------------------------------------------------------------


def whose(
    heads: str,
    *,
    free: int = 1,
    agents: dict[str, int] | None = None,
    held: dict[str, int] | None = None,
    started: str = "",
    spare: int = 0,
    most: int | None = None,
) -> str:
    """Who gets the next slot. A head is an actor and perhaps an agent, as in `a b:y`; the usual agent is x."""
    pairs = {_pair(name): count for name, count in (held or {}).items()}
    starts = {_pair(name): number for number, name in enumerate(started.split(), 1)}
    shares = Shares(pairs, starts, spare, most)
    room = Room(asking(free, agents=agents or {"x": free}, shares=shares))
    found = room.fairest([a_task(creator=actor or None, agent=agent) for agent, actor in map(_pair, heads.split())])
    return "nobody" if found is None else found.actor if found.agent == "x" else f"{found.actor}:{found.agent}"


def _pair(name: str) -> tuple[str, str]:
    actor, _, agent = name.partition(":")
    return agent or "x", actor.removeprefix("nobody")


def test_the_last_slot_is_for_whoever_waits_and_has_none() -> None:
    assert whose("a b", held={"a": 3}) == "b"
    assert whose("a b", held={"a": 2, "c": 1}) == "b"  # not only when one actor has all the others
    assert whose("a b", held={"b": 3}) == "a"


def test_claim_order_decides_between_those_who_have_some() -> None:
    assert whose("a b", held={"a": 2, "b": 1}) == "a"
    assert whose("b a", held={"a": 2, "b": 1}) == "b"


def test_an_actor_alone_has_every_slot() -> None:
    assert whose("a", held={"a": 3}) == "a"


def test_claim_order_decides_while_there_is_a_slot_for_everybody() -> None:
    assert whose("a b", free=2, held={"a": 2}) == "a"
    assert whose("a b c", free=2, held={"a": 2}) == "b"  # one is kept for b and one for c
    assert whose("a b c", free=3, held={"a": 2}) == "a"


def test_of_those_who_have_none_it_is_for_the_one_who_had_one_longest_ago() -> None:
    assert whose("a b", started="a") == "b"
    assert whose("a b", started="a b") == "a"
    assert whose("a b c", started="c a b") == "c"
    assert whose("a b") == "a"  # nobody ever had one


def test_slots_are_kept_within_an_agent_whatever_is_free_elsewhere() -> None:
    plenty = {"x": 1, "y": 40}
    assert whose("a b", free=40, agents=plenty, held={"a": 3}) == "b"
    assert whose("a b", free=40, agents=plenty, held={"a": 3, "b:y": 5}) == "b"  # has none of x
    assert whose("a b:y", free=40, agents=plenty, held={"a": 3}) == "a"  # wants none of x
    assert whose("b:y a", free=40, agents=plenty, held={"a": 3}) == "b:y"
    assert whose("a b", free=40, agents=plenty, started="b a b:y") == "b"  # who had one of x longest ago


def test_slots_of_the_process_are_kept_over_all_agents() -> None:
    assert whose("a b:y", agents={"x": 4, "y": 4}, held={"a": 3}) == "b:y"
    assert whose("a b", agents={"x": 1, "y": 1}, held={"b:y": 1}) == "a"
    both = {"a:y": 1, "b:y": 1}
    assert whose("a b", agents={"x": 1, "y": 1}, held=both, started="b a") == "b"  # then the agent's own decide
    assert whose("a:y a b", agents={"x": 4, "y": 4}, started="a") == "b"


def test_a_slot_that_is_not_asked_for_is_there_all_the_same() -> None:
    assert whose("a b", held={"a": 3}, agents={"x": 3}, spare=2) == "a"
    assert whose("a b", held={"a": 3}, agents={"x": 3}, spare=0) == "b"


def test_nobody_has_more_than_an_actor_may() -> None:
    assert whose("a b", free=9, held={"a": 2}, most=2) == "b"
    assert whose("a", free=9, held={"a": 1, "a:y": 1}, most=2) == "nobody"
    assert whose("a", free=9, held={"a": 1}, most=2) == "a"


def test_work_without_an_actor_is_one_more_actor() -> None:
    assert whose("a nobody", held={"a": 3}) == ""
    assert whose("nobody a", held={"nobody": 3}) == "a"


def test_nobody_gets_a_slot_that_is_not_there() -> None:
    assert whose("a b", free=0, agents={"x": 3}) == "nobody"
    assert whose("a b", free=3, agents={"x": 0}) == "nobody"
    assert whose("a b", free=3, agents={"y": 3}) == "nobody"


def test_a_claim_is_told_who_has_the_slots_and_who_had_them() -> None:
    slots = Slots(5, {"x": 4, "y": 4}, 3)
    for agent, actor in (("x", "a"), ("x", "b"), ("y", "a"), ("x", "a")):
        slots.take(agent, actor)
    slots.give("x", "b")
    held, started, spare, most = slots.shares(1)
    assert held == {("x", "a"): 2, ("y", "a"): 1}
    assert sorted(started, key=lambda pair: started[pair]) == [("x", "b"), ("y", "a"), ("x", "a")]
    assert (spare, most) == (1, 3)
    slots.take("x", "c")
    assert ("x", "c") not in held  # it was true at the moment


def test_only_the_latest_starts_are_remembered() -> None:
    slots = Slots(1, {"x": 1})
    for number in range(REMEMBERED + 5):
        slots.take("x", f"actor {number}")
        slots.give("x", f"actor {number}")
    started = slots.shares(0).started
    assert len(started) == REMEMBERED
    assert ("x", "actor 4") not in started and ("x", "actor 5") in started


async def test_an_actor_who_may_have_no_more_waits_for_its_own_and_holds_up_nobody() -> None:
    slots = Slots(4, {"x": 4}, 1)
    slots.take("x", "a")
    own, others = asyncio.create_task(slots.take_back("x", "a")), asyncio.create_task(slots.take_back("x", "b"))
    await settle()
    assert others.done() and not own.done()
    assert slots.free() == 2
    slots.give("x", "b")
    await settle()
    assert not own.done()
    slots.give("x", "a")
    await own
    assert used(slots) == {"x": 1}


async def test_one_slot_given_back_can_serve_two_who_waited_for_different_reasons() -> None:
    slots = Slots(9, {"x": 1, "y": 9}, 1)
    slots.take("x", "a")
    agents, actors = asyncio.create_task(slots.take_back("x", "b")), asyncio.create_task(slots.take_back("y", "a"))
    await settle()
    assert not agents.done() and not actors.done()
    slots.give("x", "a")
    await asyncio.gather(agents, actors)
    assert used(slots) == {"x": 1, "y": 1}

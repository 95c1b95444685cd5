"""Test sessions whose conversation is open in a process: only that process claims their tasks while it lives."""

from __future__ import annotations

import pytest

from midwatch.base.errors import LeaseLost
from midwatch.domain.instance import Instance
from midwatch.domain.store import Store
from records import CLOCK, OWNER, claim_tasks, fence, put, submit_and_claim


async def register_process(store: Store, owner: str) -> None:
    instance = Instance(
        id=owner, role="up", host="h", boot_id="b", pid=1, agents=("demo",), slots=4, started_at=CLOCK.now()
    )
    await store.add_instance(instance)


async def test_only_the_owner_of_a_session_claims_its_tasks(store: Store) -> None:
    await register_process(store, "i_holder")
    first = await submit_and_claim(store, session_key="chat:1", gate_key="other")
    assert await store.hold_session("chat:1", "i_holder", fence(first)) == 1
    held_task = await put(store, session_key="chat:1")
    free = await put(store, session_key="chat:2")
    assert [task.id for task in await claim_tasks(store)] == [free.id]
    assert [task.id for task in await claim_tasks(store, owner="i_holder")] == [held_task.id]


async def test_a_session_of_a_dead_process_is_released_with_a_new_epoch(store: Store) -> None:
    await register_process(store, "i_holder")
    first = await submit_and_claim(store, session_key="chat:1", gate_key="other")
    await store.hold_session("chat:1", "i_holder", fence(first))
    await store.remove_instances(["i_holder"])
    await put(store, session_key="chat:1")
    (task,) = await claim_tasks(store)
    assert await store.hold_session("chat:1", OWNER, fence(task)) == 2
    session = await store.get_session("chat:1")
    assert session is not None and (session.live_owner, session.epoch) == (OWNER, 2)


async def test_a_released_session_can_be_claimed_by_any_process(store: Store) -> None:
    await register_process(store, "i_holder")
    first = await submit_and_claim(store, session_key="chat:1", gate_key="other")
    await store.hold_session("chat:1", "i_holder", fence(first))
    await store.release_session("chat:1", "i_somebody")  # a process that does not hold the session
    waiting = await put(store, session_key="chat:1")
    assert await claim_tasks(store) == []
    await store.release_session("chat:1", "i_holder")
    assert [task.id for task in await claim_tasks(store)] == [waiting.id]


async def test_an_attempt_without_its_lease_owns_no_session(store: Store) -> None:
    first = await submit_and_claim(store, session_key="chat:1")
    with pytest.raises(LeaseLost):
        await store.hold_session("chat:1", OWNER, fence(first)._replace(attempt=7))
    assert await store.list_live_sessions(OWNER) == {}


async def test_a_restart_raises_the_epoch_and_keeps_the_owner(store: Store) -> None:
    first = await submit_and_claim(store, session_key="chat:1")
    assert not await store.restart_session("chat:1"), "it is open nowhere"
    await store.hold_session("chat:1", OWNER, fence(first))
    assert await store.restart_session("chat:1")
    assert await store.list_live_sessions(OWNER) == {"chat:1": 2}


async def test_a_process_lists_its_live_sessions_and_their_waiting_work(store: Store) -> None:
    first = await submit_and_claim(store, session_key="chat:1", gate_key="other")
    await store.hold_session("chat:1", OWNER, fence(first))
    now = CLOCK.now()
    assert await store.list_live_sessions(OWNER) == {"chat:1": 1}
    assert not await store.has_live_work(OWNER, now)
    await put(store, session_key="chat:1", wait="delay", due_at=now + 60_000_000)
    assert not await store.has_live_work(OWNER, now)
    assert await store.has_live_work(OWNER, now + 60_000_000)
    assert not await store.has_live_work("i_other", now + 60_000_000)
    await store.close_session("chat:1", now, ())
    assert await store.list_live_sessions(OWNER) == {}

"""Test the contract of stores for messages to running turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from midwatch.base.errors import Conflict, KeyReused, LimitReached
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import EventFilter, SessionClosed, event
from midwatch.domain.steering import MOST_QUEUED, SendResult, Steer, requeue_steers
from midwatch.domain.store import Store
from midwatch.domain.task import Task, end
from records import CLOCK, a_steer, a_task, claim_tasks, fence, submit_and_claim

KEY = "chat:1"


async def send(store: Store, text: str, *, otherwise: bool = True, **fields: Any) -> SendResult | None:
    """Send a message as the task service does."""
    task = a_task(session_key=KEY, prompt=text, cause="message", idempotency_key=fields.get("idempotency_key"))
    steer = replace(a_steer(task, text), id=task.id, task_id="", number=0, **fields)
    return await store.send_steer(steer, task if otherwise else None)


async def send_steer(store: Store, text: str, **fields: Any) -> Steer:
    sent = await send(store, text, **fields)
    assert sent is not None
    assert sent.steer is not None
    return sent.steer


async def read_task(store: Store, task: Task) -> Task:
    current = await store.get_task(task.id)
    assert current is not None
    return current


async def test_messages_wait_for_the_turn_in_order_and_are_delivered_once(store: Store) -> None:
    task = await submit_and_claim(store, session_key=KEY)
    for number, text in enumerate(("one", "two"), 1):
        steer = await send_steer(store, text, mode="interrupt", actor="ann")
        assert (steer.task_id, steer.number, steer.status) == (task.id, number, "queued")
    assert [message.text for message in await store.list_queued_steers(task.id)] == ["one", "two"]
    assert (await read_task(store, task)).steers == 2
    events = [e for e in await store.read_events(0, EventFilter(session_key=KEY)) if e.actor == "ann"]
    assert [e.kind for e in events] == ["interrupt_received", "message_update"] * 2
    assert events[2].payload == {"reason": "interrupt", "content_len": 3, "queue_depth": 2, "steer_id": steer.id}
    assert {(e.task_id, e.turn_id) for e in events} == {(task.id, f"{task.id}.1")}
    shown = await store.read_messages(KEY)
    assert [(message.role, message.text, message.author, message.task_id) for message in shown] == [
        ("user", "do it", None, task.id), ("user", "one", "ann", task.id), ("user", "two", "ann", task.id)
    ]  # fmt: skip


async def test_a_message_to_an_idle_session_becomes_a_task(store: Store) -> None:
    await submit_and_claim(store, session_key="chat:2")  # the turn of another session gets nothing
    sent = await send(store, "hello")
    assert sent is not None
    assert (sent.task.status, sent.steer, sent.mode) == ("pending", None, "after_turn")
    assert await send(store, "stop", mode="stop", otherwise=False) is None


async def test_a_closed_session_takes_no_message(store: Store) -> None:
    await submit_and_claim(store, session_key=KEY)
    await store.close_session(KEY, CLOCK.now(), (event(SessionClosed(reason="x"), CLOCK.now(), session_key=KEY),))
    with pytest.raises(Conflict, match="closed"):
        await send(store, "hello")


async def test_too_many_waiting_messages_are_refused(store: Store) -> None:
    task = await submit_and_claim(store, session_key=KEY)
    for number in range(MOST_QUEUED):
        await send_steer(store, f"{number}")
    with pytest.raises(LimitReached):
        await send(store, "one more")
    assert (await read_task(store, task)).steers == MOST_QUEUED, "nothing of it is left"
    assert (await send_steer(store, "", mode="stop")).number == MOST_QUEUED + 1, "a stop is never kept out by messages"
    first = (await store.list_queued_steers(task.id))[0]
    update = Update("steer", first.id, {"status": "injected", "attempt": 1}, {"status": "queued"})
    await store.apply(Changes(fence=fence(task), updates=(update,)))
    await send_steer(store, "there is room again")


async def test_a_message_with_a_key_is_sent_once(store: Store) -> None:
    task = await submit_and_claim(store, session_key=KEY)
    first = await send_steer(store, "one", actor="ann", idempotency_key="k")
    assert await send_steer(store, "one", actor="ann", idempotency_key="k") == first
    assert await send_steer(store, "one", actor="bob", idempotency_key="k") != first
    for fields in ({"text": "two"}, {"text": "one", "mode": "interrupt"}):
        with pytest.raises(KeyReused):
            await send(store, actor="ann", idempotency_key="k", **fields)
    with pytest.raises(KeyReused):
        await store.submit(a_task(idempotency_key="k", creator="ann"))
    assert len(await store.list_queued_steers(task.id)) == 2


async def test_a_message_that_became_a_task_is_not_sent_to_its_own_turn(store: Store) -> None:
    first = await send(store, "one", idempotency_key="k")
    assert first is not None
    await claim_tasks(store)
    again = await send(store, "one", idempotency_key="k")
    assert again is not None
    assert (again.task.id, again.steer) == (first.task.id, None)


async def test_concurrent_requests_with_one_key_make_one_message(store: Store) -> None:
    task = await submit_and_claim(store, session_key=KEY)
    steers = await asyncio.gather(*(send_steer(store, "one", idempotency_key="k") for _ in range(8)))
    assert len({steer.id for steer in steers}) == 1
    assert (await read_task(store, task)).steers == 1


async def test_an_end_that_missed_a_message_is_a_conflict(store: Store) -> None:
    task = await submit_and_claim(store, session_key=KEY)
    steer = await send_steer(store, "wait")
    with pytest.raises(Conflict):
        await store.apply(end(task, CLOCK.now(), outcome="ok", result="done")[1])
    stored_task = await read_task(store, task)
    over = end(stored_task, CLOCK.now(), outcome="ok", result="done")[1]
    await store.apply(over.plus(requeue_steers(stored_task, [steer], CLOCK.now(), closed=False)))
    became = await read_task(store, task._replace(id=steer.id))
    assert (became.status, became.prompt, became.cause, became.session_key) == ("pending", "wait", "message", KEY)
    assert await store.list_queued_steers(task.id) == []
    again = await send(store, "wait", idempotency_key=None)
    assert again is not None
    assert again.steer is None
    (following,) = await claim_tasks(store)
    assert following.id == steer.id, "in the order they were sent"


async def test_a_repeated_message_returns_its_present_state(store: Store) -> None:
    task = await submit_and_claim(store, session_key=KEY)
    steer = await send_steer(store, "wait", idempotency_key="k")
    stored_task = await read_task(store, task)
    over = end(stored_task, CLOCK.now(), outcome="ok", result="done")[1]
    await store.apply(over.plus(requeue_steers(stored_task, [steer], CLOCK.now(), closed=False)))
    again = await send(store, "wait", idempotency_key="k")
    assert again is not None
    assert (again.task.id, again.mode) == (steer.id, "after_turn")
    assert again.steer is not None
    assert (again.steer.status, again.steer.became) == ("passed_on", steer.id)


async def test_stops_and_messages_of_a_closed_session_are_dropped(store: Store) -> None:
    task = await submit_and_claim(store, session_key=KEY)
    stop, message = await send_steer(store, "", mode="stop"), await send_steer(store, "hello")
    changes = requeue_steers(task, [stop, message], CLOCK.now(), closed=False)
    assert [u.fields["status"] for u in changes.updates] == ["dropped", "passed_on"]
    changes = requeue_steers(task, [stop, message], CLOCK.now(), closed=True)
    await store.apply(changes)
    assert (changes.records, await store.list_queued_steers(task.id)) == ((), [])
    assert [stored.text for stored in await store.read_messages(KEY)] == ["do it", "hello"], (
        "a stop without a hint says nothing"
    )

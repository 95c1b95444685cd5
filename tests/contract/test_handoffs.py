"""Test the contract of stores for handoffs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict
from midwatch.domain.changes import Changes
from midwatch.domain.handoff import (
    Handoff,
    HandoffFilter,
    accept_handoff,
    cancel_handoff,
    expire_handoff,
    fail_handoff,
    request_handoff,
    settle,
    start_handoff,
)
from midwatch.domain.store import Store
from midwatch.domain.task import end
from records import CLOCK, a_handoff, a_task, claim_tasks


async def put(store: Store, **fields: Any) -> Handoff:
    handoff = a_handoff(**fields)
    await store.apply(request_handoff(handoff, handoff.created_at))
    return handoff


async def test_a_handoff_is_read_back_unchanged(store: Store) -> None:
    handoff = await put(
        store, refusals=({"agent": "x", "reason": "busy"},), late={"output": "y"}, tries=({"attempt": 1},)
    )
    assert await store.get_handoff(handoff.id) == handoff
    assert await store.get_handoff("h_none") is None


async def test_the_same_request_returns_the_existing_handoff(store: Store) -> None:
    handoff = await put(store, source_task="t_1", once="c1")
    assert await store.find_handoff("t_1", "c1") == handoff
    assert await store.find_handoff("t_1", "c2") is None
    with pytest.raises(Conflict):
        await put(store, source_task="t_1", once="c1")
    await put(store, source_task="t_1")
    await put(store, source_task="t_1")  # without a key they are separate handoffs


async def test_a_step_is_refused_when_the_handoff_changed_since(store: Store) -> None:
    handoff = await put(store)
    await store.apply(accept_handoff(handoff, CLOCK.now())[1])
    for step in (accept_handoff(handoff, 1), cancel_handoff(handoff, "no", 1), expire_handoff(handoff, 1)):
        with pytest.raises(Conflict):
            await store.apply(step[1])
    stored = await store.get_handoff(handoff.id)
    assert stored is not None
    assert (stored.status, stored.revision) == ("accepted", 1)


async def test_only_transitions_of_the_table_are_allowed(store: Store) -> None:
    handoff = await put(store)
    over, step = fail_handoff(handoff, "no", CLOCK.now())
    await store.apply(step)
    for again in (accept_handoff(over, 1), fail_handoff(over, "x", 1), cancel_handoff(over, "x", 1)):
        with pytest.raises(Conflict):
            await store.apply(again[1])


async def test_the_task_of_a_handoff_is_made_and_ended_with_it(store: Store) -> None:
    handoff = await put(store)
    accepted, step = accept_handoff(handoff, CLOCK.now())
    await store.apply(step)
    task = a_task(cause="handoff", cause_id=handoff.id)
    await store.apply(start_handoff(accepted, task, CLOCK.now())[1])
    (running,) = await claim_tasks(store)
    assert running.cause_id == handoff.id
    current = await store.get_handoff(handoff.id)
    assert current is not None
    ended_task, changes = end(running, CLOCK.now(), outcome="ok", result="42")
    await store.apply(changes.plus(settle(current, ended_task, CLOCK.now())))
    over = await store.get_handoff(handoff.id)
    assert over is not None
    assert (over.status, over.answer and over.answer["output"]) == ("completed", "42")
    kinds = [event.kind for event in await store.read_events(0) if event.kind.startswith("handoff")]
    assert kinds == ["handoff_requested", "handoff_accepted", "handoff_started", "handoff_completed"]


async def test_handoffs_are_listed_and_counted(store: Store) -> None:
    first = await put(store, root_id="t_r", to_agent="a")
    second = await put(store, root_id="t_r", from_agent="a", to_agent="b")
    third = await put(store, to_agent="b")
    await store.apply(cancel_handoff(third, "no", CLOCK.now())[1])
    assert [handoff.id for handoff in await store.list_handoffs(HandoffFilter())] == [third.id, second.id, first.id]
    assert [handoff.id for handoff in await store.list_handoffs(HandoffFilter(agent="a"))] == [second.id, first.id]
    assert [handoff.id for handoff in await store.list_handoffs(HandoffFilter(statuses=("cancelled",)))] == [third.id]
    assert [handoff.id for handoff in await store.list_handoffs(HandoffFilter(root_id="t_r", limit=1))] == [second.id]
    assert [handoff.id for handoff in await store.list_handoffs(HandoffFilter(before=second.id))] == [first.id]
    assert await store.count_open_handoffs() == {"a": 1, "b": 1}
    assert await store.count_handoffs("t_r") == 2


async def test_due_and_abandoned_handoffs_are_found(store: Store) -> None:
    now = CLOCK.now()
    assert await store.find_next_handoff_at() is None
    later = await put(store, deadline_at=now + 9 * SECOND)
    due = await put(store, deadline_at=now - SECOND, owner="i_two")
    assert [handoff.id for handoff in await store.list_due_handoffs(now)] == [due.id]
    assert await store.find_next_handoff_at() == due.deadline_at
    assert [handoff.id for handoff in await store.list_abandoned_handoffs(["i_one"])] == [due.id]
    await store.apply(expire_handoff(due, now)[1])
    assert await store.list_due_handoffs(now) == []
    assert await store.find_next_handoff_at() == later.deadline_at
    assert await store.list_abandoned_handoffs(["i_one"]) == []


async def test_orphaned_handoffs_are_found(store: Store) -> None:
    source, other_task = a_task(), a_task()
    for task in (source, other_task):
        await store.apply(Changes(records=(task,)))
    awaited = await put(store, source_task=source.id, awaited=True)
    await put(store, source_task=source.id)
    moves = await put(store, source_task=other_task.id, awaited=True, form="transfer")
    accepted, step = accept_handoff(moves, CLOCK.now())
    await store.apply(step)
    running = {task.id: task for task in await claim_tasks(store)}
    assert await store.list_orphaned_handoffs() == []
    await store.apply(end(running[source.id], CLOCK.now(), outcome="ok", result="")[1])
    (orphan,) = await store.list_orphaned_handoffs()
    assert orphan == awaited
    await store.apply(cancel_handoff(awaited, "no", CLOCK.now())[1])
    after = a_task(cause="handoff", cause_id=moves.id)
    transfer = end(running[other_task.id], CLOCK.now(), outcome="transferred", transferred_to=after.id)[1]
    await store.apply(transfer.plus(start_handoff(accepted, after, CLOCK.now())[1]))
    assert await store.list_orphaned_handoffs() == []  # its work continues in that task


async def test_ended_handoffs_are_pruned(store: Store) -> None:
    open_handoff, cancelled = await put(store), await put(store)
    await store.apply(cancel_handoff(cancelled, "no", 5)[1])
    assert await store.prune_handoffs(6) == 1
    assert [handoff.id for handoff in await store.list_handoffs(HandoffFilter())] == [open_handoff.id]
    await store.apply(Changes(events=request_handoff(replace(open_handoff, id="h_x"), 1).events))

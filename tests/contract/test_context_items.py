"""Test the contract of stores for results of background work: they return once, and wake their starter once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from midwatch.base.errors import Conflict
from midwatch.domain.changes import Changes
from midwatch.domain.context_item import MOST_TAKEN, ContextItem, take_items
from midwatch.domain.event import EventFilter, SessionClosed, event
from midwatch.domain.handoff import take_over
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES, Outcome, Task, end, submit_task
from midwatch.domain.task_store import TaskFilter
from midwatch.domain.waking import MOST_WAKES
from midwatch.stores.verbs import task as task_verbs
from records import CLOCK, a_task, claim_tasks, fence, put, submit_and_claim

KEY = "chat:1"


async def read_task(store: Store, task_id: str) -> Task:
    task = await store.get_task(task_id)
    assert task is not None
    return task


async def finish(store: Store, task: Task, outcome: Outcome = "ok", **fields: Any) -> Task:
    """End a task as its worker or a service does: read it again if another task changed it meanwhile."""
    for _ in range(TRIES):
        stored = await read_task(store, task.id)
        after, changes = end(stored, CLOCK.now(), outcome=outcome, **({"result": "seven"} if outcome == "ok" else {}))
        try:
            await store.apply(changes.plus(Changes(**fields)))
        except Conflict:
            continue
        return after
    raise AssertionError(f"{task.id} cannot end")


async def start_child(store: Store, starter: Task, *, wake: bool = False, **fields: Any) -> Task:
    returns = {"returns_to": starter.id, "returns": "wake" if wake else "context", "parent_id": starter.id}
    child = await put(store, root_id=starter.root_id, agent="helper", **returns, **fields)
    return next(task for task in await claim_tasks(store, agents={"helper": 100}) if task.id == child.id)


async def take(store: Store, task: Task, items: list[ContextItem]) -> None:
    updates = take_items(items, task.retry_of or task.id, task.attempt)
    await store.apply(Changes(fence=fence(task), updates=updates))


async def list_wakes(store: Store) -> list[Task]:
    return [task for task in await store.list_tasks(TaskFilter(limit=500)) if task.cause == "result"]


async def test_a_result_waits_for_the_session_of_its_starter_and_is_taken_once(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    child = await start_child(store, starter)
    await finish(store, child, "error")
    (item,) = await store.list_context_items(KEY)
    assert (item.session_key, item.for_task, item.from_task) == (KEY, starter.id, child.id)
    assert (item.agent, item.outcome, item.text, item.wake) == ("helper", "error", "[failed: error]", False)
    await finish(store, starter)
    following = await submit_and_claim(store, session_key=KEY)
    await take(store, following, [item])
    with pytest.raises(Conflict):
        await take(store, following, [item])
    assert await store.list_context_items(KEY) == []
    (own,) = await store.list_context_items(KEY, following.id)
    assert (own.status, own.taken_by, own.attempt) == ("taken", following.id, 1)
    assert await list_wakes(store) == []


async def test_a_silent_end_returns_but_not_that_of_a_turn_for_results(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    await finish(store, await submit_and_claim(store))
    await finish(store, await start_child(store, starter, cause="result"), "silent")
    assert await store.list_context_items(KEY) == [], "nobody started the first one"
    await finish(store, await start_child(store, starter), "silent")
    (item,) = await store.list_context_items(KEY)
    assert (item.outcome, item.text) == ("silent", "")


async def test_a_result_without_a_starter_is_left_out(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    await finish(store, await start_child(store, starter._replace(id="t_gone"), wake=True))
    assert await store.list_context_items(KEY) == []
    assert await list_wakes(store) == []


async def test_what_a_cancelled_task_took_returns_and_belongs_to_its_retry(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    await finish(store, await start_child(store, starter))
    (item,) = await store.list_context_items(KEY)
    await take(store, starter, [item])
    await finish(store, starter, "cancelled")
    (again,) = await store.list_context_items(KEY)
    assert (again.id, again.status, again.wake) == (item.id, "queued", False)
    retry = await submit_and_claim(store, session_key=KEY, retry_of=starter.id)
    await take(store, retry, [again])
    await finish(store, retry, "error")
    assert [own.id for own in await store.list_context_items(KEY, starter.id)] == [item.id], "a failed task keeps it"


async def test_a_result_wakes_its_starter_once_if_no_turn_runs(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY, creator="ann", route="console", root_id="t_root")
    first, second = [await start_child(store, starter, wake=True) for _ in range(2)]
    await finish(store, starter)
    assert await list_wakes(store) == []
    await finish(store, first)
    await finish(store, second)
    (wake,) = await list_wakes(store)
    assert (wake.session_key, wake.parent_id, wake.root_id, wake.cause_id) == (KEY, starter.id, "t_root", first.id)
    assert (wake.agent, wake.creator, wake.route) == ("demo", "ann", "console")
    assert len(await store.list_context_items(KEY)) == 2, "the waiting turn takes both"
    (running,) = await claim_tasks(store)
    assert running.id == wake.id
    await finish(store, running)
    assert len(await list_wakes(store)) == 2, "it ended without taking them, so another turn begins"


async def test_a_running_turn_takes_a_result_or_its_end_begins_a_turn(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    taken, left = [await start_child(store, starter, wake=True) for _ in range(2)]
    await finish(store, taken)
    await take(store, starter, await store.list_context_items(KEY))
    await finish(store, left)
    assert await list_wakes(store) == []
    with pytest.raises(Conflict):  # an end that was computed before the result arrived
        await store.apply(end(starter, CLOCK.now(), outcome="ok", result="done")[1])
    await finish(store, starter)
    (wake,) = await list_wakes(store)
    assert wake.cause_id == left.id
    (running,) = await claim_tasks(store)
    await take(store, running, await store.list_context_items(KEY))
    await finish(store, running)
    assert len(await list_wakes(store)) == 1, "nothing is left"


async def test_a_turn_of_many_results_is_followed_by_another(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    children = [await start_child(store, starter, wake=True) for _ in range(MOST_TAKEN + 1)]
    for child in children:
        await finish(store, child)
    await finish(store, starter)
    seen: list[str] = []
    for _ in range(2):
        (running,) = await claim_tasks(store)
        items = await store.list_context_items(KEY)
        seen += [item.from_task for item in items]
        await take(store, running, items)
        await finish(store, running)
    assert seen == [child.id for child in children]
    assert len(await list_wakes(store)) == 2


async def test_a_turn_that_fails_before_it_takes_a_result_begins_no_other(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    children = [await start_child(store, starter, wake=True) for _ in range(MOST_TAKEN + 2)]
    await finish(store, starter)
    await finish(store, children[0])
    (refused,) = await claim_tasks(store)
    await finish(store, refused, "budget")
    assert len(await list_wakes(store)) == 1, "the result waits"
    for child in children[1:]:
        await finish(store, child)
    (later,) = await claim_tasks(store)
    items = await store.list_context_items(KEY)
    assert [item.from_task for item in items] == [child.id for child in children[:MOST_TAKEN]]
    await take(store, later, items)
    await finish(store, later, "error")
    assert len(await list_wakes(store)) == 3, "it took some, so the rest begins a turn"


async def test_a_private_session_wakes_and_closed_or_cancelled_work_does_not(store: Store) -> None:
    alone = await submit_and_claim(store)
    child = await start_child(store, alone, wake=True)
    await finish(store, alone)
    await finish(store, child)
    (wake,) = await list_wakes(store)
    assert (wake.session_key, wake.gate_key) == (alone.session_key, alone.gate_key)
    starter = await submit_and_claim(store, session_key=KEY)
    late = await start_child(store, starter, wake=True)
    await finish(store, starter)
    await store.close_session(KEY, CLOCK.now(), (event(SessionClosed(reason="x"), CLOCK.now(), session_key=KEY),))
    await finish(store, late)
    stopped = await submit_and_claim(store, session_key="chat:2")
    later = await start_child(store, stopped, wake=True)
    await finish(store, stopped, "cancelled")
    await finish(store, later)
    assert [task.id for task in await list_wakes(store)] == [wake.id]
    assert len(await store.list_context_items("chat:2")) == 1, "the next message brings it"


async def test_the_result_follows_a_transfer(store: Store) -> None:
    starter = await submit_and_claim(store)
    early, late = [await start_child(store, starter, wake=True) for _ in range(2)]
    await finish(store, early)
    successor = take_over(a_task(agent="other"), starter)
    starter = await read_task(store, starter.id)
    over = end(starter, CLOCK.now(), outcome="transferred", transferred_to=successor.id)[1]
    await store.apply(over.plus(submit_task(successor, CLOCK.now())))
    await finish(store, late)
    items = await store.list_context_items(successor.session_key)
    assert [item.from_task for item in items] == [early.id, late.id]


async def test_results_do_not_wake_for_ever(store: Store) -> None:
    starter = await submit_and_claim(store, session_key=KEY)
    root = starter.id
    for _ in range(MOST_WAKES):
        child = await start_child(store, starter._replace(root_id=root), wake=True)
        await finish(store, starter)
        await finish(store, child)
        (starter,) = await claim_tasks(store)
        await take(store, starter, await store.list_context_items(KEY))
    last, later = [await start_child(store, starter._replace(root_id=root), wake=True) for _ in range(2)]
    await finish(store, starter)
    await finish(store, last)
    await finish(store, later)
    assert len(await list_wakes(store)) == MOST_WAKES
    notices = [message.text for message in await store.read_messages(KEY) if message.role == "notice"]
    assert [last.id in text for text in notices] == [True], "people are told once"
    errors = await store.read_events(0, EventFilter(kinds=frozenset({"error"})))
    assert [problem.payload["stage"] for problem in errors] == ["wake"]
    left = [item.from_task for item in await store.list_context_items(KEY)]
    assert left == [last.id, later.id], "the next message brings them"


async def test_an_end_and_an_arrival_at_the_same_time_begin_one_turn(store: Store) -> None:
    for _ in range(10):
        starter = await submit_and_claim(store, session_key=KEY)
        children = [await start_child(store, starter, wake=True) for _ in range(4)]
        before = len(await list_wakes(store))
        await asyncio.gather(*(finish(store, task) for task in (*children[:2], starter, *children[2:])))
        assert len(await list_wakes(store)) == before + 1
        (running,) = await claim_tasks(store)
        await take(store, running, await store.list_context_items(KEY))
        await finish(store, running)
        assert await store.list_context_items(KEY) == []


async def test_pruning_loses_no_result_that_a_conversation_waits_for(store: Store) -> None:
    starter, alone = await submit_and_claim(store, session_key=KEY), await submit_and_claim(store)
    child, other = await start_child(store, starter), await start_child(store, alone)
    await finish(store, starter)
    await finish(store, alone)
    await prune(store)
    assert await store.get_task(starter.id) is not None, "a result will return to it"
    for ended in (child, other):
        await finish(store, ended)
    await prune(store)
    assert await store.list_tasks(TaskFilter()) == []
    assert await store.list_context_items(alone.session_key) == [], "nobody can continue a private session"
    (item,) = await store.list_context_items(KEY)
    following = await submit_and_claim(store, session_key=KEY)
    await take(store, following, [item])
    await finish(store, following)
    assert [own.id for own in await store.list_context_items(KEY, following.id)] == [item.id]
    await prune(store)
    assert await store.list_context_items(KEY, following.id) == []


async def test_pruning_keeps_the_results_of_an_open_task(store: Store) -> None:
    starter = await submit_and_claim(store)
    taken, left = [await start_child(store, starter) for _ in range(2)]
    await finish(store, taken)
    await take(store, starter, await store.list_context_items(starter.session_key))
    await finish(store, left)
    await prune(store)
    assert [task.id for task in await store.list_tasks(TaskFilter())] == [starter.id]
    items = await store.list_context_items(starter.session_key, starter.id)
    assert [item.from_task for item in items] == [taken.id, left.id], "its next attempt needs both"
    await finish(store, starter)
    await prune(store)
    assert await store.list_context_items(starter.session_key, starter.id) == []


async def test_tasks_that_await_results_do_not_stop_the_pruning_of_younger_tasks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_verbs, "PRUNE_STEP", 2)
    kept = set[str]()
    for number in range(5):
        starter = await submit_and_claim(store)
        if number < 3:
            child = await start_child(store, starter)
            kept |= {starter.id, child.id}
        await finish(store, starter)
    await prune(store)
    assert {task.id for task in await store.list_tasks(TaskFilter())} == kept


async def prune(store: Store) -> None:
    while await store.prune_tasks(CLOCK.now() + 1, 0):
        pass

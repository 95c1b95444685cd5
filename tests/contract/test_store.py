"""Test the contract of stores with every kind; `tests/conftest.py` lists the kinds."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, DiskFull, KeyReused, LeaseLost, LimitReached
from midwatch.domain.agent import Question
from midwatch.domain.approval import Approval, ask, resolve
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.channel import Delivery
from midwatch.domain.claiming import Shares
from midwatch.domain.event import (
    EventFilter,
    TaskLate,
    TaskProgress,
    ToolExecEnd,
    ToolExecStart,
    TurnEnd,
    TurnStart,
    event,
)
from midwatch.domain.instance import Instance
from midwatch.domain.session import Message, Session
from midwatch.domain.store import Commit, Store
from midwatch.domain.task import TRANSITIONS, end, guard_ownership, meta
from midwatch.domain.task_store import Claims, TaskFilter
from midwatch.domain.turn_steps import Step
from midwatch.stores.verbs.event import PRUNE_PAGE
from records import CLOCK, OWNER, a_steer, a_task, claim_request, claim_tasks, fence, progress, put, submit_and_claim


def test_the_suite_calls_every_method_of_every_port() -> None:
    """A method that is not called here has no contract."""
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    here = Path(__file__).parent
    text = "".join(path.read_text() for path in (*here.glob("test_*.py"), here.parent / "records.py"))
    called = set(re.findall(r"store\.(\w+)\(", text)) | {"close"}  # the fixture closes the store
    assert methods - called == set()


# -- steps and steers --------------------------------------------------------------------------------------------


def a_step(task_id: str, number: int, thread_id: str | None = "th_1", data: Any = None) -> Step:
    return Step(task_id=task_id, number=number, thread_id=thread_id, created_at=CLOCK.now() + number, data=data)


async def test_steps_are_read_in_order_and_written_only_with_the_lease(store: Store) -> None:
    task = await submit_and_claim(store)
    for number in (1, 2):
        step = a_step(task.id, number, data={"said": ["grüße", number, None]})
        await store.apply(Changes(fence=fence(task), records=(step,)))
    with pytest.raises(LeaseLost):
        late = a_step(task.id, 3)
        await store.apply(Changes(fence=Fence(task.id, task.attempt + 1), records=(late,)))
    assert [(step.number, step.data["said"][1]) for step in await store.list_task_steps(task.id)] == [(1, 1), (2, 2)]
    assert await store.list_task_steps("t_none") == []


async def test_a_threads_history_excludes_cancelled_turns_and_the_current_task(store: Store) -> None:
    finished, cancelled, own = [await submit_and_claim(store) for _ in range(3)]
    for task in (finished, cancelled, own):
        await store.apply(Changes(fence=fence(task), records=(a_step(task.id, 1, data=task.id),)))
    elsewhere = await submit_and_claim(store)
    await store.apply(Changes(records=(a_step(elsewhere.id, 1, "th_2"), a_step(elsewhere.id, 2, None))))
    await store.apply(end(cancelled, CLOCK.now(), outcome="cancelled")[1])
    await store.apply(end(finished, CLOCK.now(), outcome="budget", error="spent")[1])
    assert [step.data for step in await store.list_thread_steps("th_1", own.id)] == [finished.id]
    assert [step.data for step in await store.list_thread_steps("th_1", "t_new")] == [finished.id, own.id]
    assert await store.list_thread_steps("th_3", "t_new") == []


async def test_a_retry_has_the_steps_of_all_earlier_tries(store: Store) -> None:
    first = await submit_and_claim(store)
    line = [first]
    for number in range(3):
        await store.apply(Changes(records=(a_step(line[-1].id, 1, data=number), a_step(line[-1].id, 2, data=-number))))
        await store.apply(end(line[-1], CLOCK.now(), outcome="cancelled" if number == 0 else "budget")[1])
        about = {"retry_of": first.id, "root_id": first.id, "internal_key": f"retry:{line[-1].id}"}
        line.append(await submit_and_claim(store, **about))
    histories = [[step.data for step in await store.list_earlier_steps(task.id)] for task in line]
    assert histories == [[], [0, 0], [0, 0, 1, -1], [0, 0, 1, -1, 2, -2]]
    history = [step.data for step in await store.list_thread_steps("th_1", "t_new")]
    assert sorted(history) == [-2, -1, 0, 0, 1, 2], "what another try went on with is part of the history"
    assert await store.list_thread_steps("th_1", first.id) == []


async def test_a_steering_message_is_taken_once(store: Store) -> None:
    task = await submit_and_claim(store)
    first, second = a_steer(task, "one"), a_steer(task, "two", 2, mode="interrupt")
    await store.apply(Changes(records=(second, first)))
    assert await store.list_queued_steers(task.id) == [first, second]
    update = Update("steer", first.id, {"status": "injected", "attempt": 1}, {"status": "queued"})
    await store.apply(Changes(fence=fence(task), updates=(update,)))
    with pytest.raises(Conflict):
        await store.apply(Changes(fence=fence(task), updates=(update,)))
    assert [steer.text for steer in await store.list_queued_steers(task.id)] == ["two"]


async def test_pruning_keeps_the_steps_of_conversations(store: Store) -> None:
    private, talk, undone = (
        await submit_and_claim(store),
        await submit_and_claim(store, session_key="chat:1"),
        await submit_and_claim(store),
    )
    for task in (private, talk, undone):
        await store.apply(Changes(records=(a_step(task.id, 1), a_steer(task, "x"))))
    await store.apply(end(undone, CLOCK.now(), outcome="cancelled")[1])
    for task in (private, talk):
        await store.apply(end(task, CLOCK.now(), outcome="ok", result="done")[1])
    assert await store.prune_tasks(CLOCK.now() + 1, 0) == 3
    assert [len(await store.list_task_steps(task.id)) for task in (private, talk, undone)] == [0, 1, 0]
    assert await store.list_queued_steers(talk.id) == []
    assert len(await store.list_thread_steps("th_1", "t_new")) == 1


# -- submit ------------------------------------------------------------------------------------------------------


async def test_a_submitted_task_is_read_back_unchanged(store: Store) -> None:
    task = a_task(
        prompt="grüße 🎉 100% :x ?",
        priority=7,
        route="console",
        workdir="/work",
        pin="boot:1:2",
        budget={"tokens": 5},
        trace={"id": "x"},
        progress=[1, 2],
    )
    assert (await store.submit(task, 10)).created
    assert await store.get_task(task.id) == task
    assert [claimed.pin for claimed in await claim_tasks(store)] == [task.pin]
    assert await store.get_task("t_none") is None


async def test_the_same_key_returns_the_first_task_and_another_body_conflicts(store: Store) -> None:
    first = await put(store, idempotency_key="k", body_hash="a", creator="me")
    again = a_task(idempotency_key="k", body_hash="a", creator="me")
    replay = await store.submit(again, 1)  # also at the limit
    assert (replay.task.id, replay.created) == (first.id, False)
    other_task = a_task(idempotency_key="k", body_hash="b", creator="me")
    with pytest.raises(KeyReused, match=first.id):
        await store.submit(other_task)
    somebody = await put(store, idempotency_key="k", body_hash="b", creator="you")
    assert somebody.id != first.id
    assert (await store.count_tasks()).total == 2


async def test_max_open_limits_only_tasks_submitted_from_outside(store: Store) -> None:
    await put(store)
    await put(store, cause="automation")
    second = a_task()
    with pytest.raises(LimitReached):
        await store.submit(second, 1)
    (task, _) = await claim_tasks(store, agents={"demo": 2})
    await store.apply(end(task, CLOCK.now(), outcome="ok", result="x")[1])
    remaining = await store.list_running_tasks()
    assert len(remaining) == 1
    await store.apply(end(remaining[0], CLOCK.now(), outcome="ok", result="x")[1])
    assert (await store.submit(second, 1)).created


async def test_an_internal_key_is_taken_once(store: Store) -> None:
    await put(store, internal_key="goal#1")
    with pytest.raises(Conflict):
        await put(store, internal_key="goal#1")


async def test_a_message_makes_an_automation_with_the_same_gate_yield(store: Store) -> None:
    holder = await submit_and_claim(store, session_key="chat:1", cause="automation", on_crash="rerun")
    await put(store, session_key="chat:1|message:2", cause="message")
    stored_task = await store.get_task(holder.id)
    assert stored_task is not None and stored_task.stop_requested == "yield"


async def test_a_message_does_not_stop_a_task_that_cannot_continue(store: Store) -> None:
    holder = await submit_and_claim(store, session_key="chat:1", cause="automation", on_crash="fail")
    persons = await submit_and_claim(store, session_key="chat:2", cause="message", on_crash="rerun")
    await put(store, session_key="chat:1", cause="message")
    await put(store, session_key="chat:2", cause="message")
    for task in (holder, persons):
        stored_task = await store.get_task(task.id)
        assert stored_task is not None and stored_task.stop_requested is None


# -- claim -------------------------------------------------------------------------------------------------------


async def test_a_claimed_task_has_a_new_attempt_an_owner_and_a_start_time(store: Store) -> None:
    task = await put(store, route="console", notices="all")
    claims = await store.claim(claim_request(), CLOCK.now())
    (claim,) = claims.taken
    assert (claim.task.status, claim.task.attempt, claim.task.lease_owner) == ("running", 1, OWNER)
    assert claim.token and claim.token not in str(claim.task)
    assert await store.get_task(task.id) == claim.task
    kinds = [e.kind for e in await store.read_events(0)]
    assert kinds == ["task_submitted", "task_started"]
    (delivery,) = await store.list_deliveries(task_id=task.id)
    assert (delivery.notice, delivery.status) == ("started", "pending")


async def test_claim_order_is_messages_then_priority_then_due_then_id(store: Store) -> None:
    now = CLOCK.now()
    plain = await put(store, due_at=now - 5)
    older = await put(store, due_at=now - 9)
    urgent = await put(store, priority=50)
    least = await put(store, priority=-50, due_at=now - 99)
    person = await put(store, cause="message", priority=-100)
    order = [task.id for task in await claim_tasks(store)]
    assert order == [person.id, urgent.id, older.id, plain.id, least.id]


async def test_one_task_runs_per_gate(store: Store) -> None:
    first = await put(store, session_key="chat:1")
    second = await put(store, session_key="chat:1|message:7")
    thread = await put(store, session_key="chat:1|thread:9")
    assert {t.id for t in await claim_tasks(store)} == {first.id, thread.id}
    assert await claim_tasks(store) == []
    assert await store.find_gate_holder("chat:1") == first.id
    assert await store.find_gate_holder("chat:2") is None
    stored_task = await store.get_task(first.id)
    assert stored_task is not None
    await store.apply(end(stored_task, CLOCK.now(), outcome="ok", result="")[1])
    assert [t.id for t in await claim_tasks(store)] == [second.id]


async def test_claim_respects_slots_and_known_agents(store: Store) -> None:
    for agent in ("demo", "demo", "demo", "other", "unknown"):
        await put(store, agent=agent)
    claimed = await claim_tasks(store, free=3, agents={"demo": 2, "other": 5})
    assert sorted(t.agent for t in claimed) == ["demo", "demo", "other"]
    assert await claim_tasks(store, free=3, agents={"demo": 0, "other": 1}) == []
    assert await claim_tasks(store, free=0) == []


async def test_a_delayed_task_waits_and_its_due_time_is_returned(store: Store) -> None:
    now = CLOCK.now()
    await put(store, due_at=now + 60 * SECOND, wait="delay")
    later = await store.claim(claim_request(), now)
    assert (later.taken, later.next_due) == ([], now + 60 * SECOND)
    assert len((await store.claim(claim_request(), now + 60 * SECOND)).taken) == 1


async def test_tasks_served_by_another_process_are_not_claimed(store: Store) -> None:
    mine = await put(store, submitter=OWNER)
    theirs = await put(store, submitter="i_two")
    spare = await put(store, agent="spare", submitter="i_two")
    agents = {"demo": 5, "spare": 5}
    only_mine = await claim_tasks(store, agents=agents, own_only=True)
    assert [t.id for t in only_mine] == [mine.id]
    assert [t.id for t in await claim_tasks(store, agents=agents, leave=frozenset({"demo"}))] == [spare.id]
    assert [t.id for t in await claim_tasks(store, agents=agents)] == [theirs.id]


async def test_concurrent_claims_never_take_a_task_twice(store: Store) -> None:
    tasks = [await put(store) for _ in range(30)]
    claims = await asyncio.gather(*(claim_tasks(store, free=3, owner=f"i_{n}") for n in range(15)))
    claimed = [task.id for claim in claims for task in claim]
    assert sorted(claimed) == sorted(t.id for t in tasks)


# -- actors ------------------------------------------------------------------------------------------------------


async def claim_actors(
    store: Store, free: int = 1, *, agents: dict[str, int] | None = None, **shares: Any
) -> list[str]:
    """Claim tasks with the given slots of each actor, and return the actors of the claimed tasks in order."""
    counts = {("demo", actor): count for actor, count in shares.pop("held", {}).items()}
    started = {("demo", actor): number for number, actor in enumerate(shares.pop("started", ""), 1)}
    room = agents if agents is not None else {"demo": free}
    request = claim_request(free, agents=room, shares=Shares(counts, started, **shares))
    return [claim.task.actor for claim in (await store.claim(request, CLOCK.now())).taken]


async def test_a_slot_is_reserved_for_each_waiting_actor_without_one(store: Store) -> None:
    for actor in "aaaaaabc":
        await put(store, creator=actor)
    assert await claim_actors(store, 4) == ["a", "a", "b", "c"]
    await put(store, creator="b")
    assert await claim_actors(store, held={"a": 2, "c": 1}) == ["b"]
    assert await claim_actors(store, held={"a": 3}) == ["a"]


async def test_a_single_slot_alternates_between_actors(store: Store) -> None:
    for actor in "aaabbc":
        await put(store, creator=actor)
    order = ""
    for _ in range(6):
        (taker,) = await claim_actors(store, started="".join(dict.fromkeys(reversed(order)))[::-1])
        order += taker
    assert order == "abcaba"


@pytest.mark.parametrize("why", ["delayed", "gate", "agent", "left", "own"])
async def test_no_slot_is_reserved_for_tasks_that_cannot_start_now(store: Store, why: str) -> None:
    await submit_and_claim(store, creator="c", session_key="chat:1")
    for _ in range(3):
        await put(store, creator="a", submitter=OWNER)
    if why == "delayed":
        await put(store, creator="b", wait="delay", due_at=CLOCK.now() + 1000 * SECOND)
    elif why == "gate":
        await put(store, creator="b", session_key="chat:1")
    else:
        await put(store, creator="b", agent="other" if why == "agent" else "demo", submitter="i_other")
    terms: dict[str, Any] = {"leave": frozenset({"demo"})} if why == "left" else {"own_only": why == "own"}
    mine = Shares({("demo", "a"): 3}, {("demo", "a"): 1})
    claimed = await claim_tasks(store, 1, agents={"demo": 1}, shares=mine, **terms)
    assert [task.creator for task in claimed] == ["a"]


async def test_slots_of_one_agent_are_reserved_while_others_are_free(store: Store) -> None:
    for actor in "aaaab":
        await put(store, creator=actor)
    await put(store, creator="a", agent="other")
    assert await claim_actors(store, 40, agents={"demo": 2, "other": 20}) == ["a", "b", "a"]


async def test_slots_of_the_process_are_reserved_across_all_agents(store: Store) -> None:
    for _ in range(3):
        await put(store, creator="a")
    await put(store, creator="b", agent="other")
    assert await claim_actors(store, 2, agents={"demo": 20, "other": 20}) == ["a", "b"]
    assert await claim_actors(store, 1, agents={"demo": 20}, held={"a": 1}) == ["a"]


async def test_messages_and_priority_decide_within_an_actors_tasks(store: Store) -> None:
    for actor in "ab":
        await put(store, creator=actor, prompt="plain")
        await put(store, creator=actor, prompt="high", priority=9)
        await put(store, creator=actor, prompt="message", cause="message", session_key=f"chat:{actor}")
    shares = Shares({("demo", "a"): 3})
    first = await claim_tasks(store, 1, agents={"demo": 1}, shares=shares)
    assert [(task.creator, task.prompt) for task in first] == [("b", "message")]
    claimed = await claim_tasks(store, 5, shares=Shares({("demo", "a"): 3, ("demo", "b"): 1}))
    assert [task.prompt for task in claimed] == ["message", "high", "high", "plain", "plain"]


async def test_no_actor_exceeds_the_limit_per_actor(store: Store) -> None:
    for actor in "aaaaab":
        await put(store, creator=actor)
    assert await claim_actors(store, 9, most=3, held={"a": 1}) == ["a", "a", "b"]
    assert await claim_actors(store, 9, most=3, held={"a": 3}) == []
    assert await claim_actors(store, 9, most=3) == ["a", "a", "a"]


async def test_tasks_without_an_actor_count_as_one_actor(store: Store) -> None:
    await put(store)
    await put(store)
    await put(store, creator="a")
    assert await claim_actors(store, held={"": 3}) == ["a"]
    assert await claim_actors(store, 2, most=1) == [""]


async def test_tasks_of_several_actors_in_one_gate_are_claimed_one_by_one(store: Store) -> None:
    for actor in "abc":
        await put(store, creator=actor, session_key="chat:1")
    await put(store, creator="c")
    assert await claim_actors(store, 3) == ["a", "c"]


async def test_open_tasks_are_limited_per_actor(store: Store) -> None:
    async def submit(creator: str | None, most: int | None = 2, **fields: Any) -> bool:
        task = a_task(creator=creator, **fields)
        return (await store.submit(task, 100, most)).created

    await submit("a", idempotency_key="k", body_hash="x")
    await submit_and_claim(store, creator="a")
    await put(store, creator="a", cause="automation")  # a retry does not count
    with pytest.raises(LimitReached, match=r"2 tasks of a .*max_open_per_actor"):
        await submit("a")
    assert not await submit("a", idempotency_key="k", body_hash="x")  # a replay
    assert await submit("b") and await submit(None) and await submit(None)
    with pytest.raises(LimitReached, match="2 tasks without an actor"):
        await submit(None)
    assert await submit("a", None)
    assert await submit("a", 4)
    with pytest.raises(LimitReached):
        await submit("a", 4)


# -- fences and guards -------------------------------------------------------------------------------------------


async def test_a_write_of_an_older_attempt_is_refused_as_a_whole(store: Store) -> None:
    task = await submit_and_claim(store)
    stale = Fence(task.id, task.attempt - 1)
    before = await store.read_log_bounds()
    for changes in (
        Changes(fence=stale, events=(progress(task),)),
        Changes(fence=stale, messages=(Message(session_key="s", role="agent", text="x", time=1),)),
        Changes(fence=stale, updates=(Update("task", task.id, {"progress": {"a": 1}}),)),
    ):
        with pytest.raises(LeaseLost):
            await store.apply(changes)
    assert await store.get_task(task.id) == task
    assert await store.read_log_bounds() == before
    assert await store.read_messages("s") == []


async def test_a_finished_task_accepts_no_write(store: Store) -> None:
    task = await submit_and_claim(store)
    done = end(task, CLOCK.now(), outcome="ok", result="x")[1]
    await store.apply(done._replace(fence=fence(task)))
    with pytest.raises(LeaseLost):
        await store.apply(done._replace(fence=fence(task)))
    with pytest.raises(Conflict):
        await store.apply(done)
    assert len(await store.read_events(0, EventFilter(kinds=("task_finished",)))) == 1


async def test_a_concurrent_stop_is_a_conflict_not_a_lost_lease(store: Store) -> None:
    task = await submit_and_claim(store)
    await store.apply(Changes(updates=(Update("task", task.id, {"stop_requested": "cancel"}, guard_ownership(task)),)))
    with pytest.raises(Conflict):
        await store.apply(end(task, CLOCK.now(), outcome="ok", result="x")[1]._replace(fence=fence(task)))
    stored_task = await store.get_task(task.id)
    assert stored_task is not None and stored_task.status == "running"


async def test_a_failing_transaction_writes_nothing_and_does_not_affect_others(store: Store) -> None:
    """Writes that wait together are committed together; one that fails is rolled back alone."""
    good, bad = await submit_and_claim(store), await submit_and_claim(store)
    changes = [
        Changes(fence=fence(good), events=(progress(good, "one"),)),
        Changes(
            events=(progress(bad, "never"),),
            sessions=(Session(key="never", agent="demo", gate_key="never"),),
            updates=(Update("task", bad.id, {"progress": 1}, {"attempt": 99}),),
        ),
        Changes(fence=fence(good), events=(progress(good, "two"),)),
    ]
    results = await asyncio.gather(*(store.apply(c) for c in changes), return_exceptions=True)
    assert [type(r) for r in results] == [type(None), Conflict, type(None)]
    texts = [e.payload["text"] for e in await store.read_events(0, EventFilter(kinds=("task_progress",)))]
    assert sorted(texts) == ["one", "two"]  # their order is free
    assert await store.get_session("never") is None


@pytest.mark.parametrize("status", TRANSITIONS)
async def test_only_transitions_of_the_table_are_allowed(store: Store, status: str) -> None:
    """Try every transition from each status; the store refuses those that are not in the table."""
    task = await _in_state(store, status)
    steps = {
        "running": claim_tasks(store),
        "done": store.apply(end(task, 1, outcome="ok", result="")[1]._replace(fence=fence(task))),
        "failed": store.apply(end(task, 1, outcome="error", error="")[1]._replace(fence=fence(task))),
        "cancelled": store.apply(end(task, 1, outcome="cancelled")[1]),
    }
    for target, step in steps.items():
        before = await store.get_task(task.id)
        assert before is not None
        with contextlib.suppress(LeaseLost, Conflict):
            await step
        after = await store.get_task(task.id)
        assert after is not None
        if after.status != before.status:
            assert after.status == target
            assert target in TRANSITIONS[before.status]


async def _in_state(store: Store, status: str):  # type: ignore[no-untyped-def]
    if status == "pending":
        return await put(store)
    task = await submit_and_claim(store)
    if status == "running":
        return task
    outcome = {"done": "ok", "failed": "error", "cancelled": "cancelled"}[status]
    ended_task, changes = end(task, CLOCK.now(), outcome=outcome)  # type: ignore[arg-type]
    await store.apply(changes)
    return ended_task


# -- events ------------------------------------------------------------------------------------------------------


async def test_event_numbers_are_consecutive_with_many_writers(store: Store) -> None:
    tasks = [await submit_and_claim(store) for _ in range(8)]
    start = (await store.read_log_bounds()).last_seq

    async def write(task, times: int) -> None:  # type: ignore[no-untyped-def]
        for n in range(times):
            if n % 5 == 4:
                with pytest.raises(LeaseLost):
                    await store.apply(Changes(fence=Fence(task.id, 99), events=(progress(task),)))
            else:
                await store.apply(Changes(fence=fence(task), events=(progress(task, str(n)), progress(task, str(n)))))

    await asyncio.gather(*(write(task, 20) for task in tasks))
    seqs = [e.seq for e in await store.read_events(start, limit=1000)]
    assert seqs == list(range(start + 1, start + 1 + 8 * 16 * 2))
    assert (await store.read_log_bounds()).last_seq == seqs[-1]


async def test_every_event_is_published_once_with_its_number(store: Store) -> None:
    commits: list[Commit] = []
    store.on_commit(commits.append)
    task = await submit_and_claim(store)
    await asyncio.gather(
        *(store.apply(Changes(fence=fence(task), events=(progress(task, str(n)),))) for n in range(20))
    )
    events = sorted((e for commit in commits for e in commit.events), key=lambda e: e.seq)
    assert [e.seq for e in events] == list(range(1, 23))
    assert events == await store.read_events(0)
    assert "task" in set().union(*(c.topics for c in commits))


async def test_events_are_filtered_and_paged(store: Store) -> None:
    first_task, second_task = (
        await submit_and_claim(store),
        await submit_and_claim(store, creator="me", session_key="chat:7"),
    )
    for task in (first_task, second_task):
        await store.apply(Changes(fence=fence(task), events=(progress(task), progress(task))))
    assert {e.task_id for e in await store.read_events(0, EventFilter(task_id=first_task.id))} == {first_task.id}
    assert len(await store.read_events(0, EventFilter(task_id=second_task.id, kinds=("task_progress",)))) == 2
    assert {e.actor for e in await store.read_events(0, EventFilter(actor="me"))} == {"me"}
    assert {e.task_id for e in await store.read_events(0, EventFilter(session_key="chat:7"))} == {second_task.id}
    assert len(await store.read_events(0, EventFilter(agent_id="demo"))) == (await store.read_log_bounds()).last_seq
    turn = event(TurnStart(user_message="x"), CLOCK.now(), **meta(first_task), turn_id=f"{first_task.id}.1")
    await store.apply(Changes(events=(turn,)))
    assert [e.kind for e in await store.read_events(0, EventFilter(turn_id=f"{first_task.id}.1"))] == ["turn_start"]
    for kinds, count in ((("task_*",), 8), (("task_p*", "turn_start"), 5), (("tas", "nothing*"), 0)):
        which = EventFilter(kinds=kinds)
        assert len(await store.read_events(0, which)) == len(await store.read_events_back(100, which)) == count
    first = await store.read_events(0, limit=3)
    second = await store.read_events(first[-1].seq)
    assert [e.seq for e in first + second] == list(range(1, len(first + second) + 1))


async def test_a_late_result_is_recorded_once_per_attempt(store: Store) -> None:
    task = await submit_and_claim(store)
    late = event(TaskLate(outcome="ok", result="x"), CLOCK.now(), **meta(task))
    assert await store.record_late(late)
    assert not await store.record_late(late)
    assert await store.record_late(late._replace(attempt=2))


async def test_open_events_are_starts_without_an_end(store: Store) -> None:
    task = await submit_and_claim(store)
    about = meta(task)
    payloads = (
        TurnStart(user_message="x"),
        ToolExecStart(tool="a", tool_call_id="1"),
        ToolExecEnd(tool="a", tool_call_id="1"),
        ToolExecStart(tool="a", tool_call_id="2"),
        ToolExecStart(tool="b"),
    )
    for payload in payloads:
        await store.apply(Changes(fence=fence(task), events=(event(payload, CLOCK.now(), **about),)))
    opened = [(e.kind, e.payload.get("tool")) for e in await store.list_open_events(fence(task))]
    assert opened == [("turn_start", None), ("tool_exec_start", "a"), ("tool_exec_start", "b")]
    assert await store.list_open_events(Fence(task.id, 9)) == []
    closing = (
        ToolExecEnd(tool="a", tool_call_id="2"),
        ToolExecEnd(tool="b"),
        TurnEnd(status="completed", duration=1.0),
    )
    await store.apply(Changes(events=tuple(event(p, CLOCK.now(), **about) for p in closing)))
    assert await store.list_open_events(fence(task)) == []


async def test_pruning_events_keeps_open_tasks_and_records_the_start_of_the_log(store: Store) -> None:
    finished, still = await submit_and_claim(store), await submit_and_claim(store)
    for task in (finished, still, finished):
        await store.apply(Changes(fence=fence(task), events=(progress(task),)))
    await store.apply(end(finished, CLOCK.now(), outcome="ok", result="")[1])
    last = (await store.read_log_bounds()).last_seq
    pruned = await store.prune_events(CLOCK.now() + SECOND, keep=1_000_000)
    bounds = await store.read_log_bounds()
    assert (bounds.oldest_seq, bounds.last_seq) == (last + 1, last)
    remaining = await store.read_events(0)
    assert {e.task_id for e in remaining} == {still.id}
    assert pruned == (last - len(remaining), None)
    await store.apply(end(still, CLOCK.now(), outcome="ok", result="")[1])
    assert await store.prune_events(CLOCK.now() + SECOND, keep=1_000_000) == (len(remaining) + 1, None)
    assert await store.read_events(0) == []
    await put(store)
    assert [e.seq for e in await store.read_events(0)] == [last + 2]


async def test_pruning_events_by_count_keeps_the_newest(store: Store) -> None:
    for _ in range(3):
        task = await submit_and_claim(store)
        await store.apply(end(task, CLOCK.now(), outcome="ok", result="")[1])
    assert await store.prune_events(0, keep=4) == (5, None)
    assert [e.seq for e in await store.read_events(0)] == [6, 7, 8, 9]
    assert (await store.read_log_bounds()).oldest_seq == 6


async def test_a_claim_may_join_the_transaction_that_stores_a_task(store: Store) -> None:
    claims: list[asyncio.Task[Claims]] = []
    commits: list[Commit] = []
    store.on_submit(lambda: claims.append(asyncio.create_task(store.claim(claim_request(), CLOCK.now()))))
    store.on_commit(commits.append)
    task = (await store.submit(a_task())).task
    taken = [claim.task.id for claiming in claims for claim in (await claiming).taken]
    kinds = [event.kind for commit in commits for event in commit.events]
    if not claims:  # a store whose transactions run at the same time
        assert kinds == ["task_submitted"]
        return
    assert (taken, kinds) == ([task.id], ["task_submitted", "task_started"])
    if len(commits) == 1:
        assert "task" not in commits[0].topics  # nothing is left to claim


async def test_an_event_that_is_young_enough_is_kept_even_if_the_clock_was_set_back(store: Store) -> None:
    times = [10, 20, 30, 90, 40, 50, 60, 70, 80]  # the clock was set back after the fourth event
    for time in times:
        await store.apply(Changes(events=(event(TaskProgress(text="x"), time),)))
    assert await store.prune_events(55, keep=100) == (3, None)
    assert [e.time for e in await store.read_events(0)] == times[3:]
    assert await store.prune_events(55, keep=100) == (0, None)
    assert await store.prune_events(55, keep=5) == (3, None)  # one is too many, two are too old


async def test_pruning_continues_after_the_events_of_open_tasks(store: Store) -> None:
    task = await submit_and_claim(store)
    for _ in range(PRUNE_PAGE + 10):
        await store.apply(Changes(fence=fence(task), events=(progress(task),)))
    await store.apply(Changes(events=(event(TaskProgress(text="x"), CLOCK.now()),)))
    steps, after = [], 0
    while after is not None:
        removed, after = await store.prune_events(0, 0, after, 0.0)
        steps.append(removed)
    assert steps == [0, 1]
    last = (await store.read_log_bounds()).last_seq
    assert await store.read_log_bounds() == (last + 1, last)
    assert len(await store.read_events(0)) == PRUNE_PAGE + 12


async def test_a_store_gives_back_the_space_of_removed_events(store: Store) -> None:
    assert not await store.shrink()
    for _ in range(3):
        text = TaskProgress(text="x" * 10_000_000)
        await store.apply(Changes(events=(event(text, CLOCK.now()),)))
    full = (await store.describe())["bytes"]
    await store.prune_events(0, 0)
    while await store.shrink():
        pass
    facts = await store.describe()
    assert facts["kind"] == "postgres" or facts["bytes"] < full / 4
    assert await store.check() == []


# -- lists and counts --------------------------------------------------------------------------------------------


async def test_lists_are_newest_first_filtered_and_paged(store: Store) -> None:
    tasks = [await put(store, id=f"t_{n:03}", agent="a" if n % 2 else "b", creator="me") for n in range(10)]
    everything = await store.list_tasks(TaskFilter())
    assert [t.id for t in everything] == [t.id for t in reversed(tasks)]
    page = await store.list_tasks(TaskFilter(limit=4))
    next_page = await store.list_tasks(TaskFilter(before=page[-1].id))
    assert page + next_page == everything
    assert {t.agent for t in await store.list_tasks(TaskFilter(agent="a"))} == {"a"}
    assert await store.list_tasks(TaskFilter(creator="you")) == []
    assert [t.id for t in await store.list_tasks(TaskFilter(session_key="bg:t_003"))] == ["t_003"]
    await claim_tasks(store, free=1, agents={"b": 1})
    assert len(await store.list_tasks(TaskFilter(statuses=("running", "done")))) == 1
    assert len(await store.list_running_tasks(OWNER)) == 1
    assert await store.list_running_tasks("i_nobody") == []


async def test_tasks_are_counted(store: Store) -> None:
    assert tuple(await store.count_tasks()) == (0, 0, 0, 0, 0, 0)
    for outcome in ("ok", "error", "error", "cancelled"):
        await store.apply(end(await submit_and_claim(store), CLOCK.now(), outcome=outcome)[1])  # type: ignore[arg-type]
    await submit_and_claim(store)
    await put(store)
    counts = await store.count_tasks()
    assert counts == (6, 1, 1, 1, 2, 1)
    assert counts.active == 2


async def test_pruning_tasks_by_age_and_count_keeps_open_ones(store: Store) -> None:
    now = CLOCK.now()
    ended_ids = []
    for n in range(5):
        task = await submit_and_claim(store, route="console")
        await store.apply(end(task, now + n, outcome="ok", result="")[1])
        ended_ids.append(task.id)
    waiting = await put(store)
    assert await store.prune_tasks(now + 1, keep=100) == 1
    assert await store.prune_tasks(0, keep=2) == 2
    remaining = {t.id for t in await store.list_tasks(TaskFilter())}
    assert remaining == {waiting.id, *ended_ids[3:]}
    assert {d.task_id for d in await store.list_deliveries()} == set(ended_ids[3:])


# -- sessions, deliveries, approvals, instances ------------------------------------------------------------------


async def test_sessions_and_messages_are_stored(store: Store) -> None:
    session = Session(key="chat:1", agent="demo", gate_key="chat:1", thread_id="th", created_at=1, updated_at=1)
    message = Message(session_key="chat:1", role="user", text="hi", time=1, task_id="t_1", id="t_1")
    await store.apply(
        Changes(sessions=(session,), messages=(message, replace(message, role="agent", text="yes", id="t_1.1")))
    )
    await store.apply(Changes(sessions=(replace(session, thread_id=None, updated_at=5),), messages=(message,)))
    stored = await store.get_session("chat:1")
    assert stored is not None
    assert (stored.thread_id, stored.created_at, stored.updated_at, stored.revision) == ("th", 1, 5, 1)
    assert [(m.number, m.role, m.text) for m in await store.read_messages("chat:1")] == [
        (1, "user", "hi"),
        (2, "agent", "yes"),
    ]
    assert [m.number for m in await store.read_messages("chat:1", after=1)] == [2]
    assert [m.number for m in await store.read_last_messages("chat:1", 1)] == [2]
    assert [m.number for m in await store.read_last_messages("chat:1", 9)] == [1, 2]
    private = replace(session, key="bg:t_2", gate_key="bg:t_2", updated_at=10)  # a private session is no conversation
    await store.apply(Changes(sessions=(replace(session, key="chat:2", updated_at=9), private)))
    assert [view.session.key for view in await store.list_sessions()] == ["chat:2", "chat:1"]
    assert await store.get_session("chat:3") is None


async def test_one_delivery_is_made_per_task_channel_and_notice(store: Store) -> None:
    now = CLOCK.now()
    first = Delivery(id="d_1", task_id="t_1", channel="console", notice="done", text="x", due_at=now, created_at=now)
    await store.apply(Changes(deliveries=(first, replace(first, id="d_2"), replace(first, id="d_3", notice="failed"))))
    assert [d.id for d in await store.list_due_deliveries(now)] == ["d_1", "d_3"]
    assert await store.list_due_deliveries(now - 1) == []
    assert await store.find_next_delivery_at() == now
    sent = Update("delivery", "d_1", {"status": "sent", "sent_at": now}, {"status": "pending"})
    await store.apply(Changes(updates=(sent,)))
    with pytest.raises(Conflict):
        await store.apply(Changes(updates=(sent,)))
    delivery = await store.get_delivery("d_1")
    assert delivery is not None and delivery.status == "sent"
    assert await store.get_delivery("d_2") is None
    assert [d.id for d in await store.list_deliveries(status="pending")] == ["d_3"]


async def test_approvals_are_stored_answered_once_and_expire(store: Store) -> None:
    task = await submit_and_claim(store)
    now = CLOCK.now()
    first, changes = ask(task, Question(text="Delete it?"), 60, now)
    await store.apply(changes)
    approval = await store.get_approval(first.id)
    assert isinstance(approval, Approval) and approval == first
    waiting = await store.get_task(task.id)
    assert waiting is not None and waiting.wait == "approval"
    assert await store.list_pending_approvals(fence(task)) == [first]
    assert await store.find_next_expiry() == now + 60 * SECOND
    assert await store.list_overdue_approvals(now + 60 * SECOND) == [first]
    assert await store.list_overdue_approvals(now) == []
    await store.apply(resolve(first, "granted", now, answer="yes", actor="me"))
    with pytest.raises(Conflict):
        await store.apply(resolve(first, "denied", now, answer="no"))
    (answered,) = await store.list_approvals("granted")
    assert (answered.answer, answered.answered_by) == ("yes", "me")
    assert await store.list_approvals("pending") == []
    assert await store.find_next_expiry() is None
    with pytest.raises(LeaseLost):
        await store.apply(ask(task._replace(attempt=9), Question(text="Again?"), 60, now)[1])


async def test_processes_are_registered_and_removed(store: Store) -> None:
    instance = Instance(
        id="i_1",
        role="up",
        host="h",
        boot_id="b",
        pid=1,
        agents=("a", "b"),
        slots=4,
        started_at=1,
        terms={"a": [1.5, "rerun", 3, 4]},
    )
    await store.add_instance(instance)
    await store.add_instance(replace(instance, id="i_2", started_at=2))
    assert await store.list_instances() == [instance, replace(instance, id="i_2", started_at=2)]
    await store.remove_instances(["i_1", "i_none"])
    assert [i.id for i in await store.list_instances()] == ["i_2"]


async def test_the_store_reports_and_checks_its_state(store: Store) -> None:
    facts = await store.describe()
    assert facts["kind"] and facts["schema"]
    assert await store.check() == []


async def test_after_a_failed_write_a_store_checks_whether_it_can_write_again(store: Any) -> None:
    def fail(tx: object) -> None:
        raise DiskFull("the disk is full.")

    await put(store)
    bounds = await store.read_log_bounds()
    with pytest.raises(DiskFull):
        await store.write(fail)
    await store.check_writable()
    assert await store.read_log_bounds() == bounds

"""Test the contract of stores when several processes use one database at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.errors import Conflict, LeaseLost
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import EventFilter, TaskLate, event
from midwatch.domain.session import Message
from midwatch.domain.store import Commit
from midwatch.domain.task import end, guard_ownership, meta
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sqlite import SqliteStore
from midwatch.stores.verbs import changes as change
from midwatch.stores.verbs import task as verbs
from records import CLOCK, a_task, claim_request, claim_tasks, fence, progress, put, submit_and_claim

Several = Callable[[int], Awaitable[list[Any]]]
WRITERS = 8


@pytest.fixture(params=("sqlite", pytest.param("postgres", marks=pytest.mark.slow)))
async def open_stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Several]:
    """Return a function that opens several stores on one empty database, as several processes would."""
    opened: list[SqliteStore | PostgresStore] = []
    url = request.getfixturevalue("database") if request.param == "postgres" else ""

    async def open_(count: int) -> list[Any]:
        while len(opened) < count:
            opened.append(await (PostgresStore.open(url) if url else SqliteStore.open(tmp_path / "midwatch.db")))
        return opened

    yield open_
    for store in opened:
        await store.close()


def delay_commit(verb: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return the write with a delay between its statements and its commit."""

    def late(tx: Any, *args: Any) -> Any:
        done = verb(tx, *args)
        time.sleep(seconds)
        return done

    return late


async def test_a_follower_sees_every_event_in_order_with_many_writers(open_stores: Several) -> None:
    """Commits come late and some writes fail, but no number is missing when a later one is visible."""
    stores = await open_stores(3)
    task = await submit_and_claim(stores[0])
    rounds, rng = 12, random.Random(7)
    seqs: list[int] = [e.seq for e in await stores[2].read_events(0)]

    async def write(number: int) -> None:
        store = stores[number % 2]
        for turn in range(rounds):
            events = tuple(progress(task, f"{number}/{turn}/{n}") for n in range(rng.randint(1, 3)))
            verb = delay_commit(change.apply, rng.uniform(0, 0.01)) if rng.random() < 0.4 else change.apply
            await store.write(verb, Changes(events=events))
            stale = Update("task", task.id, {"wait": "x"}, {"attempt": 9})
            with pytest.raises(Conflict):
                await store.apply(Changes(events=(progress(task, "never"),), updates=(stale,)))

    async def follow() -> None:
        while True:
            page = [e.seq for e in await stores[2].read_events(seqs[-1])]
            assert page == list(range(seqs[-1] + 1, seqs[-1] + 1 + len(page)))
            seqs.extend(page)
            await asyncio.sleep(0)

    follower = asyncio.create_task(follow())
    writers = asyncio.gather(*(write(n) for n in range(WRITERS)))
    await asyncio.wait({follower, writers}, return_when=asyncio.FIRST_COMPLETED)
    if follower.done():
        writers.cancel()
        await follower
    await writers
    last = (await stores[0].read_log_bounds()).last_seq
    while seqs[-1] < last and not follower.done():  # the follower sees the end too
        await asyncio.sleep(0)
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    everything = await stores[2].read_events(0, limit=5000)
    assert [e.seq for e in everything] == list(range(1, last + 1))
    assert seqs == list(range(1, last + 1))
    texts = [e.payload["text"] for e in everything if e.kind == "task_progress"]
    assert len(set(texts)) == len(texts) and "never" not in texts
    for number in range(WRITERS):
        mine = [text for text in texts if text.startswith(f"{number}/")]
        order = [tuple(map(int, text.split("/"))) for text in mine]
        assert order == sorted(order) and order[-1][1] == rounds - 1


async def test_concurrent_submits_with_one_key_make_one_task(open_stores: Several) -> None:
    stores = await open_stores(WRITERS)
    for turn in range(5):
        tasks = [a_task(idempotency_key=f"k{turn}", body_hash="b", creator="me") for _ in stores]
        submissions = await asyncio.gather(*(store.submit(task) for store, task in zip(stores, tasks, strict=True)))
        assert len({submission.task.id for submission in submissions}) == 1
        assert sum(submission.created for submission in submissions) == 1
    assert (await stores[0].count_tasks()).total == 5
    kinds = [e.kind for e in await stores[0].read_events(0)]
    assert kinds == ["task_submitted"] * 5


async def test_concurrent_claims_never_double_and_respect_gates_and_slots(open_stores: Several) -> None:
    stores = await open_stores(WRITERS)
    gates, each = 7, 6
    tasks = [await put(stores[0], session_key=f"chat:{n % gates}|message:{n}") for n in range(gates * each)]
    claimed: list[str] = []
    holders: dict[str, str] = {}

    async def work(number: int) -> None:
        store = stores[number]
        while len(claimed) < len(tasks):
            mine = await claim_tasks(store, free=2, owner=f"i_{number}", agents={"demo": 2})
            assert len(mine) <= 2
            for task in mine:
                assert task.gate_key not in holders, f"{task.id} and {holders[task.gate_key]} run in one gate"
                holders[task.gate_key] = task.id
                claimed.append(task.id)
            for task in mine:
                del holders[task.gate_key]  # before it is released: afterwards other processes may claim it
                await store.apply(end(task, CLOCK.now(), outcome="ok", result="")[1])

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(n) for n in range(WRITERS)))
    assert sorted(claimed) == sorted(task.id for task in tasks)
    starts = [e.task_id for e in await stores[0].read_events(0, EventFilter(kinds=("task_started",)))]
    assert sorted(str(task_id) for task_id in starts) == sorted(claimed)


async def test_concurrent_messages_to_one_session_are_all_kept_and_numbered(open_stores: Several) -> None:
    stores = await open_stores(WRITERS)
    each = 12

    async def say(number: int) -> None:
        for turn in range(each):
            message = Message(session_key="chat:1", role="notice", text=f"{number}/{turn}", time=1)
            other_message = Message(session_key=f"chat:{number % 2 + 2}", role="notice", text="x", time=1)
            await stores[number].apply(Changes(messages=(message, other_message)))

    await asyncio.gather(*(say(n) for n in range(WRITERS)))
    messages = await stores[0].read_messages("chat:1")
    assert [m.number for m in messages] == list(range(1, WRITERS * each + 1))
    assert {m.text for m in messages} == {f"{n}/{turn}" for n in range(WRITERS) for turn in range(each)}


async def test_a_write_with_an_old_lease_never_succeeds_after_the_task_was_taken(open_stores: Several) -> None:
    """The fence is checked before the commit; a process that takes the task meanwhile must wait for it."""
    mine, theirs = await open_stores(2)
    for turn in range(6):
        task = await submit_and_claim(mine)
        late_event = event(TaskLate(outcome="lost"), CLOCK.now(), **meta(task))
        away = Changes(
            updates=(Update("task", task.id, {"status": "pending"}, guard_ownership(task)),), events=(late_event,)
        )
        fenced = Changes(fence=fence(task), events=(progress(task),))
        first = asyncio.create_task(mine.write(delay_commit(change.apply, 0.05), fenced))
        if turn % 2:
            await asyncio.sleep(0.02)
        second = asyncio.create_task(theirs.apply(away))
        results = await asyncio.gather(first, second, return_exceptions=True)
        kinds = [e.kind for e in await theirs.read_events(0, EventFilter(task_id=task.id))][2:]
        assert results[1] is None
        assert kinds == (["task_late"] if isinstance(results[0], LeaseLost) else ["task_progress", "task_late"])
        (again,) = await claim_tasks(mine)
        await mine.apply(end(again, CLOCK.now(), outcome="ok")[1])


async def test_a_message_makes_a_task_yield_that_is_being_claimed(open_stores: Several) -> None:
    mine, theirs = await open_stores(2)
    for turn in range(4):
        key = f"chat:{turn}"
        held_task = await put(mine, session_key=key, cause="automation", on_crash="rerun")
        claiming = asyncio.create_task(mine.write(delay_commit(verbs.claim, 0.05), claim_request(), CLOCK.now()))
        await asyncio.sleep(0.02)
        await put(theirs, session_key=key, cause="message")
        claimed = [claim.task for claim in (await claiming).taken]
        stored_task = await theirs.get_task(held_task.id)
        assert stored_task is not None
        if claimed[0].id == held_task.id:
            assert (stored_task.status, stored_task.stop_requested) == ("running", "yield")
        else:
            assert stored_task.status == "pending"


async def test_another_process_is_notified_of_a_commit(open_stores: Several) -> None:
    mine, theirs = await open_stores(2)
    commits: asyncio.Queue[Commit] = asyncio.Queue()
    theirs.on_commit(commits.put_nowait)
    task = await submit_and_claim(mine)
    await mine.apply(Changes(updates=(Update("task", task.id, {"stop_requested": "cancel"}, guard_ownership(task)),)))
    topics: set[str] = set()
    async with asyncio.timeout(60):
        while not topics >= {"task", "stop"}:
            commit = await commits.get()
            assert commit.foreign and not commit.events
            topics |= commit.topics

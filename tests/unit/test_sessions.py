"""Test the session service with a real store: what it writes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, InvalidInput, NotFound, UnknownAgent
from midwatch.domain.event import EVERYTHING
from midwatch.domain.task_store import TaskFilter
from midwatch.services.sessions import PAGE, Sessions
from midwatch.services.tasks import Tasks
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import KnownAgents, claim_tasks


@pytest.fixture
def store(memory: SqliteStore) -> SqliteStore:
    return memory


@pytest.fixture
def sessions(store: SqliteStore, clock: FakeClock) -> Sessions:
    return Sessions(store, clock, Tasks(store, clock, KnownAgents("demo", "other"), lambda route: route))


async def kinds(store: SqliteStore) -> list[str]:
    return [event.kind for event in await store.read_events(0, EVERYTHING, 1000)]


async def test_a_session_without_a_key_gets_a_new_one(sessions: Sessions, store: SqliteStore) -> None:
    first, created = await sessions.create(actor="ann")
    second, _ = await sessions.create(key="")
    assert created
    assert first.session.key.startswith("chat:s_")
    assert first.session.key != second.session.key
    assert (first.session.agent, first.session.creator, first.status) == ("demo", "ann", "idle")
    assert (await kinds(store))[:2] == ["session_opened", "status_change"]


async def test_the_first_message_is_sent_once(sessions: Sessions, store: SqliteStore) -> None:
    for _ in range(2):
        view, _ = await sessions.begin("hello", idempotency_key="k", actor="ann")
        assert view.queued == 1
    view, created = await sessions.begin("hello", key="chat:1")
    assert (created, view.queued) == (True, 1)
    view, created = await sessions.begin("hello", key="chat:1")
    assert (created, view.queued) == (False, 1), "it was open already"
    with pytest.raises(InvalidInput):
        await sessions.begin("", key="chat:2")
    assert await store.get_session("chat:2") is None, "nothing is opened for what cannot be said"


@pytest.mark.parametrize("key", ["bg:t_1", "bg:", ".", "..", " ", "a\nb", "a\x7f"])
async def test_reserved_keys_are_refused(sessions: Sessions, store: SqliteStore, key: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await sessions.create(key=key)
    assert refused.value.field == "key"
    assert await kinds(store) == []


async def test_an_agent_must_be_known(sessions: Sessions) -> None:
    with pytest.raises(UnknownAgent):
        await sessions.create(agent="nobody")


async def test_a_session_has_one_agent_and_one_directory(sessions: Sessions, tmp_path: Path) -> None:
    await sessions.create(key="k", workdir=str(tmp_path))
    assert (await sessions.create(key="k", workdir=str(tmp_path)))[1] is False
    for closed in (False, True):
        if closed:
            await sessions.close("k")
        with pytest.raises(Conflict, match="use another key"):
            await sessions.create(key="k")
        with pytest.raises(Conflict, match="use another key"):
            await sessions.create(key="k", agent="other", workdir=str(tmp_path))
    assert (await sessions.create(key="k", workdir=str(tmp_path)))[1] is True


async def test_a_message_is_a_task_of_the_session(sessions: Sessions, tmp_path: Path) -> None:
    await sessions.create(key="k", agent="other", workdir=str(tmp_path))
    task = await sessions.send("k", "hello", priority=3, actor="ann", idempotency_key="once")
    assert (task.agent, task.session_key, task.workdir, task.cause) == ("other", "k", str(tmp_path), "message")
    assert (task.creator, task.priority, task.origin_session) == ("ann", 3, "k")
    assert (await sessions.send("k", "hello", priority=3, actor="ann", idempotency_key="once")).id == task.id
    assert (await sessions.get("k")).queued == 1


async def test_an_invalid_message_is_refused_with_its_field(sessions: Sessions) -> None:
    await sessions.create(key="k")
    with pytest.raises(InvalidInput, match="the text is empty") as refused:
        await sessions.send("k", " ")
    assert refused.value.field == "text"
    with pytest.raises(InvalidInput) as refused:
        await sessions.send("k", "x", idempotency_key="")
    assert refused.value.field == "idempotency_key"


async def test_an_interrupt_stops_only_the_running_task(sessions: Sessions, store: SqliteStore) -> None:
    await sessions.create(key="k")
    assert await sessions.interrupt("k") is None
    first = await sessions.send("k", "a")
    await claim_tasks(store)
    second = await sessions.send("k", "b")
    assert await sessions.interrupt("k", actor="ann") == first.id
    assert await sessions.interrupt("k") == first.id, "it is still being stopped"
    stopped, waiting = await store.get_task(first.id), await store.get_task(second.id)
    assert stopped is not None
    assert waiting is not None
    assert (stopped.stop_requested, waiting.status) == ("cancel", "pending")


async def test_closing_cancels_all_waiting_tasks(sessions: Sessions, store: SqliteStore, clock: FakeClock) -> None:
    await sessions.create(key="k")
    count = 2 * PAGE + 10
    for number in range(count):
        await sessions.send("k", f"m{number}")
    await claim_tasks(store)
    view = await sessions.close("k", actor="ann")
    assert (view.status, view.queued) == ("closed", 0)
    (running,) = await store.list_running_tasks()
    assert running.stop_requested == "cancel"
    assert len(await store.list_tasks(TaskFilter(statuses=("cancelled",), limit=1000))) == count - 1
    clock.set(clock.now() + SECOND)
    assert (await sessions.close("k")).session == view.session
    assert (await kinds(store)).count("session_closed") == 1


async def test_a_message_that_races_with_the_close_is_refused(sessions: Sessions, store: SqliteStore) -> None:
    await sessions.create(key="k")
    submit = store.submit

    async def slow(*args, **named):  # type: ignore[no-untyped-def]  # the session is closed while it is on its way
        await sessions.close("k")
        return await submit(*args, **named)

    store.submit = slow  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="is closed"):
        await sessions.send("k", "x")
    assert await store.list_tasks(TaskFilter()) == []


async def test_a_repeated_message_returns_its_first_task_even_in_a_closed_session(
    sessions: Sessions, store: SqliteStore
) -> None:
    await sessions.create(key="k")
    first = await sessions.send("k", "x", idempotency_key="once")
    await sessions.close("k")
    assert (await sessions.send("k", "x", idempotency_key="once")).id == first.id


async def test_unknown_ids_are_not_found(sessions: Sessions) -> None:
    for missing in (
        sessions.get("k"), sessions.send("k", "x"), sessions.interrupt("k"), sessions.close("k"),
    ):  # fmt: skip
        with pytest.raises(NotFound, match="session"):
            await missing
    assert await sessions.messages("k") == []
    assert await sessions.list() == []

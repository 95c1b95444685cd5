"""Approvals: asked once, answered once, and gone when nobody answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest

from midwatch.agent import Question
from midwatch.approval import (
    MAX_CHOICES,
    QUESTION_SHOWN,
    TRANSITIONS,
    Approval,
    Approvals,
    Status,
    ask,
    resolve,
)
from midwatch.change import Changes
from midwatch.clock import SECOND
from midwatch.errors import Conflict, InvalidInput, NotFound
from midwatch.event import EventFilter
from midwatch.store import Store
from midwatch.stores.sqlite import SqliteStore
from midwatch.task import Task
from midwatch.testing import FakeClock
from records import a_task, fence, running


@pytest.fixture
async def memory() -> AsyncIterator[Store]:
    store = await SqliteStore.open(":memory:")
    yield store
    await store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def inbox(memory: Store, clock: FakeClock) -> Approvals:
    return Approvals(memory, clock)


async def asked(memory: Store, clock: FakeClock, choices: tuple[str, ...] = ("yes", "no"), **fields: Any) -> Approval:
    task = await running(memory, **fields)
    made, changes = ask(task, Question.plain("Deploy?", choices), 60, clock.now())
    await memory.apply(changes)
    return made


def test_the_table_ends_what_is_pending_once() -> None:
    assert set(TRANSITIONS) == set(get_args(Status))
    assert TRANSITIONS["pending"] == set(get_args(Status)) - {"pending"}
    assert all(not after for status, after in TRANSITIONS.items() if status != "pending")


@pytest.mark.parametrize("before", [status for status in get_args(Status) if status != "pending"])
@pytest.mark.parametrize("after", [status for status in get_args(Status) if status != "pending"])
async def test_an_ended_question_stays_as_it_ended(memory: Store, clock: FakeClock, before: Any, after: Any) -> None:
    question = await asked(memory, clock)
    await memory.apply(resolve(question, before, clock.now(), answer="first"))
    with pytest.raises(Conflict):
        await memory.apply(resolve(question, after, clock.now(), answer="second"))
    found = await memory.get_approval(question.id)
    assert found is not None and (found.status, found.answer) == (before, "first")
    assert len(await memory.read_events(0, EventFilter(kinds=("approval_resolved",)))) == 1


# -- asking ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "choices"),
    [("", ("yes",)), ("  \n", ("yes",)), ("Go?", ()), ("Go?", tuple(str(n) for n in range(MAX_CHOICES + 1)))],
)
def test_a_question_needs_words_and_choices(question: str, choices: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        ask(a_task(), Question.plain(question, choices), 60, 1)
    assert caught.value.field == "question"


def test_asking_is_fenced_tells_the_route_how_to_answer_and_makes_the_task_wait() -> None:
    task = a_task(status="running", attempt=3, route="console")
    made, changes = ask(task, Question.plain("q" * 2000, ("yes", "no")), 1.5, 10)
    assert changes.fence == fence(task)
    assert changes.updates[0].fields == {"wait": "approval"}
    assert (made.attempt, made.expires_at, made.status) == (3, 10 + 1_500_000, "pending")
    (told,) = changes.deliveries
    assert told.notice == f"asked:{made.id}"
    assert f"midwatch approve {made.id}" in told.text and f"midwatch deny {made.id}" in told.text
    assert len(told.text) < QUESTION_SHOWN + 200
    assert [e.kind for e in changes.events] == ["approval_requested", "task_waiting"]
    assert changes.events[0].payload["question"] == "q" * 2000
    assert ask(a_task(), Question.plain("Go?", ("yes",)), 1, 10)[1].deliveries == ()


def test_an_approval_is_frozen_and_shows_its_times() -> None:
    made = ask(a_task(), Question(text="Go?"), 60, 0)[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.status = "granted"  # type: ignore[misc]
    shown = made.snapshot()
    assert (shown["choices"], shown["expires_at"]) == (["yes", "no"], "1970-01-01T00:01:00.000000Z")
    assert shown["resolved_at"] is None


# -- answering ---------------------------------------------------------------------------------------------------

THREE = ("now", "later", "never")
ANSWERS: list[tuple[tuple[str, ...], dict[str, Any], str, str]] = [
    (THREE, {"choice": "now"}, "granted", "now"),
    (THREE, {"choice": "later"}, "denied", "later"),
    (THREE, {"choice": "never"}, "denied", "never"),
    (THREE, {"grant": True}, "granted", "now"),
    (THREE, {"grant": False}, "denied", "later"),
    (THREE, {"grant": True, "choice": "never"}, "denied", "never"),
    (("ok",), {"grant": True}, "granted", "ok"),
    (("ok",), {"grant": False}, "denied", "no"),
]


@pytest.mark.parametrize(("choices", "said", "status", "answer"), ANSWERS)
async def test_the_first_choice_is_the_yes_and_every_other_a_no(
    inbox: Approvals, memory: Store, clock: FakeClock, choices: Any, said: Any, status: str, answer: str
) -> None:
    question = await asked(memory, clock, choices)
    await clock.advance(5)
    found = await inbox.answer(question.id, **said, why="because", actor="me")
    assert (found.status, found.answer, found.why, found.answered_by) == (status, answer, "because", "me")
    assert found.resolved_at == clock.now()
    (told,) = await memory.read_events(0, EventFilter(kinds=("approval_resolved",)))
    assert (told.payload["status"], told.actor, told.task_id) == (status, "me", question.task_id)


async def test_an_answer_that_is_none_of_the_choices_is_refused(
    inbox: Approvals, memory: Store, clock: FakeClock
) -> None:
    question = await asked(memory, clock, THREE)
    for said in ("Now", "", "now "):
        with pytest.raises(InvalidInput, match="answer with one of: now, later, never") as caught:
            await inbox.answer(question.id, said)
        assert caught.value.field == "choice"
    assert (await inbox.get(question.id)).status == "pending"
    with pytest.raises(NotFound, match="a_none"):
        await inbox.answer("a_none", grant=True)


async def test_saying_nothing_is_no_answer(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await asked(memory, clock)
    with pytest.raises(InvalidInput):
        await inbox.answer(question.id)


async def test_the_second_answer_is_a_conflict(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await asked(memory, clock)
    await inbox.answer(question.id, grant=False)
    with pytest.raises(Conflict, match="already denied; the first answer counts"):
        await inbox.answer(question.id, grant=True)


async def test_of_many_answers_at_once_one_counts(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await asked(memory, clock)
    said = await asyncio.gather(
        *(inbox.answer(question.id, grant=n % 2 == 0, actor=f"p{n}") for n in range(10)), return_exceptions=True
    )
    assert sum(isinstance(one, Conflict) for one in said) == 9
    assert all("the first answer counts" in str(one) for one in said if isinstance(one, Conflict))
    (first,) = [one for one in said if isinstance(one, Approval)]
    assert await inbox.get(question.id) == first
    assert len(await memory.read_events(0, EventFilter(kinds=("approval_resolved",)))) == 1


# -- the inbox ---------------------------------------------------------------------------------------------------


async def test_the_inbox_shows_open_questions_or_any_others(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    first, second = await asked(memory, clock), await asked(memory, clock)
    await inbox.answer(first.id, grant=True)
    assert [a.id for a in await inbox.list()] == [second.id]
    assert [a.id for a in await inbox.list("granted")] == [first.id]
    assert {a.id for a in await inbox.list(None)} == {first.id, second.id}
    assert len(await inbox.list(None, limit=1)) == 1


async def test_what_nobody_answers_expires_at_its_time(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question, answered = await asked(memory, clock), await asked(memory, clock)
    await inbox.answer(answered.id, grant=True)
    await clock.advance(59.999)
    assert await inbox.expire() == 0
    await clock.advance(0.001)
    assert await inbox.expire() == 1
    assert await inbox.expire() == 0
    found = await inbox.get(question.id)
    assert (found.status, found.answer, found.why) == ("expired", None, "nobody answered in time")
    assert (await inbox.get(answered.id)).status == "granted"
    with pytest.raises(Conflict, match="already expired"):
        await inbox.answer(question.id, grant=True)


async def many(memory: Store, task: Task, count: int, expires: float, now: int) -> None:
    for _ in range(count):
        await memory.apply(ask(task, Question(text="Go?"), expires, now)[1])


async def test_the_oldest_of_very_many_questions_expires_too(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await asked(memory, clock)
    await clock.advance(60)
    task = await running(memory)
    await many(memory, task, 500, 3600, clock.now())
    await inbox.expire()
    assert (await inbox.get(question.id)).status == "expired"


class Answered:
    """A store where somebody else answers a question just before it is expired."""

    def __init__(self, store: Store, question: Approval, now: int) -> None:
        self._store, self._question, self._now = store, question, now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, changes: Changes) -> None:
        if self._question is not None and any(u.id == self._question.id for u in changes.updates):
            question, self._question = self._question, None  # type: ignore[assignment]
            await self._store.apply(resolve(question, "granted", self._now, answer="yes"))
        await self._store.apply(changes)


async def test_an_answer_in_the_last_moment_counts_and_the_others_expire(memory: Store, clock: FakeClock) -> None:
    questions = [await asked(memory, clock) for _ in range(3)]
    await clock.advance(60)
    store: Any = Answered(memory, questions[1], clock.now())
    await Approvals(store, clock).expire()
    found = [await memory.get_approval(question.id) for question in questions]
    assert [one.status for one in found if one] == ["expired", "granted", "expired"]


async def test_only_what_expired_is_counted(memory: Store, clock: FakeClock) -> None:
    questions = [await asked(memory, clock) for _ in range(3)]
    await clock.advance(60)
    store: Any = Answered(memory, questions[1], clock.now())
    assert await Approvals(store, clock).expire() == 2


async def test_the_next_expiry_is_the_nearest_of_the_open_ones(
    inbox: Approvals, memory: Store, clock: FakeClock
) -> None:
    task = await running(memory)
    for expires in (90, 30, 60):
        await many(memory, task, 1, expires, clock.now())
    assert await memory.next_expiry() == clock.now() + 30 * SECOND
    (nearest,) = [a for a in await inbox.list() if a.expires_at == clock.now() + 30 * SECOND]
    await inbox.answer(nearest.id, grant=True)
    assert await memory.next_expiry() == clock.now() + 60 * SECOND

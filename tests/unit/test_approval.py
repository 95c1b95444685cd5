"""Test approvals: a question is asked once, answered once, and expires without an answer."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
import shlex
from dataclasses import replace
from typing import Any, get_args

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.agent import YES_NO, Answer, Choice, Question
from midwatch.domain.approval import (
    LONGEST,
    MAX_CHOICES,
    MOST_DIFF,
    MOST_PATHS,
    QUESTION_SHOWN,
    TRANSITIONS,
    Approval,
    Status,
    answer_by_rule,
    answer_of,
    ask,
    expire_at_once,
    resolve,
)
from midwatch.domain.changes import Changes
from midwatch.domain.event import EventFilter
from midwatch.domain.rule import Decision, Level, Policy, Ruling
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.services.approvals import Approvals
from midwatch.services.rule_decision import decide, narrow
from midwatch.testing import FakeClock
from records import a_task, fence, submit_and_claim


@pytest.fixture
def inbox(memory: Store, clock: FakeClock) -> Approvals:
    return Approvals(memory, clock)


async def store_question(
    memory: Store, clock: FakeClock, choices: tuple[str, ...] = ("yes", "no"), **fields: Any
) -> Approval:
    task = await submit_and_claim(memory, **fields)
    approval, changes = ask(task, Question.plain("Deploy?", choices), 60, clock.now())
    await memory.apply(changes)
    return approval


def test_the_table_ends_a_pending_approval_once() -> None:
    assert set(TRANSITIONS) == set(get_args(Status))
    assert TRANSITIONS["pending"] == set(get_args(Status)) - {"pending"}
    assert all(not after for status, after in TRANSITIONS.items() if status != "pending")


@pytest.mark.parametrize("before", [status for status in get_args(Status) if status != "pending"])
@pytest.mark.parametrize("after", [status for status in get_args(Status) if status != "pending"])
async def test_an_ended_question_never_changes(memory: Store, clock: FakeClock, before: Any, after: Any) -> None:
    question = await store_question(memory, clock)
    await memory.apply(resolve(question, before, clock.now(), answer="first"))
    with pytest.raises(Conflict):
        await memory.apply(resolve(question, after, clock.now(), answer="second"))
    approval = await memory.get_approval(question.id)
    assert approval is not None and (approval.status, approval.answer) == (before, "first")
    assert len(await memory.read_events(0, EventFilter(kinds=("approval_resolved",)))) == 1


# -- asking ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "choices"),
    [("", ("yes",)), ("  \n", ("yes",)), ("Go?", ()), ("Go?", tuple(str(n) for n in range(MAX_CHOICES + 1)))],
)
def test_a_question_needs_text_and_choices(question: str, choices: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        ask(a_task(), Question.plain(question, choices), 60, 1)
    assert caught.value.field == "question"


def test_a_question_needs_the_lease_notifies_the_route_and_makes_the_task_wait() -> None:
    task = a_task(status="running", attempt=3, route="console")
    approval, changes = ask(task, Question.plain("q" * 2000, ("yes", "no")), 1.5, 10)
    assert changes.fence == fence(task)
    assert changes.updates[0].fields == {"wait": "approval"}
    assert (approval.attempt, approval.expires_at, approval.status) == (3, 10 + 1_500_000, "pending")
    (delivery,) = changes.deliveries
    assert delivery.notice == f"asked:{approval.id}"
    assert f"midwatch approve {approval.id}" in delivery.text and f"midwatch deny {approval.id}" in delivery.text
    assert len(delivery.text) < QUESTION_SHOWN + 200
    assert [e.kind for e in changes.events] == ["approval_requested", "task_waiting"]
    assert changes.events[0].payload["question"] == "q" * 2000
    assert ask(a_task(), Question.plain("Go?", ("yes",)), 1, 10)[1].deliveries == ()


def test_the_words_of_an_agent_cannot_forge_a_command_in_a_notice() -> None:
    forged = "Answer: midwatch approve a_other"
    names = ("Yes", 'x "$(touch /tmp/x)"', "No")
    choices = tuple(Choice(name, "reject_once" if name == "No" else "allow_once") for name in names)
    question = Question(text=f"Go on?\n{forged}", kind="execute", command=f"ls\r{forged}", choices=choices)
    for asked, lines in ((question, 2), (replace(question, choices=(choices[0], Choice("x\ny", "allow_once"))), 1)):
        approval, changes = ask(a_task(route="console"), asked, 60, 1)
        (delivery,) = changes.deliveries
        commands = [line for line in delivery.text.splitlines() if re.match("(Another a|A)nswer:", line)]
        assert len(commands) == lines and commands[0].startswith(f"Answer: midwatch approve {approval.id} or ")
        for line in commands[1:]:
            assert shlex.split(line)[2:] == ["midwatch", "approve", approval.id, "--choice", names[1]]


def test_an_approval_is_immutable_and_shows_its_times() -> None:
    approval = ask(a_task(), Question(text="Go?"), 60, 0)[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        approval.status = "granted"  # type: ignore[misc]
    shown = approval.snapshot()
    choices = [{"name": "yes", "kind": "allow_once"}, {"name": "no", "kind": "reject_once"}]
    assert (shown["choices"], shown["expires_at"]) == (choices, "1970-01-01T00:01:00.000000Z")
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
async def test_the_first_choice_grants_and_every_other_denies(
    inbox: Approvals, memory: Store, clock: FakeClock, choices: Any, said: Any, status: str, answer: str
) -> None:
    question = await store_question(memory, clock, choices)
    await clock.advance(5)
    approval = await inbox.answer(question.id, **said, why="because", actor="me")
    assert (approval.status, approval.answer, approval.why, approval.answered_by) == (status, answer, "because", "me")
    assert approval.resolved_at == clock.now()
    (event,) = await memory.read_events(0, EventFilter(kinds=("approval_resolved",)))
    assert (event.payload["status"], event.actor, event.task_id) == (status, "me", question.task_id)


async def test_an_unknown_answer_is_refused(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await store_question(memory, clock, THREE)
    for answer in ("Now", "", "now "):
        with pytest.raises(InvalidInput, match="answer with one of: now, later, never") as caught:
            await inbox.answer(question.id, answer)
        assert caught.value.field == "choice"
    assert (await inbox.get(question.id)).status == "pending"
    with pytest.raises(NotFound, match="a_none"):
        await inbox.answer("a_none", grant=True)


async def test_an_empty_answer_is_refused(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await store_question(memory, clock)
    with pytest.raises(InvalidInput):
        await inbox.answer(question.id)


async def test_the_second_answer_is_a_conflict(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await store_question(memory, clock)
    await inbox.answer(question.id, grant=False)
    with pytest.raises(Conflict, match="already denied; the first answer counts"):
        await inbox.answer(question.id, grant=True)


async def test_an_answer_to_an_expired_question_tells_why_it_expired(
    inbox: Approvals, memory: Store, clock: FakeClock
) -> None:
    question = await store_question(memory, clock)
    await memory.apply(resolve(question, "expired", clock.now(), why="the task was interrupted"))
    with pytest.raises(Conflict, match="already expired; the task was interrupted"):
        await inbox.answer(question.id, grant=True)


async def test_of_many_concurrent_answers_one_counts(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await store_question(memory, clock)
    results = await asyncio.gather(
        *(inbox.answer(question.id, grant=n % 2 == 0, actor=f"p{n}") for n in range(10)), return_exceptions=True
    )
    assert sum(isinstance(result, Conflict) for result in results) == 9
    assert all("the first answer counts" in str(result) for result in results if isinstance(result, Conflict))
    (first,) = [result for result in results if isinstance(result, Approval)]
    assert await inbox.get(question.id) == first
    assert len(await memory.read_events(0, EventFilter(kinds=("approval_resolved",)))) == 1


# -- the content of a question -------------------------------------------------------------------------------------

ALLOW, REJECT = Choice("Allow", "allow_once"), Choice("Reject", "reject_once")
FOREVER, NEVER = Choice("Allow for ever", "allow_always"), Choice("Never", "reject_always")


def make_question(command: str | None = "git status", **fields: Any) -> Question:
    return Question(**{"text": "May I?", "kind": "execute", "command": command, "choices": (REJECT, ALLOW), **fields})


def build_approval(question: Question, **fields: Any) -> Approval:
    return ask(a_task(workdir="/tmp", **fields), question, 60, 1, always=narrow(question, question.root or "/tmp"))[0]


@pytest.mark.parametrize("order", list(itertools.permutations((ALLOW, REJECT, FOREVER, NEVER))))
async def test_an_answer_is_recognised_by_its_kind_and_not_by_its_position(
    inbox: Approvals, memory: Store, clock: FakeClock, order: tuple[Choice, ...]
) -> None:
    request = make_question("ls; ls", choices=order)
    for grant, status, name in ((True, "granted", "Allow"), (False, "denied", "Reject")):
        task = await submit_and_claim(memory)
        question, changes = ask(task, request, 60, clock.now())
        await memory.apply(changes)
        approval = await inbox.answer(question.id, grant=grant)
        assert (approval.status, approval.answer) == (status, name)
        assert answer_of(approval, request) == Answer(status, name)  # type: ignore[arg-type]


def test_a_rule_is_offered_where_possible_with_its_description() -> None:
    approval = build_approval(make_question(choices=(ALLOW, FOREVER, REJECT)))
    assert [choice.name for choice in approval.choices] == [
        "Allow",
        "Reject",
        "always allow `git status` for demo in /tmp",
        "always deny `git status` for demo in /tmp",
    ]
    assert approval.always == {"kind": "execute", "command": "git status", "root": "/tmp"}
    compound = build_approval(make_question("git status; ls", choices=(ALLOW, FOREVER, REJECT)))
    assert (compound.always, compound.choices) == (None, (ALLOW, REJECT))
    assert build_approval(make_question(choices=(FOREVER, NEVER))).choices[:2] == (FOREVER, NEVER)
    assert build_approval(make_question(kind="switch_mode", command=None, choices=(FOREVER, ALLOW))).choices == (
        FOREVER,
        ALLOW,
    )
    assert build_approval(Question(text="Go?")).choices == YES_NO
    assert ask(a_task(), make_question(), 60, 1)[0].choices == (REJECT, ALLOW)
    elsewhere = ask(a_task(), make_question(root="/tmp"), 60, 1, always=narrow(make_question(), "/tmp"))[0]
    assert elsewhere.always == approval.always


def test_duplicate_choices_are_offered_once() -> None:
    approval = build_approval(make_question("a; b", choices=(ALLOW, REJECT, Choice("Allow", "reject_once"), ALLOW)))
    assert approval.choices == (ALLOW, REJECT)


@pytest.mark.parametrize(("grant", "effect", "own"), [(True, "allow", "Allow"), (False, "deny", "Reject")])
async def test_an_always_answer_makes_a_rule_and_the_agent_gets_its_own_choice(
    inbox: Approvals, memory: Store, clock: FakeClock, grant: bool, effect: str, own: str
) -> None:
    task = await submit_and_claim(memory, workdir="/tmp")
    question, changes = ask(task, make_question(), 60, clock.now(), always=narrow(make_question(), "/tmp"))
    await memory.apply(changes)
    approval = await inbox.answer(question.id, grant=grant, always=True, actor="ann")
    (rule,) = await memory.list_rules("demo")
    assert (rule.effect, rule.created_by, rule.approval_id) == (effect, "ann", question.id)
    assert approval.rule == rule.text == approval.answer
    assert answer_of(approval, make_question()).choice == own
    again = decide(make_question(), "/tmp", [Level("agent", Policy(), (rule,))])
    assert again.effect == effect


async def test_always_is_not_offered_where_it_has_no_effect(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    """A rule of the desk asks each time; a new rule of the agent cannot change that, but it can deny."""
    task = await submit_and_claim(memory, workdir="/tmp")
    ruling = Ruling(Decision("ask", "rule:desk", "ask `git status`", "desk"), keeps=False)
    question, changes = ask(task, make_question(), 60, clock.now(), ruling, narrow(make_question(), "/tmp"))
    await memory.apply(changes)
    assert [choice.kind for choice in question.choices] == ["reject_once", "allow_once", "reject_always"]
    assert question.rule == "ask `git status`"
    with pytest.raises(InvalidInput, match="would have no effect"):
        await inbox.answer(question.id, grant=True, always=True)
    assert (await inbox.answer(question.id, grant=False, always=True)).status == "denied"


async def test_always_is_refused_where_no_rule_can_be_made(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await store_question(memory, clock)
    with pytest.raises(InvalidInput, match="answer without `always`") as caught:
        await inbox.answer(question.id, grant=True, always=True)
    assert caught.value.field == "always"
    with pytest.raises(InvalidInput, match="contradicts `grant` or `always`"):
        await inbox.answer(question.id, "yes", always=True)
    with pytest.raises(InvalidInput, match="contradicts `grant` or `always`"):
        await inbox.answer(question.id, "yes", grant=False)
    assert (await inbox.get(question.id)).status == "pending"


async def test_a_question_without_a_yes_cannot_be_granted(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    task = await submit_and_claim(memory)
    question, changes = ask(task, make_question(choices=(REJECT,)), 60, clock.now())
    await memory.apply(changes)
    with pytest.raises(InvalidInput, match="no choice of this question means yes"):
        await inbox.answer(question.id, grant=True)
    assert (await inbox.answer(question.id, grant=False)).status == "denied"
    assert answer_by_rule(task, make_question(choices=(REJECT,)), Decision("allow", "rule:agent", "x"), 1) is None


def test_long_texts_are_truncated_and_marked() -> None:
    approval = build_approval(
        make_question("x " + "y" * 50_000, diff="ä" * 5_000_000, paths=tuple(map(str, range(500))))
    )
    assert approval.command is not None and len(approval.command) <= LONGEST + 1 and approval.command.endswith("…")
    assert approval.diff is not None and len(approval.diff.encode()) == MOST_DIFF
    shown = approval.snapshot(whole=True)
    assert (shown["diff_bytes"], shown["diff_left_out"]) == (10_000_000, 10_000_000 - MOST_DIFF)
    assert (len(approval.paths), approval.always, approval.snapshot()["diff"]) == (MOST_PATHS, None, None)
    half = build_approval(make_question(diff="x" + "ä" * MOST_DIFF))
    assert half.snapshot()["diff_left_out"] == 2 * MOST_DIFF + 1 - (MOST_DIFF - 1)


def test_the_notice_contains_the_command_and_a_high_risk() -> None:
    (delivery,) = ask(a_task(route="console"), make_question("rm -rf /"), 60, 1)[1].deliveries
    assert "Command: rm -rf /" in delivery.text and "Risk: high" in delivery.text
    (mild,) = ask(a_task(route="console"), make_question("ls", text="Run ls?"), 60, 1)[1].deliveries
    assert "Command" not in mild.text and "Risk" not in mild.text


@pytest.mark.parametrize(("effect", "status", "answer"), [("allow", "granted", "Allow"), ("deny", "denied", "Reject")])
def test_a_rule_answers_at_once_and_notifies_nobody(effect: Any, status: str, answer: str) -> None:
    task = a_task(status="running", attempt=2, route="console", creator="ann")
    decided = answer_by_rule(task, make_question(), Decision(effect, "rule:r_1", "the rule"), 10)
    assert decided is not None
    approval, changes = decided
    assert (approval.status, approval.answer, approval.answered_by, approval.rule) == (
        status,
        answer,
        "rule:r_1",
        "the rule",
    )
    assert (changes.fence, changes.updates, changes.deliveries) == (fence(task), (), ())
    requested, resolved = changes.events
    assert (requested.kind, requested.payload["rule"]) == ("approval_requested", "the rule")
    assert (resolved.kind, resolved.payload["answered_by"], resolved.actor) == ("approval_resolved", "rule:r_1", None)
    assert answer_by_rule(task, make_question(), Decision("ask"), 10) is None


def test_a_question_after_the_deadline_expires_at_once() -> None:
    approval, changes = expire_at_once(a_task(), make_question(), 10, "the goal's deadline has passed")
    assert (approval.status, approval.answer, approval.why, approval.rule) == (
        "expired",
        None,
        "the goal's deadline has passed",
        None,
    )
    assert [event.kind for event in changes.events] == ["approval_requested", "approval_resolved"]
    assert not answer_of(approval, make_question()).granted


# -- the inbox ---------------------------------------------------------------------------------------------------


async def test_the_inbox_lists_open_or_other_questions(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    first, second = await store_question(memory, clock), await store_question(memory, clock)
    await inbox.answer(first.id, grant=True)
    assert [a.id for a in await inbox.list()] == [second.id]
    assert [a.id for a in await inbox.list("granted")] == [first.id]
    assert {a.id for a in await inbox.list(None)} == {first.id, second.id}
    assert len(await inbox.list(None, limit=1)) == 1


async def test_an_unanswered_question_expires_at_its_time(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question, answered = await store_question(memory, clock), await store_question(memory, clock)
    await inbox.answer(answered.id, grant=True)
    await clock.advance(59.999)
    assert await inbox.expire() == 0
    await clock.advance(0.001)
    assert await inbox.expire() == 1
    assert await inbox.expire() == 0
    approval = await inbox.get(question.id)
    assert (approval.status, approval.answer, approval.why) == ("expired", None, "nobody answered in time")
    assert (await inbox.get(answered.id)).status == "granted"
    with pytest.raises(Conflict, match="already expired"):
        await inbox.answer(question.id, grant=True)


async def add_questions(memory: Store, task: Task, count: int, expires: float, now: int) -> None:
    for _ in range(count):
        await memory.apply(ask(task, Question(text="Go?"), expires, now)[1])


async def test_the_oldest_of_many_questions_expires_too(inbox: Approvals, memory: Store, clock: FakeClock) -> None:
    question = await store_question(memory, clock)
    await clock.advance(60)
    task = await submit_and_claim(memory)
    await add_questions(memory, task, 500, 3600, clock.now())
    await inbox.expire()
    assert (await inbox.get(question.id)).status == "expired"


class ConcurrentlyAnsweredStore:
    """A store in which another process answers a question just before it expires."""

    def __init__(self, store: Store, question: Approval, now: int) -> None:
        self._store, self._question, self._now = store, question, now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, changes: Changes) -> None:
        if self._question is not None and any(u.id == self._question.id for u in changes.updates):
            question, self._question = self._question, None  # type: ignore[assignment]
            await self._store.apply(resolve(question, "granted", self._now, answer="yes"))
        await self._store.apply(changes)


async def test_an_answer_at_the_last_moment_counts_and_the_others_expire(memory: Store, clock: FakeClock) -> None:
    questions = [await store_question(memory, clock) for _ in range(3)]
    await clock.advance(60)
    store: Any = ConcurrentlyAnsweredStore(memory, questions[1], clock.now())
    await Approvals(store, clock).expire()
    approvals = [await memory.get_approval(question.id) for question in questions]
    assert [approval.status for approval in approvals if approval] == ["expired", "granted", "expired"]


async def test_only_expired_questions_are_counted(memory: Store, clock: FakeClock) -> None:
    questions = [await store_question(memory, clock) for _ in range(3)]
    await clock.advance(60)
    store: Any = ConcurrentlyAnsweredStore(memory, questions[1], clock.now())
    assert await Approvals(store, clock).expire() == 2


async def test_the_next_expiry_is_the_earliest_of_the_open_questions(
    inbox: Approvals, memory: Store, clock: FakeClock
) -> None:
    task = await submit_and_claim(memory)
    for expires in (90, 30, 60):
        await add_questions(memory, task, 1, expires, clock.now())
    assert await memory.find_next_expiry() == clock.now() + 30 * SECOND
    (nearest,) = [a for a in await inbox.list() if a.expires_at == clock.now() + 30 * SECOND]
    await inbox.answer(nearest.id, grant=True)
    assert await memory.find_next_expiry() == clock.now() + 60 * SECOND


async def test_question_and_answer_are_events_of_the_turn(memory: Store, clock: FakeClock, inbox: Approvals) -> None:
    approval = await store_question(memory, clock)
    await inbox.answer(approval.id, "yes")
    events = await memory.read_events(0, EventFilter(turn_id=f"{approval.task_id}.{approval.attempt}"))
    assert [event.kind for event in events] == ["approval_requested", "task_waiting", "approval_resolved"]

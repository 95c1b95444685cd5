"""Test new tasks: whatever causes a task, its record and its event have the same values, and it keeps its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from midwatch.base.clock import SECOND, SystemClock, iso
from midwatch.base.trace import incoming
from midwatch.domain import automation_step, goal, goal_step, handoff, steering, waking
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes
from midwatch.domain.context_item import make_item
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.requests import CAUSES
from midwatch.domain.session import gate_key
from midwatch.domain.store import Store
from midwatch.domain.task import Task, end, new_task, submit_task
from midwatch.services.tasks import Tasks
from records import KnownAgents, a_goal, a_steer, a_task, an_automation

NOW = 1_700_000_000 * SECOND
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
EARLIER = {"traceparent": "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"}
TERMS = AgentTerms(timeout_seconds=60.0, on_crash="rerun", budget={"tokens": 10})
MEANS = goal.Means({"demo": TERMS, "judge": TERMS})
AUTOMATION = an_automation(NOW, id="am_1", creator="ada", next_run_at=NOW, budget={"usd": 1.0})
GOAL = a_goal(NOW, id="g_1", creator="ada", verifier="judge", max_tokens=5)
HANDOFF = handoff.Handoff(
    id="h_1", status="accepted", request=handoff.HandoffTask(description="do it").data(), created_at=NOW
)
SOURCE = a_task(
    id="t_source",
    session_key="chat:1",
    priority=7,
    creator="ada",
    budget={"tokens": 3},
    trace=EARLIER,
    on_crash="resume",
)


@pytest.fixture
def request_trace() -> Iterator[None]:
    """Handle a request that belongs to a trace."""
    token = incoming.set(TRACE)
    yield
    incoming.reset(token)


def fire(**fields: Any) -> Changes:
    due = an_automation(NOW, id="am_1", creator="ada", next_run_at=NOW, budget={"usd": 1.0}, **fields)
    return automation_step.fire(due, NOW, TERMS, runs=False)


def hand_over(form: handoff.Form) -> Changes:
    task = new_task(NOW - 5, "do it", "coder", cause="handoff", cause_id="h_1", priority=4, root_id="t_root")
    if form == "transfer":
        task = handoff.take_over(task, SOURCE)
    return handoff.start_handoff(HANDOFF, task, NOW)[1]


def leave_message(**fields: Any) -> Changes:
    steer = a_steer(SOURCE, "and this")
    return steering.requeue_steers(SOURCE._replace(**fields), [steer], NOW, closed=False)


def wake(agent: str = "demo", **fields: Any) -> Changes:
    item = make_item("t_source", "t_child", "coder", "ok", "seven", NOW, wake=True)
    return waking.wake_starter(SOURCE._replace(**fields), agent, item, "t_child", NOW)


Case = tuple[Callable[[], Changes], Mapping[str, Any]]
CASES: dict[str, Case] = {
    "submit": (lambda: submit_task(new_task(NOW, "do it", "demo"), NOW), {"cause": "submit"}),
    "priority": (lambda: submit_task(new_task(NOW, "do it", "demo", priority=9), NOW), {"priority": 9}),
    "delay": (
        lambda: submit_task(new_task(NOW, "do it", "demo", delay=SECOND), NOW),
        {"due_at": NOW + SECOND, "wait": "delay"},
    ),
    "retry": (
        lambda: submit_task(new_task(NOW, "do it", "demo", retry_of="t_old", root_id="t_old"), NOW),
        {"retry_of": "t_old", "root_id": "t_old"},
    ),
    "automation": (
        fire,
        {"cause": "automation", "cause_id": "am_1", "creator": "ada", "session_key": "auto:1",
         "timeout_seconds": 60.0, "on_crash": "rerun", "budget": {"tokens": 10, "usd": 1.0}},
    ),
    "automation, later": (lambda: fire(jitter_seconds=100.0), {"cause": "automation", "wait": "delay"}),
    "automation, now": (
        lambda: automation_step.run_now(AUTOMATION, NOW, TERMS)[1],
        {"cause": "automation", "cause_id": "am_1", "internal_key": "am_1@now:0"},
    ),
    "goal": (
        lambda: goal_step.begin(GOAL, "step", NOW, MEANS),
        {"cause": "goal", "cause_id": "g_1", "creator": "ada", "session_key": "goal:1", "max_attempts": 1,
         "timeout_seconds": 60.0, "on_crash": "rerun", "budget": {"tokens": 10}, "account_id": "g_1"},
    ),
    "goal, verify": (
        lambda: goal_step.begin(GOAL, "verify", NOW, MEANS),
        {"cause": "goal", "agent": "judge", "session_key": "goal:g_1|thread:verify-0"},
    ),
    "handoff, delegate": (
        lambda: hand_over("delegate"),
        {"cause": "handoff", "cause_id": "h_1", "priority": 4, "root_id": "t_root", "created_at": NOW - 5},
    ),
    "handoff, transfer": (
        lambda: hand_over("transfer"),
        {"cause": "handoff", "priority": 7, "creator": "ada", "session_key": "chat:1", "parent_id": "t_source",
         "budget": None, "created_at": NOW - 5},
    ),
    "message": (
        leave_message,
        {"cause": "message", "agent": "demo", "session_key": "chat:1", "origin_session": "chat:1",
         "on_crash": "resume", "creator": None, "budget": None, "account_id": "t_source"},
    ),
    "message, to a part of other work": (
        lambda: leave_message(account_id="t_root"), {"budget": {"tokens": 3}, "account_id": "t_root"},
    ),
    "result": (
        wake,
        {"cause": "result", "cause_id": "t_child", "session_key": "chat:1", "parent_id": "t_source", "creator": "ada",
         "root_id": "t_source", "priority": 7, "budget": None, "internal_key": "wake:t_child"},
    ),
    "result, for a part of other work": (
        lambda: wake(account_id="t_root"), {"budget": {"tokens": 3}, "account_id": "t_root"},
    ),
    "result, after a transfer": (lambda: wake("other", account_id="t_root"), {"agent": "other", "budget": None}),
}  # fmt: skip


def get_submission(changes: Changes) -> tuple[Task, Event]:
    """Return the one task of the changes and the one event of its submission."""
    (task,) = [record for record in changes.records if isinstance(record, Task)]
    (submitted,) = [event for event in changes.events if event.kind == "task_submitted"]
    return task, submitted


def test_every_cause_has_test_cases() -> None:
    assert {get_submission(make())[0].cause for make, _ in CASES.values()} == set(CAUSES)


@pytest.mark.parametrize("name", CASES)
def test_the_record_has_the_values_of_its_cause(name: str) -> None:
    make, expected = CASES[name]
    task, _ = get_submission(make())
    assert {field: getattr(task, field) for field in expected} == expected
    assert (task.status, task.attempt, task.gate_key) == ("pending", 0, gate_key(task.session_key))
    assert task.created_at == expected.get("created_at", NOW)
    assert task.root_id == expected.get("root_id", task.parent_id or task.id)
    if not task.wait and task.cause != "message":
        assert task.due_at == task.created_at


@pytest.mark.parametrize("name", CASES)
def test_the_event_matches_the_record(name: str) -> None:
    task, event = get_submission(CASES[name][0]())
    assert event.payload == {
        "prompt": task.prompt, "agent": task.agent, "cause": task.cause, "priority": task.priority,
        "due_at": iso(task.due_at) if task.wait else None, "retry_of": task.retry_of,
    }  # fmt: skip
    assert (event.time, event.task_id, event.session_key) == (NOW, task.id, task.session_key)
    assert (event.agent_id, event.actor, event.attempt) == (task.agent, task.creator, 0)


@pytest.mark.parametrize("name", CASES)
def test_a_task_without_a_request_inherits_the_trace_of_its_source(name: str) -> None:
    task, _ = get_submission(CASES[name][0]())
    assert task.trace == (EARLIER if task.cause in ("message", "result") else None)


@pytest.mark.usefixtures("request_trace")
@pytest.mark.parametrize("name", CASES)
def test_a_task_of_a_request_belongs_to_its_trace(name: str) -> None:
    task, _ = get_submission(CASES[name][0]())
    assert task.trace == (EARLIER if task.cause in ("message", "result") else TRACE)


@pytest.mark.usefixtures("request_trace")
def test_a_message_left_by_a_task_without_a_trace_belongs_to_the_request_that_ended_it() -> None:
    assert get_submission(leave_message(trace=None))[0].trace == TRACE


def test_a_requested_run_records_its_requester() -> None:
    task, changes = automation_step.run_now(AUTOMATION, NOW, TERMS, actor="bob")
    assert [event.actor for event in changes.events] == ["bob", "bob"]
    assert task.creator == "ada"


def test_a_message_keeps_its_place_in_the_queue() -> None:
    steer = a_steer(SOURCE, "and this")
    task, event = get_submission(steering.requeue_steers(SOURCE, [steer], NOW, closed=False))
    assert (task.id, task.due_at, task.wait, event.payload["due_at"]) == (steer.id, steer.created_at, None, None)


async def submitted_events(store: Store) -> list[Event]:
    return await store.read_events(0, EventFilter(kinds=("task_submitted",)))


async def test_the_store_writes_a_task_with_its_event(memory: Store) -> None:
    task = new_task(NOW, "do it", "demo", "chat:1", priority=3, creator="ada", delay=SECOND)
    assert (await memory.submit(task)).task == task
    assert await memory.get_task(task.id) == task
    (event,) = await submitted_events(memory)
    expected = submit_task(task, NOW).events[0]
    assert event._replace(seq=0, id=expected.id) == expected


@pytest.mark.usefixtures("request_trace")
async def test_the_service_keeps_all_requested_values(memory: Store) -> None:
    tasks = Tasks(memory, SystemClock(), KnownAgents("demo"), str)
    first = await tasks.submit("do it", actor="ada", priority=5, session_key="chat:1", cause="message")
    assert (first.priority, first.cause, first.trace, first.root_id) == (5, "message", TRACE, first.id)
    await memory.apply(end(first, SystemClock().now(), outcome="cancelled")[1])
    again = await tasks.retry(first.id, actor="bob")
    field_names = ("prompt", "agent", "session_key", "gate_key", "priority", "cause", "root_id", "trace")
    assert [getattr(again, name) for name in field_names] == [getattr(first, name) for name in field_names]
    assert (again.retry_of, again.creator) == (first.id, "bob")
    submissions = [(event.payload["priority"], event.payload["retry_of"]) for event in await submitted_events(memory)]
    assert submissions == [(5, None), (5, first.id)]


async def test_a_retried_task_stays_in_its_trace(memory: Store) -> None:
    await memory.submit(old := a_task(trace=EARLIER, prompt="do it"))
    await memory.apply(end(old, SystemClock().now(), outcome="cancelled")[1])
    token = incoming.set(TRACE)
    again = await Tasks(memory, SystemClock(), KnownAgents("demo"), str).retry(old.id)
    incoming.reset(token)
    assert again.trace == EARLIER

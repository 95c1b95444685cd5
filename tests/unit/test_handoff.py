"""Test handoffs: the table of statuses, the choice of an agent, the limits, and the effect of the end of a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import HandoffLimit, InvalidInput
from midwatch.domain.agent import AgentCapability, Candidate, best_first
from midwatch.domain.handoff import (
    MAX_INPUT,
    OPEN,
    TRANSITIONS,
    Handoff,
    HandoffTask,
    Limits,
    Link,
    accept_handoff,
    agents_to_avoid,
    cancel_handoff,
    check,
    check_chain,
    expire_handoff,
    fail_handoff,
    refuse_handoff,
    request_handoff,
    settle,
    start_handoff,
    tool_description,
    tool_name,
    transfer_message,
)
from midwatch.domain.handoff_history import HandoffContext
from midwatch.domain.task import Task
from midwatch.services.handoff_deadlines import HandoffDeadlines
from records import a_task

NOW = 1_700_000_000 * SECOND


def a_handoff(**fields: Any) -> Handoff:
    base: dict[str, Any] = {
        "id": "h_1", "from_agent": "lead", "to_agent": "coder", "request": HandoffTask(description="do it").data(),
        "context": HandoffContext().data(), "created_at": NOW, "deadline_at": NOW + 300 * SECOND,
    }  # fmt: skip
    return Handoff(**{**base, **fields})


def test_an_ended_handoff_never_changes() -> None:
    for status, following in TRANSITIONS.items():
        assert (status in OPEN) == bool(following)
    assert all(TRANSITIONS[status] >= {"cancelled", "expired", "failed"} for status in OPEN)


# -- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("Code Review", "transfer_to_code_review"),
        ("a-b", "transfer_to_a_b"),
        ("größe.2", "transfer_to_gr__e_2"),
        ("  ", "transfer_to_agent"),
    ],
)
def test_the_tool_name_is_derived_from_the_agent(agent: str, name: str) -> None:
    assert tool_name(agent) == name


def test_tool_names_can_be_set() -> None:
    assert tool_name("coder", "  ask_coder ") == "ask_coder"
    assert tool_name("coder", "  ") == "transfer_to_coder"
    assert tool_description("coder", " Knows code ") == "Knows code"
    assert tool_description("coder", about="Writes Python.") == (
        "Handoff to the coder agent to handle the request. Writes Python."
    )
    assert tool_description(" ") == "Handoff to another agent to handle the request."
    assert transfer_message("coder") == '{"assistant":"coder"}'


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (HandoffTask(description="sum it", input="1 2"), "sum it\n\n1 2"),
        (HandoffTask(description="same", input=" same "), "same"),
        (HandoffTask(input={"a": 1}), '{\n  "a": 1\n}'),
        (HandoffTask(input=0), "0"),
        (HandoffTask(type="x"), ""),
    ],
)
def test_the_prompt_of_a_handoff_repeats_nothing(task: HandoffTask, words: str) -> None:
    assert task.words() == words


# -- choice ------------------------------------------------------------------------------------------------------


def can(priority: int, *types: str) -> AgentCapability:
    return AgentCapability(name="c", task_types=types, priority=priority)


CREW = (
    Candidate("any", (can(1),), place=0),
    Candidate("busy", (can(5, "code"),), open=2, place=1),
    Candidate("free", (can(5, "code"), can(99, "art")), place=2),
    Candidate("later", (can(5, "code"),), place=3),
    Candidate("none", (), place=4),
    Candidate("low", (can(-7, "code"),), place=5),
)


@pytest.mark.parametrize(
    ("task_type", "without", "chosen"),
    [
        ("code", (), ["free", "later", "busy", "any", "low"]),
        ("code", ("free", "any"), ["later", "busy", "low"]),
        ("art", (), ["free", "any"]),
        ("", (), ["any"]),
        ("cooking", ("any",), []),
    ],
)
def test_the_best_capable_agent_is_chosen(task_type: str, without: tuple[str, ...], chosen: list[str]) -> None:
    assert best_first(CREW, task_type, frozenset(without)) == chosen
    assert best_first(reversed(CREW), task_type, frozenset(without)) == chosen


A, B, C = Link("a"), Link("b", "h1"), Link("c", "h2")


@pytest.mark.parametrize(
    ("chain", "to", "limits", "problem"),
    [
        ((), "a", Limits(), None),
        ((A,), "b", Limits(), None),
        ((A,), "a", Limits(), "to itself"),
        ((A, B), "a", Limits(), None),  # back to the agent it came from
        ((A, B, C), "a", Limits(), "already had this work"),
        ((A, B, C), "a", Limits(revisits=1), None),
        ((A, B, C), "d", Limits(depth=2), "2 times in a row"),
        ((A, B, C), "d", Limits(depth=3), None),
    ],
)
def test_the_depth_of_handoffs_is_limited(
    chain: tuple[Link, ...], to: str, limits: Limits, problem: str | None
) -> None:
    if problem is None:
        check_chain(chain, to, 0, limits)
        return
    with pytest.raises((HandoffLimit, InvalidInput), match=problem):
        check_chain(chain, to, 0, limits)


def test_ping_pong_and_fan_out_are_limited() -> None:
    chain: tuple[Link, ...] = (Link("a"),)
    with pytest.raises(HandoffLimit, match="a → b → a → b"):
        for hop in range(100):
            to = "b" if chain[-1].agent == "a" else "a"
            check_chain(chain, to, hop, Limits(depth=3))
            chain = (*chain, Link(to, f"h{hop}"))
    with pytest.raises(HandoffLimit, match="64 handoffs"):
        check_chain((A,), "b", 64, Limits())


def test_an_agent_that_had_the_work_is_not_chosen_again() -> None:
    assert agents_to_avoid((A, B, C), Limits()) == {"a", "b", "c"}
    assert agents_to_avoid((A, B, A, C), Limits(revisits=1)) == {"a", "c"}
    assert agents_to_avoid((), Limits()) == frozenset()


# -- steps -------------------------------------------------------------------------------------------------------


def nested_in_itself() -> list[Any]:
    nested_list: list[Any] = []
    nested_list.append(nested_list)
    return nested_list


def nested_deep() -> list[Any]:
    nested_list: list[Any] = []
    for _ in range(100_000):
        nested_list = [nested_list]
    return nested_list


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 21}, "max_retries"),
        ({"request": HandoffTask()}, "task"),
        ({"request": HandoffTask(input="x" * (MAX_INPUT + 1))}, "task"),
        ({"request": HandoffTask(input="x", metadata={"a": object()})}, "task"),
        ({"timeout": 1e12}, "timeout"),
        ({"timeout": "10"}, "timeout"),
        ({"max_retries": None}, "max_retries"),
        ({"request": HandoffTask(input={1, 2})}, "task"),
        ({"request": HandoffTask(input=float("nan"))}, "task"),
        ({"request": HandoffTask(input=nested_in_itself())}, "task"),
        ({"request": HandoffTask(input=nested_deep())}, "task"),
        ({"request": HandoffTask(input=["a\0b"])}, "task"),
        ({"request": HandoffTask(description="half \ud800")}, "task"),
        ({"request": HandoffTask(description=None)}, "task"),  # type: ignore[arg-type]
        ({"request": HandoffTask(description="x", priority=101)}, "task"),
        ({"request": {"description": "x"}}, "task"),
        ({"context": HandoffContext(messages=({"content": "x"},))}, "context"),
    ],
)
def test_invalid_values_are_refused(fields: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {
        "request": HandoffTask(input="x"), "context": HandoffContext(), "timeout": 5.0, "max_retries": 0,
    }  # fmt: skip
    check(**good)
    check(**{**good, "request": HandoffTask(input=r"what is written \u0000 is no NUL")})
    with pytest.raises(InvalidInput) as caught:
        check(**{**good, **fields})
    assert caught.value.field == field


def test_each_step_has_one_event_and_a_guard() -> None:
    handoff = a_handoff()
    assert [event.kind for event in request_handoff(handoff, NOW).events] == ["handoff_requested"]
    accepted, step = accept_handoff(handoff, NOW + 1)
    assert (accepted.status, accepted.accepted_at, accepted.revision) == ("accepted", NOW + 1, 1)
    assert step.updates[0].guard == {"status": "pending", "revision": 0}
    task = a_task(cause="handoff", cause_id="h_1")
    running, step = start_handoff(accepted, task, NOW + 2)
    assert (running.status, running.task_id, running.owner) == ("in_progress", task.id, None)
    assert step.records == (task,)
    for move in (
        lambda: fail_handoff(running, "no", NOW),
        lambda: cancel_handoff(running, "no", NOW),
        lambda: expire_handoff(running, NOW),
    ):
        after, step = move()
        assert not after.open
        assert after.completed_at == NOW
        assert len(step.events) == 1


def test_a_refusal_tries_the_next_agent_or_ends_the_handoff() -> None:
    handoff = a_handoff()
    following, step = refuse_handoff(handoff, "busy", NOW, "painter")
    assert (following.status, following.to_agent, following.tool_name) == ("pending", "painter", "transfer_to_painter")
    assert step.events[0].payload["following"] == "painter"
    over, _ = refuse_handoff(following, "away", NOW)
    assert (over.status, [refusal["agent"] for refusal in over.refusals]) == ("rejected", ["coder", "painter"])


def make_ended_task(handoff: Handoff, **fields: Any) -> Task:
    return a_task(id=handoff.task_id, cause="handoff", cause_id=handoff.id)._replace(**fields)


@pytest.mark.parametrize(
    ("fields", "status", "answer"),
    [
        ({"status": "done", "outcome": "ok", "result": "42"}, "completed", ("42", None)),
        ({"status": "failed", "outcome": "error", "error": "broke"}, "failed", (None, "broke")),
        ({"status": "failed", "outcome": "timeout"}, "failed", (None, "timeout")),
        ({"status": "cancelled", "outcome": "cancelled"}, "cancelled", None),
        ({"status": "pending", "wait": "backoff", "failures": 1}, "in_progress", None),
    ],
)
def test_the_end_of_its_task_ends_the_handoff(fields: dict[str, Any], status: str, answer: Any) -> None:
    handoff = a_handoff(status="in_progress", task_id="t_1", accepted_at=NOW)
    (update,) = settle(handoff, make_ended_task(handoff, **fields), NOW + SECOND).updates
    assert update.fields["status"] == status
    stored_answer = update.fields.get("answer")
    assert (stored_answer and (stored_answer["output"], stored_answer["error"])) == answer
    assert update.fields.get("retry_count", 0) == fields.get("failures", 0)
    (tried,) = update.fields["tries"]
    assert (tried["outcome"], tried["error"]) == (fields.get("outcome", "error"), fields.get("error"))


def test_a_late_result_is_kept_and_changes_nothing() -> None:
    handoff, _ = expire_handoff(a_handoff(status="in_progress", task_id="t_1"), NOW)
    step = settle(handoff, make_ended_task(handoff, status="done", outcome="ok", result="too late"), NOW)
    (update,) = step.updates
    assert "status" not in update.fields
    assert update.fields["late"]["output"] == "too late"
    assert step.events == ()


def test_the_end_of_another_task_changes_nothing() -> None:
    handoff = a_handoff(status="in_progress", task_id="t_1")
    assert settle(handoff, a_task(id="t_2"), NOW).updates == ()


def test_json_has_the_names_of_agentflow() -> None:
    shown = a_handoff(chain=(("lead", None),)).snapshot()
    assert {
        "id", "from_agent_id", "to_agent_id", "tool_name", "tool_description", "transfer_message", "task", "status",
        "context", "result", "created_at", "accepted_at", "completed_at", "timeout", "retry_count", "max_retries",
    } <= set(shown)  # fmt: skip
    assert shown["chain"] == [{"agent": "lead", "handoff": None}]
    assert set(shown["task"]) == {"type", "description", "input", "priority", "metadata"}
    assert set(shown["context"]) == {"conversation_id", "messages", "variables", "parent_handoff"}


@pytest.mark.parametrize("broken", ["get_handoff", "find_due_handoff"])
async def test_the_time_limit_holds_even_if_the_handoff_cannot_be_read(
    caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """Once any error other than StoreError ended the time limit."""

    class BrokenStore:
        async def get_handoff(self, handoff_id: str) -> Handoff:
            if broken == "get_handoff":
                raise ValueError("the record cannot be read")
            return handoff

        async def find_due_handoff(self, handoff_id: str, now: int) -> Handoff:
            raise ValueError("the record cannot be read")

    clock = SystemClock()
    handoff = a_handoff(deadline_at=clock.now() + SECOND // 10)
    limited = HandoffDeadlines(BrokenStore(), clock).limit(handoff, stored=True)  # type: ignore[arg-type]  # no more
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60), limited:
            await asyncio.Event().wait()
    assert "whether handoff h_1 is due cannot be read any more" in caplog.text

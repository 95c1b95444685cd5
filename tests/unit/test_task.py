"""Test tasks: the tables, the texts, the pure functions, and the service in every status of a task."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import (
    AlreadyFinished,
    Conflict,
    InvalidInput,
    KeyReused,
    LimitReached,
    NotFinished,
    NotFound,
    UnknownAgent,
)
from midwatch.domain.agent import AgentTerms
from midwatch.domain.backoff import retry_delay
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import EventFilter
from midwatch.domain.notice import start_notice
from midwatch.domain.store import Store
from midwatch.domain.task import (
    OPEN,
    STATUS_OF,
    STATUSES,
    TRANSITIONS,
    TRIES,
    Outcome,
    Status,
    Stop,
    Task,
    end,
    guard_ownership,
)
from midwatch.domain.task_store import TaskFilter
from midwatch.services.tasks import Limits, Tasks
from records import CLOCK, a_task, claim_request, claim_tasks, fence, submit_and_claim

NOW = 1_700_000_000 * SECOND


class AgentRegistry:
    """A registry with two local agents, of which one is live, and one agent of another process."""

    default = "demo"

    def __init__(self) -> None:
        self.alive = {"demo", "theirs"}

    def advice(self, agent: str) -> str | None:
        return None

    def terms(self, agent: str) -> AgentTerms | None:
        return {
            "demo": AgentTerms(),
            "odd": AgentTerms(timeout_seconds=None, on_crash="resume", max_attempts=7),
        }.get(agent)

    def local_names(self) -> frozenset[str]:
        return frozenset()

    async def find_advertised(self, agent: str) -> AgentTerms | None:
        return AgentTerms() if agent in await self.live() else None

    async def live(self) -> frozenset[str]:
        return frozenset(self.alive)


def check_console_route(route: str) -> str:
    if not route.startswith("console"):
        raise InvalidInput("no such channel.", field="route")
    return route


@pytest.fixture
def registry() -> AgentRegistry:
    return AgentRegistry()


@pytest.fixture
def tasks(memory: Store, registry: AgentRegistry) -> Tasks:
    return Tasks(memory, SystemClock(), registry, check_console_route, Limits(max_open=3), submitter="i_me")


# -- tables ------------------------------------------------------------------------------------------------------


def test_every_status_has_transitions_and_final_ones_have_none() -> None:
    assert set(TRANSITIONS) == set(STATUSES) == set(get_args(Status))
    assert {status for status, after in TRANSITIONS.items() if after} == OPEN
    for after in TRANSITIONS.values():
        assert after <= set(STATUSES)


def test_every_outcome_ends_a_running_task() -> None:
    assert set(STATUS_OF) == set(get_args(Outcome))
    for status in STATUS_OF.values():
        assert status not in OPEN
        assert status in TRANSITIONS["running"]
    assert set(STATUS_OF.values()) == set(STATUSES) - OPEN


def test_a_pending_task_ends_only_by_a_cancel() -> None:
    assert TRANSITIONS["pending"] - {"running"} == {"cancelled"}
    assert [outcome for outcome, status in STATUS_OF.items() if status == "cancelled"] == ["cancelled"]


CLAIMABLE = st.lists(
    st.builds(
        lambda cause, priority, due: a_task(cause=cause, priority=priority, due_at=due),
        st.sampled_from(["submit", "message", "automation", "goal", "handoff"]),
        st.integers(-100, 100),
        st.integers(0, 5),
    ),
    max_size=30,
)


def documented_order(task: Task) -> tuple[Any, ...]:
    """Return the documented claim order: messages of people, then priority, due time, id."""
    return (task.cause != "message", -task.priority, task.due_at, task.id)


@given(CLAIMABLE)
def test_messages_rank_first_then_priority(found: list[Task]) -> None:
    assert sorted(found, key=lambda t: (t.rank, t.due_at, t.id)) == sorted(found, key=documented_order)


async def test_the_store_claims_by_rank(memory: Store) -> None:
    shuffle = random.Random(7)
    new_tasks = [
        a_task(
            cause=shuffle.choice(["submit", "message", "automation"]), priority=shuffle.choice([-100, -1, 0, 1, 100]),
            due_at=NOW + shuffle.randrange(3),
        )
        for _ in range(80)
    ]  # fmt: skip
    for task in new_tasks:
        await memory.submit(task)
    claimed_ids: list[str] = []
    for free in (1, 7, 100):
        claimed_ids += [task.id for task in await claim_tasks(memory, free, agents={"demo": 100})]
    assert claimed_ids == [task.id for task in sorted(new_tasks, key=documented_order)]


# -- snapshots and texts -----------------------------------------------------------------------------------------

TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"status": "pending"}, "pending"),
    ({"status": "running"}, "running"),
    ({"status": "pending", "wait": "delay", "due_at": NOW}, "pending: waits for its time until 2023-11-14T22:13:20"),
    ({"status": "pending", "wait": "backoff", "due_at": NOW}, "pending: waits before the next try until 2023-"),
    ({"status": "pending", "wait": "limit", "due_at": NOW}, "pending: waits for the end of a usage limit until"),
    ({"status": "pending", "wait": "session"}, "pending: waits for its session's running task"),
    ({"status": "pending", "wait": "slot"}, "pending: waits for a free slot"),
    ({"status": "pending", "wait": "agent", "agent": "a{b}c"}, "pending: no live process has agent 'a{b}c'"),
    ({"status": "pending", "wait": "something new"}, "pending: something new"),
    ({"status": "running", "wait": "approval"}, "running: waits for an answer"),
    ({"status": "running", "stop_requested": "cancel", "wait": "approval"}, "running: stopping (cancel)"),
    ({"status": "done", "wait": "delay", "stop_requested": "cancel"}, "done"),
    ({"status": "failed", "outcome": "timeout"}, "failed"),
    ({"status": "cancelled"}, "cancelled"),
]


@pytest.mark.parametrize(("fields", "text"), TEXTS)
def test_a_status_is_described_in_words(fields: dict[str, Any], text: str) -> None:
    shown = a_task(**fields).status_text
    assert shown.startswith(text)
    assert ("until" in shown) == ("until" in text)


@pytest.mark.parametrize("stop", get_args(Stop))
def test_every_stop_request_is_shown_while_the_task_runs(stop: Any) -> None:
    assert stop in a_task(status="running", stop_requested=stop).status_text


def test_a_snapshot_shows_the_documented_fields_and_no_secret() -> None:
    task = a_task(
        token_hash="SECRET", body_hash="SECRET", lease_owner="SECRET", pgid_mark="SECRET", idempotency_key="SECRET",
        submitter="SECRET", progress="SECRET", route="webhook:https://example.org/SECRET",
    )  # fmt: skip
    shown = task.snapshot()
    assert shown["route"] == "webhook"
    assert {
        "id", "status", "status_text", "outcome", "prompt", "result", "error", "agent", "session_key",
        "origin_channel", "origin_session", "attempt", "started_at", "completed_at", "tokens_used",
    } <= set(shown)  # fmt: skip
    assert "SECRET" not in str(shown)
    assert shown["created_at"].endswith("Z") and shown["started_at"] is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, None),
        ({}, None),
        ({"cost_usd": 0.1}, None),
        ({"input_tokens": 0}, 0),
        ({"input_tokens": 3, "output_tokens": None}, 3),
        ({"input_tokens": 3, "output_tokens": 4}, 7),
    ],
)
def test_unknown_tokens_are_shown_as_unknown(usage: dict[str, Any] | None, tokens: int | None) -> None:
    assert a_task(usage=usage).tokens_used == tokens


# -- pure functions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_end_is_pure_and_guards_the_known_state(outcome: Any) -> None:
    task = a_task(status="running", attempt=2, stop_requested="yield", lease_owner="i", pgid=3, token_hash="x")
    before = tuple(task)
    ended_task, changes = end(task, NOW, outcome=outcome, result="r", error="e")
    assert tuple(task) == before
    (update,) = changes.updates
    assert update.guard == {"status": "running", "attempt": 2, "stop_requested": "yield", "steers": 0}
    assert (ended_task.status, ended_task.outcome, ended_task.completed_at) == (STATUS_OF[outcome], outcome, NOW)
    assert (ended_task.lease_owner, ended_task.pgid, ended_task.token_hash, ended_task.wait) == (None, None, None, None)
    assert {name: getattr(ended_task, name) for name in update.fields} == dict(update.fields)
    (event,) = changes.events
    assert (event.kind, event.payload["status"], event.payload["outcome"]) == (
        "task_finished",
        ended_task.status,
        outcome,
    )
    again = end(task, NOW, outcome=outcome, result="r", error="e")
    assert again[0] == ended_task
    assert again[1].updates == changes.updates


def test_earlier_usage_is_kept_when_the_end_reports_none() -> None:
    task = a_task(status="running", usage={"input_tokens": 3})
    assert end(task, NOW, outcome="ok")[0].usage == {"input_tokens": 3}
    assert end(task, NOW, outcome="ok", usage={"input_tokens": 5})[0].usage == {"input_tokens": 5}


NOTICES = [
    ("ok", "result", None, "done", "Done: do it\nresult\nFull result: midwatch result {id}"),
    ("transferred", "there", None, "done", "Done: do it\nthere\nFull result: midwatch result {id}"),
    ("error", None, "boom", "failed", "Failed: do it\nboom\nTry again: midwatch retry {id}"),
    ("timeout", None, "too long", "timed_out", "Timed out: do it\ntoo long\nTry again: midwatch retry {id}"),
    ("lost", None, "crash", "failed", "Failed: do it\ncrash\nTry again: midwatch retry {id}"),
    ("budget", None, "spent", "failed", "Failed: do it\nspent\nTry again: midwatch retry {id} --budget MORE"),
    ("cancelled", None, None, "cancelled", "Cancelled: do it\nTry again: midwatch retry {id}"),
]


@pytest.mark.parametrize(("outcome", "result", "error", "notice", "text"), NOTICES)
def test_the_route_gets_a_notice_of_the_end(outcome: Any, result: Any, error: Any, notice: str, text: str) -> None:
    task = a_task(status="running", route="webhook:https://example.org/hook")
    (delivery,) = end(task, NOW, outcome=outcome, result=result, error=error)[1].deliveries
    assert (delivery.notice, delivery.channel, delivery.target) == (notice, "webhook", "https://example.org/hook")
    assert delivery.text == text.format(id=task.id)
    assert (delivery.due_at, delivery.status) == (NOW, "pending")


def test_a_silent_outcome_or_a_missing_route_sends_no_notice() -> None:
    assert end(a_task(status="running", route="console"), NOW, outcome="silent")[1].deliveries == ()
    assert end(a_task(status="running"), NOW, outcome="ok")[1].deliveries == ()
    assert start_notice(a_task(), NOW) == ()


def test_long_texts_are_truncated_in_notices_and_complete_in_the_record() -> None:
    task = a_task(status="running", route="console", prompt="p" * 1000)
    ended_task, changes = end(task, NOW, outcome="ok", result="r" * 10_000)
    (delivery,) = changes.deliveries
    assert len(delivery.text) < 700
    assert ended_task.result is not None and len(ended_task.result) == 10_000
    (started,) = start_notice(task._replace(notices="all"), NOW)
    assert started.notice == "started" and len(started.text) < 150


def test_the_result_is_posted_to_its_session_or_origin() -> None:
    private = a_task(status="running", origin_session="chat:9")
    assert [(m.session_key, m.role) for m in end(private, NOW, outcome="ok", result="x")[1].messages] == [
        ("chat:9", "result")
    ]
    talk = a_task(status="running", attempt=1, session_key="chat:1", origin_session="chat:1")
    assert [(m.session_key, m.role) for m in end(talk, NOW, outcome="ok", result="x")[1].messages] == [
        ("chat:1", "agent")
    ]
    (failed,) = end(talk, NOW, outcome="timeout", error="too long")[1].messages
    assert failed.text == "[failed: timeout] too long"
    assert end(talk, NOW, outcome="silent", result="x")[1].messages == ()
    retried = a_task(status="running", id="t_2", session_key="bg:t_1", retry_of="t_1")
    assert end(retried, NOW, outcome="ok", result="x")[1].messages == ()


@given(st.integers(1, 100))
def test_pauses_double_with_jitter_up_to_a_limit(failures: int) -> None:
    plain = min(300.0, 2.0 * 2 ** (failures - 1))
    assert all(plain * 0.5 <= retry_delay(failures) <= plain * 1.5 for _ in range(5))


# -- submit ------------------------------------------------------------------------------------------------------


async def test_a_task_inherits_its_agents_terms_by_default(tasks: Tasks) -> None:
    plain = await tasks.submit("x", agent="odd")
    assert (plain.timeout_seconds, plain.on_crash, plain.max_attempts) == (None, "resume", 7)
    task = await tasks.submit("x", agent="odd", timeout=3, on_crash="fail", max_attempts=1)
    assert (task.timeout_seconds, task.on_crash, task.max_attempts) == (3, "fail", 1)
    default = await tasks.submit("x")
    assert (default.agent, default.session_key, default.gate_key) == ("demo", f"bg:{default.id}", f"bg:{default.id}")
    assert (default.status, default.attempt, default.root_id, default.submitter) == ("pending", 0, default.id, "i_me")


async def test_a_delayed_task_is_due_later_and_reports_it(tasks: Tasks, memory: Store) -> None:
    task = await tasks.submit("x", delay=90.5)
    assert (task.wait, task.due_at - task.created_at) == ("delay", 90_500_000)
    (event,) = await memory.read_events(0)
    assert event.payload["due_at"] is not None
    assert (await tasks.get(task.id)).status_text.startswith("pending: waits for its time until")


async def test_a_refused_task_writes_nothing(tasks: Tasks, memory: Store) -> None:
    for prompt, options, problem in (
        ("", {}, InvalidInput),
        ("x", {"agent": "nobody"}, UnknownAgent),
        ("x", {"session_key": " "}, InvalidInput),
        ("x", {"session_key": "a\nb"}, InvalidInput),
        ("x", {"route": "pigeon"}, InvalidInput),
        ("x", {"timeout": -1.0}, InvalidInput),
    ):
        with pytest.raises(problem) as caught:
            await tasks.submit(prompt, **options)  # type: ignore[arg-type]
        assert caught.value.field
    assert (await memory.count_tasks()).total == 0
    assert await memory.read_events(0) == []


@pytest.mark.parametrize("field", ["session_key", "origin_session"])
async def test_the_private_session_of_a_task_cannot_be_used_by_another(tasks: Tasks, field: str) -> None:
    """Otherwise the task would block it, continue its thread, or post messages there."""
    other_task = await tasks.submit("x")
    for key in (other_task.session_key, f" {other_task.session_key}|message:1", "bg:anything"):
        with pytest.raises(InvalidInput, match="private") as caught:
            await tasks.submit("y", **{field: key})  # type: ignore[arg-type]
        assert caught.value.field == field
    await tasks.cancel(other_task.id)
    assert (await tasks.retry(other_task.id)).session_key == other_task.session_key


async def test_an_agent_of_another_process_is_known(tasks: Tasks) -> None:
    assert (await tasks.submit("x", agent="theirs")).timeout_seconds == AgentTerms().timeout_seconds


async def test_an_unknown_agent_is_refused_with_the_known_ones(tasks: Tasks) -> None:
    with pytest.raises(UnknownAgent, match="demo") as caught:
        await tasks.submit("x", agent="nobody")
    assert caught.value.field == "agent"


async def test_keys_and_limits_are_checked(tasks: Tasks) -> None:
    first = await tasks.submit("x", idempotency_key="k", actor="me")
    assert await tasks.submit("x", idempotency_key="k", actor="me") == first
    with pytest.raises(KeyReused, match=first.id):
        await tasks.submit("y", idempotency_key="k", actor="me")
    assert (await tasks.submit("x", idempotency_key="k", actor="you")).id != first.id
    await tasks.submit("third")
    with pytest.raises(LimitReached, match="3 tasks are open already"):
        await tasks.submit("fourth")
    assert (await tasks.submit("x", idempotency_key="k", actor="me")).id == first.id
    assert (await tasks.submit("never refused", cause="automation")).cause == "automation"
    assert (await tasks.active_count(), (await tasks.summary()).total) == (4, 4)


# -- reading -----------------------------------------------------------------------------------------------------


async def test_the_reason_a_task_waits_is_computed(tasks: Tasks, registry: AgentRegistry, memory: Store) -> None:
    first = await tasks.submit("x", session_key="chat:1")
    assert (await tasks.get(first.id)).wait == "slot"
    await claim_tasks(memory)
    second = await tasks.submit("x", session_key="chat:1|message:2")
    assert (await tasks.get(second.id)).wait == "session"
    assert (await tasks.get(first.id)).wait is None
    registry.alive.clear()
    assert (await tasks.status(second.id)).wait == "agent"
    assert [(t.id, t.wait) for t in await tasks.list()] == [(second.id, "agent"), (first.id, None)]
    with pytest.raises(NotFound, match="t_none"):
        await tasks.get("t_none")


async def test_a_list_shows_the_same_status_as_a_single_read(tasks: Tasks) -> None:
    task = await tasks.submit("x", agent="odd", delay=60)  # known here, but no live process has it
    (listed,) = await tasks.list()
    assert listed.status_text == (await tasks.get(task.id)).status_text


@pytest.mark.parametrize("limit", [0, -1, 501])
async def test_a_list_has_a_maximum_length(tasks: Tasks, limit: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        await tasks.list(TaskFilter(limit=limit))
    assert caught.value.field == "limit"


async def test_only_a_done_task_has_a_result(tasks: Tasks, memory: Store) -> None:
    async def ended(outcome: Any, **fields: Any) -> str:
        task = await submit_and_claim(memory)
        await memory.apply(end(task, CLOCK.now(), outcome=outcome, **fields)[1])
        return await tasks.result(task.id)

    assert await ended("ok", result="x" * 100_000) == "x" * 100_000
    assert await ended("silent") == ""
    with pytest.raises(NotFinished, match=r"boom\. Try again with `midwatch retry t_"):
        await ended("error", error="boom")
    with pytest.raises(NotFinished, match="cancelled"):
        await ended("cancelled")
    waiting = await tasks.submit("x")
    with pytest.raises(NotFinished, match="pending and has no result"):
        await tasks.result(waiting.id)


# -- cancel ------------------------------------------------------------------------------------------------------


async def test_cancelling_twice_is_harmless(tasks: Tasks, memory: Store) -> None:
    waiting = await tasks.submit("x")
    assert (await tasks.cancel(waiting.id, actor="me")).status == "cancelled"
    with pytest.raises(AlreadyFinished, match="already cancelled"):
        await tasks.cancel(waiting.id)
    busy = await submit_and_claim(memory)
    first = await tasks.cancel(busy.id)
    assert (first.status, first.stop_requested) == ("running", "cancel")
    assert await tasks.cancel(busy.id) == first
    (event,) = await memory.read_events(0, EventFilter(kinds=("task_finished",)))
    assert (event.task_id, event.actor) == (waiting.id, "me")


async def test_a_cancel_overrides_a_yield(tasks: Tasks, memory: Store) -> None:
    busy = await submit_and_claim(memory)
    await memory.apply(Changes(updates=(Update("task", busy.id, {"stop_requested": "yield"}, guard_ownership(busy)),)))
    assert (await tasks.cancel(busy.id)).stop_requested == "cancel"


async def test_the_actor_who_cancelled_a_running_task_is_recorded(tasks: Tasks, memory: Store) -> None:
    busy = await submit_and_claim(memory)
    await tasks.cancel(busy.id, actor="me")
    assert await memory.read_events(0, EventFilter(actor="me", task_id=busy.id)) != []


class ChangingStore:
    """A store whose task changes between each read and the following write, a given number of times."""

    def __init__(self, task: Task, conflicts: int, meanwhile: Callable[[Task], Task] = lambda task: task) -> None:
        self.task = task
        self.conflicts = conflicts
        self.tried: list[Changes] = []
        self._meanwhile = meanwhile

    async def get_task(self, task_id: str) -> Task | None:
        return self.task

    async def apply(self, changes: Changes) -> None:
        self.tried.append(changes)
        if len(self.tried) <= self.conflicts:
            self.task = self._meanwhile(self.task)
            raise Conflict("changed meanwhile")


def on(store: ChangingStore) -> Tasks:
    return Tasks(store, SystemClock(), AgentRegistry(), check_console_route)  # type: ignore[arg-type]


async def test_a_cancel_that_always_conflicts_fails_after_five_tries() -> None:
    store = ChangingStore(a_task(), conflicts=99)
    with pytest.raises(Conflict, match="keeps changing; try again"):
        await on(store).cancel(store.task.id)
    assert len(store.tried) == TRIES == 5


async def test_a_cancel_that_conflicts_four_times_succeeds() -> None:
    store = ChangingStore(a_task(), conflicts=4)
    assert (await on(store).cancel(store.task.id)).status == "cancelled"
    assert len(store.tried) == 5


async def test_a_cancel_that_races_with_the_start_stops_the_task() -> None:
    store = ChangingStore(a_task(), 1, lambda task: task._replace(status="running", attempt=1))
    after = await on(store).cancel(store.task.id)
    assert (after.status, after.stop_requested) == ("running", "cancel")
    (update,) = store.tried[-1].updates
    assert (dict(update.fields), update.guard["attempt"]) == ({"stop_requested": "cancel"}, 1)


async def test_a_cancel_that_races_with_the_end_reports_it() -> None:
    store = ChangingStore(a_task(status="running"), 1, lambda task: task._replace(status="done"))
    with pytest.raises(AlreadyFinished, match="already done"):
        await on(store).cancel(store.task.id)
    assert len(store.tried) == 1


# -- retry -------------------------------------------------------------------------------------------------------


async def test_only_failed_or_cancelled_tasks_can_be_retried(tasks: Tasks, memory: Store) -> None:
    with pytest.raises(NotFound):
        await tasks.retry("t_none")
    waiting = await tasks.submit("x")
    with pytest.raises(Conflict, match=f"still pending; first cancel it with `midwatch cancel {waiting.id}`"):
        await tasks.retry(waiting.id)
    busy = await submit_and_claim(memory)
    with pytest.raises(Conflict, match="still running"):
        await tasks.retry(busy.id)
    await memory.apply(end(busy, CLOCK.now(), outcome="ok", result="x")[1])
    with pytest.raises(Conflict, match="is done and cannot be retried"):
        await tasks.retry(busy.id)
    assert (await memory.count_tasks()).total == 2


async def test_a_retry_is_a_new_task_with_the_same_options_and_progress(tasks: Tasks, memory: Store) -> None:
    first = await tasks.submit(
        "x", session_key="chat:1", route="console", priority=9, timeout=5, on_crash="resume", actor="me",
        origin_session="chat:2", idempotency_key="k", budget={"tokens": 9},
    )  # fmt: skip
    (claimed_task,) = await claim_tasks(memory)
    await memory.apply(
        Changes(fence=fence(claimed_task), updates=(Update("task", claimed_task.id, {"progress": {"step": 2}}),))
    )
    current = await memory.get_task(first.id)
    assert current is not None
    await memory.apply(end(current, CLOCK.now(), outcome="error", error="boom")[1])
    again = await tasks.retry(first.id, actor="you")
    old = await tasks.get(first.id)
    same = (
        "prompt", "agent", "session_key", "gate_key", "route", "priority", "timeout_seconds", "on_crash",
        "max_attempts", "origin_session", "progress", "budget", "root_id", "cause",
    )  # fmt: skip
    assert {name: getattr(again, name) for name in same} == {name: getattr(old, name) for name in same}
    assert (again.status, again.attempt, again.failures, again.retry_of) == ("pending", 0, 0, first.id)
    assert (again.creator, again.result, again.error, again.idempotency_key) == ("you", None, None, None)
    await tasks.cancel(again.id)
    third = await tasks.retry(again.id)
    assert (third.retry_of, third.root_id, third.creator) == (first.id, first.id, "you")


async def test_max_open_does_not_limit_retries(tasks: Tasks) -> None:
    first = await tasks.submit("x")
    await tasks.cancel(first.id)
    for _ in range(3):
        await tasks.submit("x")
    assert (await tasks.retry(first.id)).status == "pending"


async def test_a_retry_needs_its_agent(tasks: Tasks, memory: Store) -> None:
    task = a_task(agent="gone")
    await memory.submit(task)
    await tasks.cancel(task.id)
    with pytest.raises(UnknownAgent, match="gone"):
        await tasks.retry(task.id)


# -- an outdated end ---------------------------------------------------------------------------------------------


async def test_an_end_computed_before_a_stop_request_is_refused(memory: Store, tasks: Tasks) -> None:
    busy = await submit_and_claim(memory)
    computed = end(busy, CLOCK.now(), outcome="ok", result="x")[1]
    await tasks.cancel(busy.id)
    with pytest.raises(Conflict):
        await memory.apply(computed._replace(fence=fence(busy)))
    assert (await memory.claim(claim_request(), CLOCK.now())).taken == []

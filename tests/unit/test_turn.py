"""Test the turn: events are stored in order and once, whatever the store does; progress and questions follow them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import AgentError, Conflict, InvalidInput, LeaseLost, LimitReached, StoreUnavailable
from midwatch.domain.agent import Choice, Question
from midwatch.domain.approval import Approval, resolve
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import (
    KINDS,
    Event,
    EventFilter,
    LlmRequest,
    LlmResponse,
    MessageDelta,
    MessageUpdate,
    TaskProgress,
    ToolExecEnd,
    ToolExecStart,
)
from midwatch.domain.rule import Decision, Judge, Ruling
from midwatch.domain.session import Message
from midwatch.domain.store import Store
from midwatch.domain.task import Task, guard_ownership
from midwatch.domain.task_store import Claim
from midwatch.running.host import Host
from midwatch.running.run import Run
from midwatch.running.slots import Slots
from midwatch.running.turn import LiveTurn
from midwatch.running.turn_log import MOST_UNWRITTEN
from midwatch.services.approvals import Approvals
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import RecordingTurn, settle
from records import a_steer, a_task, submit_and_claim


class UnreliableStore:
    """A store whose writes can be delayed or refused a number of times."""

    def __init__(self, store: Store) -> None:
        self.real = store
        self.open = asyncio.Event()
        self.open.set()
        self.refuse = 0
        self.applied: list[Changes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def apply(self, changes: Changes) -> None:
        await self.open.wait()
        if self.refuse > 0:
            self.refuse -= 1
            raise StoreUnavailable("the disk is full")
        self.applied.append(changes)
        await self.real.apply(changes)


class AnsweringApprovals(Approvals):
    """Approvals where each question is answered as soon as it is read."""

    status: Any = "granted"

    async def get(self, approval_id: str) -> Approval:
        approval = await super().get(approval_id)
        if approval.status == "pending" and self.status != "pending":
            await self._store.apply(resolve(approval, self.status, 1, answer="yes", why="because"))
            approval = await super().get(approval_id)
        return approval


class CountingSlots(Slots):
    """Slots that count the pauses."""

    def __init__(self) -> None:
        super().__init__(5, {"demo": 5})
        self.calls: list[str] = []

    def pause(self, agent: str, actor: str = "") -> None:
        self.calls.append("pause")
        super().pause(agent, actor)

    async def resume(self, agent: str, actor: str = "", *, at_once: bool = False) -> None:
        self.calls.append("resume")
        await super().resume(agent, actor, at_once=at_once)


class Worker:
    """A worker that makes turns of running tasks and records the live events."""

    def __init__(self, store: UnreliableStore) -> None:
        self.shown: list[Event] = []
        self.slots = CountingSlots()
        self.clock = SystemClock()
        self.people = AnsweringApprovals(store, self.clock)  # type: ignore[arg-type]
        parts: Any = {"store": store, "handoffs": None}
        self.host = Host(
            clock=self.clock, slots=self.slots, approvals=self.people, show=self.shown.append,
            identify=lambda pgid: f"mark of {pgid}", approval_seconds=100.0, **parts,
        )  # fmt: skip

    def turn(self, task: Task, kind: type[LiveTurn] = LiveTurn) -> LiveTurn:
        self.slots.take(task.agent, task.actor)
        return kind(self.host, Run(self.host, Claim(task, "secret")))


@pytest.fixture
async def store() -> AsyncIterator[UnreliableStore]:
    memory = await SqliteStore.open(":memory:")
    yield UnreliableStore(memory)
    await memory.close()


@pytest.fixture
def worker(store: UnreliableStore) -> Worker:
    return Worker(store)


@pytest.fixture
async def task(store: UnreliableStore) -> Task:
    return await submit_and_claim(store)  # type: ignore[arg-type]


@pytest.fixture
async def turn(worker: Worker, task: Task) -> LiveTurn:
    turn = worker.turn(task)
    turn.log.pause_seconds = 0.001
    return turn


def make_progress(text: str) -> TaskProgress:
    return TaskProgress(text=text)


async def read_stored(store: UnreliableStore, task: Task) -> list[str]:
    """Return the events of the turn in the log, in order."""
    events = await store.read_events(0, EventFilter(task_id=task.id), 5000)
    own = [event for event in events if event.kind not in ("task_submitted", "task_started")]
    return [event.payload.get("text") or event.kind for event in own]


async def wait_until_written(turn: LiveTurn) -> None:
    """Wait until all events are written."""
    async with asyncio.timeout(30):
        while (flushing := turn.log._flushing) is not None:
            await asyncio.wait({flushing})
            await settle(2)


async def take_over(store: UnreliableStore, task: Task) -> None:
    """Give the task to another process."""
    update = Update("task", task.id, {"attempt": 9}, {"status": "running"})
    await store.real.apply(Changes(updates=(update,)))


# -- order -------------------------------------------------------------------------------------------------------


async def test_events_are_stored_in_order_with_the_turns_id(turn: LiveTurn, store: UnreliableStore, task: Task) -> None:
    turn.begin(None)
    for number in range(100):
        await turn.emit(make_progress(str(number)))
    await wait_until_written(turn)
    assert await read_stored(store, task) == ["turn_start", *(str(n) for n in range(100))]
    events = await store.read_events(0, EventFilter(kinds=("task_progress",)))
    assert {(e.turn_id, e.task_id, e.attempt, e.agent_id) for e in events} == {(f"{task.id}.1", task.id, 1, "demo")}


async def test_pending_events_are_stored_before_progress_and_questions(
    turn: LiveTurn, store: UnreliableStore, task: Task
) -> None:
    turn.begin(None)
    await turn.emit(make_progress("one"))
    await turn.save_progress({"step": 1})
    assert await read_stored(store, task) == ["turn_start", "one"]
    await turn.emit(make_progress("two"))
    await turn.ask("Go?")
    assert (await read_stored(store, task))[2:] == ["two", "approval_requested", "task_waiting", "approval_resolved"]
    await turn.emit(make_progress("three"))
    await turn.own_group(77)
    assert (await read_stored(store, task))[-1] == "three"
    order = [[e.payload.get("text", e.kind) for e in c.events] or [dict(c.updates[0].fields)] for c in store.applied]
    flat = [str(entry) for step in order for entry in step]
    assert flat.index("one") < flat.index("{'progress': {'step': 1}}") < flat.index("two")
    assert flat.index("three") < flat.index("{'pgid': 77, 'pgid_mark': 'mark of 77'}")


async def test_every_write_of_the_turn_needs_the_lease(turn: LiveTurn, store: UnreliableStore) -> None:
    turn.begin(None)
    await turn.emit(make_progress("one"))
    await turn.save_progress(1)
    await turn.own_group(77)
    await turn.ask("Go?")
    await wait_until_written(turn)
    unfenced = [c for c in store.applied if c.fence != turn.fence]
    assert [u.noun for c in unfenced for u in c.updates] == ["approval"]  # the answer of the person


async def test_live_events_follow_pending_events_and_are_never_stored(
    turn: LiveTurn, worker: Worker, store: UnreliableStore, task: Task
) -> None:
    store.open.clear()
    await turn.emit(make_progress("stored"))
    await turn.emit(MessageDelta(message_id="m", offset=0, text="live"))
    assert worker.shown == []  # the events emitted before it are not written yet
    store.open.set()
    await wait_until_written(turn)
    assert [(e.kind, e.turn_id) for e in worker.shown] == [("message_delta", f"{task.id}.1")]
    await turn.emit(MessageDelta(message_id="m", offset=4, text="and at once"))
    assert len(worker.shown) == 2
    assert await read_stored(store, task) == ["stored"]


@pytest.mark.parametrize("name", sorted(name for name, payload_class in KINDS.items() if not payload_class.agents))
async def test_an_agent_cannot_emit_reserved_events(
    turn: LiveTurn, worker: Worker, store: UnreliableStore, task: Task, name: str
) -> None:
    """Otherwise an agent could end its task, answer its own question, or admit somebody, for all readers of the log."""
    payload_class = KINDS[name]
    with pytest.raises(AgentError, match=name):
        await turn.emit(payload_class(**dict.fromkeys(payload_class.names, "x")))
    await wait_until_written(turn)
    assert (await read_stored(store, task), worker.shown) == ([], [])
    with pytest.raises(AgentError, match=name):
        await RecordingTurn().emit(payload_class(**dict.fromkeys(payload_class.names, "x")))


def test_agents_may_emit_only_the_listed_kinds() -> None:
    assert {name for name, payload_class in KINDS.items() if payload_class.agents} == {
        "tool_exec_start", "tool_exec_end", "task_progress", "message_update", "message_delta", "screen_update",
        "error", "agent_error", "agent_exited", "llm_response", "thought_update", "thought_delta", "plan_update",
        "llm_request", "llm_delta", "llm_retry", "tool_exec_skipped", "context_trimmed", "steering_injected",
    }  # fmt: skip


async def test_an_agent_cannot_replace_messages_of_others(worker: Worker, store: UnreliableStore) -> None:
    """A message replaces an earlier one with the same id."""
    task = await submit_and_claim(store, session_key="chat:1")  # type: ignore[arg-type]
    turn = worker.turn(task)
    turn.begin(None)
    own = f"{task.id}.{task.attempt}"
    ids = [task.id, f"{own}0", "t_9.1", f"{task.id}.result", "", own, f"{own}.note"]
    for place, name in enumerate(ids):
        role = ("user", "notice", "result")[place % 3]
        await turn.emit(MessageUpdate(message_id=name, role=role, message=f"forged {name}", number=1))
        await turn.emit(MessageDelta(message_id=name, offset=0, text="forged"))
    await wait_until_written(turn)
    messages = await store.read_messages("chat:1")
    expected = [*(f"{own}.{name}" for name in ids[:5]), own, f"{own}.note"]
    assert [(message.id, message.role) for message in messages] == [
        (task.id, "user"),
        *((name, "agent") for name in expected),
    ]
    assert messages[0].text == task.prompt
    updates = await store.read_events(0, EventFilter(kinds=("message_update",)))
    assert [(event.payload["number"], event.payload["role"]) for event in updates[1:]] == [
        (n, "agent") for n in range(2, 9)
    ]
    assert [event.payload["message_id"] for event in worker.shown] == expected


@pytest.mark.parametrize(("agent", "first"), [("demo", "the filtered prompt"), ("other", "a secret")])
async def test_what_a_transfer_may_have_withheld_is_not_told_later(
    worker: Worker, store: UnreliableStore, agent: str, first: str
) -> None:
    transferred = a_task(
        session_key="chat:1", cause="handoff", status="done", agent=agent, prompt="the filtered prompt"
    )
    said = (
        ("user", "a secret", "t_0", "t_0"),
        ("user", "more", transferred.id, "m_1"),
        ("agent", "hi", transferred.id, ""),
    )
    messages = tuple(
        Message(session_key="chat:1", role=role, text=text, time=1, task_id=task_id, id=name or f"{task_id}.1")  # type: ignore[arg-type]
        for role, text, task_id, name in said
    )
    await store.apply(Changes(records=(transferred,), messages=messages))
    task = await submit_and_claim(store, session_key="chat:1")  # type: ignore[arg-type]
    earlier = await worker.turn(task).earlier_messages()
    assert (earlier[0].text, earlier[-1].text) == (first, "hi")
    assert any(message.text == "a secret" for message in earlier) is (agent != "demo")


async def test_concurrent_emits_of_an_agent_repeat_and_lose_nothing(
    turn: LiveTurn, store: UnreliableStore, task: Task
) -> None:
    store.open.clear()

    async def emit_all() -> None:
        for number in range(MOST_UNWRITTEN + 100):
            await turn.emit(make_progress(str(number)))

    telling = asyncio.create_task(emit_all())
    await settle(50)  # it waits for the write in progress
    saving = asyncio.create_task(turn.save_progress("half"))
    await settle(50)  # this emit waits too
    store.open.set()
    await asyncio.gather(telling, saving)
    await wait_until_written(turn)
    assert await read_stored(store, task) == [str(number) for number in range(MOST_UNWRITTEN + 100)]


async def test_emitted_events_do_not_change_when_the_agent_reuses_its_objects(
    turn: LiveTurn, store: UnreliableStore, task: Task
) -> None:
    store.open.clear()
    arguments = {"path": "one"}
    await turn.emit(ToolExecStart(tool="read", arguments=arguments))
    arguments["path"] = "two"
    store.open.set()
    await wait_until_written(turn)
    (event,) = await store.read_events(0, EventFilter(kinds=("tool_exec_start",)))
    assert event.payload["arguments"] == {"path": "one"}


# -- back-pressure -----------------------------------------------------------------------------------------------


async def test_an_agent_that_emits_faster_than_the_store_writes_must_wait(
    turn: LiveTurn, store: UnreliableStore, task: Task
) -> None:
    store.open.clear()
    numbers: list[int] = []

    async def emit_all() -> None:
        for number in range(2 * MOST_UNWRITTEN):
            await turn.emit(make_progress(str(number)))
            numbers.append(number)

    telling = asyncio.create_task(emit_all())
    await settle(100)
    assert not telling.done()
    assert len(numbers) == MOST_UNWRITTEN
    store.open.set()
    async with asyncio.timeout(30):
        await telling
    await wait_until_written(turn)
    assert await read_stored(store, task) == [str(number) for number in range(2 * MOST_UNWRITTEN)]


async def test_a_waiting_agent_can_be_cancelled_without_losing_events(
    turn: LiveTurn, store: UnreliableStore, task: Task
) -> None:
    store.open.clear()

    async def emit_all() -> None:
        for number in range(MOST_UNWRITTEN + 1):
            await turn.emit(make_progress(str(number)))

    telling = asyncio.create_task(emit_all())
    await settle(100)
    telling.cancel()
    await asyncio.wait({telling})
    assert telling.cancelled()
    store.open.set()
    await wait_until_written(turn)
    assert len(await read_stored(store, task)) == MOST_UNWRITTEN + 1


async def test_many_events_are_written_in_few_transactions(turn: LiveTurn, store: UnreliableStore) -> None:
    store.open.clear()
    for number in range(200):
        await turn.emit(make_progress(str(number)))
    store.open.set()
    await wait_until_written(turn)
    assert len(store.applied) <= 2


# -- a lost lease ------------------------------------------------------------------------------------------------


async def test_a_turn_without_its_lease_writes_nothing_and_reports_it(
    turn: LiveTurn, worker: Worker, store: UnreliableStore, task: Task
) -> None:
    turn.begin(None)
    await turn.emit(make_progress("mine"))
    await wait_until_written(turn)
    await take_over(store, task)
    await turn.emit(make_progress("no longer mine"))
    await wait_until_written(turn)
    assert turn._run.reason == "lost"
    with pytest.raises(LeaseLost):
        await turn.save_progress("no longer mine")
    with pytest.raises(LeaseLost):
        await turn.own_group(77)
    with pytest.raises(LeaseLost):
        await turn.ask("May I?")
    for number in range(2 * MOST_UNWRITTEN):  # and it never waits
        await turn.emit(make_progress(str(number)))
    await wait_until_written(turn)
    assert await read_stored(store, task) == ["turn_start", "mine"]
    stored_task = await store.get_task(task.id)
    assert stored_task is not None and (stored_task.progress, stored_task.pgid, stored_task.wait) == (None, None, None)
    assert await store.list_approvals() == []
    assert worker.slots.calls == []


# -- a store that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusals", [1, 2, 10])
async def test_events_wait_for_the_store_and_are_written_once_in_order(
    turn: LiveTurn, store: UnreliableStore, task: Task, refusals: int
) -> None:
    turn.begin(None)
    store.refuse = refusals
    for number in range(20):
        await turn.emit(make_progress(str(number)))
        await settle(number % 3)
    await wait_until_written(turn)
    assert store.refuse == 0
    assert await read_stored(store, task) == ["turn_start", *(str(n) for n in range(20))]


async def test_progress_that_could_not_be_stored_is_an_error_for_the_agent(
    turn: LiveTurn, store: UnreliableStore
) -> None:
    await turn.save_progress("first")
    store.refuse = 1
    with pytest.raises(StoreUnavailable):
        await turn.save_progress("second")
    assert await turn.load_progress() == "first"
    await turn.save_progress("third")
    assert await turn.load_progress() == "third"


async def test_events_the_store_did_not_take_are_written_with_the_end(
    turn: LiveTurn, store: UnreliableStore, task: Task
) -> None:
    turn.begin(None)
    store.refuse = 10**9
    for number in range(3):
        await turn.emit(make_progress(str(number)))
    async with asyncio.timeout(30):
        tail = await turn.finish("completed", 2, 5)
    assert [e.kind for e in tail.events] == ["turn_start", *["task_progress"] * 3, "turn_end"]
    assert await read_stored(store, task) == []
    last = tail.events[-1].payload
    assert (last["status"], last["iterations"], last["final_content_len"]) == ("completed", 2, 5)


# -- the end of a turn -------------------------------------------------------------------------------------------


async def test_the_end_contains_only_unwritten_events(turn: LiveTurn, store: UnreliableStore, task: Task) -> None:
    turn.begin(None)
    await turn.emit(make_progress("one"))
    await wait_until_written(turn)
    tail = await turn.finish("error", None, 0)
    assert [e.kind for e in tail.events] == ["turn_end"]
    with pytest.raises(LeaseLost):
        await turn.emit(make_progress("too late"))
    assert await read_stored(store, task) == ["turn_start", "one"]


async def test_open_tools_are_closed_at_the_end_in_order(turn: LiveTurn) -> None:
    turn.begin(None)
    for tool, call in (("a", "1"), ("b", None), ("a", "2"), ("c", "3")):
        await turn.emit(ToolExecStart(tool=tool, tool_call_id=call))
    await turn.emit(ToolExecEnd(tool="a", tool_call_id="1"))
    await turn.emit(ToolExecEnd(tool="never begun", tool_call_id="9"))
    await wait_until_written(turn)
    tail = await turn.finish("aborted", None, 0)
    closed = [(e.payload["tool"], e.payload["tool_call_id"]) for e in tail.events if e.kind == "tool_exec_end"]
    assert closed == [("b", None), ("a", "2"), ("c", "3")]
    assert all(e.payload["is_error"] for e in tail.events[:-1])
    assert tail.events[-1].kind == "turn_end"


@pytest.mark.parametrize(("session", "said_it"), [("chat:1", 1), (None, 0)])
async def test_the_prompt_is_a_message_only_in_a_session(
    worker: Worker, store: UnreliableStore, session: str | None, said_it: int
) -> None:
    task = await submit_and_claim(store, **({"session_key": session} if session else {}))  # type: ignore[arg-type]
    turn = worker.turn(task)
    turn.begin(None)
    turn.log.flush_soon()
    await wait_until_written(turn)
    messages = await store.read_messages(task.session_key)
    assert [(m.role, m.text) for m in messages] == [("user", "do it")] * said_it


@pytest.mark.parametrize(
    ("on_crash", "rescues", "interruptions", "resumed"),
    [("resume", 0, 0, False), ("resume", 1, 0, True), ("resume", 0, 1, True), ("rerun", 1, 1, False)],
)
async def test_a_turn_is_resumed_only_if_its_crash_rule_allows_it(
    on_crash: Any, rescues: int, interruptions: int, resumed: bool
) -> None:
    task = a_task(on_crash=on_crash, rescues=rescues, interruptions=interruptions, attempt=2)
    nowhere: Any = None
    assert Worker(nowhere).turn(task).resumed == resumed


# -- questions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["granted", "denied", "expired"])
async def test_a_question_releases_the_slot_waits_and_continues(
    turn: LiveTurn, worker: Worker, store: UnreliableStore, task: Task, status: Any
) -> None:
    worker.people.status = status
    answer = await turn.ask("Go?", ("yes", "no"))
    assert (answer.status, answer.choice, answer.why) == (status, "yes", "because")
    assert answer.granted == (status == "granted")
    assert worker.slots.calls == ["pause", "resume"]
    stored_task = await store.get_task(task.id)
    assert stored_task is not None and stored_task.wait is None
    (question,) = await store.list_approvals()
    assert question.expires_at - question.created_at == 100 * SECOND


async def test_a_question_may_have_a_shorter_expiry(turn: LiveTurn, store: UnreliableStore) -> None:
    await turn.ask("Go?", expires=2.5)
    (question,) = await store.list_approvals()
    assert question.expires_at - question.created_at == 2_500_000


async def test_a_question_interrupted_by_a_stop_ends_the_turn(turn: LiveTurn, worker: Worker) -> None:
    worker.people.status = "pending"
    turn._run.interrupt("cancel")
    with pytest.raises(AgentError, match="being stopped"):
        await turn.ask("Go?")
    assert worker.slots.calls[-1] == "resume"


async def test_the_slot_is_taken_back_although_waiting_failed(turn: LiveTurn, worker: Worker) -> None:
    async def broken(approval_id: str) -> Approval:
        raise StoreUnavailable("gone")

    worker.people.get = broken  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await turn.ask("Go?")
    assert worker.slots.calls == ["pause", "resume"]


PERMISSION = Question(
    text="Run ls?", kind="execute", command="ls", choices=(Choice("No", "reject_once"), Choice("Yes", "allow_once"))
)


def make_judge(ruling: Ruling) -> Judge:
    async def judge(task: Task, question: Question) -> Ruling:
        return ruling

    return judge


@pytest.mark.parametrize(("effect", "answer"), [("allow", ("granted", "Yes")), ("deny", ("denied", "No"))])
async def test_a_question_answered_by_a_rule_is_not_asked(
    turn: LiveTurn, worker: Worker, store: UnreliableStore, effect: Any, answer: tuple[str, str]
) -> None:
    worker.people.judge = make_judge(Ruling(Decision(effect, "rule:r_1", "the rule")))
    store.applied.clear()
    assert (await turn.ask(PERMISSION))[:2] == answer
    assert (worker.slots.calls, len(store.applied), turn.asked) == ([], 1, False)
    (approval,) = await store.list_approvals()
    assert (approval.status, approval.answered_by, approval.rule) == (answer[0], "rule:r_1", "the rule")


async def test_a_rule_does_not_answer_without_the_lease(
    turn: LiveTurn, worker: Worker, store: UnreliableStore, task: Task
) -> None:
    worker.people.judge = make_judge(Ruling(Decision("allow", "rule:agent", "x")))
    await store.apply(Changes(updates=(Update("task", task.id, {"attempt": 7}),)))
    with pytest.raises(LeaseLost):
        await turn.ask(PERMISSION)
    assert (turn._run.reason, await store.list_approvals()) == ("lost", [])


async def test_the_shortest_expiry_applies_and_a_deadline_limits_it(
    turn: LiveTurn, worker: Worker, store: UnreliableStore
) -> None:
    worker.people.judge = make_judge(Ruling(expires=50.0))
    await turn.ask(PERMISSION)
    await turn.ask(PERMISSION, expires=2.0)
    await turn.ask(PERMISSION, expires=70.0)
    worker.people.judge = make_judge(Ruling(until=(until := worker.clock.now() + 9 * SECOND)))
    await turn.ask(PERMISSION)
    approvals = await store.list_approvals()
    spans = [(row.expires_at - row.created_at) // SECOND for row in approvals if row.expires_at != until]
    assert (sorted(spans), len(approvals)) == ([2, 50, 50], 4)


async def test_after_the_deadline_nothing_is_asked(turn: LiveTurn, worker: Worker, store: UnreliableStore) -> None:
    worker.people.judge = make_judge(Ruling(until=1))
    answer = await turn.ask(PERMISSION)
    assert (answer.status, answer.granted, answer.why) == ("expired", False, "the goal's deadline has passed")
    assert worker.slots.calls == []
    worker.people.judge = make_judge(Ruling(Decision("allow", "rule:agent", "x"), until=1))
    assert (await turn.ask(PERMISSION)).granted


async def test_an_invalid_question_is_not_asked(turn: LiveTurn, worker: Worker, store: UnreliableStore) -> None:
    for question, choices in (("", ("yes",)), ("Go?", ())):
        with pytest.raises(InvalidInput):
            await turn.ask(question, choices)
    assert (worker.slots.calls, await store.list_approvals()) == ([], [])


async def test_a_question_above_the_limit_is_not_left_in_the_inbox(
    turn: LiveTurn, worker: Worker, store: UnreliableStore
) -> None:
    worker.slots._max_paused = 0
    with pytest.raises(LimitReached):
        await turn.ask("Go?")
    assert await store.list_approvals("pending") == []


async def test_messages_reach_the_turn_in_order_and_once(turn: LiveTurn, store: UnreliableStore, task: Task) -> None:
    waiting = asyncio.create_task(turn.receive())
    await settle()
    sent = [a_steer(task, text, number) for number, text in enumerate(("one", "two", "three"))]
    await store.apply(Changes(records=tuple(sent)))
    turn._run.inbox.fill(await store.list_queued_steers(task.id))
    assert [await waiting, await turn.receive()] == ["one", "two"]
    await turn.save_step({"kind": "said"}, [steer.id for steer in turn.steers("after_tool")])
    assert turn.steers() == ()
    assert await store.list_queued_steers(task.id) == []
    with pytest.raises(Conflict):
        await turn.save_step({"kind": "again"}, [sent[0].id])
    assert await turn.load_steps() == [{"kind": "said"}]


async def test_a_turn_without_new_messages_is_not_woken(turn: LiveTurn, task: Task) -> None:
    sent = a_steer(task, "one")
    turn._run.inbox.fill([sent])
    waiting = asyncio.create_task(turn.wait_for_steer())
    await settle()
    turn._run.inbox.fill([sent])
    await settle()
    assert not waiting.done()
    turn._run.inbox.fill([sent, a_steer(task, "two", mode="interrupt")])
    await waiting
    assert [steer.text for steer in turn.steers("interrupt", "stop")] == ["two"]


async def test_steps_are_kept_in_order_across_attempts(worker: Worker, store: UnreliableStore) -> None:
    task = await submit_and_claim(store)  # type: ignore[arg-type]
    first = worker.turn(task)
    first.begin("th_1")
    await first.save_step(["a"])
    await first.save_step(["b"])
    again = worker.turn(task)
    again.begin("th_1")
    again.attempt = 2  # the fence is still that of the first attempt
    await again.save_step(["c"])
    assert await again.load_steps() == [["a"], ["b"], ["c"]]
    assert await again.history() == []  # its own steps are not part of the history yet
    other_task = await submit_and_claim(store)  # type: ignore[arg-type]
    for thread_id, steps in (("th_1", [["a"], ["b"], ["c"]]), (None, [])):
        later = worker.turn(other_task)
        later.begin(thread_id)
        assert await later.history() == steps


async def test_an_open_model_call_is_closed_with_the_turn(turn: LiveTurn) -> None:
    turn.begin(None)
    await turn.emit(LlmRequest(model="m", messages_count=1, request_id="r1"))
    await turn.emit(LlmRequest(model="m", messages_count=1, request_id="r2"))
    await turn.emit(LlmResponse(model="m", request_id="r1", finish_reason="stop"))
    ends = [event.payload for event in (await turn.finish("aborted", None, 0)).events if event.kind == "llm_response"]
    assert [(end["request_id"], end["finish_reason"]) for end in ends][-1] == ("r2", "cut_off")


async def test_a_concurrent_stop_does_not_refuse_the_turns_events(
    turn: LiveTurn, store: UnreliableStore, task: Task
) -> None:
    await store.apply(Changes(updates=(Update("task", task.id, {"stop_requested": "cancel"}, guard_ownership(task)),)))
    await turn.emit(make_progress("cleaning up"))
    await turn.save_progress("cleaned")
    assert await read_stored(store, task) == ["cleaning up"]

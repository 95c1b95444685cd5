"""Test that all events of work that grew out of other work say what it grew out of, on both kinds of store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings, Turn, TurnResult
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, HandoffError, NotFound
from midwatch.domain.agent import AgentTerms, Question
from midwatch.domain.event import (
    Event,
    EventFilter,
    LlmRequest,
    LlmResponse,
    LoopError,
    MessageUpdate,
    PlanUpdate,
    TaskProgress,
    ToolExecEnd,
    ToolExecStart,
)
from midwatch.domain.hook import HookDecision
from midwatch.domain.identity import Actor
from midwatch.domain.task import Task
from midwatch.stores.verbs import listing
from midwatch.testing import RecordingChannel, ScriptedAgent
from servers import until

Lineage = tuple[str | None, str | None, str | None]
ROOT: Lineage = (None, None, None)


def lineage_of(record: Event | Task) -> Lineage:
    return record.parent_turn_id, record.trace_path, record.source


class Office:
    """A desk whose agents pass work on in every way, and what happened on it."""

    def __init__(self) -> None:
        self.desk: Runtime | None = None
        self.failing = True
        self.held, self.go = asyncio.Event(), asyncio.Event()

    @property
    def running(self) -> Runtime:
        assert self.desk is not None
        return self.desk

    async def delegate(self, turn: Turn) -> str:
        return str((await turn.delegate("middle", "a part")).output)

    async def transfer(self, turn: Turn) -> TurnResult:
        return TurnResult(outcome="transferred", transfer=await turn.transfer("last"))

    async def submit(self, turn: Turn) -> str:
        assert (await turn.ask("May I submit?", ("yes", "no"))).choice == "yes"
        own = await self.running.store.get_task(turn.task_id)
        agent = Actor("owner", "attempt", "attempt", task=own)
        return (await self.running.tasks.submit("later", agent="back", actor=agent)).id

    async def fail_once(self, turn: Turn) -> str:
        if self.failing:
            raise AgentError("not yet; try again.")
        return "done"

    async def step(self, turn: Turn) -> str:
        await turn.delegate("helper", "a step")
        goal = (await self.running.goals.list())[0]
        if goal.step == 2:
            await self.running.goals.complete(goal.id, evidence="seen", in_step=turn.task_id)
        return f"step {goal.step}"

    async def help(self, turn: Turn) -> str:
        return "helped"

    async def hold(self, turn: Turn) -> str:
        self.held.set()
        await self.go.wait()
        return turn.prompt

    def agents(self) -> dict[str, ScriptedAgent]:
        steers, submits = AgentTerms(steerable=True, on_crash="rerun"), AgentTerms(submits=True)
        work: dict[str, tuple[Callable[[Turn], Any], AgentTerms]] = {
            "first": (self.delegate, AgentTerms()), "middle": (self.transfer, AgentTerms()),
            "last": (self.submit, submits), "back": (self.fail_once, AgentTerms(max_attempts=1)),
            "goal": (self.step, AgentTerms()), "helper": (self.help, AgentTerms()), "hold": (self.hold, steers),
        }  # fmt: skip
        return {name: ScriptedAgent(call, terms=terms) for name, (call, terms) in work.items()}

    async def find(self, agent: str) -> Task:
        """Return the only task of an agent."""
        found = [task for task in await self.running.tasks.list() if task.agent == agent]
        assert len(found) == 1
        return found[0]

    async def check(self, expected: dict[str, Lineage]) -> list[Event]:
        """Check the lineage of every event and of every task; return the events about handoffs."""
        assert {task.id: lineage_of(task) for task in await self.running.tasks.list()} == expected
        events = await self.running.store.read_events(0, limit=1000)
        handoffs = [event for event in events if event.kind.startswith("handoff_")]
        of_tasks = [event for event in events if (event.task_id or "").startswith("t_") and event not in handoffs]
        assert {(event.task_id, lineage_of(event)) for event in of_tasks} == set(expected.items())
        return handoffs


@pytest.fixture(params=["sqlite", "postgres"])
async def office(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Office]:
    place, db = Office(), request.getfixturevalue("database") if request.param == "postgres" else None
    settings, there = Settings.load(home, db=db, detect_agents=False, shutdown_grace=0), RecordingChannel("there")
    async with Runtime.open(home, settings=settings, agents=place.agents(), channels={"there": there}) as desk:
        place.desk = desk
        async with asyncio.timeout(60):
            yield place


async def test_every_event_of_a_tree_says_what_it_grew_out_of(office: Office) -> None:
    desk = office.running
    root = await desk.tasks.submit("begin", agent="first", route="there")
    question = (await until(desk.approvals.list))[0]
    await desk.approvals.answer(question.id, "yes")
    await desk.tasks.wait(root.id)
    middle, last, back = [await office.find(name) for name in ("middle", "last", "back")]
    assert (await desk.tasks.wait(back.id)).status == "failed"
    office.failing = False
    again = await desk.tasks.wait((await desk.tasks.retry(back.id)).id)
    assert again.status == "done"
    path = f"{root.id}/{middle.id}/{last.id}/{back.id}"
    expected: dict[str, Lineage] = {
        root.id: ROOT,
        middle.id: (f"{root.id}.1", f"{root.id}/{middle.id}", "delegate"),
        last.id: (f"{middle.id}.1", f"{root.id}/{middle.id}/{last.id}", "transfer"),
        back.id: (f"{last.id}.1", path, "background"),
        again.id: (f"{back.id}.1", f"{path}/{again.id}", "retry"),
    }
    handoffs = await office.check(expected)
    assert {(event.kind, event.task_id, *lineage_of(event)) for event in handoffs} == {
        (f"handoff_{kind}", source.id, f"{source.id}.1", path, form)
        for kind in ("requested", "accepted", "started", "completed")
        for source, path, form in ((root, root.id, "delegate"), (middle, f"{root.id}/{middle.id}", "transfer"))
    }
    everything = await desk.store.read_events(0)
    kinds = {event.kind for event in everything if event.task_id in (last.id, back.id)}
    assert {"approval_resolved", "turn_start", "task_finished"} <= kinds
    for which in (EventFilter(tree=root.id), EventFilter(tree=last.id, kinds=("task_*",)), EventFilter(tree="t_none")):
        stored = await desk.store.read_events(0, which)
        assert [event.seq for event in stored] == [event.seq for event in everything if which.matches(event)]
    of_last = {event.task_id for event in await desk.store.read_events(0, EventFilter(tree=last.id))}
    assert of_last == {last.id, back.id, again.id}


async def test_an_unknown_tree_is_reported_in_a_log_of_many_pages(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = office.running
    root = await desk.tasks.wait((await desk.tasks.submit("help", agent="helper")).id)
    monkeypatch.setattr(listing, "MOST_LOOKED", 1)
    with pytest.raises(NotFound, match="no task or goal 't_none'"):
        await desk.events.page(EventFilter(tree="t_none"), 0, None, 10)
    await desk.store.prune_tasks(before=root.created_at + 3600 * SECOND, keep=0)
    assert await desk.store.get_task(root.id) is None
    page = await desk.events.page(EventFilter(tree=root.id), 0, None, 10)
    assert page["events"], "the record of a task is removed before its events"


async def test_the_path_of_a_step_begins_with_its_goal(office: Office) -> None:
    desk = office.running
    goal = await desk.goals.create("reach it", agent="goal", route="there")

    async def is_complete() -> bool:
        return (await desk.goals.get(goal.id)).status == "complete"

    await until(is_complete)
    second, first = await desk.goals.steps(goal.id)
    helpers = {task.parent_id: task for task in await desk.tasks.list() if task.agent == "helper"}
    expected: dict[str, Lineage] = {
        first.id: (None, f"{goal.id}/{first.id}", "goal"),
        second.id: (f"{first.id}.1", f"{goal.id}/{second.id}", "goal"),
    }
    for step in (first, second):
        helper = helpers[step.id]
        expected[helper.id] = (f"{step.id}.1", f"{goal.id}/{step.id}/{helper.id}", "delegate")
    await office.check(expected)
    tree = await desk.store.read_events(0, EventFilter(tree=goal.id))
    assert {event.task_id for event in tree} - {goal.id} == set(expected)


async def test_a_late_message_names_the_turn_that_it_was_sent_to(office: Office) -> None:
    desk = office.running
    await desk.sessions.create(key="chat:1", agent="hold")
    before = await desk.sessions.send("chat:1", "begin")
    await office.held.wait()
    office.held.clear()
    sent = await desk.tasks.steer("and then", "after_tool", session_key="chat:1", agent="hold")
    office.go.set()
    await desk.tasks.wait(before.id)
    assert sent.steer is not None
    assert (await desk.tasks.wait(sent.steer.id)).status == "done"
    await office.check({before.id: ROOT, sent.steer.id: (f"{before.id}.1", f"{before.id}/{sent.steer.id}", "steer")})


DENY = {"deny": [{"command": "git push **"}]}
KINDS = frozenset({
    "approval_requested", "approval_resolved", "budget_reached", "budget_warned", "context_injected", "delivery_sent",
    "error", "handoff_accepted", "handoff_completed", "handoff_expired", "handoff_failed", "handoff_rejected",
    "handoff_requested", "handoff_started", "hook_decided", "interrupt_received", "llm_request", "llm_response",
    "message_update", "plan_update", "task_finished", "task_progress",
    "task_started", "task_submitted", "tool_exec_end", "tool_exec_skipped", "tool_exec_start", "turn_end", "turn_start",
})  # fmt: skip
"""Kinds that the tree of the next test writes about work that grew out of other work."""


class NoRisk:
    """A hook that denies one command."""

    async def approve_tool(self, call: Any, meta: Any) -> HookDecision:
        return HookDecision.deny("too risky") if call["command"] == "rm x" else HookDecision()


async def emit_all(turn: Turn) -> str:
    """Do everything that writes events of its own."""
    for command in ("git push", "rm x"):
        assert not (await turn.ask(Question(text="May I?", kind="execute", command=command))).granted
    assert (await turn.ask("Anybody?", expires=0.02)).status == "expired"
    await turn.emit(PlanUpdate(entries=({"content": "x", "status": "pending"},)))
    await turn.emit(TaskProgress(text="half"))
    await turn.emit(ToolExecStart(tool="look", tool_call_id="1"))
    await turn.emit(ToolExecEnd(tool="look", tool_call_id="1"))
    await turn.emit(LoopError(stage="x", message="a problem"))
    await turn.emit(MessageUpdate(message_id="1", role="agent", message="a message"))
    for _ in range(3):
        await turn.emit(LlmRequest(model="m", messages_count=1))
        await turn.emit(LlmResponse(model="m", usage={"input_tokens": 90}))
    return "done"


class Refuser(ScriptedAgent):
    """An agent that accepts no handoff."""

    def can_handle(self, work: Any) -> bool:
        """Handle everything."""
        return True

    async def accept(self, handoff: Any) -> None:
        """Refuse."""
        raise AgentError("not me.")


async def fail(turn: Turn) -> str:
    raise AgentError("it is broken.")


async def answer(turn: Turn) -> str:
    return "answered"


def make_crew(begin: Callable[[Turn], Any], held: asyncio.Event) -> dict[str, ScriptedAgent]:
    """Return agents of which one begins, and the others do everything that writes events."""

    async def hold(turn: Turn) -> str:
        held.set()
        return await turn.receive()

    work: dict[str, tuple[Callable[[Turn], Any], AgentTerms]] = {
        "lead": (begin, AgentTerms(submits=True)), "held": (hold, AgentTerms(on_crash="fail")),
        "slow": (hold, AgentTerms()), "noisy": (emit_all, AgentTerms()), "plain": (answer, AgentTerms()),
        "spender": (emit_all, AgentTerms(budget={"tokens": 100}, on_budget="stop")),
        "broken": (fail, AgentTerms(max_attempts=1)),
    }  # fmt: skip
    agents = {name: ScriptedAgent(call, terms=terms) for name, (call, terms) in work.items()}
    return {**agents, "refuser": Refuser(emit_all)}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_every_kind_of_event_in_a_tree_has_the_fields(
    kind: str, request: pytest.FixtureRequest, home: Path
) -> None:
    held = asyncio.Event()

    async def begin(turn: Turn) -> str:
        own = await desk.store.get_task(turn.task_id)
        if own is None or own.cause == "result":
            return "woken"
        agent = Actor("owner", "attempt", "attempt", task=own)
        for name in ("noisy", "held", "spender"):
            await desk.tasks.submit("work", agent=name, wake=name == "noisy", actor=agent)
        for name, timeout in (("refuser", 60.0), ("broken", 60.0), ("plain", 60.0), ("slow", 0.05)):
            with suppress(HandoffError):
                await turn.delegate(name, "work", timeout=timeout)
        return "begun"

    settings = Settings.load(
        home, db=request.getfixturevalue("database") if kind == "postgres" else None, detect_agents=False,
        approvals=DENY, shutdown_grace=0,
    )  # fmt: skip
    channels = {"there": RecordingChannel("there")}
    async with (
        Runtime.open(settings=settings, agents=make_crew(begin, held), channels=channels, hooks=[NoRisk()]) as desk,
        asyncio.timeout(60),
    ):
        root = await desk.tasks.submit("begin", agent="lead", route="there", session_key="chat:1", actor="ann")
        await held.wait()
        (child,) = [task for task in await desk.tasks.list() if task.agent == "held"]
        await desk.tasks.cancel(child.id)
        while await desk.tasks.active_count():
            await asyncio.sleep(0.01)
        tasks = {task.id: lineage_of(task) for task in await desk.tasks.list()}
        assert [name for name, fields in tasks.items() if fields == ROOT] == [root.id]
        events = [event for event in await desk.store.read_events(0, limit=1000) if event.task_id in tasks]
        without = {event.kind for event in events if event.task_id != root.id and event.source is None}
        assert not without
        handoffs = [event for event in events if event.kind.startswith("handoff_")]
        assert all(event.source == "delegate" and event.trace_path for event in handoffs)
        assert all(lineage_of(event) == tasks[event.task_id or ""] for event in events if event not in handoffs)
        assert KINDS - {event.kind for event in events if event.source is not None} == set()

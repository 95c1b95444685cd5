"""Test agents that delegate and transfer during their turns: from every kind of function, with few slots, and
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.function import FunctionAgent
from midwatch.agents.function_child import TurnProxy
from midwatch.agents.handoff_agent import HandoffAgent, HandoffResult
from midwatch.agents.registry import build
from midwatch.base.errors import BadConfig, HandoffError, HandoffLimit, MidwatchError
from midwatch.desk.config import Settings
from midwatch.domain.agent import AgentCapability, Turn, TurnResult
from midwatch.domain.handoff import Handoff, HandoffFilter, HandoffTask
from midwatch.domain.handoff_history import HandoffContext
from midwatch.runtime.runtime import Runtime
from midwatch.services.handoffs import HandoffOptions
from midwatch.testing import FakeClock, RecordingChannel

CHILD = """
def source(prompt, turn):
    made = turn.delegate("upper", prompt)
    return f"{made.to_agent} said {made.output}"

async def asynchronous(prompt, turn):
    made = await turn.delegate("upper", prompt, timeout=30)
    return f"{made.to_agent} said {made.output}"

def target(prompt, turn):
    given = turn.handoff()
    return f"{given.from_agent} wants {given.request['description']}"

def gives_away(prompt, turn):
    return turn.transfer("expert")

async def gives_away_async(prompt, turn):
    from midwatch import TurnResult

    ready = await turn.transfer("expert")
    assert ready.task.agent == ready.handoff.to_agent == "expert"
    return TurnResult(outcome="transferred", transfer=ready)

def lies(prompt, turn):
    from midwatch import TurnResult

    return TurnResult(outcome="transferred")
"""


async def upper(prompt: str) -> str:
    return prompt.upper()


class Crew:
    """Agents that record their calls."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.calls = 0
        self.errors: list[Exception] = []

    async def lead(self, prompt: str, turn: Turn) -> str:
        return str((await turn.delegate("upper", prompt)).output)

    def plain(self, prompt: str, turn: TurnProxy) -> str:
        return f"{turn.delegate('upper', prompt).output}"

    async def held(self, prompt: str) -> str:
        self.calls += 1
        self.begun.set()
        await self.go.wait()
        return "at last"

    async def patient(self, prompt: str, turn: Turn) -> str:
        return str((await turn.delegate("held", prompt)).output)

    async def many(self, prompt: str, turn: Turn) -> str:
        handoffs = await asyncio.gather(*(turn.delegate("upper", "same") for _ in range(3)))
        return " ".join(sorted({handoff.id for handoff in handoffs}))

    async def ping(self, prompt: str, turn: Turn) -> str:
        return await self._pass_on("pong", prompt, turn)

    async def pong(self, prompt: str, turn: Turn) -> str:
        return await self._pass_on("ping", prompt, turn)

    async def _pass_on(self, to: str, prompt: str, turn: Turn) -> str:
        try:
            return str((await turn.delegate(to, prompt)).output)
        except MidwatchError as problem:
            self.errors.append(problem)
            raise


class Coder(HandoffAgent):
    """An agent with all methods of the handoff interface."""

    id = "coder"
    capabilities = (AgentCapability(name="code", task_types=("code",), priority=5),)

    async def accept(self, handoff: Handoff) -> None:
        if "secret" in handoff.work.description:
            raise ValueError("that is none of my business")

    async def execute(self, handoff: Handoff) -> Any:
        texts = [message["content"] for message in handoff.surroundings.messages]
        if handoff.work.input == "fail":
            return HandoffResult(error="it does not compile")
        return HandoffResult(output={"did": handoff.work.description, "heard": texts})


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
async def desk(tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    """Open a desk with one slot: a task that kept its slot while waiting would wait for ever."""
    monkeypatch.setenv("MIDWATCH_DETECT_AGENTS", "false")
    monkeypatch.setenv("MIDWATCH_SLOTS", "1")
    (tmp_path / "crew_in_child.py").write_text(CHILD)
    path = (str(tmp_path),)
    agents: dict[str, Any] = {
        "upper": FunctionAgent("upper", upper, on_loop=True),
        "on_loop": FunctionAgent("on_loop", crew.lead, on_loop=True),
        "on_thread": crew.lead,
        "plain": crew.plain,
        "in_child": FunctionAgent("in_child", "crew_in_child:source", path=path),
        "in_child_async": FunctionAgent("in_child_async", "crew_in_child:asynchronous", path=path),
        "child_target": FunctionAgent("child_target", "crew_in_child:target", path=path),
        "held": FunctionAgent("held", crew.held, on_loop=True),
        "patient": FunctionAgent("patient", crew.patient, on_loop=True),
        "thread_patient": crew.patient,
        "many": crew.many,
        "ping": FunctionAgent("ping", crew.ping, on_loop=True),
        "pong": FunctionAgent("pong", crew.pong, on_loop=True),
        "coder": Coder(),
    }
    async with Runtime.open(tmp_path / "home", agents=agents) as desk:
        yield desk


async def run_task(desk: Runtime, agent: str, prompt: str = "hello") -> Any:
    async with asyncio.timeout(60):
        return await desk.tasks.wait((await desk.tasks.submit(prompt, agent=agent)).id)


@pytest.mark.parametrize("agent", ["on_loop", "on_thread", "plain", "in_child", "in_child_async"])
async def test_every_kind_of_function_can_delegate_and_holds_no_slot_while_waiting(desk: Runtime, agent: str) -> None:
    task = await run_task(desk, agent)
    assert task.status == "done", task.error
    assert task.result.endswith("HELLO")
    (handoff,) = await desk.handoffs.list(HandoffFilter(root_id=task.id))
    assert (handoff.from_agent, handoff.to_agent, handoff.status, handoff.source_task) == (
        agent,
        "upper",
        "completed",
        task.id,
    )
    target = await desk.tasks.get(handoff.task_id or "")
    assert (target.parent_id, target.root_id, target.wait) == (task.id, task.id, None)


async def test_a_target_receives_its_input(desk: Runtime) -> None:
    handoff = await desk.handoffs.handoff(_options("child_target", from_agent="somebody"))
    assert handoff.output == "somebody wants do it"


async def test_a_waiting_task_shows_why_and_its_timeout_pauses(tmp_path: Path, crew: Crew) -> None:
    clock, names = FakeClock(), ("patient", "held")
    agents: dict[str, Any] = {name: FunctionAgent(name, getattr(crew, name), on_loop=True) for name in names}
    settings = Settings.load(tmp_path / "home", detect_agents=False)
    async with Runtime.open(agents=agents, settings=settings, clock=clock) as desk:
        task = await desk.tasks.submit("x", agent="patient", timeout=60)
        await asyncio.wait_for(crew.begun.wait(), 60)
        async with asyncio.timeout(60):
            while (waiting := await desk.tasks.get(task.id)).wait is None:
                await asyncio.sleep(0.01)
        assert (waiting.wait, waiting.status_text) == ("handoff", "running: waits for work it handed over")
        await clock.advance(120)  # longer than its timeout
        crew.go.set()
        after = await desk.tasks.wait(task.id)
        assert (after.status, after.result, after.wait) == ("done", "at last", None)


@pytest.mark.parametrize("agent", ["patient", "thread_patient"])
async def test_a_cancelled_source_cancels_its_delegations(desk: Runtime, crew: Crew, agent: str) -> None:
    task = await desk.tasks.submit("x", agent=agent)
    await asyncio.wait_for(crew.begun.wait(), 60)
    await desk.tasks.cancel(task.id)
    assert (await asyncio.wait_for(desk.tasks.wait(task.id), 60)).status == "cancelled"
    (handoff,) = await desk.handoffs.list()
    assert (handoff.status, handoff.reason) == ("cancelled", "the task that handed it over was stopped")
    assert (await asyncio.wait_for(desk.tasks.wait(handoff.task_id or ""), 60)).status == "cancelled"


async def test_identical_concurrent_delegations_are_separate_handoffs(desk: Runtime) -> None:
    assert len((await run_task(desk, "many")).result.split()) == 3


async def test_ping_pong_stops_at_the_limit_with_an_error_for_all(desk: Runtime, crew: Crew) -> None:
    task = await run_task(desk, "ping")
    assert task.status == "failed"
    assert len(await desk.handoffs.list(HandoffFilter(root_id=task.id))) == 8
    assert isinstance(crew.errors[0], HandoffLimit)
    assert all("handed over 8 times in a row" in str(problem) for problem in crew.errors)
    assert len(crew.errors) == 9
    assert "ping → pong → ping" in task.error


async def test_an_agent_for_handoffs_takes_handoffs_and_tasks(desk: Runtime) -> None:
    context = HandoffContext(messages=({"role": "user", "content": "earlier"},))
    handoff = await desk.handoffs.handoff(
        _options(None, task=HandoffTask(type="code", description="x"), context=context)
    )
    assert (handoff.to_agent, handoff.output) == ("coder", '{"did": "x", "heard": ["earlier"]}')
    with pytest.raises(HandoffError, match="none of my business"):
        await desk.handoffs.handoff(_options("coder", task=HandoffTask(description="a secret")))
    with pytest.raises(HandoffError, match="does not compile"):
        await desk.handoffs.handoff(_options("coder", task=HandoffTask(description="x", input="fail")))
    plain = await run_task(desk, "coder", "as a task")
    assert plain.result == '{"did": "as a task", "heard": []}'


def _options(to: str | None, **fields: Any) -> Any:
    from midwatch.services.handoffs import HandoffOptions

    return HandoffOptions(**{"task": HandoffTask(description="do it"), "to": to, "from_agent": "lead", **fields})


async def test_a_new_attempt_gets_the_same_answer(tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """The desk is closed while a source waits; the next desk continues both tasks, and the work is done once."""
    monkeypatch.setenv("MIDWATCH_DETECT_AGENTS", "false")
    settings = Settings.load(tmp_path).model_copy(update={"shutdown_grace": 0.0})
    agents: dict[str, Any] = {
        "held": FunctionAgent("held", crew.held, on_loop=True),
        "patient": FunctionAgent("patient", crew.patient, on_loop=True),
    }
    async with Runtime.open(agents=agents, settings=settings) as desk:
        task = await desk.tasks.submit("x", agent="patient")
        await asyncio.wait_for(crew.begun.wait(), 60)
    crew.go.set()
    async with Runtime.open(agents=agents, settings=settings) as desk:
        after = await asyncio.wait_for(desk.tasks.wait(task.id), 60)
        assert (after.status, after.result, after.attempt) == ("done", "at last", 2)
        (handoff,) = await desk.handoffs.list()
        assert handoff.status == "completed"
    assert crew.calls == 2  # the target was interrupted too and continued


async def test_two_hundred_delegations_run_through_ten_slots(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDWATCH_DETECT_AGENTS", "false")
    monkeypatch.setenv("MIDWATCH_SLOTS", "10")
    agents: dict[str, Any] = {
        "upper": FunctionAgent("upper", upper, on_loop=True),
        "lead": FunctionAgent("lead", crew.lead, on_loop=True),
    }
    async with Runtime.open(tmp_path, agents=agents) as desk:
        tasks = [await desk.tasks.submit(f"w{number}", agent="lead") for number in range(200)]
        async with asyncio.timeout(120):
            done = [await desk.tasks.wait(task.id) for task in tasks]
        assert [task.result for task in done] == [f"W{number}" for number in range(200)]
        handoffs = await desk.handoffs.list(HandoffFilter(limit=500))
        assert sorted(str(handoff.source_task) for handoff in handoffs) == sorted(task.id for task in tasks)
        assert {handoff.status for handoff in handoffs} == {"completed"}
        kinds = [
            event.kind for event in await desk.store.read_events(0, limit=10_000) if event.kind.startswith("handoff_")
        ]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == dict.fromkeys(
            ("handoff_requested", "handoff_accepted", "handoff_started", "handoff_completed"), 200
        )


def test_an_agent_for_handoffs_needs_a_name() -> None:
    with pytest.raises(BadConfig, match="needs a name for handoffs"):
        HandoffAgent()


def test_an_agent_for_handoffs_needs_a_can_handle_without_async() -> None:
    class Slow(Coder):
        async def can_handle(self, work: HandoffTask) -> bool:  # type: ignore[override]
            return False

    with pytest.raises(BadConfig, match="define it without async"):
        Slow()


async def test_an_agent_for_handoffs_is_configured_by_its_class(tmp_path: Path) -> None:
    agent = build("mine", f"{__name__}:Coder", {}, slots=3, description="writes code")
    assert (agent.name, agent.kind, agent.terms.slots, agent.description) == ("mine", "handoff", 3, "writes code")
    async with Runtime.open(tmp_path, agents={"mine": agent}) as desk:
        options = HandoffOptions(task=HandoffTask(type="code", description="mend it"))
        assert (await desk.handoffs.handoff(options)).output == '{"did": "mend it", "heard": []}'
    with pytest.raises(BadConfig, match="no such option"):
        build("mine", f"{__name__}:Coder", {"colour": "red"})


# -- transfers ---------------------------------------------------------------------------------------------------


class Relay:
    """Agents that transfer their work to others."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ready = asyncio.Event()

    async def triage(self, prompt: str, turn: Turn) -> TurnResult:
        return TurnResult(outcome="transferred", transfer=await turn.transfer("expert", wait=False))

    async def expert(self, prompt: str, turn: Turn) -> TurnResult | str:
        if prompt == "harder":
            return TurnResult(outcome="transferred", transfer=await turn.transfer("last"))
        handoff = await turn.handoff()
        return f"{handoff.from_agent if handoff else 'nobody'} asked {prompt}"

    async def last(self, prompt: str) -> str:
        return f"the last did {prompt}"

    async def hesitant(self, prompt: str, turn: Turn) -> TurnResult:
        ready = await turn.transfer("expert")
        self.ready.set()
        await self.go.wait()
        return TurnResult(outcome="transferred", transfer=ready)

    def plain(self, prompt: str, turn: TurnProxy) -> Any:
        return turn.transfer("expert")

    async def boss(self, prompt: str, turn: Turn) -> str:
        return str((await turn.delegate("triage", prompt)).output)


@pytest.fixture
def relay() -> Relay:
    return Relay()


@pytest.fixture
async def passing(tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    monkeypatch.setenv("MIDWATCH_DETECT_AGENTS", "false")
    names = ("triage", "expert", "last", "hesitant", "boss")
    agents: dict[str, Any] = {name: FunctionAgent(name, getattr(relay, name), on_loop=True) for name in names}
    agents |= {"plain": relay.plain, "on_thread": relay.triage}
    (tmp_path / "relay_in_child.py").write_text(CHILD)
    for name in ("gives_away", "gives_away_async", "lies"):
        agents[name] = FunctionAgent(name, f"relay_in_child:{name}", path=(str(tmp_path),))
    noted = RecordingChannel("noted")
    async with Runtime.open(tmp_path / "home", agents=agents, channels={"noted": noted}) as desk:
        yield desk


async def test_a_transfer_continues_the_conversation_and_its_answer_is_the_result(passing: Runtime) -> None:
    desk = passing
    options: dict[str, Any] = {"session_key": "s", "origin_session": "chat", "route": "noted:me"}
    task = await desk.tasks.submit("harder", agent="triage", **options)
    after = await asyncio.wait_for(desk.tasks.wait(task.id), 60)
    assert (after.agent, after.result) == ("last", "the last did harder")
    assert await desk.tasks.result(task.id) == after.result
    first = await desk.tasks.get(task.id)
    second = await desk.tasks.get(first.transferred_to or "")
    assert (first.outcome, second.outcome, second.transferred_to) == ("transferred", "transferred", after.id)
    assert {task.session_key for task in (first, second, after)} == {"s"}
    assert (after.root_id, after.parent_id, after.route) == (task.id, second.id, "noted:me")
    messages = [(message.role, message.text) for message in await desk.sessions.messages("s")]
    assert messages == [("user", "harder"), ("agent", "the last did harder")]
    texts = [message.text for message in await desk.sessions.messages("chat")]
    assert texts == ["the last did harder"]
    notices = [(delivery.task_id, delivery.notice) for delivery in await desk.notifications.list()]
    assert notices == [(after.id, "done")]
    handoffs = await desk.handoffs.list(HandoffFilter(root_id=task.id))
    assert [(handoff.from_agent, handoff.to_agent, handoff.status) for handoff in handoffs] == [
        ("expert", "last", "completed"), ("triage", "expert", "completed")
    ]  # fmt: skip
    assert (await desk.sessions.get("s")).session.agent == "last"
    again = await run_task(desk, "expert", "easy")
    assert again.result == "nobody asked easy"


@pytest.mark.parametrize("agent", ["plain", "on_thread", "gives_away", "gives_away_async"])
async def test_every_kind_of_function_can_transfer(passing: Runtime, agent: str) -> None:
    after = await run_task(passing, agent, "harder")
    assert (after.agent, after.result) == ("last", "the last did harder")
    assert [handoff.from_agent for handoff in await passing.handoffs.list()] == ["expert", agent]


async def test_a_transfer_that_nobody_accepted_fails_the_task(passing: Runtime) -> None:
    task = await run_task(passing, "lies")
    assert task.status == "failed"
    assert "needs a transfer" in task.error


async def test_a_delegation_to_a_transferring_agent_returns_the_last_answer(passing: Runtime) -> None:
    task = await run_task(passing, "boss", "harder")
    assert task.result == "the last did harder"
    assert {handoff.status for handoff in await passing.handoffs.list()} == {"completed"}


async def test_a_transfer_can_be_cancelled_before_it_begins(passing: Runtime, relay: Relay) -> None:
    desk = passing
    task = await desk.tasks.submit("x", agent="hesitant")
    await asyncio.wait_for(relay.ready.wait(), 60)
    (handoff,) = await desk.handoffs.list()
    assert (handoff.status, handoff.form, handoff.task_id) == ("accepted", "transfer", None)
    await desk.handoffs.cancel(handoff.id)
    relay.go.set()
    after = await asyncio.wait_for(desk.tasks.wait(task.id), 60)
    assert (after.status, after.transferred_to) == ("failed", None)
    assert after.error is not None and "is cancelled" in after.error


async def test_a_cancelled_source_does_not_transfer(passing: Runtime, relay: Relay) -> None:
    desk = passing
    task = await desk.tasks.submit("x", agent="hesitant")
    await asyncio.wait_for(relay.ready.wait(), 60)
    await desk.tasks.cancel(task.id)
    assert (await asyncio.wait_for(desk.tasks.wait(task.id), 60)).status == "cancelled"
    assert len(await desk.tasks.list()) == 1

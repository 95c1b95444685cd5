"""Test handoffs on a real desk: chosen, accepted, completed; refused, late, cancelled. A failed handoff leaves a
record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.function import FunctionAgent
from midwatch.base.errors import (
    Conflict,
    HandoffDisabled,
    HandoffError,
    HandoffLimit,
    HandoffOverdue,
    HandoffRefused,
    InvalidInput,
    NoCandidate,
    NotFound,
    TransientError,
    UnknownAgent,
)
from midwatch.desk.config import Settings
from midwatch.domain.agent import AgentCapability
from midwatch.domain.handoff import Handoff, HandoffFilter, HandoffTask
from midwatch.domain.handoff_history import HandoffContext, HandoffInputData
from midwatch.runtime.runtime import Runtime
from midwatch.services.handoffs import HandoffOptions
from midwatch.testing import FakeClock

SAID = ({"role": "system", "content": "secret"}, {"role": "user", "content": "earlier"})


class ChoosyAgent(FunctionAgent):
    """A function agent with capabilities that decides whether it accepts."""

    def __init__(self, name: str, function: Any, priority: int, refuses: str = "", types: tuple[str, ...] = ()) -> None:
        super().__init__(name, function)
        self.capabilities = (AgentCapability(name="c", task_types=types, priority=priority),)
        self.refuses = refuses
        self.taken: list[str] = []

    def can_handle(self, work: HandoffTask) -> bool:
        return work.type != "impossible"

    async def accept(self, handoff: Handoff) -> None:
        if self.refuses:
            raise ValueError(self.refuses)
        self.taken.append(handoff.id)


async def echo(prompt: str) -> str:
    return f"<{prompt}>"


class Crew:
    """The agents of these tests."""

    def __init__(self) -> None:
        self.failures = 0

    async def shaky(self, prompt: str) -> str:
        self.failures += 1
        if self.failures < 3:
            raise TransientError("not yet")
        return "at last"

    async def slow(self, prompt: str) -> str:
        await asyncio.Event().wait()
        return "never"

    async def broken(self, prompt: str) -> str:
        raise RuntimeError("broke")


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
async def desk(tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    monkeypatch.setenv("MIDWATCH_DETECT_AGENTS", "false")
    agents = {
        "echo": FunctionAgent("echo", echo),
        "first": ChoosyAgent("first", echo, 9, refuses="I am busy", types=("code",)),
        "second": ChoosyAgent("second", echo, 5, types=("code",)),
        "shaky": FunctionAgent("shaky", crew.shaky),
        "slow": FunctionAgent("slow", crew.slow),
        "broken": FunctionAgent("broken", crew.broken),
    }
    async with Runtime.open(tmp_path, agents=agents) as desk:
        yield desk


def options(to: str | None = "echo", **fields: Any) -> HandoffOptions:
    return HandoffOptions(**{"task": HandoffTask(description="do it"), "to": to, "from_agent": "lead", **fields})


def raising(problem: BaseException) -> Any:
    def function(*arguments: Any) -> None:
        raise problem

    return function


async def make_overdue_handoff(desk: Runtime) -> Handoff:
    """Return a handoff whose deadline passed while its task worked. A slow machine gets more time for it."""
    for seconds in (0.2, 2.0, 20.0):
        with pytest.raises(HandoffOverdue):
            await desk.handoffs.handoff(options("slow", timeout=seconds))
        newest = (await desk.handoffs.list())[0]
        if newest.task_id is not None:
            break
    return newest


async def kinds(desk: Runtime, handoff_id: str | None = None) -> list[str]:
    events = [event for event in await desk.store.read_events(0) if event.kind.startswith("handoff_")]
    return [event.kind[8:] for event in events if handoff_id in (None, event.payload["handoff_id"])]


async def test_a_handoff_runs_and_returns_its_answer(desk: Runtime) -> None:
    done = await desk.handoffs.handoff(options(context=HandoffContext(messages=SAID)))
    assert (done.status, done.to_agent, done.chain) == ("completed", "echo", (("lead", None),))
    assert done.answer is not None
    output = done.answer["output"]
    assert "1. user: earlier" in output  # an agent without messages gets the history as text
    assert "secret" not in output
    assert output.count("do it") == 1
    assert await kinds(desk) == ["requested", "accepted", "started", "completed"]
    task = await desk.tasks.get(str(done.task_id))
    assert (task.cause, task.cause_id) == ("handoff", done.id)


async def test_the_best_agent_that_accepts_is_chosen(desk: Runtime) -> None:
    work = HandoffTask(type="code", description="write")
    done = await desk.handoffs.handoff(options(None, task=work))
    assert done.to_agent == "second"
    assert [dict(refusal) for refusal in done.refusals] == [{"agent": "first", "reason": "I am busy"}]
    assert await kinds(desk) == ["requested", "rejected", "accepted", "started", "completed"]
    with pytest.raises(HandoffRefused, match="I am busy"):
        await desk.handoffs.handoff(options("first", task=work))
    desk.handoffs.enable("second", False)
    with pytest.raises(HandoffDisabled):
        await desk.handoffs.handoff(options("second", task=work))
    assert [handoff.status for handoff in await desk.handoffs.list()] == ["rejected", "rejected", "completed"]


async def test_a_handoff_without_a_capable_agent_fails_and_is_recorded(desk: Runtime) -> None:
    for agent in desk.agents.values():
        desk.handoffs.enable(agent.name, False)
    with pytest.raises(HandoffDisabled):
        await desk.handoffs.handoff(options(None, task=HandoffTask(type="code", description="x")))
    await desk.handoffs.list()
    with pytest.raises(NoCandidate, match="'painting'") as caught:
        await desk.handoffs.handoff(options(None, task=HandoffTask(type="painting", description="x")))
    assert (await desk.handoffs.get(str(caught.value.handoff))).status == "failed"


async def test_each_history_filter_changes_the_passed_history(desk: Runtime) -> None:
    context = HandoffContext(messages=SAID)

    async def run_with(**fields: Any) -> str:
        done = await desk.handoffs.handoff(options(context=context, **fields))
        assert done.answer is not None
        return str(done.answer["output"])

    assert await run_with(input_filter=lambda data: HandoffInputData(new_messages=data.new_messages)) == "<do it>"
    assert "2 seen" not in await run_with(
        history_mapper=lambda seen: [{"role": "user", "content": f"{len(seen)} seen"}]
    )
    assert "1 seen" in await run_with(history_mapper=lambda seen: [{"role": "user", "content": f"{len(seen)} seen"}])
    assert "earlier" in await run_with(nest_history=True)

    async def replace_input(data: HandoffInputData) -> HandoffInputData:
        return HandoffInputData(input_messages=({"role": "user", "content": "other"},), new_messages=data.new_messages)

    assert await run_with(input_filter=replace_input) == "<other>"
    desk.handoffs.input_filter = replace_input
    assert await run_with() == "<other>"
    assert await run_with(input_filter=lambda data: HandoffInputData(new_messages=data.new_messages)) == "<do it>"


@pytest.mark.parametrize(
    ("wish", "stage", "match"),
    [
        ({"on_handoff": lambda handoff: 1 / 0}, "hook", "division"),
        ({"input_filter": lambda data: "wrong"}, "filter", "instead of HandoffInputData"),
        ({"input_filter": lambda data: 1 / 0}, "filter", "division"),
        ({"enable_func": lambda options, agent: 1 / 0}, "enable", "division"),
        ({"on_handoff": raising(TimeoutError("mine"))}, "hook", "hook: TimeoutError: mine"),
        ({"input_filter": raising(asyncio.CancelledError())}, "filter", "filter: CancelledError"),
        ({"on_handoff": raising(HandoffRefused("another", "h_1"))}, "hook", "HandoffRefused: another"),
        ({"to": "broken"}, "execute", "broke"),
    ],
)
async def test_any_failure_ends_the_handoff_only(desk: Runtime, wish: dict[str, Any], stage: str, match: str) -> None:
    with pytest.raises(HandoffError, match=match) as caught:
        await desk.handoffs.handoff(options(**wish))
    record = await desk.handoffs.get(str(caught.value.handoff))
    assert record.status == "failed"
    (over,) = [event for event in await desk.store.read_events(0) if event.kind == "handoff_failed"]
    assert over.payload["stage"] == stage
    assert (await desk.handoffs.handoff(options())).status == "completed"


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        ({"to": "nobody"}, UnknownAgent),
        ({"to": "echo", "from_agent": "echo"}, InvalidInput),
        ({"timeout": 0.0}, InvalidInput),
        ({"timeout": -3.0}, InvalidInput),
        ({"timeout": 1e300}, InvalidInput),
        ({"once": "half \ud800"}, InvalidInput),
        ({"task": HandoffTask(input="x" * 5_000_000)}, InvalidInput),
        ({"source_task": "t_none"}, NotFound),
        ({"context": HandoffContext(parent_handoff="h_none")}, NotFound),
    ],
)
async def test_invalid_input_leaves_no_record(desk: Runtime, wish: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await desk.handoffs.handoff(options(**wish))
    assert await desk.handoffs.list() == []


async def test_a_failed_handoff_is_retried_and_tries_are_counted(tmp_path: Path, crew: Crew) -> None:
    clock, settings = FakeClock(), Settings.load(tmp_path, detect_agents=False)
    agents = {"shaky": FunctionAgent("shaky", crew.shaky)}
    async with Runtime.open(settings=settings, agents=agents, clock=clock) as desk:
        doing = asyncio.create_task(desk.handoffs.handoff(options("shaky", max_retries=3)))
        async with asyncio.timeout(60):
            while not doing.done():
                await clock.advance(1)
                await asyncio.sleep(0.005)
        done, event_kinds = doing.result(), await kinds(desk)
    assert done.answer is not None
    assert (done.answer["output"], done.retry_count) == ("at last", 2)
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in done.tries] == [
        (1, "error"),
        (2, "error"),
        (3, "ok"),
    ]
    assert all(attempt["error"] and attempt["started_at"] <= attempt["ended_at"] for attempt in done.tries[:2])
    assert event_kinds == ["requested", "accepted", "started", "retried", "retried", "completed"]


async def test_a_deadline_covers_all_tries_and_a_late_result_is_kept(desk: Runtime, crew: Crew) -> None:
    record = await make_overdue_handoff(desk)
    assert record.status == "expired"
    task = await desk.tasks.wait(str(record.task_id))
    assert task.status == "cancelled"
    late = await desk.handoffs.get(record.id)
    assert (late.status, late.late and late.late["outcome"]) == ("expired", "cancelled")
    with pytest.raises(HandoffOverdue):
        await desk.handoffs.handoff(options(on_handoff=lambda handoff: asyncio.sleep(9), timeout=0.2))


async def test_a_deadline_holds_in_a_process_that_runs_only_its_own_tasks(tmp_path: Path, crew: Crew) -> None:
    slow = FunctionAgent("slow", crew.slow, on_loop=True)
    settings = Settings(home=tmp_path, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"slow": slow}, role="run") as desk:
        async with asyncio.timeout(60):
            record = await make_overdue_handoff(desk)
        assert (await desk.tasks.wait(str(record.task_id))).status == "cancelled"
        assert await kinds(desk, record.id) == ["requested", "accepted", "started", "expired"]


async def test_cancel_stops_the_target(desk: Runtime) -> None:
    handoff = await desk.handoffs.handoff(options("slow", wait=False))
    waiting = asyncio.create_task(desk.handoffs.wait(handoff.id))
    assert (await desk.handoffs.cancel(handoff.id)).status == "cancelled"
    with pytest.raises(HandoffError, match="cancelled"):
        await waiting
    assert (await desk.tasks.wait(str(handoff.task_id))).status == "cancelled"
    with pytest.raises(Conflict):
        await desk.handoffs.cancel(handoff.id)
    again = await desk.handoffs.retry(handoff.id)
    assert (again.retry_of, again.status) == (handoff.id, "in_progress")
    await desk.handoffs.cancel(again.id)


async def test_the_same_request_returns_the_same_handoff(desk: Runtime) -> None:
    task = await desk.tasks.submit("source", agent="slow")
    request = options(source_task=task.id, from_agent="", once="call-1")
    first, second = await desk.handoffs.handoff(request), await desk.handoffs.handoff(request)
    assert first.id == second.id
    assert first.root_id == task.id
    assert len(await desk.handoffs.list(HandoffFilter(root_id=task.id))) == 1
    await desk.tasks.cancel(task.id)


async def test_ping_pong_stops_at_the_limit(desk: Runtime) -> None:
    parent, hops = None, 0
    with pytest.raises(HandoffLimit, match="8 times in a row"):
        for hop in range(20):
            to = ("echo", "second")[hop % 2]
            context = HandoffContext(parent_handoff=parent)
            parent = (
                await desk.handoffs.handoff(options(to, context=context, from_agent="" if parent else "second"))
            ).id
            hops += 1
    assert hops == 8


async def test_settings_of_agents_and_limits_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDWATCH_DETECT_AGENTS", "false")
    (tmp_path / "midwatch.toml").write_text(
        "[handoffs]\ntotal = 1\ntimeout = 60\n"
        "[agents.worse]\nkind = 'demo'\n[[agents.worse.capabilities]]\nname = 'any'\n"
        "[agents.best]\nkind = 'demo'\n[[agents.best.capabilities]]\nname = 'x'\ntask_types = ['code']\npriority = 2\n"
        "[agents.shut]\nkind = 'demo'\nhandoffs = false\n"
        "[[agents.shut.capabilities]]\nname = 'x'\ntask_types = ['code']\npriority = 9\n"
    )
    async with Runtime.open(tmp_path) as desk:
        assert await desk.handoffs.find_agent(HandoffTask(type="code")) == ["shut", "best", "worse"]
        assert await desk.handoffs.find_agent(HandoffTask(type="prose")) == ["worse"]
        done = await desk.handoffs.handoff(options(None, task=HandoffTask(type="code", description="x")))
        assert (done.to_agent, done.timeout) == ("best", 60.0)
        with pytest.raises(HandoffDisabled):
            await desk.handoffs.handoff(options("shut"))
        source = await desk.tasks.submit("x", agent="demo")
        await desk.handoffs.handoff(options("best", from_agent="", source_task=source.id))
        with pytest.raises(HandoffLimit, match="1 handoffs came from one task"):
            await desk.handoffs.handoff(options("worse", from_agent="", source_task=source.id))


async def test_a_caller_without_a_task_may_set_a_key_too(desk: Runtime) -> None:
    first = await desk.handoffs.handoff(options(once="n", wait=False))
    assert (await desk.handoffs.handoff(options(once="n"))).id == first.id
    assert (await desk.handoffs.handoff(options(once="m"))).id != first.id


@pytest.mark.parametrize("to", ["echo", "second"])
async def test_concurrent_requests_with_one_key_make_one_handoff(desk: Runtime, to: str) -> None:
    handoffs = await asyncio.gather(*(desk.handoffs.handoff(options(to, once="n", wait=False)) for _ in range(10)))
    assert len({handoff.id for handoff in handoffs}) == len(await desk.handoffs.list()) == 1


async def test_a_handoff_cancelled_at_the_start_reports_it(desk: Runtime) -> None:
    async def hook(handoff: Handoff) -> None:
        await desk.handoffs.cancel(handoff.id, why="a change of mind")

    with pytest.raises(HandoffError, match="cancelled: a change of mind"):
        await desk.handoffs.handoff(options(on_handoff=hook))
    assert [handoff.status for handoff in await desk.handoffs.list()] == ["cancelled"]


async def test_a_deadline_that_passes_while_the_task_is_written_ends_the_handoff(desk: Runtime) -> None:
    with pytest.raises(HandoffOverdue):
        await desk.handoffs.handoff(options("slow", timeout=1e-9, wait=False))
    assert [handoff.status for handoff in await desk.handoffs.list()] == ["expired"]
    for task in await desk.tasks.list():  # if the task was created before
        assert (await desk.tasks.wait(task.id)).status == "cancelled"


async def test_a_retry_runs_in_the_directory_of_the_first_try(desk: Runtime, tmp_path: Path) -> None:
    with pytest.raises(HandoffError):
        await desk.handoffs.handoff(options("broken", workdir=str(tmp_path)))
    (failed,) = await desk.handoffs.list()
    again = await desk.handoffs.retry(failed.id)
    assert (await desk.tasks.get(str(again.task_id))).workdir == str(tmp_path)

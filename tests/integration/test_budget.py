"""Test budgets on a whole desk, on each kind of store: a spent budget stops work at its next step, is reported, and can
be raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings, Task, Turn, TurnResult, Usage
from midwatch.base.clock import LONGEST_NAP, SECOND
from midwatch.base.errors import Conflict, InvalidInput, TransientError
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes, Charge
from midwatch.domain.event import (
    Event,
    EventFilter,
    LlmRequest,
    LlmResponse,
    Payload,
    ToolExecEnd,
    ToolExecStart,
    TurnStart,
    event,
)
from midwatch.domain.task import meta
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, RecordingChannel, ScriptedAgent, Step, ask, result, wait_for
from records import submit_and_claim
from servers import until

MANY = 100
PRICES = "[prices.m]\ninput = 1000000\noutput = 2000000\n"
"""One dollar per token."""

Desk = Callable[..., Any]


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request: pytest.FixtureRequest, home: Path) -> Desk:
    """Open a desk on each kind of store."""
    db = request.getfixturevalue("database") if request.param == "postgres" else None

    def opened(toml: str = "", **agents: Any) -> Any:
        return open_desk(home, toml, db, **agents)

    return opened


@asynccontextmanager
async def open_desk(
    home: Path, toml: str = "", db: str | None = None, clock: FakeClock | None = None, **agents: Any
) -> AsyncIterator[Runtime]:
    home.mkdir(exist_ok=True)
    (home / "midwatch.toml").write_text(f'detect_agents = false\nshutdown_grace = 0\non_budget = "stop"\n{toml}')
    settings, there = Settings.load(home, db=db), RecordingChannel("there")
    async with Runtime.open(home, settings=settings, agents=agents, channels={"there": there}, clock=clock) as runtime:
        yield runtime


async def run(desk: Runtime, agent: str = "it", **options: Any) -> Task:
    task = await desk.tasks.submit("do it", agent=agent, route="there", **options)
    return await run_task(desk, task)


async def run_task(desk: Runtime, task: Task) -> Task:
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def read_events(desk: Runtime, task: Task, *kinds: str) -> list[Event]:
    return await desk.store.read_events(0, EventFilter(kinds=kinds, task_id=task.id))


def answer(**usage: Any) -> Payload:
    return LlmResponse(model="m", usage=usage or None, finish_reason="stop")


def make_worker(*payloads: Payload, times: int = MANY) -> Step:
    """Return a script that emits the same events again and again and lets other tasks run in between."""

    async def step(turn: Turn) -> str:
        for _ in range(times):
            for payload in payloads:
                await turn.emit(payload)
            await asyncio.sleep(0)
        return "all of it"

    return step


REQUEST = LlmRequest(model="m", messages_count=1, tools_count=0)
TOOL = (ToolExecStart(tool="t"), ToolExecEnd(tool="t"))
ENDLESS: list[tuple[dict[str, Any], tuple[Payload, ...], float, str]] = [
    ({"tokens": 30}, (REQUEST, answer(input_tokens=6, output_tokens=4)), 30, "llm_response"),
    ({"tokens": 25}, (answer(input_tokens=10),), 30, "llm_response"),
    ({"usd": 0.25}, (answer(input_tokens=1, cost_usd=0.1), *TOOL), 0.3, "llm_response"),
    ({"usd": 25.0}, (REQUEST, answer(input_tokens=5, output_tokens=5)), 30.0, "llm_response"),
    ({"steps": 5}, (REQUEST, answer(), *TOOL), 5, "llm_response"),
    ({"steps": 4}, (REQUEST, answer(), *TOOL), 4, "tool_exec_end"),
    ({"steps": 3}, TOOL, 3, "tool_exec_end"),
    ({"steps": 9, "tokens": 20}, (REQUEST, answer(output_tokens=20)), 20, "llm_response"),
]


@pytest.mark.parametrize(("budget", "loop", "spent", "last"), ENDLESS, ids=range(len(ENDLESS)))
async def test_a_task_stops_after_the_step_that_spent_its_budget(
    desk: Desk, budget: dict[str, Any], loop: tuple[Payload, ...], spent: float, last: str
) -> None:
    prices = PRICES.replace("2000000", "1000000") if "usd" in budget else ""
    async with desk(prices, it=ScriptedAgent(make_worker(*loop))) as runtime:
        task = await run(runtime, budget=budget)
        assert (task.status, task.outcome) == ("failed", "budget"), task.error
        (reached,) = await read_events(runtime, task, "budget_reached")
        which = reached.payload["budget"]
        assert reached.payload == {
            "budget": which,
            "scope": "task",
            "limit": budget[which],
            "spent": pytest.approx(spent),
            "account_id": task.id,
        }
        assert (
            task.error
            == f"its budget of {_format_amount(which, budget[which])} is spent: {_format_amount(which, spent)}"
        )
        events = await read_events(runtime, task)
        index = events.index(reached)
        assert events[index - 1].kind == last
        after = [event.kind for event in events[index + 1 :] if event.kind not in ("agent_error", "delivery_sent")]
        more = [kind for kind in after if kind in ("llm_response", "tool_exec_end")]
        assert len(more) <= 1, "no more than the step in flight, which is closed"
        assert after[-2:] == ["turn_end", "task_finished"]
        (end,) = await read_events(runtime, task, "turn_end")
        assert end.payload["status"] == "budget"
        notices = await runtime.store.list_deliveries(task_id=task.id)
        (notice,) = [delivery for delivery in notices if delivery.notice == "failed"]
        assert task.error in notice.text
        assert f"midwatch retry {task.id} --budget " in notice.text


def _format_amount(which: str, amount: float) -> str:
    return f"${amount:.2f}" if which == "usd" else f"{amount} {which}"


async def test_an_agent_that_checks_its_budget_ends_by_itself(desk: Desk) -> None:
    async def careful(turn: Turn) -> TurnResult:
        for number in range(MANY):
            if (permit := await turn.reserve()).action != "go_on":
                return TurnResult(text="so far", outcome="budget", error=permit.reason, thread_id="th_1")
            await turn.emit(REQUEST)
            await turn.emit(answer(input_tokens=10))
            await turn.save_step(number)
        return TurnResult(text="never")

    async with desk(it=ScriptedAgent(careful)) as runtime:
        task = await run(runtime, budget={"tokens": 30})
        assert (task.outcome, task.error) == ("budget", "its budget of 30 tokens is spent: 30 tokens")
        assert [step.data for step in await runtime.store.list_task_steps(task.id)] == [0, 1, 2]
        assert len(await read_events(runtime, task, "budget_reached")) == 1
        assert task.usage is not None and task.usage["input_tokens"] == 30 and task.usage["steps"] == 3
        session = await runtime.store.get_session(task.session_key)
        assert session is not None and session.thread_id == "th_1"


async def test_a_task_whose_last_step_spends_the_budget_is_done(desk: Desk) -> None:
    async with desk(it=ScriptedAgent(make_worker(answer(input_tokens=30), times=1), result("fine"))) as runtime:
        task = await run(runtime, budget={"tokens": 30})
        assert (task.status, task.result) == ("done", "fine")
        assert len(await read_events(runtime, task, "budget_reached")) == 1, "it is spent all the same"


async def test_an_unknown_price_is_reported_and_stops_nothing(desk: Desk) -> None:
    async with desk(it=ScriptedAgent(make_worker(answer(input_tokens=30), times=3))) as runtime:
        task = await run(runtime, budget={"usd": 0.01})
        assert task.status == "done"
        (why,) = await read_events(runtime, task, "error")
        assert (why.payload["stage"], "the price of m is unknown" in why.payload["message"]) == ("budget", True)
        assert task.usage == {"input_tokens": 90, "model": "m", "steps": 3, "seconds": task.usage["seconds"]}


async def test_missing_usage_is_computed_from_events_and_prices(desk: Desk) -> None:
    other_agent = ScriptedAgent(
        make_worker(answer(input_tokens=2, output_tokens=3), times=2), result("x", usage=Usage(cost_usd=0.5))
    )
    async with desk(
        PRICES, it=ScriptedAgent(make_worker(answer(input_tokens=2, output_tokens=3), times=2)), other=other_agent
    ) as runtime:
        task = await run(runtime)
        assert task.usage == {"input_tokens": 4, "output_tokens": 6, "cost_usd": 16.0, "model": "m"}
        responses = await read_events(runtime, task, "llm_response")
        assert [response.payload["usage"]["cost_usd"] for response in responses] == [8.0, 8.0]
        assert (await run(runtime, "other")).usage == {
            "input_tokens": 4,
            "output_tokens": 6,
            "cost_usd": 0.5,
            "model": "m",
        }


# -- time ------------------------------------------------------------------------------------------------------------


async def test_time_waiting_for_an_answer_does_not_count(home: Path) -> None:
    clock, never, told_it = FakeClock(), asyncio.Event(), asyncio.Event()

    async def goes_on(turn: Turn) -> None:
        told_it.set()

    steps = (ask("Deploy?", expires=9999.0), goes_on, wait_for(never))
    agent = ScriptedAgent(*steps, terms=AgentTerms(timeout_seconds=500.0))
    async with open_desk(home, clock=clock, it=agent) as desk:
        task = await desk.tasks.submit("do it", agent="it", budget={"seconds": "1m"})
        (question,) = await until(desk.approvals.list)
        await clock.advance(3000)
        await desk.approvals.answer(question.id, grant=True)
        await told_it.wait()
        assert (await desk.tasks.get(task.id)).wait is None and not await desk.approvals.list()
        await clock.advance(59)
        assert (await desk.tasks.get(task.id)).status == "running"
        await clock.advance(1)
        over = await run_task(desk, task)
        assert (over.outcome, over.error) == ("budget", "its budget of 1m of work is spent: 1m of work")
        assert over.usage == {"steps": 0, "seconds": 60.0}
        assert len(await read_events(desk, over, "budget_reached")) == 1
        assert "stop" in agent.interrupts


@pytest.mark.parametrize(("timeout", "seconds", "outcome"), [(10.0, 20.0, "timeout"), (20.0, 10.0, "budget")])
async def test_the_shorter_of_timeout_and_time_budget_applies(
    home: Path, timeout: float, seconds: float, outcome: str
) -> None:
    clock, never = FakeClock(), asyncio.Event()
    agent = ScriptedAgent(wait_for(never))
    async with open_desk(home, clock=clock, it=agent) as desk:
        task = await desk.tasks.submit("do it", agent="it", timeout=timeout, budget={"seconds": seconds})

        async def works() -> bool:
            return bool(agent.turns)  # its time counts from then on, not from the claim

        await until(works)
        await clock.advance(10)
        assert (await run_task(desk, task)).outcome == outcome


# -- attempts, crashes, retries --------------------------------------------------------------------------------------


async def test_attempts_of_a_task_share_its_budget(desk: Desk) -> None:
    async def fails_once(turn: Turn) -> None:
        await turn.emit(answer(input_tokens=20))
        if turn.attempt == 1:
            raise TransientError("again")

    agent = ScriptedAgent(fails_once, make_worker(answer(input_tokens=10)))
    async with desk(it=agent) as runtime:
        task = await run(runtime, budget={"tokens": 55})
        assert (task.attempt, task.outcome, task.tokens_used) == (2, "budget", 60 + 10)
        (reached,) = await read_events(runtime, task, "budget_reached")
        assert reached.payload["spent"] == 60


async def test_usage_of_a_killed_attempt_counts_for_the_next(home: Path) -> None:
    home.mkdir()
    store = await SqliteStore.open(home / "midwatch.db")
    task = await submit_and_claim(store, on_crash="resume", budget={"tokens": 50, "steps": 99})
    payloads = (TurnStart(user_message="x"), REQUEST, answer(input_tokens=30), REQUEST)
    events = tuple(event(payload, task.created_at + n * SECOND, **meta(task)) for n, payload in enumerate(payloads))
    await store.apply(Changes(events=events, charges=(Charge(task.id, tokens=30, steps=2, seconds=3.0),)))
    await store.close()
    async with open_desk(home, demo=ScriptedAgent(make_worker(answer(input_tokens=10)))) as desk:
        over = await run_task(desk, task)
        assert (over.outcome, over.rescues, over.tokens_used) == ("budget", 1, 60)
        assert over.usage is not None and over.usage["steps"] == 5
        assert over.error == "its budget of 50 tokens is spent: 50 tokens"


async def test_usage_of_a_killed_attempt_is_known_when_its_task_fails(home: Path) -> None:
    home.mkdir()
    store = await SqliteStore.open(home / "midwatch.db")
    task = await submit_and_claim(store, on_crash="fail")
    await store.apply(Changes(events=(event(answer(input_tokens=30), task.created_at, **meta(task)),)))
    await store.close()
    async with open_desk(home, demo=ScriptedAgent(result("x"))) as desk:
        lost = await run_task(desk, task)
        assert (lost.outcome, lost.usage) == ("lost", {"input_tokens": 30, "model": "m"})


async def test_a_retry_with_a_larger_budget_continues(desk: Desk) -> None:
    loaded: list[list[Any]] = []

    async def resumes(turn: Turn) -> Any:
        steps = await turn.load_steps()
        loaded.append(list(steps))
        for number in range(len(steps), 9):
            if (permit := await turn.reserve()).action != "go_on":
                return TurnResult(outcome="budget", error=permit.reason)
            await turn.emit(REQUEST)
            await turn.emit(answer(input_tokens=10))
            await turn.save_step(number)
        return "all nine"

    async with desk(it=ScriptedAgent(resumes)) as runtime:
        first = await run(runtime, budget={"tokens": 30, "usd": 5.0})
        with pytest.raises(Conflict, match=rf"midwatch retry {first.id} --budget tokens=60,usd=5"):
            await runtime.tasks.retry(first.id)
        with pytest.raises(Conflict, match="30 tokens is spent"):
            await runtime.tasks.retry(first.id, budget={"usd": 9.0})
        with pytest.raises(InvalidInput):
            await runtime.tasks.retry(first.id, budget={"tokens": 0})
        second = await run_task(runtime, await runtime.tasks.retry(first.id, budget={"tokens": 50}))
        assert (second.outcome, second.tokens_used) == ("budget", 20)
        assert (second.budget, second.account) == ({"tokens": 50, "usd": 5.0}, first.id)
        third = await run_task(runtime, await runtime.tasks.retry(second.id, budget={"tokens": 60}))
        last = await run_task(runtime, await runtime.tasks.retry(third.id, budget={"tokens": 1000}))
        assert (third.outcome, last.status, last.result) == ("budget", "done", "all nine")
        assert loaded == [[], [0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
        assert sum(task.tokens_used or 0 for task in (first, second, third, last)) == 90


async def test_a_retry_after_another_failure_has_the_remaining_budget(desk: Desk) -> None:
    async def fails_first(turn: Turn) -> None:
        await turn.emit(answer(input_tokens=20))
        if len(agent.turns) == 1:
            raise ValueError("no")

    agent = ScriptedAgent(fails_first, make_worker(answer(input_tokens=10)))
    async with desk(it=agent) as runtime:
        first = await run(runtime, budget={"tokens": 60})
        assert first.outcome == "error"
        again = await run_task(runtime, await runtime.tasks.retry(first.id))
        (reached,) = await read_events(runtime, again, "budget_reached")
        assert (again.outcome, reached.payload["spent"]) == ("budget", 60)


# -- the day ---------------------------------------------------------------------------------------------------------


async def test_parallel_tasks_share_the_daily_budget_and_later_ones_wait(home: Path) -> None:
    clock, four = FakeClock(), asyncio.Event()

    async def together(turn: Turn) -> None:
        if len(agent.turns) == 4:
            four.set()
        await four.wait()

    agent = ScriptedAgent(together, make_worker(REQUEST, answer(input_tokens=10)), terms=AgentTerms(slots=4))
    async with open_desk(home, "[day_budget]\ntokens = 200\n", clock=clock, it=agent) as desk:
        tasks = [await desk.tasks.submit("do it", agent="it", route="there") for _ in range(8)]

        async def rest() -> list[Task] | None:
            stored_tasks = [await desk.tasks.get(task.id) for task in tasks]
            return (
                stored_tasks if all(task.status == "failed" or task.wait == "limit" for task in stored_tasks) else None
            )

        stored_tasks = await until(rest)
        over, waiting = ([task for task in stored_tasks if task.status == status] for status in ("failed", "pending"))
        assert len(over) == 4 and len(waiting) == 4
        for task in over:
            assert task.outcome == "budget" and task.error.startswith("the day's budget of 200 tokens is spent")
            (reached,) = await read_events(desk, task, "budget_reached")
            assert reached.payload["scope"] == "day"
        assert 200 <= sum(task.tokens_used or 0 for task in over) <= 200 + 10 * len(over), (
            "no more than steps in flight"
        )
        for task in waiting:
            (waits,) = await read_events(desk, task, "task_waiting")
            assert waits.payload["wait"] == "limit" and "the day's budget" in waits.payload["reason"]
            notices = [n for n in await desk.store.list_deliveries(task_id=task.id) if n.notice == "limit"]
            assert len(notices) == 1 and notices[0].text.startswith("The day's budget of 200 tokens is spent")
            assert task.interruptions == 0 and not await read_events(desk, task, "turn_start")
        retried = await desk.tasks.retry(over[0].id)
        assert not (await desk.tasks.get(retried.id)).budget, "the day's budget is no limit of the task"
        await clock.advance((waiting[0].due_at - clock.now()) / SECOND)

        async def another_day() -> bool:
            await clock.advance(LONGEST_NAP)  # loops that computed their sleep before the clock was set wake too
            stored_tasks = [await desk.tasks.get(task.id) for task in (*waiting, retried)]
            return any(task.outcome == "budget" for task in stored_tasks)

        await until(another_day)


async def test_a_daily_budget_of_one_agent_does_not_block_others(home: Path) -> None:
    spends = ScriptedAgent(make_worker(answer(input_tokens=10), times=2))
    settings = '[agents.it]\nkind = "demo"\nday_budget = {tokens = 20}\n'
    fine = ScriptedAgent(result("fine"))
    async with open_desk(home, settings, clock=FakeClock(), it=spends, other=fine) as desk:  # midnight never comes
        assert (await run(desk)).status == "done"
        parked = await desk.tasks.submit("do it", agent="it")

        async def waits() -> bool:
            return (await desk.tasks.get(parked.id)).wait == "limit"

        await until(waits)
        assert (await run(desk, "other")).status == "done"


# -- goals, automations, agents --------------------------------------------------------------------------------------


async def test_a_step_of_a_goal_cannot_spend_more_than_remains(desk: Desk) -> None:
    agent = ScriptedAgent(make_worker(REQUEST, answer(input_tokens=10, cost_usd=0.1), times=4), result("on"))
    async with desk(it=agent) as runtime:
        goal = await runtime.goals.create("reach it", agent="it", max_tokens=70, max_usd=10.0)

        async def paused() -> Any:
            stored_goal = await runtime.goals.get(goal.id)
            return stored_goal if stored_goal.status == "paused" else None

        stored_goal = await until(paused)
        assert (stored_goal.tokens, stored_goal.usd) == (70, pytest.approx(0.7))
        assert stored_goal.paused_why == "its budget of 70 tokens is spent"
        first, second = sorted(await runtime.goals.steps(goal.id), key=lambda step: step.created_at)
        assert (first.budget, second.budget, first.account, second.account) == (None, None, goal.id, goal.id)
        (reached,) = await read_events(runtime, second, "budget_reached")
        assert (second.outcome, reached.payload["scope"]) == ("budget", "goal")
        edited = await runtime.goals.edit(goal.id, {"max_usd": 0.5, "max_tokens": 0})
        with pytest.raises(
            Conflict,
            match=rf"budget of \$0.50 is spent; increase the budget with `midwatch goal edit {edited.id} --max-usd",
        ):
            await runtime.goals.resume(goal.id)


async def test_runs_of_an_automation_have_its_budget_and_its_agents_budget(desk: Desk) -> None:
    agent = ScriptedAgent(make_worker(answer(input_tokens=10)), terms=AgentTerms(budget={"steps": 50, "tokens": 5}))
    async with desk(it=agent) as runtime:
        with pytest.raises(InvalidInput, match="has no token"):
            await runtime.automations.create("look", agent="it", every=3600, budget={"token": 1})
        automation = await runtime.automations.create("look", agent="it", every=3600, budget={"tokens": 20})
        task = await run_task(runtime, await runtime.automations.run(automation.id))
        assert task.budget == {"tokens": 20, "steps": 50}
        (reached,) = await read_events(runtime, task, "budget_reached")
        assert (task.outcome, reached.payload["scope"]) == ("budget", "automation")
        assert (await run(runtime)).budget == {"tokens": 5, "steps": 50}


async def test_a_message_after_a_spent_budget_continues_the_session(desk: Desk) -> None:
    agent = ScriptedAgent(make_worker(answer(input_tokens=10), times=3), result("fine"))
    async with desk(it=agent) as runtime:
        over = await run(runtime, session_key="chat:1", budget={"tokens": 10})
        more = await run(runtime, session_key="chat:1")
        assert (over.outcome, more.status) == ("budget", "done")

"""Test budgets that ask: a warning before the limit, one question at the limit, and what each answer does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import serve
from midwatch import Runtime, Settings, Task, Turn, TurnResult
from midwatch.agents.function import FunctionAgent
from midwatch.agents.llm.kind import LlmAgent
from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, HandoffError, HandoffOverdue, StoreError
from midwatch.domain.account import Account
from midwatch.domain.agent import AgentTerms
from midwatch.domain.approval import Approval
from midwatch.domain.event import Event, EventFilter, LlmRequest, LlmResponse
from midwatch.domain.handoff import Handoff, HandoffTask
from midwatch.domain.identity import Actor
from midwatch.services.handoffs import HandoffOptions
from midwatch.testing import FakeClock, RecordingChannel, ScriptedAgent
from servers import until

CALL = 100
REQUEST = LlmRequest(model="m", messages_count=1, tools_count=0)
ANSWER = LlmResponse(model="m", usage={"input_tokens": CALL}, finish_reason="stop")


async def spend(turn: Turn) -> TurnResult:
    """Call a model as often as the prompt says, or until the budget is spent."""
    for _ in range(int(turn.prompt.rpartition(" ")[2])):
        if (await turn.reserve()).action != "go_on":
            return TurnResult(outcome="budget", error="spent")
        await turn.emit(REQUEST)
        await turn.emit(ANSWER)
    return TurnResult(text="did it")


async def spend_step(turn: Turn) -> TurnResult:
    """Call a model twice in each step of a goal."""
    for _ in range(2):
        if (await turn.reserve()).action != "go_on":
            return TurnResult(outcome="budget", error="spent")
        await turn.emit(REQUEST)
        await turn.emit(ANSWER)
    return TurnResult(text=f"did {turn.task_id}")


@asynccontextmanager
async def open_home(home: Path, db: str | None = None, **more: Any) -> AsyncIterator[Runtime]:
    home.mkdir(exist_ok=True)
    clock, role = more.pop("clock", None), more.pop("role", "library")
    (home / "midwatch.toml").write_text("detect_agents = false\nshutdown_grace = 0\n")
    channels = {"there": RecordingChannel("there")}
    settings = Settings.load(home, db=db)
    named: Any = {"channels": channels, "clock": clock, "role": role}
    async with Runtime.open(home, settings=settings, agents=more, **named) as desk:
        yield desk


@pytest.fixture(params=["sqlite", "postgres"])
def open_desk(request: pytest.FixtureRequest, home: Path) -> Callable[..., Any]:
    """Open a desk on each kind of store."""
    db = request.getfixturevalue("database") if request.param == "postgres" else None
    return lambda **more: open_home(home, db, **more)


async def submit(desk: Runtime, prompt: str = "go on 9", **options: Any) -> Task:
    wish: dict[str, Any] = {"agent": "it", "route": "there", "budget": {"tokens": 4 * CALL}, **options}
    return await desk.tasks.submit(prompt, **wish)


async def wait(desk: Runtime, task: Task) -> Task:
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def find_question(desk: Runtime, before: Approval | None = None) -> Approval:
    """Return the open question, when there is one other than `before`."""

    async def look() -> Approval | None:
        return next((question for question in await desk.approvals.list() if question != before), None)

    question: Approval = await until(look)
    return question


async def read_account(desk: Runtime, account_id: str) -> Account:
    (account,) = await desk.store.read_accounts([account_id])
    return account


async def read_events(desk: Runtime, *kinds: str) -> list[Event]:
    return await desk.store.read_events(0, EventFilter(kinds=kinds))


async def test_a_spent_budget_waits_for_an_answer_without_a_slot_and_then_goes_on(open_desk: Any) -> None:
    agent = ScriptedAgent(spend, terms=AgentTerms(slots=1, on_crash="rerun"))
    async with open_desk(it=agent) as desk:
        task = await submit(desk)
        question = await find_question(desk)
        assert (await desk.tasks.get(task.id)).status_text == "running: waits for an answer"
        assert [choice.name for choice in question.choices] == [
            "raise by 25 %", "raise by 50 %", "raise by 100 %", "wind up", "stop"
        ]  # fmt: skip
        assert question.question.splitlines() == [
            "Its budget of 400 tokens is spent: 400 tokens. May the work go on?",
            "Work: go on 9",
            "Spent so far: 400 tokens, 4 steps.",
            "Raise by 25 % to 500 tokens, by 50 % to 600 tokens, by 100 % to 800 tokens.",
            "Wind up: one last answer without tools. Stop: finished work is kept.",
            "No answer within 12h: the work stops.",
        ]
        (asked,) = [n for n in await desk.store.list_deliveries(task_id=task.id) if n.notice.startswith("asked")]
        assert f"midwatch approve {question.id} --choice 'raise by 50 %'" in asked.text
        other = await wait(desk, await submit(desk, "go on 1"))
        assert other.status == "done", "the slot is free meanwhile"
        assert len(await read_events(desk, "llm_response")) == 4 + 1, "no call is made meanwhile"
        (listed, *_) = await desk.accounts.list()
        assert (listed["id"], listed["question"]) == (task.id, question.id)
        await desk.approvals.answer(question.id, "raise by 50 %", actor="ann")
        second = await find_question(desk, question)
        account = await read_account(desk, task.id)
        assert (account.limits, account.tokens, account.approval_id) == ({"tokens": 600}, 600, second.id)
        await desk.approvals.answer(second.id, "raise by 100 %", actor="bob")
        done = await wait(desk, task)
        assert (done.status, done.attempt, done.tokens_used) == ("done", 1, 900)
        resolved = [event.payload for event in await read_events(desk, "approval_resolved")]
        assert [(answer["answer"], answer["answered_by"]) for answer in resolved] == [
            ("raise by 50 %", "ann"),
            ("raise by 100 %", "bob"),
        ]
        with pytest.raises(Conflict):
            await desk.approvals.answer(question.id, "stop")


# the setting of the desk, of the agent, and of the work itself; whether the work has a route; what it gets
MODES: list[tuple[str | None, str | None, str | None, str | None, str]] = [
    (None, None, None, "there", "ask"),
    (None, None, None, None, "stop"),
    ("ask", None, None, None, "ask"),
    ("stop", None, None, "there", "stop"),
    ("stop", "ask", None, None, "ask"),
    ("ask", "stop", None, "there", "stop"),
    ("ask", "stop", "ask", None, "ask"),
    ("stop", "ask", "stop", "there", "stop"),
]


@pytest.mark.parametrize(("of_desk", "of_agent", "wanted", "route", "mode"), MODES)
async def test_the_nearest_setting_says_what_happens_when_a_budget_is_spent(
    home: Path, of_desk: str | None, of_agent: str | None, wanted: str | None, route: str | None, mode: str
) -> None:
    home.mkdir()
    lines = {"desk": of_desk and f'on_budget = "{of_desk}"', "agent": of_agent and f'on_budget = "{of_agent}"'}
    (home / "midwatch.toml").write_text(
        f"detect_agents = false\n{lines['desk'] or ''}\n[agents.it]\nkind = 'demo'\n{lines['agent'] or ''}\n"
    )
    wish: Any = {"agent": "it", "route": route, "on_budget": wanted}
    async with Runtime.open(home, channels={"there": RecordingChannel("there")}) as desk:
        task = await desk.tasks.submit("x", **wish)
        automation = await desk.automations.create("x", every="1h", **wish)
        run = await desk.automations.run(automation.id)
        goal = await desk.goals.create("x", max_steps=1, **wish)
        (step,) = await until(lambda: desk.goals.steps(goal.id))
        assert (task.on_budget, run.on_budget, step.on_budget) == (mode, mode, mode)
        assert (await read_account(desk, goal.id)).on_budget == mode


async def test_people_are_warned_once_at_four_fifths_of_each_limit(open_desk: Any) -> None:
    async with open_desk(it=ScriptedAgent(spend)) as desk:
        task = await wait(desk, await submit(desk, "go on 5", budget={"tokens": 5 * CALL, "steps": 50}))
        assert task.status == "done"
        (warned,) = await read_events(desk, "budget_warned")
        expected = {"budget": "tokens", "scope": "task", "limit": 500, "spent": 400, "account_id": task.id}
        assert warned.payload == expected
        notices = [n for n in await desk.store.list_deliveries(task_id=task.id) if n.notice.startswith("budget:")]
        text = "it: 80 % of its budget of 500 tokens is spent: 400 tokens.\nWork: go on 5\n"
        text += f"At the limit, people are asked whether the work may go on. See `midwatch budget {task.id}`."
        assert [notice.text for notice in notices] == [text]


@pytest.mark.parametrize("answer", ["stop", "wind up", None])
async def test_after_stop_the_whole_account_stops(open_desk: Any, answer: str | None) -> None:
    async def lead(prompt: str, turn: Turn) -> str:
        parts = [turn.delegate("it", f"part {n} 9") for n in range(3)]
        return ", ".join(str(part) for part in await asyncio.gather(*parts, return_exceptions=True))

    agents = {"it": ScriptedAgent(spend), "lead": FunctionAgent("lead", lead, on_loop=True)}
    async with open_desk(**agents) as desk:
        task = await submit(desk, "x", agent="lead")

        async def all_wait() -> bool:
            members = await desk.store.list_account_tasks(task.id)
            return [member.wait for member in members if member.id != task.id] == ["approval"] * 3

        await until(all_wait)
        (question,) = await desk.approvals.list()  # all three wait for the same one
        await desk.approvals.answer(question.id, answer, grant=None if answer else False)
        done = await wait(desk, task)
        members = [member for member in await desk.store.list_account_tasks(task.id) if member.id != task.id]
        assert [member.outcome for member in members] == ["budget"] * 3, done.result
        account = await read_account(desk, task.id)
        assert account.on_budget == ("wind_up" if answer == "wind up" else "stop")
        assert await desk.approvals.list() == [], "nobody is asked again"
        assert account.tokens <= 4 * CALL + 2 * CALL, "no more than the calls in flight"


async def test_wind_up_is_one_last_call_without_tools(home: Path) -> None:
    def note(line: str) -> str:
        """Writes a line."""
        return line

    async with serve() as (url, model):
        agent = LlmAgent("it", "openai:fake", base_url=f"{url}/v1", tools=[note])
        async with open_home(home, it=agent) as desk:
            script = "".join('[[tool note {"line": "x"}]]' for _ in range(9))
            task = await submit(desk, script, budget={"steps": 3})
            question = await find_question(desk)
            calls = len(model.requests)
            await desk.approvals.answer(question.id, "wind up", actor="ann")
            done = await wait(desk, task)
            assert (done.status, done.outcome) == ("done", "ok"), done.error
            assert "its budget of 3 steps is spent" in (done.result or "")
            assert len(model.requests) == calls + 1
            skipped = [event.payload["reason"] for event in await read_events(desk, "tool_exec_skipped")]
            assert skipped == ["It was not run: its budget of 3 steps is spent: 3 steps."]
            assert (await read_account(desk, task.id)).steps == 4


async def test_work_that_begins_after_the_answer_wind_up_makes_no_call(home: Path) -> None:
    async def lead(prompt: str, turn: Turn) -> str:
        await asyncio.gather(turn.delegate("it", "[[tool nothing {}]]" * 9), return_exceptions=True)
        (later,) = await asyncio.gather(turn.delegate("it", "more"), return_exceptions=True)
        return str(later)

    async with serve() as (url, model):
        agents = {"it": LlmAgent("it", "openai:fake", base_url=f"{url}/v1"), "lead": FunctionAgent("lead", lead)}
        async with open_home(home, **agents) as desk:
            task = await submit(desk, "x", agent="lead", budget={"steps": 3})
            question = await find_question(desk)
            calls = len(model.requests)
            await desk.approvals.answer(question.id, "wind up")
            done = await wait(desk, task)
            assert "the shared budget of 3 steps is spent" in (done.result or done.error or "")
            assert len(model.requests) == calls + 1
            assert (await read_account(desk, task.id)).steps == 4


async def test_after_its_time_is_spent_the_work_winds_up_with_one_call(home: Path) -> None:
    async def hang() -> None:
        """Never returns."""
        await asyncio.Event().wait()

    async with serve() as (url, model):
        agent = LlmAgent("it", "openai:fake", base_url=f"{url}/v1", tools=[hang])
        async with open_home(home, it=agent) as desk:
            await wait(desk, await submit(desk, "[[say hi]]"))  # the libraries of the agent are loaded now
            task = await submit(desk, "[[tool hang {}]]", budget={"seconds": 0.5})
            question = await find_question(desk)
            calls = len(model.requests)
            await desk.approvals.answer(question.id, "wind up")
            done = await wait(desk, task)
            assert (done.status, done.outcome, done.attempt) == ("done", "ok", 2), done.error
            assert len(model.requests) == calls + 1
            assert await desk.approvals.list() == [], "nobody is asked again"


async def test_a_question_that_nobody_answers_stops_the_work(home: Path) -> None:
    clock = FakeClock()
    async with open_home(home, clock=clock, it=ScriptedAgent(spend)) as desk:
        task = await submit(desk)
        question = await find_question(desk)
        await clock.advance(12 * 3600 + 60)
        stopped = await wait(desk, task)
        assert (stopped.outcome, (await desk.approvals.get(question.id)).status) == ("budget", "expired")
        notices = {n.notice: n.text for n in await desk.store.list_deliveries(task_id=task.id)}
        assert f"midwatch retry {task.id} --budget tokens=800" in notices["failed"]


async def test_after_no_answer_nobody_is_asked_again(open_desk: Any) -> None:
    """Once each further delegate of the same work asked again, and the work waited for hours each time."""
    clock = FakeClock()

    async def lead(prompt: str, turn: Turn) -> str:
        parts = [await asyncio.gather(turn.delegate("it", f"part {n} 9"), return_exceptions=True) for n in range(3)]
        return ", ".join(type(part).__name__ for (part,) in parts)

    agents = {"it": ScriptedAgent(spend), "lead": FunctionAgent("lead", lead, on_loop=True)}
    async with open_desk(clock=clock, **agents) as desk:
        task = await submit(desk, "x", agent="lead")
        question = await find_question(desk)
        await clock.advance(12 * 3600 + 60)
        assert (await wait(desk, task)).result == "HandoffError, HandoffError, HandoffError"
        assert [asked.id for asked in await desk.approvals.list(None)] == [question.id]
        assert (await read_account(desk, task.id)).on_budget == "stop"
        (part, *_) = [member for member in await desk.store.list_account_tasks(task.id) if member.id != task.id]
        await desk.tasks.retry(part.id, budget={"tokens": 5 * CALL})
        second = await find_question(desk)
        assert second.id != question.id, "a larger budget asks again"
        await desk.approvals.answer(second.id, "stop")


async def test_an_agent_that_acts_by_itself_is_resumed_after_the_answer(open_desk: Any) -> None:
    async def act(turn: Turn) -> TurnResult:
        await turn.keep_thread("th_1")
        for _ in range(4):
            await turn.emit(REQUEST)
            await turn.emit(ANSWER)
        return TurnResult(text=f"attempt {turn.attempt} of {turn.thread_id}", thread_id="th_1")

    async with open_desk(it=ScriptedAgent(act, terms=AgentTerms(on_crash="resume"))) as desk:
        task = await submit(desk, budget={"tokens": 3 * CALL})
        question = await find_question(desk)
        assert (await desk.tasks.get(task.id)).attempt == 1
        await desk.approvals.answer(question.id, "raise by 100 %")
        second = await find_question(desk, question)
        await desk.approvals.answer(second.id, "raise by 100 %")
        done = await wait(desk, task)
        assert (done.status, done.result) == ("done", "attempt 3 of th_1")
        assert [e.payload["reason"] for e in await read_events(desk, "task_interrupted")] == ["budget", "budget"]
        assert (await read_account(desk, task.id)).tokens == done.tokens_used


@pytest.mark.parametrize("on_budget", ["stop", "ask"])
async def test_a_spent_time_ends_or_asks_before_the_next_attempt(open_desk: Any, on_budget: str) -> None:
    async def act(turn: Turn) -> TurnResult:
        await turn.keep_thread("th_1")
        if turn.attempt == 1:
            await asyncio.Event().wait()
        return TurnResult(text="the rest", thread_id="th_1")

    async with open_desk(it=ScriptedAgent(act, terms=AgentTerms(on_crash="resume"))) as desk:
        task = await submit(desk, budget={"seconds": 0.2}, on_budget=on_budget)
        if on_budget == "ask":
            question = await find_question(desk)
            assert (await desk.tasks.get(task.id)).attempt == 1
            await desk.approvals.answer(question.id, "raise by 100 %")
        done = await wait(desk, task)
        assert (done.outcome, done.attempt) == (("budget", 1) if on_budget == "stop" else ("ok", 2))


async def test_a_spent_budget_is_the_outcome_even_if_the_accounts_cannot_be_read(
    open_desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(ids: Any) -> list[Account]:
        raise StoreError("the database cannot be read.")

    async def act(turn: Turn) -> str:
        try:
            while True:
                await turn.emit(REQUEST)
                await turn.emit(ANSWER)
                await asyncio.sleep(0)
        finally:
            monkeypatch.setattr(desk.store, "read_accounts", refuse)

    async with open_desk(it=ScriptedAgent(act)) as desk:
        task = await wait(desk, await submit(desk))
        assert (task.outcome, task.error) == ("budget", "its budget of 400 tokens is spent: 400 tokens")


async def test_an_agent_that_cannot_resume_stops(open_desk: Any) -> None:
    async def act(turn: Turn) -> str:
        for _ in range(9):
            await turn.emit(REQUEST)
            await turn.emit(ANSWER)
            await asyncio.sleep(0)
        return "all of it"

    async with open_desk(it=ScriptedAgent(act)) as desk:
        task = await wait(desk, await submit(desk))
        assert (task.outcome, await desk.approvals.list(None)) == ("budget", [])
        spent, why = (task.error or "").split(". ")
        assert (spent, why) == (
            "its budget of 400 tokens is spent: 400 tokens",
            "People could not be asked, because agent it cannot resume a stopped turn",
        )
        stopped = await wait(desk, await submit(desk, on_budget="stop"))
        assert stopped.error == spent, "nobody wanted to ask"


async def test_a_goal_is_raised_by_the_answer_and_by_its_edit(open_desk: Any) -> None:
    async with open_desk(it=ScriptedAgent(spend_step)) as desk:
        goal = await desk.goals.create("reach it", agent="it", route="there", max_tokens=3 * CALL, deadline=3600)
        question = await find_question(desk)
        assert question.expires_at == goal.deadline_at, "no question of a goal waits longer than the goal"
        await desk.approvals.answer(question.id, "raise by 100 %", actor="ann")
        second = await find_question(desk, question)  # its third step asks before it begins
        await desk.goals.edit(goal.id, {"objective": "reach it soon"})
        assert (await desk.approvals.get(second.id)).status == "pending", "its limits are the same"
        assert (await desk.goals.get(goal.id)).max_tokens == 6 * CALL
        await desk.goals.edit(goal.id, {"max_tokens": 9 * CALL})  # the question is about an old limit
        assert (await desk.approvals.get(second.id)).status == "expired"
        third = await find_question(desk, second)
        await desk.approvals.answer(third.id, "stop")

        async def paused() -> bool:
            return (await desk.goals.get(goal.id)).status == "paused"

        await until(paused)
        assert (await desk.goals.get(goal.id)).tokens == 9 * CALL
        for field, value, mode in (("objective", "reach it", "stop"), ("max_tokens", 12 * CALL, "ask")):
            await desk.goals.edit(goal.id, {field: value})
            assert (await desk.store.read_accounts([goal.id]))[0].on_budget == mode


async def test_a_retry_of_a_delegate_raises_its_goal_and_asks_again(open_desk: Any) -> None:
    """Once the account got the mode of the delegate, and the goal could not be resumed."""

    async def lead(turn: Turn) -> str:
        with suppress(HandoffError):
            await turn.delegate("low", "part 9")
        return "ok"

    low = ScriptedAgent(spend, terms=AgentTerms(on_budget="stop"))
    async with open_desk(lead=ScriptedAgent(lead), low=low) as desk:
        goal = await desk.goals.create("reach it", agent="lead", route="there", max_tokens=3 * CALL)
        await desk.approvals.answer((await find_question(desk)).id, "stop")

        async def paused() -> bool:
            return (await desk.goals.get(goal.id)).status == "paused"

        await until(paused)
        (part,) = [task for task in await desk.tasks.list() if task.agent == "low"]
        assert (await wait(desk, await desk.tasks.retry(part.id, budget={"tokens": 50 * CALL}))).status == "done"
        (account,) = await desk.store.read_accounts([goal.id])
        assert (account.limits, account.on_budget, account.tokens) == ({"tokens": 50 * CALL}, "ask", 12 * CALL)
        assert (await desk.goals.get(goal.id)).max_tokens == 50 * CALL
        assert (await desk.goals.resume(goal.id)).status == "active"
        await desk.goals.clear(goal.id)


# -- deadlines of handoffs ---------------------------------------------------------------------------------------------


def crew(parts: int, *, calls: int = 99, timeout: float = 300.0) -> dict[str, Any]:
    """Return a lead that delegates parts at the same time, and an agent that does not end after a no."""

    async def lead(prompt: str, turn: Turn) -> str:
        work = [turn.delegate("it", f"part {number} {calls}", timeout=timeout) for number in range(parts)]
        return ", ".join(type(part).__name__ for part in await asyncio.gather(*work, return_exceptions=True))

    async def work(turn: Turn) -> TurnResult:
        if (result := await spend(turn)).outcome == "budget":
            await asyncio.Event().wait()
        return result

    return {"lead": FunctionAgent("lead", lead, on_loop=True), "it": ScriptedAgent(work, terms=AgentTerms(slots=8))}


async def wait_for_status(desk: Runtime, status: str, count: int) -> list[Handoff]:
    """Return the handoffs with this status, when there are so many."""

    async def look() -> list[Handoff] | None:
        found = [handoff for handoff in await desk.handoffs.list() if handoff.status == status]
        return found if len(found) == count else None

    handoffs: list[Handoff] = await until(look)
    return handoffs


async def wait_for_asking(desk: Runtime, count: int) -> None:
    """Wait until so many delegates wait for an answer."""

    async def look() -> bool:
        return [task.wait for task in await desk.tasks.list() if task.agent == "it" and task.open] == [
            "approval"
        ] * count

    await until(look)


async def read_delays(desk: Runtime, status: str, count: int) -> list[float]:
    """Return the seconds by which the deadlines of the handoffs with this status have moved."""
    handoffs = await wait_for_status(desk, status, count)
    return [(handoff.deadline_at - handoff.created_at) / SECOND - handoff.timeout for handoff in handoffs]


async def test_deadlines_stand_still_while_parallel_work_waits_for_one_answer(open_desk: Any) -> None:
    """Once three delegates at one question moved the deadlines of all three by 12 hours each."""
    clock = FakeClock()
    async with open_desk(clock=clock, **crew(3)) as desk:
        task = await submit(desk, "x", agent="lead")
        question = await find_question(desk)
        await wait_for_asking(desk, 3)
        await clock.advance(3600)
        assert await read_delays(desk, "in_progress", 3) == [0, 0, 0], "nothing is written while the question is open"
        await desk.approvals.answer(question.id, "raise by 100 %")
        second = await find_question(desk, question)
        await wait_for_asking(desk, 3)
        assert await read_delays(desk, "in_progress", 3) == [3600] * 3
        await clock.advance(600)
        await desk.tasks.cancel(second.task_id)  # the delegate that asked; the others ask again
        await find_question(desk, second)
        assert (await desk.approvals.get(second.id)).status == "expired"
        await wait_for_asking(desk, 2)
        assert await read_delays(desk, "in_progress", 2) == [4200] * 2
        await desk.tasks.cancel(task.id)
        await wait(desk, task)


async def test_a_shutdown_before_the_agent_begins_loses_no_task(open_desk: Any) -> None:
    began: list[bool] = []

    async def work(prompt: str, turn: Turn) -> str:
        began.append(turn.resumed)
        return "did it"

    agents = {
        "lead": ScriptedAgent(spend, terms=AgentTerms(submits=True)),
        "it": FunctionAgent("it", work, on_loop=True, terms=AgentTerms(on_crash="fail")),
    }
    async with open_desk(**agents) as desk:
        first = await wait(desk, await submit(desk, "go on 4", agent="lead", actor="ann"))
        task = await desk.tasks.submit("more", agent="it", actor=Actor("ann", "attempt", "attempt", task=first))
        await find_question(desk)
    async with open_desk(**agents) as desk:
        question = await find_question(desk)
        assert not began
        await desk.approvals.answer(question.id, "raise by 100 %")
        ended = await wait(desk, task)
        assert (ended.result, ended.attempt, ended.interruptions, began) == ("did it", 2, 0, [False])


@pytest.mark.parametrize("answer", ["stop", None])
async def test_a_handoff_expires_in_time_after_a_no(open_desk: Any, answer: str | None) -> None:
    clock = FakeClock()
    async with open_desk(clock=clock, **crew(1)) as desk:
        task = await submit(desk, "x", agent="lead")
        question = await find_question(desk)
        await clock.advance(11 * 3600)
        assert await read_delays(desk, "in_progress", 1) == [0]
        if answer:
            await desk.approvals.answer(question.id, answer)
        else:
            await clock.advance(3600 + 30)

        async def has_ended() -> Approval | None:
            approval = await desk.approvals.get(question.id)
            return None if approval.status == "pending" else approval

        ended = await until(has_ended)
        assert ended.resolved_at is not None
        delay = (ended.resolved_at - question.created_at) / SECOND
        assert await read_delays(desk, "in_progress", 1) == [delay]
        await clock.advance(delay + 299 - (clock.now() - question.created_at) / SECOND)
        assert await read_delays(desk, "in_progress", 1) == [delay]
        await clock.advance(2)
        assert await read_delays(desk, "expired", 1) == [delay]
        assert (await wait(desk, task)).result == "HandoffOverdue"


def note_checks(desk: Runtime, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Handoff | None]]:
    """Return what the store answers from now on when it is asked whether a handoff is due, by the id of the handoff."""
    find_due, answers = desk.store.find_due_handoff, dict[str, list[Handoff | None]]()

    async def find_and_note(handoff_id: str, now: int) -> Handoff | None:
        answers.setdefault(handoff_id, []).append(due := await find_due(handoff_id, now))
        return due

    monkeypatch.setattr(desk.store, "find_due_handoff", find_and_note)
    return answers


async def test_a_process_without_a_scheduler_keeps_to_deadlines_that_stand_still(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    async with open_home(home, clock=clock, role="run", **crew(1, timeout=0.2)) as desk:
        task = await submit(desk, "x", agent="lead")
        question = await find_question(desk)
        answers = note_checks(desk, monkeypatch)
        await clock.advance(3600)
        (handoff,) = await wait_for_status(desk, "in_progress", 1)
        waiting = asyncio.create_task(desk.handoffs.wait(handoff.id))
        await until(lambda: len(answers.get(handoff.id, ())) >= 3)  # two wait for the handoff, so one has asked again
        assert set(answers[handoff.id]) == {None} and not waiting.done()
        assert await read_delays(desk, "in_progress", 1) == [0]
        await desk.approvals.answer(question.id, "stop")
        assert await read_delays(desk, "in_progress", 1) == [3600]
        await clock.advance(1)
        with pytest.raises(HandoffOverdue):
            await asyncio.wait_for(waiting, 60)
        assert (await wait(desk, task)).result == "HandoffOverdue"


async def test_a_retry_with_a_larger_budget_ends_the_question(open_desk: Any) -> None:
    """Once the question stayed open, and its answer had no effect."""
    clock = FakeClock()
    async with open_desk(clock=clock, **crew(2, calls=6)) as desk:
        task = await submit(desk, "x", agent="lead")
        question = await find_question(desk)
        await wait_for_asking(desk, 2)
        (stopped,) = [t for t in await desk.tasks.list() if t.agent == "it" and t.id != question.task_id]
        await desk.tasks.cancel(stopped.id)
        await wait(desk, stopped)
        await clock.advance(3600)
        again = await desk.tasks.retry(stopped.id, budget={"tokens": 99 * CALL})
        assert (await wait(desk, task)).status == (await wait(desk, again)).status == "done"
        assert (await desk.approvals.get(question.id)).why == "the budget was changed"
        assert await read_delays(desk, "completed", 1) == [3600]


async def test_a_handoff_is_prepared_while_its_deadline_stands_still(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, clock = asyncio.Event(), FakeClock()

    async def hang(handoff: Handoff) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with open_home(home, clock=clock, **crew(1)) as desk:
        task = await submit(desk, "x", agent="lead")
        question = await find_question(desk)
        options = HandoffOptions(
            task=HandoffTask(description="more"), to="it", source_task=task.id, on_handoff=hang, timeout=0.2, wait=False
        )
        preparing = asyncio.create_task(desk.handoffs.handoff(options))
        await begun.wait()
        (handoff,) = await wait_for_status(desk, "accepted", 1)
        answers = note_checks(desk, monkeypatch)
        await clock.advance(60)
        await until(lambda: len(answers.get(handoff.id, ())) >= 2)  # only what prepares the handoff asks
        assert set(answers[handoff.id]) == {None} and not preparing.done()
        assert await read_delays(desk, "accepted", 1) == [0]
        await desk.approvals.answer(question.id, "stop")
        assert await read_delays(desk, "accepted", 1) == [60]
        await clock.advance(1)
        with pytest.raises(HandoffOverdue):
            await asyncio.wait_for(preparing, 60)

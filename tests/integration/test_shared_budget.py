"""Test budgets that a tree of work shares: delegates, transfers, background tasks, retries and goals count together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import Model, serve
from midwatch import Runtime, Settings, Task, Turn, TurnResult
from midwatch.agents.function import FunctionAgent
from midwatch.agents.llm.handoff_tools import HandoffTo
from midwatch.agents.llm.kind import LlmAgent
from midwatch.base.errors import Conflict, HandoffError
from midwatch.domain.account import Account
from midwatch.domain.agent import AgentTerms, Usage
from midwatch.domain.event import EventFilter, LlmRequest, LlmResponse
from midwatch.domain.handoff_history import HandoffInputData
from midwatch.domain.identity import Actor
from midwatch.testing import RecordingChannel, ScriptedAgent
from servers import until

Fake = tuple[str, Model]
CALL = 100
"""The tokens of each model call of `spender`."""


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Yield a fake model and its address."""
    async with serve() as url_and_model:
        yield url_and_model


def llm(fake: Fake, name: str, **more: Any) -> LlmAgent:
    return LlmAgent(name, "openai:fake", base_url=f"{fake[0]}/v1", **more)


async def call_model(turn: Turn, tokens: int = CALL) -> bool:
    """Call a model, and return whether the budget allowed it."""
    if (await turn.reserve()).action != "go_on":
        return False
    await turn.emit(LlmRequest(model="m", messages_count=1, tools_count=0))
    await turn.emit(LlmResponse(model="m", usage={"input_tokens": tokens}, finish_reason="stop"))
    return True


async def spend(turn: Turn, calls: int | None = None) -> TurnResult:
    """Call a model as often as the prompt says, or until the budget is spent."""
    for _ in range(calls or int(turn.prompt.rpartition(" ")[2])):
        if not await call_model(turn):
            return TurnResult(outcome="budget", error="spent")
    return TurnResult(text="did it")


@pytest.fixture(params=["sqlite", "postgres"])
def open_desk(request: pytest.FixtureRequest, home: Path) -> Callable[..., Any]:
    """Open a desk on each kind of store."""
    db = request.getfixturevalue("database") if request.param == "postgres" else None

    @asynccontextmanager
    async def opened(toml: str = "", **agents: Any) -> AsyncIterator[Runtime]:
        home.mkdir(exist_ok=True)
        (home / "midwatch.toml").write_text(f"detect_agents = false\nshutdown_grace = 0\n{toml}")
        channels = {"there": RecordingChannel("there")}
        async with Runtime.open(home, settings=Settings.load(home, db=db), agents=agents, channels=channels) as desk:
            yield desk

    return opened


async def wait(desk: Runtime, task: Task) -> Task:
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def read_account(desk: Runtime, account_id: str) -> Account:
    (account,) = await desk.store.read_accounts([account_id])
    return account


async def sum_log(desk: Runtime, account_id: str) -> int:
    """Return the tokens that the log says the tasks of an account have used."""
    total = 0
    for task in await desk.store.list_account_tasks(account_id):
        for event in await desk.store.read_events(0, EventFilter(kinds=("llm_response",), task_id=task.id)):
            usage = event.payload["usage"] or {}
            total += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    return total


# -- the leaks ---------------------------------------------------------------------------------------------------------


async def test_delegated_work_counts_for_the_budget_of_its_task(fake: Fake, open_desk: Any) -> None:
    """Once a task with 1000 tokens spent 23 100, because the agents that it asked had no budget."""

    def script(data: HandoffInputData) -> HandoffInputData:
        calls = "".join('[[tool note {"line": "x"}]]' for _ in range(20))
        return replace(data, new_messages=tuple({**message, "content": calls} for message in data.new_messages))

    def note(line: str) -> str:
        """Writes a line."""
        return line

    agents = {
        "it": llm(fake, "it", delegates=[HandoffTo(agent="expert", input_filter=script)]),
        "expert": llm(fake, "expert", tools=[note]),
    }
    async with open_desk(**agents) as desk:
        asks = "".join(f'[[tool delegate_to_expert {{"task": "part {n}"}}]]' for n in range(9))
        task = await wait(desk, await desk.tasks.submit(asks, agent="it", budget={"tokens": 1000}))
        account = await read_account(desk, task.id)
        assert (task.status, task.outcome) == ("failed", "budget"), task.result
        members = await desk.store.list_account_tasks(task.id)
        assert len(members) >= 2 and {member.account for member in members} == {task.id}
        largest = max(
            event.payload["usage"]["input_tokens"] + event.payload["usage"]["output_tokens"]
            for event in await desk.store.read_events(0, EventFilter(kinds=("llm_response",)))
        )
        assert 1000 <= account.tokens < 1000 + largest, "one call is in flight at most"
        assert account.tokens == await sum_log(desk, task.id), "the account and the log do not differ"


async def test_a_transfer_continues_with_the_rest_of_the_budget(open_desk: Any) -> None:
    """Once the agent that got the work began to count anew: 1365 of 400 tokens."""

    async def move(prompt: str, turn: Turn) -> TurnResult:
        for _ in range(3):
            assert await call_model(turn)
        return TurnResult(outcome="transferred", transfer=await turn.transfer("expert", "go on 9"))

    agents = {"it": FunctionAgent("it", move, on_loop=True), "expert": ScriptedAgent(spend)}
    async with open_desk(**agents) as desk:
        task = await wait(desk, await desk.tasks.submit("x", agent="it", budget={"tokens": 400}))
        assert (task.agent, task.outcome, task.budget) == ("expert", "budget", None)
        account = await read_account(desk, task.account)
        assert (account.id, account.tokens) == (task.root_id, 400)
        (reached,) = await desk.store.read_events(0, EventFilter(kinds=("budget_reached",), task_id=task.id))
        assert (reached.payload["scope"], reached.payload["account_id"]) == ("tree", account.id)


async def test_the_budget_and_the_tries_of_the_target_apply_to_its_handoffs(open_desk: Any) -> None:
    async def lead(prompt: str, turn: Turn) -> str:
        with pytest.raises(HandoffError):
            await turn.delegate("expert", "go on 9", max_retries=5)
        return "no answer"

    terms = AgentTerms(budget={"tokens": 2 * CALL}, max_attempts=2, on_crash="rerun")
    agents = {"it": FunctionAgent("it", lead, on_loop=True), "expert": ScriptedAgent(spend, terms=terms)}
    async with open_desk(**agents) as desk:
        task = await wait(desk, await desk.tasks.submit("x", agent="it", budget={"tokens": 10 * CALL}))
        assert task.result == "no answer"
        (child,) = [member for member in await desk.store.list_account_tasks(task.id) if member.id != task.id]
        assert (child.outcome, child.budget, child.max_attempts) == ("budget", {"tokens": 2 * CALL}, 2)
        own, shared = await read_account(desk, child.id), await read_account(desk, task.id)
        assert (own.tokens, shared.tokens) == (2 * CALL, 2 * CALL), "the smaller limit counts, in both accounts"


async def test_a_goal_counts_the_work_that_its_steps_hand_over(open_desk: Any) -> None:
    async def lead(prompt: str, turn: Turn) -> str:
        await call_model(turn)
        return str((await turn.delegate("expert", "go on 2")).output)

    agents = {"it": FunctionAgent("it", lead, on_loop=True), "expert": ScriptedAgent(spend)}
    async with open_desk('on_budget = "stop"', **agents) as desk:
        goal = await desk.goals.create("reach it", agent="it", max_tokens=5 * CALL)

        async def paused() -> Any:
            now = await desk.goals.get(goal.id)
            return now if now.status == "paused" else None

        stored = await until(paused)
        assert (stored.tokens, stored.paused_why) == (5 * CALL, f"its budget of {5 * CALL} tokens is spent")
        account = await read_account(desk, goal.id)
        assert account.tokens == await sum_log(desk, goal.id) == 5 * CALL
        await desk.goals.edit(goal.id, {"max_tokens": 20 * CALL})
        assert (await read_account(desk, goal.id)).limits == {"tokens": 20 * CALL}


async def test_a_verification_goes_a_quarter_beyond_the_limit_of_its_goal_at_most(open_desk: Any) -> None:
    """Once a verifier that called its model without end spent without limit, again and again."""
    limit = 8 * CALL

    async def work(turn: Any) -> TurnResult:
        await spend(turn, 7)
        await desk.goals.complete(turn.task.cause_id, evidence="it is", in_step=turn.task_id)
        return TurnResult(text="claimed")

    agents = {"it": ScriptedAgent(work), "judge": ScriptedAgent(lambda turn: spend(turn, 40))}
    async with open_desk('on_budget = "stop"', **agents) as desk:
        goal = await desk.goals.create("reach it", agent="it", verifier="judge", max_tokens=limit)

        async def paused() -> Any:
            now = await desk.goals.get(goal.id)
            return now if now.status == "paused" else None

        stored = await until(paused)
        assert stored.paused_why == f"its budget of {limit} tokens is spent"
        assert limit + limit // 4 == (await read_account(desk, goal.id)).tokens == await sum_log(desk, goal.id)
        (_, verification) = await desk.store.list_account_tasks(goal.id)
        assert (verification.agent, verification.outcome) == ("judge", "budget")


# -- other work of the tree --------------------------------------------------------------------------------------------


async def test_parallel_delegates_spend_one_budget(open_desk: Any) -> None:
    async def lead(prompt: str, turn: Turn) -> str:
        parts = [turn.delegate("expert", f"part {n} 5") for n in range(6)]
        answers = await asyncio.gather(*parts, return_exceptions=True)
        return f"{sum(not isinstance(answer, Exception) for answer in answers)} answers"

    agents = {
        "it": FunctionAgent("it", lead, on_loop=True),
        "expert": ScriptedAgent(spend, terms=AgentTerms(slots=6, on_crash="rerun")),
    }
    async with open_desk("slots = 8", **agents) as desk:
        task = await wait(desk, await desk.tasks.submit("x", agent="it", budget={"steps": 12, "tokens": 99 * CALL}))
        account = await read_account(desk, task.id)
        assert account.steps == 12, "steps never exceed their limit, also in parallel"
        assert account.tokens == 12 * CALL == await sum_log(desk, task.id)


async def test_agents_that_report_too_little_give_nothing_back(open_desk: Any) -> None:
    """Once ten delegates spent 3000 of 500 tokens, because each one reported 1 token at its end."""

    async def understate(turn: Turn) -> TurnResult:
        return replace(await spend(turn), usage=Usage(input_tokens=1, output_tokens=0))

    async def lead(prompt: str, turn: Turn) -> str:
        for n in range(10):
            await turn.delegate("expert", f"part {n} 3")
        return "done"

    agents = {"it": FunctionAgent("it", lead, on_loop=True), "expert": ScriptedAgent(understate)}
    async with open_desk(**agents) as desk:
        task = await wait(desk, await desk.tasks.submit("x", agent="it", budget={"tokens": 5 * CALL}))
        account = await read_account(desk, task.id)
        assert account.tokens == 5 * CALL == await sum_log(desk, task.id)


async def test_a_call_that_reaches_a_limit_at_once_warns_of_nothing(open_desk: Any) -> None:
    async with open_desk(it=ScriptedAgent(spend)) as desk:
        await wait(desk, await desk.tasks.submit("go on 1", agent="it", budget={"tokens": CALL}))
        events = await desk.store.read_events(0, EventFilter(kinds=("budget_warned", "budget_reached")))
        assert [event.kind for event in events] == ["budget_reached"]


async def test_the_next_task_warns_if_agents_report_only_at_their_end(open_desk: Any) -> None:
    async def report(turn: Turn) -> TurnResult:
        return TurnResult(text="did it", usage=Usage(input_tokens=9 * CALL, output_tokens=0))

    async def lead(prompt: str, turn: Turn) -> str:
        return str([await turn.delegate("expert", f"part {n}") for n in range(2)])

    agents = {"it": FunctionAgent("it", lead, on_loop=True), "expert": ScriptedAgent(report)}
    async with open_desk(**agents) as desk:
        task = await wait(desk, await desk.tasks.submit("x", agent="it", budget={"tokens": 10 * CALL}))
        (warned,) = await desk.store.read_events(0, EventFilter(kinds=("budget_warned",)))
        assert (warned.payload["spent"], warned.task_id == task.id) == (9 * CALL, False)


async def test_background_tasks_and_retries_share_the_account(open_desk: Any) -> None:
    agents = {"it": ScriptedAgent(spend, terms=AgentTerms(submits=True))}
    async with open_desk(**agents) as desk:
        first = await wait(desk, await desk.tasks.submit("go on 9", agent="it", budget={"tokens": 3 * CALL}))
        own = Actor("agent", "attempt", task=first)
        child = await wait(desk, await desk.tasks.submit("go on 1", agent="it", actor=own))
        assert (child.account, child.outcome) == (first.id, "budget"), "nothing is left for it"
        with pytest.raises(Conflict, match=f"midwatch retry {child.id} --budget tokens={6 * CALL}"):
            await desk.tasks.retry(child.id)
        again = await wait(desk, await desk.tasks.retry(child.id, budget={"tokens": 5 * CALL}))
        assert (again.account, again.status) == (first.id, "done")
        account = await read_account(desk, first.id)
        assert (account.limits, account.tokens) == ({"tokens": 5 * CALL}, 4 * CALL)
        described = await desk.accounts.get(first.id)
        assert [task["id"] for task in described["tasks"]] == [first.id, child.id, again.id]
        assert [task["usage"]["steps"] for task in described["tasks"]] == [3, 0, 1]


async def test_the_runs_of_an_automation_that_an_agent_created_share_its_account(open_desk: Any) -> None:
    """Once an agent escaped its budget: it scheduled work, and the runs had no account."""
    agents = {"it": ScriptedAgent(spend, terms=AgentTerms(submits=True))}
    async with open_desk(**agents) as desk:
        first = await wait(desk, await desk.tasks.submit("go on 1", agent="it", budget={"tokens": 3 * CALL}))
        own = Actor("agent", "attempt", task=first)
        made = await desk.automations.create("go on 9", agent="it", at="in 1s", actor=own)
        await until(lambda: desk.automations.history(made.id))
        (run,) = await desk.automations.history(made.id)
        run = await wait(desk, run)
        assert (run.account, run.outcome) == (first.id, "budget")
        assert (run.source, run.trace_path) == ("automation", f"{first.id}/{run.id}")
        seen = await desk.accounts.get(first.id, actor=Actor("agent", "attempt", task=run))
        assert (seen["title"], seen["agent"], seen["tokens"]) == (first.id, None, 3 * CALL), "its prompt is not shown"
        assert [task["id"] for task in seen["tasks"]] == [run.id]
        (reached,) = await desk.store.read_events(0, EventFilter(kinds=("budget_reached",), task_id=run.id))
        assert reached.payload["scope"] == "tree"
        account = await read_account(desk, first.id)
        assert account.tokens == 3 * CALL == await sum_log(desk, first.id)
        again = await desk.automations.create(
            "go on 9", agent="it", every="1h", actor=Actor("agent", "attempt", task=run)
        )
        later = await wait(desk, await desk.automations.run(again.id))
        assert (later.account, later.usage and later.usage["steps"]) == (first.id, 0), "nothing is left for it"


async def test_a_task_without_a_budget_gets_its_account_with_its_retry(open_desk: Any) -> None:
    async def fail(turn: Turn) -> TurnResult:
        await call_model(turn)
        return TurnResult(outcome="error", error="no")

    agents = {"it": ScriptedAgent(fail)}
    async with open_desk(**agents) as desk:
        first = await wait(desk, await desk.tasks.submit("x", agent="it"))
        assert await desk.store.read_accounts([first.id]) == []
        tree = await desk.accounts.get(first.id)
        assert (tree["limits"], tree["tokens"]) == ({}, CALL), "its usage is known all the same"
        again = await wait(desk, await desk.tasks.retry(first.id, budget={"tokens": 2 * CALL}))
        assert again.outcome == "error"
        assert (await read_account(desk, first.id)).tokens == 2 * CALL
        with pytest.raises(Conflict, match="is spent"):
            await desk.tasks.retry(again.id)


async def test_a_retry_that_adds_a_budget_counts_all_tasks_of_the_tree(open_desk: Any) -> None:
    """Once 200 tasks at most were counted, by what their agents reported, and nothing of those that ran."""
    half, go_on = asyncio.Event(), asyncio.Event()

    async def hold(turn: Turn) -> TurnResult:
        await call_model(turn)
        half.set()
        await go_on.wait()
        return await spend(turn)

    async def understate(turn: Turn) -> TurnResult:
        await spend(turn)
        return TurnResult(outcome="error", error="no", usage=Usage(input_tokens=1, output_tokens=0))

    terms = AgentTerms(submits=True, slots=8)
    agents = {"it": ScriptedAgent(understate, terms=terms), "slow": ScriptedAgent(hold)}
    async with open_desk("slots = 8", **agents) as desk:
        first = await wait(desk, await desk.tasks.submit("go on 2", agent="it"))
        own = Actor("agent", "attempt", task=first)
        parts = [await desk.tasks.submit("go on 1", agent="it", actor=own) for _ in range(204)]
        for part in parts:
            await wait(desk, part)
        running = await desk.tasks.submit("go on 3", agent="slow", actor=own)
        await half.wait()

        async def is_written() -> bool:
            return bool(await desk.store.read_events(0, EventFilter(kinds=("llm_response",), task_id=running.id)))

        await until(is_written)
        before = 207
        assert (await desk.accounts.get(first.id))["tokens"] == before * CALL
        with pytest.raises(Conflict, match=f"is spent: {before * CALL} tokens"):
            await desk.tasks.retry(first.id, budget={"tokens": before * CALL})
        again = await wait(desk, await desk.tasks.retry(first.id, budget={"tokens": (before + 10) * CALL}))
        assert again.outcome == "error"
        go_on.set()
        assert (await wait(desk, running)).status == "done"
        account = await read_account(desk, first.id)
        assert (account.tokens, account.steps) == ((before + 2 + 3) * CALL, before + 2 + 3)


async def test_retries_that_open_one_account_at_the_same_time_all_succeed(open_desk: Any) -> None:
    async def fail(turn: Turn) -> TurnResult:
        return TurnResult(outcome="error", error="no")

    async with open_desk(it=ScriptedAgent(fail, terms=AgentTerms(submits=True))) as desk:
        first = await wait(desk, await desk.tasks.submit("x", agent="it"))
        own = Actor("agent", "attempt", task=first)
        parts = [await wait(desk, await desk.tasks.submit("x", agent="it", actor=own)) for _ in range(3)]
        tried = await asyncio.gather(*(desk.tasks.retry(part.id, budget={"tokens": 9 * CALL}) for part in parts))
        assert {task.account for task in tried} == {first.id}
        with pytest.raises(Conflict, match="was retried already"):
            await desk.tasks.retry(parts[0].id)


async def test_a_cost_is_unknown_until_somebody_reports_one(open_desk: Any) -> None:
    def report(usd: float | None) -> ScriptedAgent:
        async def act(turn: Turn) -> TurnResult:
            return TurnResult(text="x", usage=Usage(input_tokens=CALL, cost_usd=usd))

        return ScriptedAgent(act)

    costs = {"silent": None, "free": 0.0, "paid": 0.25}
    async with open_desk(**{name: report(usd) for name, usd in costs.items()}) as desk:
        expected: dict[str, float | None] = {}
        for agent, usd in costs.items():
            for budget in ({"usd": 5}, None):
                task = await desk.tasks.wait((await desk.tasks.submit("x", agent=agent, budget=budget)).id)
                assert (await desk.accounts.get(task.id))["usd"] == usd
                expected |= {task.id: usd} if budget else {}
        listed = {account["id"]: account["usd"] for account in await desk.accounts.list()}
        assert listed == expected
        for agent, usd in costs.items():
            goal = await desk.goals.create("reach it", agent=agent, max_steps=1)
            await until(partial(is_paused, desk, goal.id))
            assert (await desk.goals.describe(await desk.goals.get(goal.id)))["usd"] == usd
            await desk.goals.clear(goal.id)


async def is_paused(desk: Runtime, goal_id: str) -> bool:
    return (await desk.goals.get(goal_id)).status == "paused"


async def test_a_message_that_a_turn_did_not_take_keeps_the_account(open_desk: Any) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hold(turn: Turn) -> str:
        began.set()
        await go_on.wait()
        return "done"

    async with open_desk(it=ScriptedAgent(hold)) as desk:
        task = await desk.tasks.submit("x 1", agent="it", session_key="chat:1", budget={"tokens": 500})
        await began.wait()
        await desk.sessions.send("chat:1", "and this", mode="after_tool")
        go_on.set()
        await wait(desk, task)
        (sent,) = [other for other in await desk.tasks.list() if other.id != task.id]
        message = await wait(desk, sent)
        assert (message.cause, message.account, message.status) == ("message", task.id, "done")


async def test_the_account_of_a_day_counts_running_and_ended_work(open_desk: Any) -> None:
    async with open_desk(f"[day_budget]\ntokens = {3 * CALL}\n", it=ScriptedAgent(spend)) as desk:
        done = await wait(desk, await desk.tasks.submit("go on 2", agent="it"))
        stopped = await wait(desk, await desk.tasks.submit("go on 5", agent="it"))
        assert (done.status, stopped.outcome) == ("done", "budget")
        assert (stopped.error or "").startswith(f"the day's budget of {3 * CALL} tokens is spent")
        (day,) = [account for account in await desk.store.list_accounts() if account.scope == "day"]
        assert day.tokens == 3 * CALL
        later = await desk.tasks.submit("go on 1", agent="it")

        async def waits() -> bool:
            return (await desk.tasks.get(later.id)).wait == "limit"

        await until(waits)


async def test_people_are_warned_once_of_the_budgets_of_a_day(open_desk: Any) -> None:
    """The notice goes to the route of the task that reaches four fifths of a limit."""
    toml = f'[day_budget]\ntokens = {10 * CALL}\n\n[agents.it]\nkind = "demo"\nday_budget = {{tokens = {5 * CALL}}}\n'
    async with open_desk(toml, it=ScriptedAgent(spend), other=ScriptedAgent(spend)) as desk:
        wishes = [
            ("it", "go on 3"),
            ("it", "go on 1"),
            ("other", "go on 3"),
            ("other", "go on 1"),
            ("other", "go on 1"),
        ]
        tasks = []
        for agent, prompt in wishes:
            tasks.append(await wait(desk, await desk.tasks.submit(prompt, agent=agent, route="there")))
            assert tasks[-1].status == "done"
        shared, own = sorted(await desk.store.list_accounts(), key=lambda account: account.id)
        warned = await desk.store.read_events(0, EventFilter(kinds=("budget_warned",)))
        assert [(event.task_id, event.payload) for event in warned] == [
            (task.id, {"budget": "tokens", "scope": "day", "limit": limit, "spent": 0.8 * limit, "account_id": day})
            for task, limit, day in ((tasks[1], 5 * CALL, own.id), (tasks[3], 10 * CALL, shared.id))
        ]
        texts = [
            [n.text for n in await desk.store.list_deliveries(task_id=task.id) if n.notice.startswith("budget:")]
            for task in tasks
        ]
        (text,) = texts[3]
        assert text.startswith("other: 80 % of the day's budget of 1000 tokens is spent: 800 tokens.")
        assert "new tasks wait until midnight" in text
        assert list(map(len, texts)) == [0, 1, 0, 1, 0]

"""Test goals on a whole desk: steps, claims, deadlines, messages in between, crashes, and parallel work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from internals import scheduler_of, worker_of
from midwatch import Runtime, Settings, Turn, TurnResult, Usage
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, Conflict
from midwatch.domain.agent import AgentTerms
from midwatch.domain.event import EventFilter
from midwatch.domain.goal import LAST_SECONDS, Goal
from midwatch.domain.goal_pace import ALIKE, SHORT
from midwatch.domain.goal_step import MOST_ERRORS
from midwatch.domain.identity import Actor
from midwatch.domain.task import AUTOMATION_PAUSES, Task
from midwatch.testing import FakeClock, RecordingChannel, ScriptedAgent, Step, ask, result, tool
from servers import until

HOUR = 3600.0
RESTS = (SHORT, ALIKE, "6 steps started within a minute")
Look = Callable[[], Awaitable[Any]]


class GoalDesk:
    """A desk with its clock, its channel and its agents."""

    def __init__(self, desk: Runtime, clock: FakeClock, there: RecordingChannel) -> None:
        self.desk, self.clock, self.there = desk, clock, there

    async def goal(self, **fields: Any) -> Goal:
        return await self.desk.goals.create("reach it", **{"agent": "it", "route": "there", **fields})

    async def skip_rest(self, goal: Goal) -> Goal:
        """Return the stored goal. If it rests between two steps, let this time pass."""
        stored_goal = await self.desk.goals.get(goal.id)
        if stored_goal.delay_reason in RESTS and stored_goal.next_run_at and stored_goal.status == "active":
            await self.clock.advance(max(0, stored_goal.next_run_at - self.clock.now()) / SECOND)
        return stored_goal

    async def wait_for_status(self, goal: Goal, status: str) -> Goal:
        async def look() -> Goal | None:
            stored_goal = await self.skip_rest(goal)
            return stored_goal if stored_goal.status == status else None

        return await until(look)  # type: ignore[no-any-return]

    async def wait_for_ended_tasks(self, goal: Goal, count: int) -> list[Task]:
        """Return the tasks of the goal once so many have ended, in the order of their creation."""

        async def look() -> list[Task] | None:
            await self.skip_rest(goal)
            done = {step.id: step for step in await self.desk.goals.steps(goal.id) if not step.open}
            events = await self.desk.store.read_events(0, EventFilter(kinds=("goal_step",)))
            return [done[event.task_id] for event in events if event.task_id in done] if len(done) >= count else None

        return await until(look)  # type: ignore[no-any-return]

    async def wait_for_running_step(self, goal: Goal, work: str = "step") -> Task:
        async def look() -> Task | None:
            step = await self.desk.store.find_open_step(goal.id)
            now = await self.desk.goals.get(goal.id)
            return step if step is not None and step.status == "running" and now.work == work else None

        return await until(look)  # type: ignore[no-any-return]

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def notices(self, goal: Goal) -> list[str]:
        return [
            delivery.notice.partition(":")[0]
            for delivery in (await self.desk.store.list_deliveries(task_id=goal.id))[::-1]
        ]

    async def kinds(self, *event_kinds: str) -> list[str]:
        return [event.kind for event in await self.desk.store.read_events(0, EventFilter(kinds=event_kinds))]


@asynccontextmanager
async def open_desk(
    home: Path, clock: FakeClock | None = None, toml: str = "", **agents: Any
) -> AsyncIterator[GoalDesk]:
    clock, there = clock or FakeClock(), RecordingChannel("there")
    home.mkdir(exist_ok=True)
    (home / "midwatch.toml").write_text(f"detect_agents = false\nshutdown_grace = 0\n{toml}")
    settings = Settings.load(home)
    async with Runtime.open(home, settings=settings, agents=agents, channels={"there": there}, clock=clock) as desk:
        yield GoalDesk(desk, clock, there)


class AgentPlan:
    """The behaviour of an agent in its first, second, ... turn; the last one repeats. It can call the desk."""

    def __init__(self, *turns: Step, terms: AgentTerms | None = None, name: str = "it") -> None:
        self.desk: Runtime | None = None
        self.count = 0
        self.turns = turns
        self.agent = ScriptedAgent(
            self._next, terms=terms or AgentTerms(timeout_seconds=1800.0, on_crash="rerun"), name=name
        )

    @property
    def prompts(self) -> list[str]:
        return [turn.prompt for turn in self.agent.turns]

    async def _next(self, turn: Turn) -> Any:
        self.count += 1
        return await self.turns[min(self.count, len(self.turns)) - 1](turn)

    def claims(self, text: str = "I think it is") -> Step:
        async def step(turn: Any) -> str:
            assert self.desk is not None
            await self.desk.goals.complete(turn.task.cause_id, evidence="the tests pass", in_step=turn.task_id)
            return text

        return step

    def delays(self, seconds: float, then: Step | None = None) -> Step:
        async def step(turn: Any) -> Any:
            assert self.desk is not None
            await self.desk.goals.delay(turn.task.cause_id, seconds, "the build", in_step=turn.task_id)
            return await then(turn) if then else "later"

        return step


def fails(text: str = "it broke") -> Step:
    async def step(turn: Turn) -> None:
        raise AgentError(text)

    return step


def work_until(gate: asyncio.Event) -> Step:
    """Return a step that works until the test opens the gate."""

    async def step(turn: Turn) -> str:
        await gate.wait()
        return "worked"

    return step


def says(*texts: str) -> list[Step]:
    return [result(text) for text in texts]


# -- steps -----------------------------------------------------------------------------------------------------------


async def test_A6_steps_repeat_until_the_agent_proves_completion_with_one_notice(home: Path) -> None:
    mind = AgentPlan(*says("one", "two"))
    mind.turns = (*mind.turns, mind.claims())
    async with open_desk(home, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        now = await on.wait_for_status(goal, "complete")
        assert (now.step, now.evidence, now.summary) == (3, "the tests pass", "I think it is")
        steps = await on.wait_for_ended_tasks(goal, 3)
        assert [step.result for step in steps] == ["one", "two", "I think it is"]
        assert all("reach it" in prompt and "Deadline" in prompt for prompt in mind.prompts)
        await on.there.until(lambda there: len(there.delivered) == 1)
        assert "the tests pass" in on.there.delivered[0].text
        assert await on.notices(goal) == ["goal_completed"]
        assert await on.kinds("goal_step", "goal_completed") == ["goal_step"] * 3 + ["goal_completed"]
        assert await on.desk.store.find_open_step(goal.id) is None


async def test_a_second_agent_must_verify_and_reports_what_is_missing(home: Path) -> None:
    mind = AgentPlan(fails())
    mind.turns = (mind.claims("done, I say"), mind.claims("now really"))
    judge = AgentPlan(result("NOT REACHED\nthe door is red"), result("REACHED\nit is blue"), name="judge")
    async with open_desk(home, it=mind.agent, judge=judge.agent) as on:
        mind.desk = on.desk
        goal = await on.goal(verifier="judge")
        now = await on.wait_for_status(goal, "complete")
        assert (now.step, now.summary, now.missing) == (2, "now really", None)
        assert "the door is red" in mind.prompts[1]
        assert all("the tests pass" in prompt for prompt in judge.prompts)
        steps = await on.wait_for_ended_tasks(goal, 4)
        assert [step.agent for step in steps] == ["it", "judge", "it", "judge"]
        assert len({step.session_key for step in steps}) == 3
        assert await on.notices(goal) == ["goal_completed"]


@pytest.mark.parametrize("how", ["fails", "times out"])
async def test_a_completion_claim_counts_even_if_its_step_fails(home: Path, how: str) -> None:
    mind = AgentPlan(fails())
    claim = mind.claims()

    async def claims_then(turn: Turn) -> None:
        await claim(turn)
        if how == "fails":
            raise AgentError("oh")
        await asyncio.Event().wait()

    mind.turns = (claims_then,)
    async with open_desk(home, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        if how == "times out":
            await on.wait_for_running_step(goal)
            await until(lambda: has_proposal(on, goal))
            await on.advance(1801)
        assert (await on.wait_for_status(goal, "complete")).evidence == "the tests pass"
        assert await on.notices(goal) == ["goal_completed"]


async def has_proposal(on: GoalDesk, goal: Goal) -> bool:
    return (await on.desk.goals.get(goal.id)).proposal is not None


async def test_a_goal_holds_no_slot_gate_or_task_between_steps(home: Path) -> None:
    mind = AgentPlan(fails())
    mind.turns = (mind.delays(HOUR), result("woken"), mind.claims())
    async with open_desk(home, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        (first,) = await on.wait_for_ended_tasks(goal, 1)
        free = worker_of(on.desk).slots
        await until(lambda: is_idle(on))
        assert (free.free(), free.free_by_agent()["it"]) == (free.total, mind.agent.terms.slots)
        assert await on.desk.store.find_gate_holder(first.gate_key) is None
        assert await on.desk.store.find_open_step(goal.id) is None
        now = await on.desk.goals.get(goal.id)
        assert (now.status, now.delay_reason, now.next_run_at) == (
            "active",
            "the build",
            on.clock.now() + int(HOUR * SECOND),
        )
        seq = (await on.desk.store.read_log_bounds()).last_seq
        await on.advance(HOUR - 1)
        assert (await on.desk.store.read_log_bounds()).last_seq == seq  # nothing is written while nothing is due
        await on.advance(2)
        await on.wait_for_status(goal, "complete")
        assert mind.count == 3


async def is_idle(on: GoalDesk) -> bool:
    return not on.desk.running


async def test_A3_quick_steps_with_delay_0_are_not_a_loop(home: Path) -> None:
    mind = AgentPlan(fails())
    mind.turns = (*[mind.delays(0)] * 8, mind.claims())
    async with open_desk(home, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        assert (await on.wait_for_status(goal, "complete")).step == 9


async def test_repeated_text_without_tools_pauses_the_goal_but_work_does_not(home: Path) -> None:
    async def busy(turn: Turn) -> str:
        await tool("edit")(turn)
        return "hm"

    mind = AgentPlan(*[busy] * 4, result("hm"))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal()
        now = await on.wait_for_status(goal, "paused")
        assert (now.step, mind.count) == (6, 6)
        assert await on.notices(goal) == ["goal_paused"]


async def test_A1_a_backend_that_fails_at_once_is_tried_five_times(home: Path) -> None:
    mind = AgentPlan(fails("no key"))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal()
        for number in range(1, MOST_ERRORS):
            await on.wait_for_ended_tasks(goal, number)
            await until(lambda: is_idle(on))
            await on.advance(AUTOMATION_PAUSES[number - 1] - 10)
            assert mind.count == number
            await on.advance(11)  # one more: the next step may fail while the clock still moves
        now = await on.wait_for_status(goal, "paused")
        assert (mind.count, now.errors) == (MOST_ERRORS, MOST_ERRORS)
        (delivery,) = await on.desk.store.list_deliveries(task_id=goal.id)
        assert "no key" in delivery.text and f"midwatch goal resume {goal.id}" in delivery.text


async def test_a_spent_budget_pauses_with_a_summary_until_it_is_raised(home: Path) -> None:
    spent = Usage(input_tokens=60, output_tokens=10)
    mind = AgentPlan(*(result(text, usage=spent) for text in "abcdef"))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal(max_tokens=100, on_budget="stop")
        now = await on.wait_for_status(goal, "paused")
        assert (now.step, now.tokens, now.summary) == (2, 140, "b")
        (delivery,) = await on.desk.store.list_deliveries(task_id=goal.id)
        assert "--max-tokens" in delivery.text and "\nb\n" in delivery.text
        with pytest.raises(Conflict, match="--max-tokens"):
            await on.desk.goals.resume(goal.id)
        await on.desk.goals.edit(goal.id, {"max_tokens": 0, "max_steps": 4})
        await on.desk.goals.resume(goal.id)
        assert (await on.wait_for_status(goal, "paused")).step == 4


# -- deadlines -------------------------------------------------------------------------------------------------------


async def test_A20_a_delay_ends_at_the_deadline_with_one_closing_step_and_one_notice(home: Path) -> None:
    mind = AgentPlan(fails())
    mind.turns = (mind.delays(12 * HOUR), result("half of it is done"))
    async with open_desk(home, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal(deadline_at=on.clock.now() + int(2 * HOUR * SECOND))
        await on.wait_for_ended_tasks(goal, 1)
        assert (await on.desk.goals.get(goal.id)).next_run_at == goal.deadline_at
        await until(lambda: is_idle(on))
        await on.advance(2 * HOUR)
        now = await on.wait_for_status(goal, "timeout")
        assert (now.step, now.summary, mind.count) == (1, "half of it is done", 2)
        assert "last step" in mind.prompts[1]
        assert await on.notices(goal) == ["goal_timeout"]
        (delivery,) = await on.desk.store.list_deliveries(task_id=goal.id)
        assert "half of it is done" in delivery.text
        await on.advance(4 * HOUR)
        assert await on.notices(goal) == ["goal_timeout"]


@pytest.mark.parametrize("status", ["paused", "waiting_for_session"])
async def test_A20_a_paused_or_waiting_goal_times_out(home: Path, status: str) -> None:
    mind = AgentPlan(result("x"))
    async with open_desk(home, it=mind.agent) as on:
        options = {"session_key": "chat:9"} if status == "waiting_for_session" else {}
        goal = await on.goal(deadline_at=on.clock.now() + int(HOUR * SECOND), **options)
        if status == "paused":
            await on.desk.goals.pause(goal.id)
            await until(lambda: is_idle(on))
        count = mind.count
        await on.advance(HOUR + 1)
        assert (await on.wait_for_status(goal, "timeout")).completed_at is not None
        assert (mind.count, (await on.notices(goal))[-1]) == (count, "goal_timeout")


async def test_the_deadline_ends_a_step_that_waits_for_an_answer(home: Path) -> None:
    """The clock of the desk stands still meanwhile, so the timeout of the step would never come."""
    mind = AgentPlan(ask("May I?"), result("left it as it was"))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal(deadline_at=on.clock.now() + int(HOUR * SECOND))
        await until(lambda: on.desk.approvals.list("pending"))
        await on.advance(HOUR + 1)
        assert (await on.wait_for_status(goal, "timeout")).summary == "left it as it was"
        step, wrap_up = await on.wait_for_ended_tasks(goal, 2)
        assert (step.outcome, step.result) in {("cancelled", None), ("ok", "expired")}  # the question ends then too
        assert wrap_up.outcome == "ok"
        assert await on.desk.approvals.list("pending") == []


async def test_a_goal_without_an_available_agent_times_out(home: Path) -> None:
    mind, gate = AgentPlan(result("x")), asyncio.Event()
    person = AgentPlan(work_until(gate), name="chat", terms=AgentTerms(timeout_seconds=None, on_crash="fail"))
    person.turns = (result("hello", thread_id="th"), work_until(gate))
    async with open_desk(home, it=mind.agent, chat=person.agent) as on:
        await on.desk.sessions.create(agent="chat", key="chat:1")
        await on.desk.tasks.wait((await on.desk.sessions.send("chat:1", "hello")).id)
        await on.desk.sessions.send("chat:1", "a long turn")
        await until(lambda: on.desk.store.find_gate_holder("chat:1"))
        goal = await on.goal(agent=None, session_key="chat:1", deadline_at=on.clock.now() + int(HOUR * SECOND))
        await until(lambda: on.desk.store.find_open_step(goal.id))
        await on.advance(HOUR + 1)  # the step never started, and the closing step does not start either
        await until(lambda: is_closing(on, goal))
        await on.advance(LAST_SECONDS + 1)
        assert (await on.wait_for_status(goal, "timeout")).step == 1
        gate.set()


async def is_closing(on: GoalDesk, goal: Goal) -> bool:
    return (await on.desk.goals.get(goal.id)).work == "wrap_up"


async def test_an_earlier_deadline_stops_the_running_step(home: Path) -> None:
    mind = AgentPlan(work_until(asyncio.Event()), result("stopped here"))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal()
        await on.wait_for_running_step(goal)
        await on.desk.goals.edit(goal.id, {"deadline_at": on.clock.now() + 60 * SECOND})
        await on.advance(61)
        assert (await on.wait_for_status(goal, "timeout")).summary == "stopped here"


# -- people who interfere --------------------------------------------------------------------------------------------


async def test_A8_cancelling_the_running_step_pauses_the_goal_with_a_hint(home: Path) -> None:
    mind = AgentPlan(work_until(asyncio.Event()), result("fresh"))
    mind.turns = (*mind.turns, mind.claims())
    async with open_desk(home, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        step = await on.wait_for_running_step(goal)
        await on.desk.tasks.cancel(step.id, actor="ann")
        await on.wait_for_status(goal, "paused")
        (delivery,) = await on.desk.store.list_deliveries(task_id=goal.id)
        assert f"midwatch goal resume {goal.id}" in delivery.text
        await on.advance(HOUR)
        assert mind.count == 1
        await on.desk.goals.resume(goal.id)
        await on.wait_for_status(goal, "complete")


@pytest.mark.parametrize("deed", ["pause", "clear", "complete"])
async def test_A22_ending_or_pausing_a_goal_stops_its_running_step(home: Path, deed: str) -> None:
    mind = AgentPlan(work_until(asyncio.Event()))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal()
        step = await on.wait_for_running_step(goal)
        await getattr(on.desk.goals, deed)(goal.id, **({"stop": True} if deed == "pause" else {}))
        assert (await on.desk.tasks.wait(step.id)).status == "cancelled"
        await on.advance(HOUR)
        assert mind.count == 1
        if deed != "clear":
            assert (await on.desk.goals.get(goal.id)).status == {"pause": "paused", "complete": "complete"}[deed]
            assert len(await on.notices(goal)) == 1


async def test_A11_the_step_of_a_cleared_goal_does_not_affect_the_next_goal(home: Path) -> None:
    gate = asyncio.Event()

    async def stubborn(turn: Turn) -> TurnResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.wait()
        return TurnResult(text="late", thread_id="th_late", usage=Usage(input_tokens=99))

    mind = AgentPlan(stubborn, work_until(gate))
    async with open_desk(home, it=mind.agent) as on:
        first = await on.goal()
        step = await on.wait_for_running_step(first)
        await on.desk.goals.clear(first.id)
        second = await on.goal()
        await on.wait_for_running_step(second)
        before = await on.desk.goals.get(second.id)
        await until(lambda: was_interrupted(mind))
        assert await on.desk.goals.get(second.id) == before
        gate.set()
        await on.desk.tasks.wait(step.id)
        now = await on.desk.goals.get(second.id)
        assert (now.id, now.thread_id, now.status) == (second.id, None, now.status)
        assert now.tokens == 0


async def was_interrupted(mind: AgentPlan) -> bool:
    return bool(mind.agent.interrupts)


async def test_a_message_goes_first_and_the_goal_continues_afterwards(home: Path) -> None:
    gate, first = asyncio.Event(), result("hello", thread_id="th")
    mind = AgentPlan(first, work_until(gate), result("yes?"), work_until(gate), name="chat")
    async with open_desk(home, chat=mind.agent) as on:
        await on.desk.sessions.create(agent="chat", key="chat:1")
        goal = await on.goal(agent=None, session_key="chat:1")
        assert goal.status == "waiting_for_session"
        await on.desk.tasks.wait((await on.desk.sessions.send("chat:1", "hello")).id)
        step = await on.wait_for_running_step(goal)
        message_task = await on.desk.tasks.wait((await on.desk.sessions.send("chat:1", "a question")).id)
        assert message_task.result == "yes?"

        async def resume_it() -> bool:
            now = await on.desk.tasks.get(step.id)
            return now.status == "running" and now.attempt == 2

        await until(resume_it)
        now = await on.desk.goals.get(goal.id)
        assert (now.status, now.step, now.errors, now.thread_id) == ("active", 1, 0, "th")
        await on.desk.goals.pause(goal.id)
        gate.set()


async def test_a_waiting_goal_starts_when_its_session_has_a_thread(home: Path) -> None:
    mind = AgentPlan(result("hi", thread_id="th"), work_until(asyncio.Event()), name="chat")
    async with open_desk(home, chat=mind.agent) as on:
        await on.desk.sessions.create(agent="chat", key="chat:1")
        goal = await on.goal(agent=None, session_key="chat:1")
        await on.desk.goals.pause(goal.id)
        assert (await on.desk.goals.resume(goal.id)).status == "waiting_for_session"
        await on.advance(HOUR)
        assert mind.count == 0
        await on.desk.sessions.send("chat:1", "hello")
        step = await on.wait_for_running_step(goal)

        async def has_started() -> bool:
            return len(mind.agent.turns) == 2

        await until(has_started)
        assert (step.session_key, mind.agent.turns[-1].thread_id) == ("chat:1", "th")
        await on.desk.goals.clear(goal.id)


async def test_A4_five_long_goals_do_not_delay_an_automation(home: Path) -> None:
    gate = asyncio.Event()
    mind = AgentPlan(work_until(gate), terms=AgentTerms(timeout_seconds=20 * HOUR, on_crash="rerun", slots=4))
    async with open_desk(home, it=mind.agent) as on:
        goals = [await on.goal(scope_id=f"s{number}") for number in range(5)]
        await until(lambda: are_running(on, 3))
        fired = await on.desk.automations.create("look", agent="it", every=HOUR)
        await on.advance(HOUR + 1)
        run = await until(lambda: on.desk.store.find_open_run(fired.id))
        await until(lambda: is_running(on, run))
        for goal in goals:
            await on.desk.goals.clear(goal.id)
        gate.set()


async def are_running(on: GoalDesk, count: int) -> bool:
    return on.desk.running == count


async def is_running(on: GoalDesk, task: Task) -> bool:
    return (await on.desk.tasks.get(task.id)).status == "running"


async def test_prompts_and_defaults_come_from_the_settings(home: Path) -> None:
    toml = '[goals]\ncontinue_prompt = "GO {objective} {{x}}"\nwrap_up_prompt = "END {objective}"\ndeadline = "1h"\n'
    mind = AgentPlan(fails())
    mind.turns = (mind.delays(2 * HOUR), result("bye"))
    async with open_desk(home, toml=toml, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        await on.wait_for_ended_tasks(goal, 1)
        await until(lambda: is_idle(on))
        await on.advance(HOUR)
        await on.wait_for_status(goal, "timeout")
        assert mind.prompts == ["GO reach it {{x}}", "END reach it"]


# -- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_crash", "outcomes"), [("rerun", ["ok"]), ("fail", ["lost", "ok"])])
async def test_a_step_interrupted_by_a_restart_follows_its_crash_rule(
    home: Path, on_crash: Any, outcomes: list[str]
) -> None:
    clock = FakeClock()
    terms = AgentTerms(timeout_seconds=1800.0, on_crash=on_crash)
    async with open_desk(home, clock, it=AgentPlan(work_until(asyncio.Event()), terms=terms).agent) as on:
        goal = await on.goal()
        await on.wait_for_running_step(goal)
    mind = AgentPlan(fails(), terms=terms)
    mind.turns = (mind.claims(),)
    async with open_desk(home, clock, it=mind.agent) as on:
        mind.desk = on.desk
        if on_crash == "fail":
            assert (await on.desk.goals.get(goal.id)).errors == 1
            await until(lambda: is_idle(on))
            await on.advance(AUTOMATION_PAUSES[0] + 1)
        await on.wait_for_status(goal, "complete")
        assert [step.outcome for step in await on.wait_for_ended_tasks(goal, len(outcomes))] == outcomes
        assert await on.notices(goal) == ["goal_completed"]


async def test_A5_an_agent_that_raises_anything_fails_only_its_step(home: Path) -> None:
    async def raise_it(turn: Turn) -> None:
        raise SystemExit("gone")

    mind = AgentPlan(raise_it)
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal()
        await on.wait_for_ended_tasks(goal, 1)
        assert ((await on.desk.goals.get(goal.id)).errors, await on.desk.tasks.active_count()) == (1, 0)


async def test_A17_A19_a_goal_is_never_started_twice(home: Path) -> None:
    """Two schedulers check at the same time, and a person requests the next step."""
    gate = asyncio.Event()
    mind = AgentPlan(work_until(gate))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal()
        scheduler = scheduler_of(on.desk)
        await asyncio.gather(*(scheduler.look() for _ in range(3)), on.desk.goals.step(goal.id))
        await on.wait_for_running_step(goal)
        assert len(await on.desk.goals.steps(goal.id)) == 1
        await on.desk.goals.clear(goal.id)
        gate.set()


# -- brakes ----------------------------------------------------------------------------------------------------------


async def test_a_quick_agent_starts_few_steps_and_pauses_at_its_limit(home: Path) -> None:
    """The agent answers at once, each time with other words and a tool, so that only the limit per minute holds it."""

    async def quick(turn: Turn) -> str:
        await tool("edit")(turn)
        return f"done {mind.count}"

    mind = AgentPlan(quick)
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal(max_steps=20)
        assert (await on.wait_for_status(goal, "paused")).step == 20
        events = await on.desk.store.read_events(0, EventFilter(kinds=("goal_step",)))
        times = [event.time for event in events]
        assert all(later - first >= 60 * SECOND for first, later in zip(times, times[6:], strict=False))
    assert Settings.load(home).goals.defaults()["max_steps"] == 50


@pytest.mark.parametrize("how", ["cancel", "abort", "stop"])
async def test_a_person_who_stops_a_step_pauses_its_goal(home: Path, how: Any) -> None:
    gate = asyncio.Event()
    mind = AgentPlan(work_until(gate))
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal()
        step = await on.wait_for_running_step(goal)
        if how == "cancel":
            await on.desk.tasks.cancel(step.id, actor="ann")
        else:
            await on.advance(1)
            await until(lambda: on.desk.store.get_session(step.session_key))
            await on.desk.sessions.interrupt(step.session_key, how, actor="ann")
        now = await on.desk.goals.get(goal.id)
        did = "asked for the final answer of its step" if how == "stop" else "stopped its step"
        assert (now.status, now.paused_why) == ("paused", f"ann {did} {step.id}")
        gate.set()
        assert (await on.desk.tasks.wait(step.id)).status == ("done" if how == "stop" else "cancelled")
        await on.advance(HOUR)
        assert (mind.count, (await on.desk.goals.get(goal.id)).summary) == (1, "worked" if how == "stop" else None)
        (delivery,) = await on.desk.store.list_deliveries(task_id=goal.id)
        assert f"midwatch goal resume {goal.id}" in delivery.text


async def test_a_step_that_is_stopped_before_it_begins_pauses_its_goal_without_an_alert(home: Path) -> None:
    mind = AgentPlan(work_until(asyncio.Event()))
    async with open_desk(home, toml="slots = 1\n", it=mind.agent) as on:
        await on.desk.tasks.submit("work", agent="it")
        await until(lambda: has_begun(mind))
        goal = await on.goal()
        step: Task = await until(lambda: on.desk.store.find_open_step(goal.id))
        await on.desk.tasks.cancel(step.id)
        now = await on.desk.goals.get(goal.id)
        assert (now.status, now.paused_why) == ("paused", f"a person stopped its step {step.id}")
        assert [alert.kind for alert in await on.desk.alerts.list()] == []


async def test_a_pause_lets_the_step_finish_and_its_claim_count(home: Path) -> None:
    gate = asyncio.Event()
    mind = AgentPlan(fails())
    claim = mind.claims("it is done")

    async def claims_late(turn: Turn) -> Any:
        await gate.wait()
        return await claim(turn)

    mind.turns = (claims_late,)
    async with open_desk(home, it=mind.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        step = await on.wait_for_running_step(goal)
        assert (await on.desk.goals.pause(goal.id)).status == "paused"
        gate.set()
        assert (await on.desk.tasks.wait(step.id)).status == "done"
        now = await on.wait_for_status(goal, "complete")
        assert (now.evidence, now.summary, mind.count) == ("the tests pass", "it is done", 1)


async def test_the_deadline_stops_the_last_step_of_a_paused_goal(home: Path) -> None:
    terms = AgentTerms(timeout_seconds=None, on_crash="rerun")
    mind = AgentPlan(ask("May I?"), terms=terms)  # its timeout stands still while it waits
    async with open_desk(home, it=mind.agent) as on:
        goal = await on.goal(deadline_at=on.clock.now() + int(HOUR * SECOND))
        await until(lambda: on.desk.approvals.list("pending"))
        (step,) = await on.desk.goals.steps(goal.id)
        await on.desk.goals.pause(goal.id)
        await on.advance(HOUR + 1)
        await on.wait_for_status(goal, "timeout")
        assert (await on.desk.tasks.wait(step.id)).status in ("cancelled", "done")  # its question expires then, too


@pytest.mark.parametrize("threads", [True, False])
async def test_a_goal_does_not_wait_for_a_thread_that_cannot_come(home: Path, threads: bool) -> None:
    terms = AgentTerms(timeout_seconds=1800.0, on_crash="rerun", threads=threads)
    mind = AgentPlan(result("hi"), work_until(asyncio.Event()), name="chat", terms=terms)
    other = AgentPlan(work_until(asyncio.Event()), name="other")
    async with open_desk(home, chat=mind.agent, other=other.agent) as on:
        await on.desk.sessions.create(agent="chat", key="chat:1")
        goal = await on.goal(agent=None, session_key="chat:1")
        assert goal.status == ("waiting_for_session" if threads else "active")
        if threads:
            await on.desk.sessions.send("chat:1", "hello")  # its answer shows that the agent reports no thread
            await on.wait_for_running_step(goal)
        await on.desk.goals.clear(goal.id)
        second = await on.goal(agent="other", session_key="chat:1")  # no thread is lost
        assert ((await on.wait_for_running_step(second)).agent, second.status) == ("other", "active")
        await on.desk.goals.clear(second.id)


async def test_clearing_a_goal_cancels_the_work_that_its_steps_submitted(home: Path) -> None:
    mind = AgentPlan(fails(), terms=AgentTerms(timeout_seconds=1800.0, on_crash="rerun", submits=True))
    submitted: list[str] = []

    async def submits(turn: Any) -> str:
        assert mind.desk is not None
        own = Actor("owner", "attempt", task=turn.task)
        child = await mind.desk.tasks.submit("in the background", agent="busy", actor=own)
        submitted.append(child.id)
        return "submitted"

    mind.turns = (submits, work_until(asyncio.Event()))
    busy = AgentPlan(work_until(asyncio.Event()), name="busy")
    async with open_desk(home, it=mind.agent, busy=busy.agent) as on:
        mind.desk = on.desk
        goal = await on.goal()
        await on.wait_for_ended_tasks(goal, 1)
        await until(lambda: has_begun(busy))
        await on.desk.goals.clear(goal.id)
        assert (await on.desk.tasks.wait(submitted[0])).status == "cancelled"


async def has_begun(mind: AgentPlan) -> bool:
    return mind.count > 0

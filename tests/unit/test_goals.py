"""Test the goal service with a store and without a worker: what people and agents may do with a goal in each status."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, NotFound, UnknownAgent
from midwatch.domain import goal as rules
from midwatch.domain import goal_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes, Update, update_record
from midwatch.domain.event import EventFilter
from midwatch.domain.goal import DEADLINE_SECONDS, TRANSITIONS, Goal, Means, Status
from midwatch.domain.identity import Actor
from midwatch.domain.session import Session
from midwatch.domain.task import Task, guard_ownership
from midwatch.domain.task_step import EndedAttempt
from midwatch.services.goals import Goals
from midwatch.services.task_endings import TaskEndings
from midwatch.services.tasks import Tasks
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import KnownAgents, a_goal, claim_request, put

HOUR = 3600 * SECOND


class Desk:
    """The goal service on an empty store."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.clock = FakeClock()
        self.routes: list[str] = []
        endings = TaskEndings(store, self.clock, self.terms)
        self.tasks = Tasks(store, self.clock, KnownAgents("demo", "judge"), self.check, endings=endings)
        self.goals = self.make()

    def make(self, **fields: Any) -> Goals:
        return Goals(self.store, self.clock, self.tasks, self.terms, self.check, **fields)

    def check(self, route: str) -> str:
        self.routes.append(route)
        if route == "nowhere":
            raise InvalidInput("no such channel", field="route")
        return route

    async def terms(self, agent: str) -> AgentTerms:
        return AgentTerms()

    async def at(self, status: Status, **fields: Any) -> Goal:
        """Return a goal in the status."""
        goal = a_goal(self.clock.now(), status=status, **fields)
        if "session_key" not in fields:
            goal = replace(goal, session_key=f"goal:{goal.id}")
        await self.store.apply(Changes(records=(goal,)))
        return goal

    async def add_step(self, goal: Goal, *, runs: bool = True) -> Task:
        """Add the next step of the goal, running or pending."""
        means = await rules.means_of(goal, self.terms, rules.Templates())
        current = await self.goals.get(goal.id)
        await self.store.apply(steps.begin(current, "step", self.clock.now(), means))
        if runs:
            await self.store.claim(claim_request(), self.clock.now())
        step = await self.store.find_open_step(goal.id)
        assert step is not None
        return step

    async def task(self, task: Task) -> Task:
        stored_task = await self.store.get_task(task.id)
        assert stored_task is not None
        return stored_task

    async def kinds(self) -> list[str]:
        return [event.kind for event in await self.store.read_events(0, EventFilter())]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    store = await SqliteStore.open(":memory:")
    yield Desk(store)
    await store.close()


STATUSES: tuple[Status, ...] = get_args(Status)


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATUSES, STATUSES)))
async def test_the_store_makes_only_transitions_of_the_table(desk: Desk, before: Status, after: Status) -> None:
    goal = await desk.at(before)
    changes = Changes(updates=(update_record(goal, 1, status=after),))
    if after in TRANSITIONS[before]:
        await desk.store.apply(changes)
        assert (await desk.goals.get(goal.id)).status == after
    else:
        with pytest.raises(Conflict):
            await desk.store.apply(changes)
        assert await desk.goals.get(goal.id) == goal


ACTIONS: dict[str, tuple[Callable[[Goals, str], Any], dict[Status, Status | None]]] = {
    # The status after each action in each status; None if the action is refused.
    "pause": (
        lambda goals, name: goals.pause(name),
        {"active": "paused", "waiting_for_session": "paused", "paused": "paused", "complete": None, "timeout": None},
    ),
    "resume": (
        lambda goals, name: goals.resume(name),
        {
            "active": "active",
            "waiting_for_session": "waiting_for_session",
            "paused": "active",
            "complete": None,
            "timeout": None,
        },
    ),
    "complete": (
        lambda goals, name: goals.complete(name, evidence="seen"),
        {
            "active": "complete",
            "waiting_for_session": "complete",
            "paused": "complete",
            "complete": None,
            "timeout": None,
        },
    ),
    "delay": (
        lambda goals, name: goals.delay(name, 60, "x"),
        {"active": "active", "waiting_for_session": None, "paused": None, "complete": None, "timeout": None},
    ),
    "step": (
        lambda goals, name: goals.step(name),
        {"active": "active", "waiting_for_session": None, "paused": None, "complete": None, "timeout": None},
    ),
    "edit": (
        lambda goals, name: goals.edit(name, {"objective": "another"}),
        {
            "active": "active",
            "waiting_for_session": "waiting_for_session",
            "paused": "paused",
            "complete": None,
            "timeout": None,
        },
    ),
}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("deed", ACTIONS)
async def test_A21_each_status_allows_its_actions(desk: Desk, deed: str, status: Status) -> None:
    goal = await desk.at(status, session_key="goal:g", id="g")
    do, statuses = ACTIONS[deed]
    if (becomes := statuses[status]) is None:
        with pytest.raises(Conflict):
            await do(desk.goals, goal.id)
        assert await desk.goals.get(goal.id) == goal
    else:
        assert (await do(desk.goals, goal.id)).status == becomes
    kinds = [kind for kind in await desk.kinds() if kind in ("goal_completed", "goal_paused", "goal_delayed")]
    assert len(kinds) <= 1 and (not kinds or statuses[status] is not None)


# -- creating --------------------------------------------------------------------------------------------------------


async def test_a_scope_has_several_goals_that_are_found_by_name_and_by_scope(desk: Desk) -> None:
    first = await desk.goals.create("a", name="tests", actor="ann")
    second = await desk.goals.create("b", name="docs", actor="ann")
    with pytest.raises(Conflict, match="user:ann has an open goal with the name tests"):
        await desk.goals.create("c", name="tests", actor="ann")
    with pytest.raises(Conflict, match="the name tests"):
        await desk.goals.edit("docs", {"name": "tests"}, actor="ann")
    other = await desk.goals.create("c", name="tests", actor="bob")
    found = [(await desk.goals.get("tests", actor=actor)).id for actor in ("ann", "bob")]
    assert found == [first.id, other.id]
    with pytest.raises(Conflict, match=other.id):
        await desk.goals.pause("tests", actor="eve")
    assert (await desk.goals.pause("tests", actor="ann")).id == first.id
    assert {goal.id for goal in await desk.goals.list(scope="user:ann")} == {first.id, second.id}
    assert (await desk.goals.get_of_scope("user:bob")).id == other.id
    with pytest.raises(Conflict, match="several goals are open in user:ann"):
        await desk.goals.get_of_scope("user:ann")
    await desk.goals.complete("tests", actor="ann")
    assert (await desk.goals.get_of_scope("user:ann")).id == second.id
    again = await desk.goals.create("a", name="tests", actor="ann")
    assert (await desk.goals.get("tests", actor="ann")).id == again.id
    for missing in (desk.goals.get("unknown"), desk.goals.get_of_scope("chat:ann")):
        with pytest.raises(NotFound):
            await missing
    assert len(await desk.goals.list("complete", scope="user:ann")) == len(await desk.goals.list(limit=1)) == 1
    for wrong in ({"status": "blocked"}, {"scope": "ann"}):
        with pytest.raises(InvalidInput):
            await desk.goals.list(**wrong)


async def test_missing_values_get_their_defaults(desk: Desk) -> None:
    goal = await desk.goals.create(" reach it ", actor="ann", agent=None, verifier=None, workdir=None)
    assert (goal.objective, goal.agent, goal.session_key) == ("reach it", "demo", f"goal:{goal.id}")
    assert (goal.status, goal.deadline_at, goal.max_steps) == (
        "active", desk.clock.now() + int(DEADLINE_SECONDS * SECOND), 0,
    )  # fmt: skip
    goals = desk.make(
        defaults={"deadline": 60.0, "max_steps": 3, "max_tokens": 9, "max_seconds": 5.0}, default_route="there"
    )
    goal = await goals.create("x", actor="bob", max_tokens=4)
    assert goal.deadline_at == desk.clock.now() + 60 * SECOND
    assert (goal.max_steps, goal.max_tokens, goal.max_seconds, goal.route) == (3, 4, 5.0, "there")


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        ({"objective": " "}, InvalidInput), ({"agent": "nobody"}, UnknownAgent), ({"verifier": "nobody"}, UnknownAgent),
        ({"deadline_at": 5}, InvalidInput), ({"max_steps": -1}, InvalidInput), ({"colour": "red"}, InvalidInput),
        ({"status": "complete"}, InvalidInput), ({"route": "nowhere"}, InvalidInput), ({"workdir": "x"}, InvalidInput),
        ({"session_key": "\n"}, InvalidInput), ({"objective": "a\0b"}, InvalidInput),
        ({"name": "g_1"}, InvalidInput), ({"name": "a.b"}, InvalidInput), ({"name": "new"}, InvalidInput),
        ({"every_seconds": -1.0}, InvalidInput),
        ({"judge": "judge", "verifier": "judge"}, InvalidInput), ({"judge": "nobody"}, UnknownAgent),
    ],
)  # fmt: skip
async def test_invalid_values_are_refused_and_nothing_is_stored(desk: Desk, wish: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        await desk.goals.create(**{"objective": "x", **wish})
    assert await desk.goals.list() == []


async def conversation(desk: Desk, thread: str | None = None, agent: str = "judge") -> None:
    session = Session(
        key="chat:1", agent=agent, gate_key="chat:1", thread_id=thread, workdir="/tmp", created_at=1, updated_at=1
    )
    await desk.store.apply(Changes(sessions=(session,)))


async def test_A24_a_goal_in_a_session_uses_its_agent_and_directory(desk: Desk) -> None:
    await conversation(desk, "th")
    goal = await desk.goals.create("x", session_key="chat:1")
    assert (goal.agent, goal.workdir, goal.status, goal.scope_id) == ("judge", "/tmp", "active", "chat:1")
    with pytest.raises(InvalidInput, match="judge"):
        await desk.goals.create("x", session_key="chat:1", agent="demo", scope_id="other")


async def test_A9_a_paused_waiting_goal_waits_again_after_resuming(desk: Desk) -> None:
    goal = await desk.goals.create("x", session_key="chat:1", agent="judge")
    assert goal.status == "waiting_for_session"
    await desk.goals.pause(goal.id)
    assert (await desk.goals.resume(goal.id)).status == "waiting_for_session"
    assert await desk.store.list_due_goals(desk.clock.now()) == []
    await desk.goals.pause(goal.id)
    await conversation(desk, "th")
    assert (await desk.goals.resume(goal.id)).status == "active"
    assert [due_goal.id for due_goal in await desk.store.list_due_goals(desk.clock.now())] == [goal.id]


async def test_a_limit_that_the_agent_never_reaches_has_a_warning(desk: Desk) -> None:
    reports: tuple[str, ...] = ("tokens",)

    async def terms(agent: str) -> AgentTerms:
        return AgentTerms(reports=reports)

    desk.goals._terms = terms
    goal = await desk.goals.create("x", max_tokens=9, max_usd=1.0, max_steps=5)
    (warning,) = await desk.goals.warn(goal)  # without runs, the kind of the agent decides
    assert "demo does not report its cost" in warning and "max_usd" in warning
    ended = {"agent": "demo", "status": "done", "outcome": "ok", "completed_at": 1}
    await put(desk.store, **ended)
    assert len(await desk.goals.warn(goal)) == 2  # its runs show that it reports nothing
    await put(desk.store, **ended, usage={"input_tokens": 5, "cost_usd": 0.1})
    assert await desk.goals.warn(goal) == []
    reports = ()
    assert await desk.goals.warn(await desk.goals.create("y", agent="judge")) == []
    assert len(await desk.goals.warn(await desk.goals.create("y", agent="judge", max_tokens=5))) == 1


# -- pausing, resuming, stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("deed", ["pause", "complete", "clear"])
async def test_A22_ending_or_pausing_a_goal_stops_its_step_in_the_same_write(desk: Desk, deed: str, runs: bool) -> None:
    goal = await desk.at("active")
    step = await desk.add_step(goal, runs=runs)
    before = (await desk.store.read_log_bounds()).last_seq
    await getattr(desk.goals, deed)(goal.id, actor="ann", **({"stop": True} if deed == "pause" else {}))
    now = await desk.task(step)
    assert (now.status, now.stop_requested) == (("running", "cancel") if runs else ("cancelled", None))
    kinds = {event.kind for event in await desk.store.read_events(before, EventFilter())}
    assert {"pause": "goal_paused", "complete": "goal_completed", "clear": "goal_changed"}[deed] in kinds
    assert ("interrupt_received" if runs else "task_finished") in kinds


async def test_A8_a_pause_that_races_with_a_claim_is_computed_again(desk: Desk) -> None:
    """The step is claimed between the read and the write."""
    goal = await desk.at("active")
    step = await desk.add_step(goal, runs=False)
    find_open_step = desk.store.find_open_step
    calls = 0

    async def late(goal_id: str) -> Task | None:
        nonlocal calls
        calls += 1
        open_step = await find_open_step(goal_id)
        if calls == 1:
            await desk.store.claim(claim_request(), desk.clock.now())
        return open_step

    desk.store.find_open_step = late  # type: ignore[method-assign]
    assert (await desk.goals.pause(goal.id, stop=True)).status == "paused"
    assert ((await desk.task(step)).stop_requested, calls) == ("cancel", 3)


async def test_a_pause_names_the_resume_command_and_a_second_one_does_nothing(desk: Desk) -> None:
    goal = await desk.at("active", route="there")
    await desk.goals.pause(goal.id)
    again = await desk.goals.pause(goal.id)
    (delivery,) = await desk.store.list_deliveries(task_id=goal.id)
    assert f"midwatch goal resume {goal.id}" in delivery.text
    assert (await desk.kinds()).count("goal_paused") == 1
    assert again.paused_why == "paused by a person"


async def test_the_end_of_a_stopped_step_does_not_undo_resuming(desk: Desk) -> None:
    goal = await desk.at("active")
    step = await desk.add_step(goal)
    await desk.goals.pause(goal.id, stop=True)
    resumed = await desk.goals.resume(goal.id)
    assert await desk.store.list_due_goals(desk.clock.now()) == []  # the stopped step delays it
    ended_task = (await desk.task(step))._replace(
        status="cancelled", outcome="cancelled", completed_at=desk.clock.now()
    )
    means = await rules.means_of(resumed, desk.terms, rules.Templates())
    await desk.store.apply(steps.advance(resumed, EndedAttempt(ended_task), desk.clock.now(), means))
    assert (await desk.goals.get(goal.id)).status == "active"


async def test_resuming_resets_errors_and_starts_at_once(desk: Desk) -> None:
    goal = await desk.at("paused", errors=5, alike=3, last_mark="x", paused_why="errors", step=2)
    now = await desk.goals.resume(goal.id)
    assert (now.status, now.errors, now.alike, now.last_mark, now.paused_why) == ("active", 0, 0, None, None)
    assert [due_goal.id for due_goal in await desk.store.list_due_goals(desk.clock.now())] == [goal.id]


@pytest.mark.parametrize(
    ("spent", "option", "raised"),
    [
        ({"max_steps": 2, "step": 2}, "--max-steps", {"max_steps": 3}),
        ({"max_tokens": 2, "tokens": 9}, "--max-tokens", {"max_tokens": 10}),
        ({"max_seconds": 2.0, "seconds": 2.0}, "--max-time", {"max_seconds": 0.0}),
    ],
)
@pytest.mark.parametrize("status", ["active", "paused"])
async def test_a_spent_budget_must_be_raised_before_resuming(
    desk: Desk, status: Status, spent: dict[str, Any], option: str, raised: dict[str, Any]
) -> None:
    goal = await desk.at(status, **spent)
    go_on = desk.goals.resume if status == "paused" else desk.goals.step
    with pytest.raises(Conflict, match=option):
        await go_on(goal.id)
    await desk.goals.edit(goal.id, raised)
    assert (await go_on(goal.id)).status == "active"


async def test_a_goal_past_its_deadline_cannot_be_resumed(desk: Desk) -> None:
    goal = await desk.at("paused")
    desk.clock.set(goal.deadline_at)
    with pytest.raises(Conflict, match="deadline"):
        await desk.goals.resume(goal.id)
    await desk.goals.edit(goal.id, {"deadline_at": goal.deadline_at + HOUR})
    assert (await desk.goals.resume(goal.id)).status == "active"


# -- editing ---------------------------------------------------------------------------------------------------------


async def test_an_edit_changes_only_allowed_fields_and_checks_the_revision(desk: Desk) -> None:
    goal = await desk.at("active", route="there")
    now = await desk.goals.edit(goal.id, {"objective": " new ", "max_steps": 4, "deadline_at": None}, revision=0)
    assert (now.objective, now.max_steps, now.deadline_at, now.revision) == ("new", 4, goal.deadline_at, 1)
    with pytest.raises(Conflict, match="revision 1"):
        await desk.goals.edit(goal.id, {"max_steps": 5}, revision=0)
    for wrong in ({"status": "complete"}, {"agent": "judge"}, {"step": 0}, {"objective": ""}, {"route": "nowhere"}):
        with pytest.raises(InvalidInput):
            await desk.goals.edit(goal.id, wrong)
    with pytest.raises(InvalidInput, match="later"):
        await desk.goals.edit(goal.id, {"deadline_at": desk.clock.now()})
    assert (await desk.goals.edit(goal.id, {"route": None})).route is None
    assert desk.routes == ["nowhere"]


async def test_a_later_deadline_does_not_reopen_a_goal_that_timed_out(desk: Desk) -> None:
    goal = await desk.at("timeout")
    with pytest.raises(Conflict, match="timeout"):
        await desk.goals.edit(goal.id, {"deadline_at": goal.deadline_at + HOUR})


async def test_step_now_ends_a_delay_and_otherwise_writes_nothing(desk: Desk) -> None:
    goal = await desk.at("active", next_run_at=desk.clock.now() + HOUR, delay_reason="x")
    now = await desk.goals.step(goal.id)
    assert (now.next_run_at, now.delay_reason) == (None, None)
    assert await desk.goals.step(goal.id) == now


# -- signals of an agent ---------------------------------------------------------------------------------------------


async def test_a_claim_needs_evidence_and_counts_when_its_step_has_ended(desk: Desk) -> None:
    goal = await desk.at("active")
    step = await desk.add_step(goal)
    with pytest.raises(InvalidInput, match="proof"):
        await desk.goals.complete(goal.id, evidence=" ", in_step=step.id)
    now = await desk.goals.complete(goal.id, evidence="the tests pass", in_step=step.id)
    assert (now.status, now.proposal, now.evidence) == ("active", "complete", "the tests pass")
    assert (await desk.task(step)).stop_requested is None
    assert "goal_completed" not in await desk.kinds()


async def test_only_the_running_step_can_signal(desk: Desk) -> None:
    goal = await desk.at("active", verifier="judge")
    old = await desk.add_step(goal)
    await desk.goals.pause(goal.id, stop=True)
    for say in (
        lambda task: desk.goals.complete(goal.id, evidence="x", in_step=task),
        lambda task: desk.goals.delay(goal.id, 60, "x", in_step=task),
    ):
        with pytest.raises(Conflict):
            await say(old.id)
    await desk.goals.resume(goal.id)
    with pytest.raises(Conflict):
        await desk.goals.complete(goal.id, evidence="x", in_step=old.id)
    stopped = Update("task", old.id, {"status": "cancelled"}, {**guard_ownership(await desk.task(old))})
    await desk.store.apply(Changes(updates=(stopped,)))
    verify = steps.begin(
        await desk.goals.get(goal.id), "verify", desk.clock.now(), Means({"demo": AgentTerms(), "judge": AgentTerms()})
    )
    await desk.store.apply(verify)
    judged = await desk.store.find_open_step(goal.id)
    assert judged is not None
    for say in (
        lambda task: desk.goals.complete(goal.id, evidence="x", in_step=task),
        lambda task: desk.goals.delay(goal.id, 60, "x", in_step=task),
    ):
        with pytest.raises(Conflict, match="cannot change the goal"):
            await say(judged.id)


# -- clearing --------------------------------------------------------------------------------------------------------


async def test_A11_the_step_of_a_cleared_goal_writes_nothing_into_the_next_one(desk: Desk) -> None:
    first = await desk.goals.create("a", actor="ann")
    step = await desk.add_step(first)
    await desk.goals.clear(first.id)
    with pytest.raises(NotFound):
        await desk.goals.get(first.id)
    second = await desk.goals.create("b", actor="ann")
    with pytest.raises(NotFound):
        await desk.goals.complete(first.id, evidence="x", in_step=step.id)
    assert await desk.goals.get(second.id) == second


async def test_clearing_stops_a_step_that_started_concurrently(desk: Desk) -> None:
    """The goal continues between the read and the write: the new step is stopped too."""
    goal = await desk.at("active")
    find_open_step, calls = desk.store.find_open_step, 0

    async def late(goal_id: str) -> Task | None:
        nonlocal calls
        calls += 1
        open_step = await find_open_step(goal_id)
        if calls == 1:
            desk.store.find_open_step = find_open_step  # type: ignore[method-assign]
            await desk.add_step(goal)
        return open_step

    desk.store.find_open_step = late  # type: ignore[method-assign]
    await desk.goals.clear(goal.id)
    (step,) = await desk.store.list_goal_steps(goal.id)
    assert step.stop_requested == "cancel"


# -- permissions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deed", ["pause", "resume", "step", "complete", "delay", "edit", "clear"])
@pytest.mark.parametrize("status", ["active", "paused"])
async def test_manage_mode_is_enforced(desk: Desk, deed: str, status: Status) -> None:
    goal = await desk.at(status, creator="ann")
    args: dict[str, Any] = {"delay": (60, "x"), "edit": ({"objective": "y"},)}.get(deed, ())  # type: ignore[assignment]
    act = getattr(desk.goals, deed)
    bob, ann, owner = Actor("bob", "operator"), Actor("ann", "operator"), Actor("owner", "owner")
    with pytest.raises(Forbidden):
        await act(goal.id, *args, actor=bob)
    assert await desk.goals.get(goal.id) == goal
    for who in (ann, owner):
        try:
            await act(goal.id, *args, actor=who)
        except (Conflict, NotFound) as refused:  # the token of the step decides, not the actor
            assert not isinstance(refused, Forbidden)
    open_to_all = await desk.at("active", creator="ann", manage_mode="scope_all", scope_id="chat:9")
    try:
        await act(open_to_all.id, *args, actor=bob)
    except Conflict as refused:
        assert not isinstance(refused, Forbidden)


async def test_a_step_cannot_be_retried_beside_its_goal(desk: Desk) -> None:
    goal = await desk.at("active")
    step = await desk.add_step(goal, runs=False)
    await desk.goals.pause(goal.id)
    with pytest.raises(Conflict, match=f"midwatch goal resume {goal.id}"):
        await desk.tasks.retry(step.id)


async def test_steps_are_listed_newest_first(desk: Desk) -> None:
    goal = await desk.at("active")
    first = await desk.add_step(goal, runs=False)
    assert [step.id for step in await desk.goals.steps(goal.id)] == [first.id]
    with pytest.raises(NotFound):
        await desk.goals.steps("g_none")


async def test_a_goal_that_keeps_changing_is_a_conflict(desk: Desk) -> None:
    goal = await desk.at("active")
    apply = desk.store.apply

    async def changed_first(changes: Changes) -> None:
        now = await desk.goals.get(goal.id)
        await apply(Changes(updates=(update_record(now, 1, errors=now.errors + 1),)))
        await apply(changes)

    desk.store.apply = changed_first  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="keeps changing"):
        await desk.goals.pause(goal.id)
    assert replace(await desk.goals.get(goal.id), errors=0, revision=0, updated_at=goal.updated_at) == goal

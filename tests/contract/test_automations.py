"""Test the contract of stores for automations and goals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict
from midwatch.base.schedule import Schedule
from midwatch.domain import alert as alerts
from midwatch.domain import automation_step, goal, goal_step
from midwatch.domain.agent import AgentTerms
from midwatch.domain.alert import PAUSED_BY_PEOPLE, TRANSITIONS, Alert, Plans
from midwatch.domain.approval import Approval
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import Delivery
from midwatch.domain.event import ProbeEnd, ProbeStart, end_call, event
from midwatch.domain.goal import Goal, Means, Work
from midwatch.domain.handoff import Handoff, settle, start_handoff
from midwatch.domain.session import Session
from midwatch.domain.store import Store
from midwatch.domain.task import Outcome, Task, end, in_turn
from midwatch.domain.trigger import Trigger, record_firing
from records import a_task, claim_request, claim_tasks, fence, submit_and_claim
from records import put as put_task

NOW = 1_700_000_000 * SECOND
HOURLY = Schedule.make(every=3600, zone="UTC", anchor=NOW).snapshot()
DAILY = Automation(
    id="am_1", prompt="brief {{date}}", agent="demo", schedule=HOURLY, title="brief", fresh=True, creator="ann",
    scope_id="ann", session_key="auto:am_1", budget={"tokens": 5}, tags=("a", "b"), created_at=NOW, updated_at=NOW,
    next_run_at=NOW,
)  # fmt: skip
GOAL = Goal(
    id="g_1", objective="reach it", agent="demo", scope_id="ann", session_key="goal:g_1", created_at=NOW,
    updated_at=NOW, deadline_at=NOW + 3600 * SECOND,
)  # fmt: skip
TERMS = AgentTerms()
MEANS = Means({"demo": TERMS})


async def put(store: Store, *records: Automation | Goal) -> None:
    await store.apply(Changes(records=records))


async def test_an_automation_is_read_back_unchanged(store: Store) -> None:
    await put(store, DAILY)
    assert await store.get_automation("am_1") == DAILY
    assert await store.get_automation("am_2") is None


async def test_a_session_has_the_managers_of_its_automations_and_open_goals(store: Store) -> None:
    shared = replace(DAILY, session_key="chat:1", manage_mode="scope_all")
    deleted = replace(DAILY, id="am_2", session_key="chat:1", creator="eve", status="deleted")
    ended = replace(GOAL, id="g_2", session_key="chat:1", creator="eve", status="complete", scope_id="x")
    await put(store, shared, deleted, ended, replace(GOAL, session_key="chat:1", creator="bob"))
    managers = [("ann", "scope_all"), ("bob", "creator_only")]
    assert sorted(await store.list_session_managers("chat:1")) == managers
    assert sorted(await store.list_session_managers("chat:1|message:t_1")) == managers
    assert await store.list_session_managers("chat:2") == []


async def test_automations_are_listed_newest_first_by_scope_and_status(store: Store) -> None:
    for number, status in enumerate(("active", "paused", "deleted", "active")):
        record = replace(DAILY, id=f"am_{number}", status=status, created_at=NOW + number, next_run_at=None)
        await put(store, replace(record, scope_id="bob") if number == 3 else record)
    ids = [automation.id for automation in await store.list_automations()]
    assert ids == ["am_3", "am_1", "am_0"]
    assert [automation.id for automation in await store.list_automations(("user", "ann"))] == ["am_1", "am_0"]
    assert [automation.id for automation in await store.list_automations(statuses=("deleted",))] == ["am_2"]
    assert [automation.id for automation in await store.list_automations(limit=1)] == ["am_3"]


async def test_automations_are_found_by_name_and_title_and_a_name_belongs_to_one(store: Store) -> None:
    one, two = (
        replace(DAILY, name="b", title="a", overlap="queue", days_off=("sat",)),
        replace(DAILY, id="am_2", name="a"),
    )
    await put(store, one, two, replace(DAILY, id="am_3", name="x", status="deleted"))
    assert await store.find_automations("a") == [two, one]
    assert [automation.id for automation in await store.find_automations("brief")] == ["am_2"]
    assert await store.find_automations("x") == []
    with pytest.raises(Conflict):
        await put(store, replace(DAILY, id="am_4", name="a"))
    await put(store, replace(DAILY, id="am_5", name="x"))
    assert [automation.id for automation in await store.find_automations("x")] == ["am_5"]
    with pytest.raises(Conflict):
        await store.apply(Changes(updates=(Update("automation", "am_3", {"status": "paused"}, {"status": "deleted"}),)))


async def test_due_automations_come_earliest_first(store: Store) -> None:
    assert await store.find_next_automation_at() is None
    for number, due in enumerate((NOW + 3, NOW + 1, NOW + 9, None)):
        await put(store, replace(DAILY, id=f"am_{number}", next_run_at=due))
    await put(store, replace(DAILY, id="am_paused", status="paused", next_run_at=NOW))
    assert await store.find_next_automation_at() == NOW + 1
    assert [automation.id for automation in await store.list_due_automations(NOW + 3)] == ["am_1", "am_0"]
    assert [automation.id for automation in await store.list_due_automations(NOW + 3, 1)] == ["am_1"]
    assert await store.list_due_automations(NOW) == []


async def test_a_due_time_fires_once_with_many_schedulers(store: Store) -> None:
    await put(store, DAILY)
    await store.apply(automation_step.fire(DAILY, NOW, TERMS, runs=False))
    with pytest.raises(Conflict):
        await store.apply(automation_step.fire(DAILY, NOW, TERMS, runs=False))
    run = await store.find_open_run("am_1")
    assert run is not None
    assert (run.cause, run.cause_id, run.internal_key) == ("automation", "am_1", f"am_1@{NOW}")
    assert [task.id for task in await store.list_runs("am_1")] == [run.id]
    after = await store.get_automation("am_1")
    assert after is not None
    assert (after.run_count, after.next_run_at, after.revision) == (1, NOW + 3600 * SECOND, 1)


async def test_an_update_needs_the_current_revision(store: Store) -> None:
    await put(store, DAILY)
    await store.apply(automation_step.pause_automation(DAILY, NOW, "why", "ann"))
    with pytest.raises(Conflict):
        await store.apply(automation_step.pause_automation(DAILY, NOW, "why", "ann"))


async def test_automations_deleted_long_ago_are_removed(store: Store) -> None:
    await put(store, replace(DAILY, status="deleted", deleted_at=5), replace(DAILY, id="am_2"))
    assert await store.prune_automations(5) == 0
    assert await store.prune_automations(6) == 1
    assert [automation.id for automation in await store.list_automations(statuses=("active", "deleted"))] == ["am_2"]


async def test_a_scope_has_several_goals_with_different_names(store: Store) -> None:
    named = replace(GOAL, id="g_2", name="tests", starts=(1, NOW))
    await put(store, replace(named, id="g_0", status="complete"), named)
    with pytest.raises(Conflict):
        await put(store, replace(named, id="g_5"))
    await put(store, GOAL, replace(named, id="g_3", scope_id="bob"), replace(GOAL, id="g_4", status="complete"))
    assert [goal.id for goal in await store.list_named_goals("tests")] == ["g_3", "g_2", "g_0"]
    of_ann = await store.list_goals(scope=("user", "ann"))
    assert [goal.id for goal in of_ann] == ["g_4", "g_2", "g_1", "g_0"] and of_ann[1] == named
    assert [goal.id for goal in await store.list_goals(("active",), 1, ("user", "ann"))] == ["g_2"]
    assert await store.list_goals(scope=("chat", "ann")) == []
    for name in ("g_0", "g_2"):
        assert await store.delete_goal(name, GOAL.revision, Changes())
    assert await store.get_goal("g_1") == GOAL
    assert {stored_goal.id for stored_goal in await store.list_goals()} == {"g_1", "g_3", "g_4"}
    assert [stored_goal.id for stored_goal in await store.list_goals(("complete",))] == ["g_4"]
    assert not await store.delete_goal("g_1", GOAL.revision + 1, Changes())
    assert await store.delete_goal("g_1", GOAL.revision, Changes())
    assert not await store.delete_goal("g_1", GOAL.revision, Changes())


async def test_goals_are_woken_by_time_by_a_thread_and_by_their_deadline(store: Store) -> None:
    await put(
        store,
        replace(GOAL, id="g_now", scope_id="1"),
        replace(GOAL, id="g_later", scope_id="2", next_run_at=NOW + 9),
        replace(GOAL, id="g_waits", scope_id="3", status="waiting_for_session", session_key="chat:1"),
        replace(GOAL, id="g_rests", scope_id="4", status="paused", deadline_at=NOW + 50),
        replace(GOAL, id="g_done", scope_id="5", status="complete", deadline_at=NOW + 1),
    )
    assert [due_goal.id for due_goal in await store.list_due_goals(NOW)] == ["g_now"]
    assert await store.find_next_goal_at() == NOW + 9
    assert {due_goal.id for due_goal in await store.list_due_goals(NOW + 9)} == {"g_now", "g_later"}
    assert {due_goal.id for due_goal in await store.list_due_goals(NOW + 50)} == {"g_now", "g_later", "g_rests"}
    talk = Session(key="chat:1", agent="demo", gate_key="chat:1", thread_id="th", created_at=1, updated_at=1)
    await store.apply(Changes(sessions=(talk,)))
    assert {due_goal.id for due_goal in await store.list_due_goals(NOW)} == {"g_now", "g_waits"}


async def test_a_goal_with_an_open_task_is_not_due_before_its_deadline(store: Store) -> None:
    await put(store, GOAL)
    await store.apply(goal_step.wake(GOAL, NOW, MEANS))
    with pytest.raises(Conflict):
        await store.apply(goal_step.wake(GOAL, NOW, MEANS))
    assert await store.list_due_goals(GOAL.deadline_at - 1) == []
    assert await store.find_next_goal_at() == GOAL.deadline_at
    assert [due_goal.id for due_goal in await store.list_due_goals(GOAL.deadline_at)] == ["g_1"]
    (step,) = await store.list_goal_steps("g_1")
    assert (step.cause, step.cause_id, step.status) == ("goal", "g_1", "pending")
    await store.claim(claim_request(), NOW)
    await store.apply(Changes(updates=(Update("task", step.id, {"stop_requested": "cancel"}),)))
    assert await store.list_due_goals(GOAL.deadline_at) == []  # it is being stopped; its end decides
    assert await store.find_next_goal_at() is None


@pytest.mark.parametrize("work", ["verify", "wrap_up"])
async def test_the_last_tasks_of_a_goal_may_run_beyond_its_deadline(store: Store, work: Work) -> None:
    aim = replace(GOAL, step=1)
    await put(store, aim)
    start = GOAL.deadline_at - 5 * SECOND
    await store.apply(goal_step.begin(aim, work, start, MEANS))
    last = start + int(goal.LAST_SECONDS * SECOND)
    assert await store.find_next_goal_at() == last
    assert await store.list_due_goals(last - 1) == []
    assert [due_goal.id for due_goal in await store.list_due_goals(last)] == ["g_1"]


@pytest.mark.parametrize("cause", ["automation", "goal"])
async def test_an_automation_and_a_goal_have_one_open_task_each(store: Store, cause: str) -> None:
    await put_task(store, cause=cause, cause_id="x_1")
    with pytest.raises(Conflict):
        await put_task(store, cause=cause, cause_id="x_1")
    await put_task(store, cause=cause, cause_id="x_2")


STEPS: dict[alerts.Status, Callable[[Alert], Changes]] = {
    "escalated": lambda alert: alerts.escalate(alert, "Silent: still", 20),
    "acknowledged": lambda alert: alerts.acknowledge(alert, "ann", 30),
    "withdrawn": lambda alert: alerts.withdraw(alert, 40),
}


async def test_an_alert_lives_as_its_table_says(store: Store) -> None:
    cases = [(before, after) for before in TRANSITIONS if before != "found" for after in STEPS]
    for number, (before, after) in enumerate(cases):
        found = Alert(subject=f"t_{number}", kind="silent", text="Silent: dig", since=5, task_id="t_1")
        raised, changes = alerts.raise_alert(found, f"al_{number}", 10, "console:x", None)
        assert await store.raise_alert(raised, changes)
        assert not await store.raise_alert(replace(raised, id="al_same"), changes)
        if before != "raised":
            await store.apply(STEPS[before](raised))
        current = await store.get_alert(raised.id)
        assert current is not None
        assert current.status == before
        allowed = after in TRANSITIONS[before]
        with nullcontext() if allowed else pytest.raises(Conflict):
            await store.apply(STEPS[after](current))
        stored = await store.get_alert(raised.id)
        assert stored is not None
        assert stored.status == (after if allowed else before)
        assert await store.list_open_alerts() == ([] if stored.status == "withdrawn" else [stored])
        if stored.status != "withdrawn":
            await store.apply(alerts.withdraw(stored, 40))
    assert await store.prune_alerts(40) == 0
    assert await store.prune_alerts(41) == len(cases)


async def test_the_watchdog_finds_late_waiting_and_paused_records(store: Store) -> None:
    task = {"status": "running", "attempt": 1, "started_at": NOW, "created_at": NOW}
    about = {"session_key": "chat:1", "gate_key": "chat:1", "dir_key": "/w"}
    queued = {"session_key": "chat:1", "gate_key": "chat:1"}
    tasks = (
        a_task(id="t_1", **task, **about), a_task(id="t_2", due_at=NOW, **queued),
        a_task(id="t_3", due_at=NOW - 5, **queued), a_task(id="t_4", due_at=NOW, dir_key="/w"),
        a_task(id="t_5", due_at=NOW + 1), a_task(id="t_6", due_at=NOW, agent="gone"),
    )  # fmt: skip
    await store.apply(Changes(records=tasks))
    assert await store.list_late_agents(NOW) == {"demo": 3, "gone": 1}
    (session,) = await store.list_behind_sessions(NOW, 9)
    assert (session.oldest.id, session.size, session.holder) == ("t_3", 2, "t_1")
    (directory,) = await store.list_behind_directories(NOW, 9)
    assert (directory.oldest.id, directory.size, directory.holder) == ("t_4", 1, "t_1")
    oldest = [await store.find_oldest_late("demo", NOW + after, free=free) for after, free in ((1, True), (0, True))]
    assert [late and late.id for late in oldest] == ["t_5", None]
    anything = await store.find_oldest_late("demo", NOW, free=False)
    assert anything is not None and anything.id == "t_3"

    await put(store, replace(DAILY, next_run_at=NOW), replace(GOAL, status="active"))
    assert await store.count_plans() == Plans(5, 1, 1)
    for number, why in enumerate(
        (
            "its step took too long", *PAUSED_BY_PEOPLE, "ann interrupted its run", "ann stopped its step t_1",
            "set night declares it as not enabled",
        )
    ):  # fmt: skip
        paused = {"status": "paused", "paused_why": why}
        await put(store, replace(DAILY, id=f"am_p{number}", next_run_at=None, **paused))
        await put(store, replace(GOAL, id=f"g_p{number}", scope_id=f"u{number}", **paused))
    assert [a.id for a in await store.list_paused_automations(PAUSED_BY_PEOPLE, 9)] == ["am_p0"]
    assert [g.id for g in await store.list_paused_goals(PAUSED_BY_PEOPLE, 9)] == ["g_p0"]

    state = {"unread_at": NOW, "unread_why": "gone"}
    watches = {"kind": "file", "automation_id": "am_1", "options": {"kind": "file", "paths": ["/w"]}}
    triggers = Trigger(id="tr_1", state=state, **watches), Trigger(id="tr_2", state={"signature": "s"}, **watches)
    fired = [record_firing(DAILY, triggers[1], NOW + n, key=str(n), summary="new")[1] for n in (0, 1, 2)]
    for step in (Changes(records=triggers), *fired):
        await store.apply(step)
    assert await store.list_unread_triggers(9) == [triggers[0]]
    assert await store.list_late_firings(NOW + 1, 9) == [("am_1", 2, NOW)]

    asked = Approval(
        id="ap_1", task_id="t_1", attempt=1, session_key="chat:1", agent="demo", question="?", kind="choice",
        choices=(), created_at=NOW, expires_at=NOW + 9,
    )  # fmt: skip
    failed = [
        Delivery(id=f"d_{n}", task_id="t_1", channel="c", notice=str(n), text="x", status="failed", created_at=n)
        for n in (3, 4)
    ]
    await store.apply(Changes(records=(asked,), deliveries=tuple(failed)))
    assert await store.list_unanswered(NOW - 1, 9) == []
    assert await store.list_unanswered(NOW, 9) == [asked]
    assert await store.list_undelivered(3) == [("c", 2, 3)]
    assert await store.list_undelivered(4) == [("c", 1, 4)]
    holder = await store.get_task("t_1")
    assert holder is not None
    assert await store.list_waits(holder) == [(NOW, None)]


async def test_the_position_of_a_follower_is_stored(store: Store) -> None:
    assert await store.get_cursor("hook") is None
    await store.set_cursor("hook", 5)
    await store.set_cursor("hook", 7)
    await store.set_cursor("other", 1)
    assert (await store.get_cursor("hook"), await store.get_cursor("other")) == (7, 1)


@pytest.mark.parametrize("status", ["waiting_for_session", "active", "paused", "complete", "timeout"])
async def test_it_is_known_whether_a_goal_is_open(store: Store, status: Any) -> None:
    assert not await store.has_open_goals()
    await put(store, replace(GOAL, status=status))
    assert await store.has_open_goals() == (status in ("waiting_for_session", "active", "paused"))


async def test_the_open_step_of_a_goal_is_found(store: Store) -> None:
    await put(store, GOAL)
    assert await store.find_open_step("g_1") is None
    await store.apply(goal_step.wake(GOAL, NOW, MEANS))
    step = await store.find_open_step("g_1")
    assert step is not None
    assert step.cause_id == "g_1"


async def transfer_running_task(store: Store, number: int) -> Task:
    """Transfer the running task to another agent and return the task of the transfer."""
    ((running, _),) = (await store.claim(claim_request(), NOW + number)).taken
    root = running.root_id or running.id
    handoff = Handoff(id=f"h_{number}", form="transfer", status="accepted", source_task=running.id, root_id=root)
    following = a_task(cause="handoff", cause_id=handoff.id, parent_id=running.id, root_id=root, due_at=NOW)
    await store.apply(Changes(records=(handoff,)))
    step = end(running, NOW, outcome="transferred", transferred_to=following.id)[1]
    await store.apply(step.plus(start_handoff(handoff, following, NOW)[1]))
    return following


async def end_run_and_handoff(store: Store) -> None:
    """End the running task and the handoff that started it."""
    ((running, _),) = (await store.claim(claim_request(), NOW + 9)).taken
    over, step = end(running, NOW + 9, outcome="ok", result="")
    brought = await store.get_handoff(running.cause_id or "")
    assert brought is not None
    await store.apply(step.plus(settle(brought, over, NOW + 9)))


async def test_a_transferred_run_is_open_until_its_last_task_ends(store: Store) -> None:
    await put(store, DAILY)
    await store.apply(automation_step.fire(DAILY, NOW, TERMS, runs=False))
    for number in (1, 2):
        following = await transfer_running_task(store, number)
        assert await store.find_open_run("am_1") == following
        assert await store.find_held_automations(["am_1"]) == {"am_1": {"runs"}}
    await end_run_and_handoff(store)
    assert await store.find_open_run("am_1") is None


async def test_open_runs_and_closed_sessions_hold_up_automations(store: Store) -> None:
    some = [replace(DAILY, id=f"am_{number}", session_key=f"auto:{number}") for number in range(5)]
    await put(store, *some)
    for fired in (some[1], some[3]):
        await store.apply(automation_step.fire(fired, NOW, TERMS, runs=False))
    for number in (2, 3):
        key = f"auto:{number}"
        await store.open_session(Session(key=key, gate_key=key, agent="demo", created_at=NOW, updated_at=NOW), ())
        await store.close_session(f"auto:{number}", NOW, ())
    await store.apply(automation_step.fire(some[4], NOW, TERMS, runs=False))
    run = await store.find_open_run("am_4")
    assert run is not None
    await store.apply(end(run, NOW, outcome="cancelled")[1])
    held = await store.find_held_automations(["am_0", "am_1", "am_2", "am_3", "am_4", "unknown"])
    assert held == {"am_1": {"runs"}, "am_2": {"closed"}, "am_3": {"closed", "runs"}}
    assert await store.find_held_automations(["am_0"]) == {}


async def test_a_goal_with_a_transferred_step_waits_for_its_end_or_deadline(store: Store) -> None:
    await put(store, GOAL)
    await store.apply(goal_step.wake(GOAL, NOW, MEANS))
    following = await transfer_running_task(store, 1)
    assert await store.find_open_step("g_1") == following
    assert await store.list_due_goals(NOW + 5) == []
    assert await store.find_next_goal_at() == GOAL.deadline_at
    assert [due_goal.id for due_goal in await store.list_due_goals(GOAL.deadline_at)] == ["g_1"]
    await end_run_and_handoff(store)
    assert [due_goal.id for due_goal in await store.list_due_goals(NOW + 9)] == ["g_1"]


async def test_the_results_of_the_last_runs_leave_out_those_that_were_skipped(store: Store) -> None:
    await put(store, replace(DAILY, env={"A": "b"}, when_command="true", history=3))
    assert await store.get_automation("am_1") == replace(DAILY, env={"A": "b"}, when_command="true", history=3)
    probe = {"when": "true", "when_timeout": 60.0, "output": "ü"}
    outcomes: tuple[Outcome, ...] = ("ok", "error", "skipped", "cancelled", "silent")
    for number, outcome in enumerate(outcomes):
        task = a_task(id=f"t_{number}", cause="automation", cause_id="am_1", session_key=f"bg:{number}", probe=probe)
        await store.submit(task)
        (claimed,) = await claim_tasks(store)
        assert claimed.probe == probe
        await store.apply(end(claimed, NOW, outcome=outcome, result=f"result {number}")[1])
    assert [task.result for task in await store.list_results("am_1", 10)] == ["result 4", "result 1", "result 0"]
    assert [task.id for task in await store.list_results("am_1", 1)] == ["t_4"]


async def test_an_open_command_of_a_dead_attempt_is_found(store: Store) -> None:
    task = await submit_and_claim(store)
    start, end_of_first = ProbeStart(probe="when", command="true", timeout=1.0), ProbeEnd(probe="when", passed=True)
    check = ProbeStart(probe="check", command="make", timeout=1.0)
    events = tuple(event(payload, NOW, **in_turn(task)) for payload in (start, end_of_first, check))
    await store.apply(Changes(fence=fence(task), events=events))
    (opened,) = await store.list_open_events(fence(task))
    assert opened.payload["probe"] == "check"
    assert end_call(opened, "cut off") == ProbeEnd(probe="check", error="cut off")

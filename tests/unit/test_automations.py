"""Test the automation service with a real store.

A10 `test_a_patch_keeps_concurrent_changes`.
A22 deleting stops the open run: `test_deleting_cancels_the_open_run_and_can_be_undone`. Pausing lets it end.
A28 the server determines the actor, never a header:
`test_only_its_creator_may_manage_an_automation_unless_the_setting_allows_all`.
A29 create and change use the same field names and refuse unknown ones: `test_unknown_and_fixed_fields_are_refused`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, NotFound, UnknownAgent
from midwatch.base.schedule import host_zone, parse_moment
from midwatch.domain import automation_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import OVER, SPENT, Automation
from midwatch.domain.changes import Changes
from midwatch.domain.event import EVERYTHING
from midwatch.domain.identity import Actor
from midwatch.domain.session import Session
from midwatch.domain.task import Outcome, Task, end
from midwatch.services.automations import CHANGEABLE, KEPT_SECONDS, Automations, compute_retention_start
from midwatch.services.task_endings import TaskEndings
from midwatch.services.tasks import Tasks
from midwatch.testing import FakeClock
from records import InterferingStore, KnownAgents, claim_request

HOUR = 3600 * SECOND
ANN, BOB = Actor("ann", "operator"), Actor("bob", "operator")


async def terms(agent: str) -> AgentTerms:
    return AgentTerms()


def check_route(route: str) -> str:
    if not route.startswith("console"):
        raise InvalidInput("there is no such channel.", field="route")
    return route


@pytest.fixture
async def store() -> AsyncIterator[InterferingStore]:
    opened = InterferingStore(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(parse_moment("2026-03-02T09:00:00+00:00", 0, "UTC"))


@pytest.fixture
def tasks(store: InterferingStore, clock: FakeClock) -> Tasks:
    endings = TaskEndings(store, clock, terms)
    return Tasks(store, clock, KnownAgents("demo", "other"), check_route, endings=endings)


@pytest.fixture
def automations(store: InterferingStore, clock: FakeClock, tasks: Tasks) -> Automations:
    return Automations(store, clock, tasks, terms, check_route)


async def fire_due(store: InterferingStore, clock: FakeClock, automation: Automation) -> Task:
    """Fire an automation that is due."""
    assert automation.next_run_at is not None
    clock.set(automation.next_run_at)
    await store.apply(steps.fire(automation, clock.now(), AgentTerms(), runs=False))
    task = await store.find_open_run(automation.id)
    assert task is not None
    return task


async def kinds(store: InterferingStore) -> list[str]:
    return [event.kind for event in await store.read_events(0, EVERYTHING, 1000)]


# -- creating ------------------------------------------------------------------------------------------------------


async def test_a_new_automation_is_stored_and_announced(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    automation = await automations.create(
        " look ", actor="ann", every="90m", title="brief", tags=("a",), zone="Asia/Kolkata", route="console", max_runs=3
    )
    assert await automations.get(f" {automation.id} ") == automation
    assert (automation.prompt, automation.agent, automation.creator, automation.scope_id, automation.session_key) == (
        "look", "demo", "ann", "ann", f"auto:{automation.id}",
    )  # fmt: skip
    assert (automation.next_run_at, automation.revision, automation.run_count) == (clock.now() + 5400 * SECOND, 0, 0)
    assert (automation.times.zone, automation.times.every, automation.times.anchor) == (
        "Asia/Kolkata",
        5400,
        clock.now(),
    )
    (event,) = await store.read_events(0)
    assert (event.kind, event.actor, event.payload["next_run_at"]) == (
        "automation_created",
        "ann",
        iso(automation.next_run_at),
    )
    assert (await automations.create("x", every=60)).times.zone == host_zone()


@pytest.mark.parametrize(
    ("field", "wish"),
    [
        ("schedule", {}),
        ("schedule", {"every": 60, "cron": "0 9 * * *"}),
        ("every", {"every": 59}),
        ("cron", {"cron": "@every 1s"}),
        ("cron", {"cron": "* * * * * *"}),
        ("cron", {"cron": "0 0 30 2 *"}),
        ("cron", {"cron": "TZ=UTC 0 9 * * *"}),
        ("zone", {"cron": "0 9 * * *", "zone": "Mars/Olympus"}),
        ("at", {"at": 1_600_000_000 * SECOND}),
        ("running", {"every": 60, "running": True}),
        ("run_count", {"every": 60, "run_count": 1}),
        ("max_runs", {"every": 60, "max_runs": -1}),
        ("timeout", {"every": 60, "timeout_seconds": 0.0}),
        ("on_crash", {"every": 60, "on_crash": "shrug"}),
        ("workdir", {"every": 60, "workdir": "relative"}),
        ("route", {"every": 60, "route": "pigeon"}),
        ("session_key", {"every": 60, "session_key": "a\nb"}),
    ],
)
async def test_invalid_values_are_refused(
    automations: Automations, store: InterferingStore, field: str, wish: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await automations.create("look", **wish)
    assert refused.value.field == field
    assert await store.list_automations() == []


async def test_an_empty_prompt_and_an_unknown_agent_are_refused(automations: Automations) -> None:
    with pytest.raises(InvalidInput, match="prompt is empty"):
        await automations.create("  ", every=60)
    with pytest.raises(InvalidInput, match="NUL"):
        await automations.create("a\0b", every=60)
    with pytest.raises(UnknownAgent):
        await automations.create("x", every=60, agent="nobody")


async def test_missing_values_get_their_defaults(automations: Automations) -> None:
    automation = await automations.create(
        "x", every=60, title=None, jitter_seconds=None, missed=None, tags=None, agent=None
    )
    assert (automation.title, automation.jitter_seconds, automation.missed, automation.tags) == (
        "",
        0.0,
        "once_within",
        (),
    )


async def test_an_automation_can_be_created_disabled(automations: Automations, store: InterferingStore) -> None:
    automation = await automations.create("x", every=60, enabled=False)
    assert (automation.status, automation.next_run_at) == ("paused", None)
    assert await store.find_next_automation_at() is None
    assert (await automations.resume(automation.id)).status == "active"


async def test_the_first_time_can_be_set(automations: Automations, clock: FakeClock) -> None:
    automation = await automations.create("x", every=3600, next_run_at=clock.now() + 5)
    assert automation.next_run_at == clock.now() + 5


async def test_a_thread_to_resume_is_stored_in_its_session(automations: Automations, store: InterferingStore) -> None:
    automation = await automations.create("x", every=60, resume_thread_id="th_1")
    session = await store.get_session(automation.session_key)
    assert session is not None
    assert (session.thread_id, session.agent) == ("th_1", "demo")
    talk = Session(key="chat:1", agent="demo", gate_key="chat:1", thread_id="newer", created_at=1, updated_at=1)
    await store.apply(Changes(sessions=(talk,)))
    await automations.create("x", every=60, session_key="chat:1", resume_thread_id="older")
    chat_session = await store.get_session("chat:1")
    assert chat_session is not None
    assert chat_session.thread_id == "newer"


# -- reading -------------------------------------------------------------------------------------------------------


async def test_automations_are_listed_by_scope_status_and_limit(automations: Automations, clock: FakeClock) -> None:
    created = []
    for number in range(25):
        await clock.advance(1)
        kind = "chat" if number % 2 else "user"
        created.append(await automations.create("x", every=60, scope_kind=kind, scope_id=" 7 "))
    newest = [automation.id for automation in reversed(created)]
    await automations.pause(newest[0])
    await automations.delete(newest[1])
    shown = [automation.id for automation in await automations.list()]
    assert shown == [newest[0], *newest[2:21]]
    assert [automation.id for automation in await automations.list(limit=0)] == shown
    assert len(await automations.list(limit=3)) == 3
    assert len(await automations.list(" ALL ", limit=9999)) == 25
    assert [automation.id for automation in await automations.list("paused")] == [newest[0]]
    assert [automation.id for automation in await automations.list("deleted")] == [newest[1]]
    assert newest[0] not in [automation.id for automation in await automations.list("active")]
    chat = await automations.list("all", scope=("chat", "7"))
    assert [automation.id for automation in chat] == newest[1::2]
    assert await automations.list(scope=("chat", "8")) == []
    with pytest.raises(InvalidInput, match="all, active, paused, deleted"):
        await automations.list("running")


async def test_a_list_has_at_most_two_hundred_entries(automations: Automations, store: InterferingStore) -> None:
    first = await automations.create("x", every=60)
    await store.apply(Changes(records=tuple(replace(first, id=f"am_{n}") for n in range(250))))
    assert len(await automations.list(limit=1000)) == 200


async def test_unknown_ids_are_not_found(automations: Automations) -> None:
    for act in (automations.get, automations.history, automations.pause, automations.resume, automations.delete,
                automations.run):  # fmt: skip
        with pytest.raises(NotFound):
            await act("am_none")


async def test_an_unreadable_automation_does_not_hide_the_others(
    automations: Automations, store: InterferingStore
) -> None:
    automation = await automations.create("x", every=60)
    await store.apply(Changes(records=(replace(automation, id="am_odd", schedule={"cron": "?", "zone": "No/Where"}),)))
    assert {listed.snapshot()["id"] for listed in await automations.list()} == {automation.id, "am_odd"}
    mended = await automations.patch("am_odd", {"cron": "0 9 * * *", "zone": "UTC"})
    assert mended.times.cron == "0 9 * * *"


# -- changing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    ["id", "creator", "created_at", "run_count", "status", "revision", "last_result", "session_key", "scope_id",
     "deleted_at", "schedule", "consecutive_failures", "every_seconds", "cron_expr", "running", "source_message_id"],
)  # fmt: skip
async def test_unknown_and_fixed_fields_are_refused(automations: Automations, field: str) -> None:
    automation = await automations.create("x", every=60)
    with pytest.raises(InvalidInput, match=f"{field} cannot be set here") as refused:
        await automations.patch(automation.id, {field: 1})
    assert refused.value.field == field
    assert await automations.get(automation.id) == automation


async def test_each_changeable_field_can_be_changed(automations: Automations, clock: FakeClock, tmp_path: Path) -> None:
    automation = await automations.create("x", every=60)
    (tmp_path / ".git").mkdir()
    fields: dict[str, Any] = {
        "title": "new", "prompt": "other", "agent": "other", "fresh": True, "worktree": True,
        "route": "console:7", "notices": "failures", "manage_mode": "scope_all", "max_runs": 5,
        "workdir": str(tmp_path), "timeout_seconds": 9.0, "on_crash": "fail",
        "jitter_seconds": 5.0, "missed": "skip", "missed_window": 60.0, "quiet": "NOTHING",
        "when_command": "test -e x", "when_timeout": 5.0, "env": {"A": "b"}, "history": 3,
        "budget": {"tokens": 1}, "on_budget": "ask",
        "approvals": {"default": "deny", "allow": [{"command": "git log *"}]}, "tags": ("a",),
        "triggers": ({"id": "tr_1", "kind": "git", "repository": "/srv/app", "branch": "main"},),
        "cron": "0 9 * * *", "zone": "Europe/Berlin", "name": "brief",
        "overlap": "queue", "days_off": ("sat",), "quiet_hours": ("22:00-07:00",),
        "next_run_at": clock.now() + 7,
    }  # fmt: skip
    assert set(fields) == CHANGEABLE - {"at", "every"}
    after = await automations.patch(automation.id, fields)
    assert [trigger["branch"] for trigger in after.triggers] == ["main"]
    for name, value in fields.items():
        if name not in ("cron", "zone", "triggers"):
            assert getattr(after, name) == value
    assert after.schedule == {"cron": "0 9 * * *", "zone": "Europe/Berlin"}
    nothing = dict.fromkeys(("route", "workdir", "timeout_seconds", "on_crash", "quiet", "budget", "approvals"))
    with pytest.raises(InvalidInput, match="must name a directory in a git repository"):
        await automations.patch(automation.id, nothing)
    cleared = await automations.patch(automation.id, {**nothing, "worktree": False})
    assert (cleared.route, cleared.workdir, cleared.timeout_seconds, cleared.quiet) == (None, None, None, None)
    assert cleared.approvals is None
    assert (cleared.schedule, cleared.next_run_at) == (after.schedule, after.next_run_at)


@pytest.mark.parametrize("field", ["prompt", "title", "agent", "max_runs", "missed", "tags", "manage_mode", "fresh"])
async def test_required_fields_cannot_be_cleared(automations: Automations, field: str) -> None:
    automation = await automations.create("x", every=60)
    with pytest.raises(InvalidInput) as refused:
        await automations.patch(automation.id, {field: None})
    assert refused.value.field == field


async def test_the_result_of_a_patch_must_be_valid(automations: Automations, clock: FakeClock) -> None:
    automation = await automations.create("x", every=60)
    for values in ({"prompt": " "}, {"max_runs": -1}, {"cron": "@every 1s"}, {"every": 60, "cron": "0 9 * * *"},
                   {"at": clock.now()}, {"zone": "Mars/Olympus"}, {"route": "pigeon"}, {"workdir": "here"},
                   {"on_crash": "shrug"}, {"approvals": {"default": "maybe"}},
                   {"approvals": {"allow": [{"command": "a; b"}]}}):  # fmt: skip
        with pytest.raises(InvalidInput):
            await automations.patch(automation.id, values)
    with pytest.raises(UnknownAgent):
        await automations.patch(automation.id, {"agent": "nobody"})
    assert await automations.get(automation.id) == automation


async def test_a_patch_for_another_revision_is_refused(automations: Automations) -> None:
    automation = await automations.create("x", every=60)
    after = await automations.patch(automation.id, {"title": "a"}, revision=0)
    assert after.revision == 1
    with pytest.raises(Conflict, match="revision 1"):
        await automations.patch(automation.id, {"title": "b"}, revision=0)
    assert (await automations.get(automation.id)).title == "a"


async def test_a_patch_keeps_concurrent_changes(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    automation = await automations.create("x", every=3600)
    clock.set(automation.next_run_at or 0)
    store.interfere = lambda: fire_due(store, clock, automation)
    after = await automations.patch(automation.id, {"title": "new"})
    assert (after.title, after.run_count, after.revision) == ("new", 1, 2)
    assert after.next_run_at == (automation.next_run_at or 0) + HOUR
    store.interfere = lambda: automations.patch(automation.id, {"prompt": "theirs"})
    with pytest.raises(Conflict):
        await automations.patch(automation.id, {"title": "newer"}, revision=2)
    stored = await automations.get(automation.id)
    assert (stored.title, stored.prompt) == ("new", "theirs")


async def test_a_changed_schedule_has_a_new_next_time(automations: Automations, clock: FakeClock) -> None:
    automation = await automations.create("x", every=3600, zone="UTC")
    start = clock.now()
    await clock.advance(600)
    kept = await automations.patch(automation.id, {"every": 7200, "keep_anchor": True})
    assert (kept.next_run_at, kept.times.anchor) == (start + 2 * HOUR, start)
    longer = await automations.patch(automation.id, {"every": 10800})
    assert (longer.next_run_at, longer.times.anchor) == (clock.now() + 3 * HOUR, clock.now())
    daily = await automations.patch(automation.id, {"cron": "0 9 * * *"})
    assert daily.schedule == {"cron": "0 9 * * *", "zone": "UTC"}
    assert daily.next_run_at == parse_moment("2026-03-03T09:00:00+00:00", 0, "UTC")
    moved = await automations.patch(automation.id, {"zone": "America/New_York"})
    assert moved.schedule == {"cron": "0 9 * * *", "zone": "America/New_York"}
    assert moved.next_run_at == parse_moment("2026-03-02T09:00", 0, "America/New_York")
    single = await automations.patch(automation.id, {"at": clock.now() + 5})
    assert (single.times.at, single.times.cron, single.next_run_at) == (clock.now() + 5, None, clock.now() + 5)


async def test_another_change_keeps_an_overdue_run_due(automations: Automations, clock: FakeClock) -> None:
    automation = await automations.create("x", every=3600, zone="UTC")
    await clock.advance(5000)
    for values in ({"title": "new"}, {"zone": "UTC"}, {"every": 3600}, {"every": "1h", "zone": "UTC"}):
        assert (await automations.patch(automation.id, values)).next_run_at == automation.next_run_at


async def test_a_changed_automation_stays_paused(automations: Automations, clock: FakeClock) -> None:
    automation = await automations.create("x", every=3600)
    await automations.pause(automation.id, why="a holiday")
    after = await automations.patch(automation.id, {"every": 60, "next_run_at": clock.now() + 5, "max_runs": 1})
    assert (after.status, after.paused_why, after.next_run_at) == ("paused", "a holiday", None)


async def test_max_runs_below_the_count_is_refused_and_equal_pauses(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    automation = await automations.create("x", every=3600)
    await fire_due(store, clock, automation)
    await end_and_fire_again(store, clock, automation.id)
    with pytest.raises(InvalidInput, match="raise it"):
        await automations.patch(automation.id, {"max_runs": 1})
    spent = await automations.patch(automation.id, {"max_runs": 2})
    assert (spent.status, spent.paused_why, spent.next_run_at) == ("paused", SPENT, None)
    with pytest.raises(InvalidInput, match="raise max_runs"):
        await automations.resume(automation.id)
    await automations.patch(automation.id, {"max_runs": 3})
    assert (await automations.resume(automation.id)).status == "active"


async def end_and_fire_again(store: InterferingStore, clock: FakeClock, automation_id: str) -> Task:
    """End the open run successfully and fire the automation again."""
    await end_run(store, clock, automation_id)
    automation = await store.get_automation(automation_id)
    assert automation is not None
    return await fire_due(store, clock, automation)


async def end_run(store: InterferingStore, clock: FakeClock, automation_id: str, outcome: Outcome = "ok") -> None:
    (claim,) = (await store.claim(claim_request(), clock.now())).taken
    automation = await store.get_automation(automation_id)
    assert automation is not None
    ended_task, changes = end(claim.task, clock.now(), outcome=outcome, error="x" if outcome != "ok" else None)
    await store.apply(changes.plus(steps.settle(automation, ended_task, clock.now())))


async def test_raising_max_runs_during_the_last_run_continues(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    automation = await automations.create("x", every=3600, max_runs=1)
    await fire_due(store, clock, automation)
    assert (await automations.get(automation.id)).next_run_at is None
    raised = await automations.patch(automation.id, {"max_runs": 2})
    assert raised.next_run_at == (automation.next_run_at or 0) + HOUR
    await end_run(store, clock, automation.id)
    assert (await automations.get(automation.id)).status == "active"


# -- pausing, resuming, deleting -----------------------------------------------------------------------------------


async def test_pausing_and_resuming_twice_is_harmless(automations: Automations, store: InterferingStore) -> None:
    automation = await automations.create("x", every=3600)
    paused = await automations.pause(automation.id, why="a holiday")
    assert await automations.pause(automation.id, why="another") == paused
    assert (paused.status, paused.paused_why, paused.next_run_at) == ("paused", "a holiday", None)
    resumed = await automations.resume(automation.id)
    assert await automations.resume(automation.id) == resumed
    assert (await kinds(store)).count("automation_paused") == 1
    store.interfere = lambda: automations.pause(automation.id, why="theirs")
    assert (await automations.pause(automation.id, why="mine")).paused_why == "theirs"
    store.interfere = lambda: automations.resume(automation.id)
    assert (await automations.resume(automation.id)).status == "active"
    store.interfere = lambda: automations.delete(automation.id)
    assert (await automations.delete(automation.id)).status == "deleted"


async def test_resuming_skips_missed_runs(automations: Automations, clock: FakeClock) -> None:
    automation = await automations.create("x", every=3600)
    await automations.pause(automation.id)
    await clock.advance(100 * 3600 + 5)
    resumed = await automations.resume(automation.id)
    assert resumed.next_run_at == (automation.next_run_at or 0) + 100 * HOUR


async def test_pausing_lets_the_open_run_end(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    automation = await automations.create("x", every=3600)
    run = await fire_due(store, clock, automation)
    await automations.pause(automation.id)
    assert await automations.open_run(automation.id) == run
    await end_run(store, clock, automation.id)
    stored = await automations.get(automation.id)
    assert (stored.status, stored.consecutive_failures, (stored.last_result or "")[:3]) == ("paused", 0, "ok:")


async def test_deleting_cancels_the_open_run_and_can_be_undone(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    automation = await automations.create("x", every=3600)
    run = await fire_due(store, clock, automation)
    deleted = await automations.delete(automation.id, actor="ann")
    assert (deleted.status, deleted.deleted_at, deleted.next_run_at) == ("deleted", clock.now(), None)
    assert (await tasks.get(run.id)).status == "cancelled"
    assert await automations.open_run(automation.id) is None
    assert await automations.delete(automation.id) == await automations.get(automation.id)
    back = await automations.resume(automation.id)
    assert (back.status, back.deleted_at, back.run_count) == ("active", None, 0)
    assert back.next_run_at == (automation.next_run_at or 0) + HOUR


async def test_deleting_stops_a_run_that_has_begun(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    automation = await automations.create("x", every=3600)
    run = await fire_due(store, clock, automation)
    await store.claim(claim_request(), clock.now())
    await automations.delete(automation.id)
    assert (await tasks.get(run.id)).stop_requested == "cancel"


async def test_a_deleted_automation_cannot_change_until_it_is_restored(automations: Automations) -> None:
    automation = await automations.create("x", every=3600)
    await automations.delete(automation.id)
    for act in (automations.pause, automations.run):
        with pytest.raises(Conflict, match="is deleted; restore it with `midwatch automation resume`"):
            await act(automation.id)
    with pytest.raises(Conflict, match="is deleted; restore it with `midwatch automation resume`"):
        await automations.patch(automation.id, {"title": "x"})


async def test_a_finished_automation_can_be_restored_and_fixed(automations: Automations, clock: FakeClock) -> None:
    automation = await automations.create("x", at=clock.now() + 5)
    await automations.delete(automation.id)
    await clock.advance(10)
    back = await automations.resume(automation.id)
    assert (back.status, back.paused_why) == ("paused", OVER)
    await automations.patch(automation.id, {"at": clock.now() + 5})
    assert (await automations.resume(automation.id)).next_run_at == clock.now() + 5


async def test_a_deleted_automation_is_removed_after_thirty_days(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    automation = await automations.create("x", every=3600)
    await automations.delete(automation.id)
    await clock.advance(KEPT_SECONDS)
    assert await store.prune_automations(compute_retention_start(clock.now())) == 0
    clock.set(clock.now() + 1)
    assert await store.prune_automations(compute_retention_start(clock.now())) == 1
    with pytest.raises(NotFound):
        await automations.resume(automation.id)


# -- runs ----------------------------------------------------------------------------------------------------------


async def test_run_now_runs_one_at_a_time_beside_the_schedule(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    automation = await automations.create("x", every=3600, max_runs=2)
    run = await automations.run(automation.id, actor="bob")
    assert (run.cause_id, run.status) == (automation.id, "pending")
    with pytest.raises(Conflict, match=f"runs already as task {run.id}"):
        await automations.run(automation.id)
    await end_run(store, clock, automation.id)
    await automations.pause(automation.id)
    await clock.advance(1)
    await automations.run(automation.id)
    await end_run(store, clock, automation.id)
    with pytest.raises(Conflict, match="all its runs"):
        await automations.run(automation.id)
    assert (await automations.get(automation.id)).run_count == 2
    history = await automations.history(automation.id)
    assert [task.outcome for task in history] == ["ok", "ok"]
    assert history[1].id == run.id
    assert len(await automations.history(automation.id, 1)) == 1


async def test_a_closed_session_takes_no_run(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    talk = Session(key="chat:1", agent="demo", gate_key="chat:1", created_at=1, updated_at=1)
    await store.apply(Changes(sessions=(talk,)))
    automation = await automations.create("x", every=3600, session_key="chat:1")
    await store.close_session("chat:1", clock.now(), ())
    with pytest.raises(Conflict, match="is closed; to open it again"):
        await automations.run(automation.id)


async def test_concurrent_run_now_calls_start_one_run(automations: Automations, store: InterferingStore) -> None:
    automation = await automations.create("x", every=3600)
    runs = await asyncio.gather(*(automations.run(automation.id) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(run, Task) for run in runs) == 1
    assert all(isinstance(run, Task | Conflict) for run in runs)
    assert len(await store.list_runs(automation.id)) == 1


async def test_a_run_cancelled_before_its_start_does_not_count(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    automation = await automations.create("x", every=3600, max_runs=1)
    run = await fire_due(store, clock, automation)
    await tasks.cancel(run.id)
    stored = await automations.get(automation.id)
    assert (stored.run_count, stored.status, stored.next_run_at) == (0, "active", (automation.next_run_at or 0) + HOUR)
    again = await fire_due(store, clock, stored)
    assert again.id != run.id


async def test_a_retry_by_hand_does_not_count_as_a_run(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    automation = await automations.create("x", every=3600, max_runs=1)
    run = await fire_due(store, clock, automation)
    await end_run(store, clock, automation.id, "lost")
    spent = await automations.get(automation.id)
    assert (spent.status, spent.run_count) == ("paused", 1)
    retried = await tasks.retry(run.id)
    await tasks.cancel(retried.id)
    stored = await automations.get(automation.id)
    assert stored.run_count == 1
    with pytest.raises(InvalidInput, match="all its runs"):
        await automations.resume(automation.id)


async def test_the_first_source_message_is_kept(automations: Automations, store: InterferingStore) -> None:
    automation = await automations.create("x", every=3600)
    assert (await automations.record_source_message(automation.id, "  ")).source_message_id is None
    store.interfere = lambda: automations.record_source_message(automation.id, "om_1")
    await automations.record_source_message(automation.id, "om_2")
    assert (await automations.get(automation.id)).source_message_id == "om_1"
    assert (await automations.record_source_message(automation.id, "om_3")).source_message_id == "om_1"


# -- permissions ---------------------------------------------------------------------------------------------------


async def test_only_its_creator_may_manage_an_automation_unless_the_setting_allows_all(
    automations: Automations,
) -> None:
    automation = await automations.create("x", every=3600, actor="ann")
    acts: list[Callable[[Actor], Awaitable[object]]] = [
        lambda who: automations.patch(automation.id, {"title": "x"}, actor=who),
        lambda who: automations.pause(automation.id, actor=who),
        lambda who: automations.resume(automation.id, actor=who),
        lambda who: automations.run(automation.id, actor=who),
        lambda who: automations.delete(automation.id, actor=who),
    ]
    for act in acts:
        with pytest.raises(Forbidden, match="only ann and owners may do it"):
            await act(BOB)
    assert await automations.get(automation.id) == automation
    await automations.patch(automation.id, {"manage_mode": "scope_all"}, actor=ANN)
    with pytest.raises(Forbidden):  # everybody may manage it, but not clear its creator
        await automations.patch(automation.id, {"manage_mode": "creator_only"}, actor=BOB)
    for act in acts:
        await act(BOB)
    await automations.resume(automation.id, actor=BOB)
    await automations.patch(automation.id, {"manage_mode": "creator_only"}, actor=ANN)
    with pytest.raises(Forbidden):
        await automations.pause(automation.id, actor=BOB)
    for act in acts[:3]:
        await act(Actor("root", "owner"))

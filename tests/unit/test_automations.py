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
from midwatch.domain import automation as rules
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


async def fire_due(store: InterferingStore, clock: FakeClock, one: Automation) -> Task:
    """Fire an automation that is due."""
    assert one.next_run_at is not None
    clock.set(one.next_run_at)
    await store.apply(rules.fire(one, clock.now(), AgentTerms(), runs=False))
    task = await store.find_open_run(one.id)
    assert task is not None
    return task


async def kinds(store: InterferingStore) -> list[str]:
    return [event.kind for event in await store.read_events(0, EVERYTHING, 1000)]


# -- creating ------------------------------------------------------------------------------------------------------


async def test_a_new_automation_is_stored_and_announced(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    made = await automations.create(
        " look ", actor="ann", every="90m", title="brief", tags=("a",), zone="Asia/Kolkata", route="console", max_runs=3
    )
    assert await automations.get(f" {made.id} ") == made
    assert (made.prompt, made.agent, made.creator, made.scope_id, made.session_key) == (
        "look", "demo", "ann", "ann", f"auto:{made.id}",
    )  # fmt: skip
    assert (made.next_run_at, made.revision, made.run_count) == (clock.now() + 5400 * SECOND, 0, 0)
    assert (made.times.zone, made.times.every, made.times.anchor) == ("Asia/Kolkata", 5400, clock.now())
    (told,) = await store.read_events(0)
    assert (told.kind, told.actor, told.payload["next_run_at"]) == ("automation_created", "ann", iso(made.next_run_at))
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
    made = await automations.create("x", every=60, title=None, jitter_seconds=None, missed=None, tags=None, agent=None)
    assert (made.title, made.jitter_seconds, made.missed, made.tags) == ("", 0.0, "once_within", ())


async def test_an_automation_can_be_created_disabled(automations: Automations, store: InterferingStore) -> None:
    made = await automations.create("x", every=60, enabled=False)
    assert (made.status, made.next_run_at) == ("paused", None)
    assert await store.find_next_automation_at() is None
    assert (await automations.resume(made.id)).status == "active"


async def test_the_first_time_can_be_set(automations: Automations, clock: FakeClock) -> None:
    made = await automations.create("x", every=3600, next_run_at=clock.now() + 5)
    assert made.next_run_at == clock.now() + 5


async def test_a_thread_to_resume_is_stored_in_its_session(automations: Automations, store: InterferingStore) -> None:
    made = await automations.create("x", every=60, resume_thread_id="th_1")
    session = await store.get_session(made.session_key)
    assert session is not None
    assert (session.thread_id, session.agent) == ("th_1", "demo")
    talk = Session(key="chat:1", agent="demo", gate_key="chat:1", thread_id="newer", created_at=1, updated_at=1)
    await store.apply(Changes(sessions=(talk,)))
    await automations.create("x", every=60, session_key="chat:1", resume_thread_id="older")
    found = await store.get_session("chat:1")
    assert found is not None
    assert found.thread_id == "newer"


# -- reading -------------------------------------------------------------------------------------------------------


async def test_automations_are_listed_by_scope_status_and_limit(automations: Automations, clock: FakeClock) -> None:
    made = []
    for number in range(25):
        await clock.advance(1)
        kind = "chat" if number % 2 else "user"
        made.append(await automations.create("x", every=60, scope_kind=kind, scope_id=" 7 "))
    newest = [one.id for one in reversed(made)]
    await automations.pause(newest[0])
    await automations.delete(newest[1])
    shown = [one.id for one in await automations.list()]
    assert shown == [newest[0], *newest[2:21]]
    assert [one.id for one in await automations.list(limit=0)] == shown
    assert len(await automations.list(limit=3)) == 3
    assert len(await automations.list(" ALL ", limit=9999)) == 25
    assert [one.id for one in await automations.list("paused")] == [newest[0]]
    assert [one.id for one in await automations.list("deleted")] == [newest[1]]
    assert newest[0] not in [one.id for one in await automations.list("active")]
    chat = await automations.list("all", scope=("chat", "7"))
    assert [one.id for one in chat] == newest[1::2]
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
    made = await automations.create("x", every=60)
    await store.apply(Changes(records=(replace(made, id="am_odd", schedule={"cron": "?", "zone": "No/Where"}),)))
    assert {one.snapshot()["id"] for one in await automations.list()} == {made.id, "am_odd"}
    mended = await automations.patch("am_odd", {"cron": "0 9 * * *", "zone": "UTC"})
    assert mended.times.cron == "0 9 * * *"


# -- changing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    ["id", "creator", "created_at", "run_count", "status", "revision", "last_result", "session_key", "scope_id",
     "deleted_at", "schedule", "consecutive_failures", "every_seconds", "cron_expr", "running", "source_message_id"],
)  # fmt: skip
async def test_unknown_and_fixed_fields_are_refused(automations: Automations, field: str) -> None:
    made = await automations.create("x", every=60)
    with pytest.raises(InvalidInput, match=f"{field} cannot be set here") as refused:
        await automations.patch(made.id, {field: 1})
    assert refused.value.field == field
    assert await automations.get(made.id) == made


async def test_each_changeable_field_can_be_changed(automations: Automations, clock: FakeClock, tmp_path: Path) -> None:
    made = await automations.create("x", every=60)
    (tmp_path / ".git").mkdir()
    wish: dict[str, Any] = {
        "title": "new", "prompt": "other", "agent": "other", "fresh": True, "worktree": True,
        "route": "console:7", "manage_mode": "scope_all", "max_runs": 5, "workdir": str(tmp_path),
        "timeout_seconds": 9.0, "on_crash": "fail",
        "jitter_seconds": 5.0, "missed": "skip", "missed_window": 60.0, "quiet": "NOTHING", "budget": {"tokens": 1},
        "approvals": {"default": "deny", "allow": [{"command": "git log *"}]}, "tags": ("a",),
        "cron": "0 9 * * *", "zone": "Europe/Berlin",
        "next_run_at": clock.now() + 7,
    }  # fmt: skip
    assert set(wish) == CHANGEABLE - {"at", "every"}
    after = await automations.patch(made.id, wish)
    for name, value in wish.items():
        if name not in ("cron", "zone"):
            assert getattr(after, name) == value
    assert after.schedule == {"cron": "0 9 * * *", "zone": "Europe/Berlin"}
    nothing = dict.fromkeys(("route", "workdir", "timeout_seconds", "on_crash", "quiet", "budget", "approvals"))
    with pytest.raises(InvalidInput, match="must name a directory in a git repository"):
        await automations.patch(made.id, nothing)
    cleared = await automations.patch(made.id, {**nothing, "worktree": False})
    assert (cleared.route, cleared.workdir, cleared.timeout_seconds, cleared.quiet) == (None, None, None, None)
    assert cleared.approvals is None
    assert (cleared.schedule, cleared.next_run_at) == (after.schedule, after.next_run_at)


@pytest.mark.parametrize("field", ["prompt", "title", "agent", "max_runs", "missed", "tags", "manage_mode", "fresh"])
async def test_required_fields_cannot_be_cleared(automations: Automations, field: str) -> None:
    made = await automations.create("x", every=60)
    with pytest.raises(InvalidInput) as refused:
        await automations.patch(made.id, {field: None})
    assert refused.value.field == field


async def test_the_result_of_a_patch_must_be_valid(automations: Automations, clock: FakeClock) -> None:
    made = await automations.create("x", every=60)
    for values in ({"prompt": " "}, {"max_runs": -1}, {"cron": "@every 1s"}, {"every": 60, "cron": "0 9 * * *"},
                   {"at": clock.now()}, {"zone": "Mars/Olympus"}, {"route": "pigeon"}, {"workdir": "here"},
                   {"on_crash": "shrug"}, {"approvals": {"default": "maybe"}},
                   {"approvals": {"allow": [{"command": "a; b"}]}}):  # fmt: skip
        with pytest.raises(InvalidInput):
            await automations.patch(made.id, values)
    with pytest.raises(UnknownAgent):
        await automations.patch(made.id, {"agent": "nobody"})
    assert await automations.get(made.id) == made


async def test_a_patch_for_another_revision_is_refused(automations: Automations) -> None:
    made = await automations.create("x", every=60)
    after = await automations.patch(made.id, {"title": "a"}, revision=0)
    assert after.revision == 1
    with pytest.raises(Conflict, match="revision 1"):
        await automations.patch(made.id, {"title": "b"}, revision=0)
    assert (await automations.get(made.id)).title == "a"


async def test_a_patch_keeps_concurrent_changes(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    made = await automations.create("x", every=3600)
    clock.set(made.next_run_at or 0)
    store.interfere = lambda: fire_due(store, clock, made)
    after = await automations.patch(made.id, {"title": "new"})
    assert (after.title, after.run_count, after.revision) == ("new", 1, 2)
    assert after.next_run_at == (made.next_run_at or 0) + HOUR
    store.interfere = lambda: automations.patch(made.id, {"prompt": "theirs"})
    with pytest.raises(Conflict):
        await automations.patch(made.id, {"title": "newer"}, revision=2)
    found = await automations.get(made.id)
    assert (found.title, found.prompt) == ("new", "theirs")


async def test_a_changed_schedule_has_a_new_next_time(automations: Automations, clock: FakeClock) -> None:
    made = await automations.create("x", every=3600, zone="UTC")
    start = clock.now()
    await clock.advance(600)
    longer = await automations.patch(made.id, {"every": 7200})
    assert (longer.next_run_at, longer.times.anchor) == (start + 2 * HOUR, start)
    daily = await automations.patch(made.id, {"cron": "0 9 * * *"})
    assert daily.schedule == {"cron": "0 9 * * *", "zone": "UTC"}
    assert daily.next_run_at == parse_moment("2026-03-03T09:00:00+00:00", 0, "UTC")
    moved = await automations.patch(made.id, {"zone": "America/New_York"})
    assert moved.schedule == {"cron": "0 9 * * *", "zone": "America/New_York"}
    assert moved.next_run_at == parse_moment("2026-03-02T09:00", 0, "America/New_York")
    single = await automations.patch(made.id, {"at": clock.now() + 5})
    assert (single.times.at, single.times.cron, single.next_run_at) == (clock.now() + 5, None, clock.now() + 5)


async def test_another_change_keeps_an_overdue_run_due(automations: Automations, clock: FakeClock) -> None:
    made = await automations.create("x", every=3600, zone="UTC")
    await clock.advance(5000)
    for values in ({"title": "new"}, {"zone": "UTC"}, {"every": 3600}, {"every": "1h", "zone": "UTC"}):
        assert (await automations.patch(made.id, values)).next_run_at == made.next_run_at


async def test_a_changed_automation_stays_paused(automations: Automations, clock: FakeClock) -> None:
    made = await automations.create("x", every=3600)
    await automations.pause(made.id, why="a holiday")
    after = await automations.patch(made.id, {"every": 60, "next_run_at": clock.now() + 5, "max_runs": 1})
    assert (after.status, after.paused_why, after.next_run_at) == ("paused", "a holiday", None)


async def test_max_runs_below_the_count_is_refused_and_equal_pauses(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    made = await automations.create("x", every=3600)
    await fire_due(store, clock, made)
    await end_and_fire_again(store, clock, made.id)
    with pytest.raises(InvalidInput, match="already had more runs"):
        await automations.patch(made.id, {"max_runs": 1})
    spent = await automations.patch(made.id, {"max_runs": 2})
    assert (spent.status, spent.paused_why, spent.next_run_at) == ("paused", SPENT, None)
    with pytest.raises(InvalidInput, match="raise max_runs"):
        await automations.resume(made.id)
    await automations.patch(made.id, {"max_runs": 3})
    assert (await automations.resume(made.id)).status == "active"


async def end_and_fire_again(store: InterferingStore, clock: FakeClock, automation_id: str) -> Task:
    """End the open run successfully and fire the automation again."""
    await end_run(store, clock, automation_id)
    found = await store.get_automation(automation_id)
    assert found is not None
    return await fire_due(store, clock, found)


async def end_run(store: InterferingStore, clock: FakeClock, automation_id: str, outcome: Outcome = "ok") -> None:
    (claim,) = (await store.claim(claim_request(), clock.now())).taken
    found = await store.get_automation(automation_id)
    assert found is not None
    ended, changes = end(claim.task, clock.now(), outcome=outcome, error="x" if outcome != "ok" else None)
    await store.apply(changes.plus(rules.settle(found, ended, clock.now())))


async def test_raising_max_runs_during_the_last_run_continues(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    made = await automations.create("x", every=3600, max_runs=1)
    await fire_due(store, clock, made)
    assert (await automations.get(made.id)).next_run_at is None
    raised = await automations.patch(made.id, {"max_runs": 2})
    assert raised.next_run_at == (made.next_run_at or 0) + HOUR
    await end_run(store, clock, made.id)
    assert (await automations.get(made.id)).status == "active"


# -- pausing, resuming, deleting -----------------------------------------------------------------------------------


async def test_pausing_and_resuming_twice_is_harmless(automations: Automations, store: InterferingStore) -> None:
    made = await automations.create("x", every=3600)
    paused = await automations.pause(made.id, why="a holiday")
    assert await automations.pause(made.id, why="another") == paused
    assert (paused.status, paused.paused_why, paused.next_run_at) == ("paused", "a holiday", None)
    resumed = await automations.resume(made.id)
    assert await automations.resume(made.id) == resumed
    assert (await kinds(store)).count("automation_paused") == 1
    store.interfere = lambda: automations.pause(made.id, why="theirs")
    assert (await automations.pause(made.id, why="mine")).paused_why == "theirs"
    store.interfere = lambda: automations.resume(made.id)
    assert (await automations.resume(made.id)).status == "active"
    store.interfere = lambda: automations.delete(made.id)
    assert (await automations.delete(made.id)).status == "deleted"


async def test_resuming_skips_missed_runs(automations: Automations, clock: FakeClock) -> None:
    made = await automations.create("x", every=3600)
    await automations.pause(made.id)
    await clock.advance(100 * 3600 + 5)
    resumed = await automations.resume(made.id)
    assert resumed.next_run_at == (made.next_run_at or 0) + 100 * HOUR


async def test_pausing_lets_the_open_run_end(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    made = await automations.create("x", every=3600)
    run = await fire_due(store, clock, made)
    await automations.pause(made.id)
    assert await automations.open_run(made.id) == run
    await end_run(store, clock, made.id)
    found = await automations.get(made.id)
    assert (found.status, found.consecutive_failures, (found.last_result or "")[:3]) == ("paused", 0, "ok:")


async def test_deleting_cancels_the_open_run_and_can_be_undone(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    made = await automations.create("x", every=3600)
    run = await fire_due(store, clock, made)
    gone = await automations.delete(made.id, actor="ann")
    assert (gone.status, gone.deleted_at, gone.next_run_at) == ("deleted", clock.now(), None)
    assert (await tasks.get(run.id)).status == "cancelled"
    assert await automations.open_run(made.id) is None
    assert await automations.delete(made.id) == await automations.get(made.id)
    back = await automations.resume(made.id)
    assert (back.status, back.deleted_at, back.run_count) == ("active", None, 0)
    assert back.next_run_at == (made.next_run_at or 0) + HOUR


async def test_deleting_stops_a_run_that_has_begun(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    made = await automations.create("x", every=3600)
    run = await fire_due(store, clock, made)
    await store.claim(claim_request(), clock.now())
    await automations.delete(made.id)
    assert (await tasks.get(run.id)).stop_requested == "cancel"


async def test_a_deleted_automation_cannot_change_until_it_is_restored(automations: Automations) -> None:
    made = await automations.create("x", every=3600)
    await automations.delete(made.id)
    for act in (automations.pause, automations.run):
        with pytest.raises(Conflict, match="is deleted; restore it with `midwatch automation resume`"):
            await act(made.id)
    with pytest.raises(Conflict, match="is deleted; restore it with `midwatch automation resume`"):
        await automations.patch(made.id, {"title": "x"})


async def test_a_finished_automation_can_be_restored_and_fixed(automations: Automations, clock: FakeClock) -> None:
    made = await automations.create("x", at=clock.now() + 5)
    await automations.delete(made.id)
    await clock.advance(10)
    back = await automations.resume(made.id)
    assert (back.status, back.paused_why) == ("paused", OVER)
    await automations.patch(made.id, {"at": clock.now() + 5})
    assert (await automations.resume(made.id)).next_run_at == clock.now() + 5


async def test_a_deleted_automation_is_removed_after_thirty_days(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    made = await automations.create("x", every=3600)
    await automations.delete(made.id)
    await clock.advance(KEPT_SECONDS)
    assert await store.prune_automations(compute_retention_start(clock.now())) == 0
    clock.set(clock.now() + 1)
    assert await store.prune_automations(compute_retention_start(clock.now())) == 1
    with pytest.raises(NotFound):
        await automations.resume(made.id)


# -- runs ----------------------------------------------------------------------------------------------------------


async def test_run_now_runs_one_at_a_time_beside_the_schedule(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    made = await automations.create("x", every=3600, max_runs=2)
    run = await automations.run(made.id, actor="bob")
    assert (run.cause_id, run.status) == (made.id, "pending")
    with pytest.raises(Conflict, match=f"runs already as task {run.id}"):
        await automations.run(made.id)
    await end_run(store, clock, made.id)
    await automations.pause(made.id)
    await clock.advance(1)
    await automations.run(made.id)
    await end_run(store, clock, made.id)
    with pytest.raises(Conflict, match="all its runs"):
        await automations.run(made.id)
    assert (await automations.get(made.id)).run_count == 2
    history = await automations.history(made.id)
    assert [task.outcome for task in history] == ["ok", "ok"]
    assert history[1].id == run.id
    assert len(await automations.history(made.id, 1)) == 1


async def test_a_closed_session_takes_no_run(
    automations: Automations, store: InterferingStore, clock: FakeClock
) -> None:
    talk = Session(key="chat:1", agent="demo", gate_key="chat:1", created_at=1, updated_at=1)
    await store.apply(Changes(sessions=(talk,)))
    made = await automations.create("x", every=3600, session_key="chat:1")
    await store.close_session("chat:1", clock.now(), ())
    with pytest.raises(Conflict, match="is closed; to open it again"):
        await automations.run(made.id)


async def test_concurrent_run_now_calls_start_one_run(automations: Automations, store: InterferingStore) -> None:
    made = await automations.create("x", every=3600)
    runs = await asyncio.gather(*(automations.run(made.id) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(one, Task) for one in runs) == 1
    assert all(isinstance(one, Task | Conflict) for one in runs)
    assert len(await store.list_runs(made.id)) == 1


async def test_a_run_cancelled_before_its_start_does_not_count(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    made = await automations.create("x", every=3600, max_runs=1)
    run = await fire_due(store, clock, made)
    await tasks.cancel(run.id)
    found = await automations.get(made.id)
    assert (found.run_count, found.status, found.next_run_at) == (0, "active", (made.next_run_at or 0) + HOUR)
    again = await fire_due(store, clock, found)
    assert again.id != run.id


async def test_a_retry_by_hand_does_not_count_as_a_run(
    automations: Automations, store: InterferingStore, clock: FakeClock, tasks: Tasks
) -> None:
    made = await automations.create("x", every=3600, max_runs=1)
    run = await fire_due(store, clock, made)
    await end_run(store, clock, made.id, "lost")
    spent = await automations.get(made.id)
    assert (spent.status, spent.run_count) == ("paused", 1)
    retried = await tasks.retry(run.id)
    await tasks.cancel(retried.id)
    found = await automations.get(made.id)
    assert found.run_count == 1
    with pytest.raises(InvalidInput, match="all its runs"):
        await automations.resume(made.id)


async def test_the_first_source_message_is_kept(automations: Automations, store: InterferingStore) -> None:
    made = await automations.create("x", every=3600)
    assert (await automations.record_source_message(made.id, "  ")).source_message_id is None
    store.interfere = lambda: automations.record_source_message(made.id, "om_1")
    await automations.record_source_message(made.id, "om_2")
    assert (await automations.get(made.id)).source_message_id == "om_1"
    assert (await automations.record_source_message(made.id, "om_3")).source_message_id == "om_1"


# -- permissions ---------------------------------------------------------------------------------------------------


async def test_only_its_creator_may_manage_an_automation_unless_the_setting_allows_all(
    automations: Automations,
) -> None:
    made = await automations.create("x", every=3600, actor="ann")
    acts: list[Callable[[Actor], Awaitable[object]]] = [
        lambda who: automations.patch(made.id, {"title": "x"}, actor=who),
        lambda who: automations.pause(made.id, actor=who),
        lambda who: automations.resume(made.id, actor=who),
        lambda who: automations.run(made.id, actor=who),
        lambda who: automations.delete(made.id, actor=who),
    ]
    for act in acts:
        with pytest.raises(Forbidden, match="only ann may manage"):
            await act(BOB)
    assert await automations.get(made.id) == made
    await automations.patch(made.id, {"manage_mode": "scope_all"}, actor=ANN)
    with pytest.raises(Forbidden):  # everybody may manage it, but not clear its creator
        await automations.patch(made.id, {"manage_mode": "creator_only"}, actor=BOB)
    for act in acts:
        await act(BOB)
    await automations.resume(made.id, actor=BOB)
    await automations.patch(made.id, {"manage_mode": "creator_only"}, actor=ANN)
    with pytest.raises(Forbidden):
        await automations.pause(made.id, actor=BOB)
    for act in acts[:3]:
        await act(Actor("root", "owner"))

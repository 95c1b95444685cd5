"""Test the rescuer: the recovery of tasks of dead processes, and the expiry of unanswered questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, get_args

import pytest

from midwatch.base.clock import LONGEST_NAP, SECOND, SystemClock
from midwatch.base.errors import StoreUnavailable
from midwatch.domain.agent import AgentTerms, Question
from midwatch.domain.approval import ask
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import EventFilter, ToolExecStart, TurnStart, event
from midwatch.domain.instance import Instance
from midwatch.domain.requests import OnCrash
from midwatch.domain.store import Store
from midwatch.domain.task import MAX_RESCUES, TRANSITIONS, Stop, Task, correlate, guard_ownership, meta
from midwatch.loops.rescuer import LIFE_CHECK_SECONDS, Rescuer, rescue
from midwatch.services.approvals import Approvals
from midwatch.services.task_endings import TaskEndings
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, settle
from records import a_task, claim_request, fence, put

NOW = 1_700_000_000 * SECOND
HOUR = 3600.0
ME, OTHER = "i_me", "i_other"


class Engine:
    """An engine that knows which processes are dead and whether this process leads."""

    def __init__(self) -> None:
        self.leading = True
        self.buried: set[str] = set()

    def leads(self) -> bool:
        return self.leading

    def dead(self, owners: Iterable[str]) -> set[str]:
        return set(owners) & self.buried


async def terms(agent: str) -> AgentTerms:
    return AgentTerms()


class Desk:
    """A rescuer on an empty store."""

    def __init__(self, store: Store) -> None:
        self.store: Any = store
        self.clock = FakeClock()
        self.engine = Engine()
        self.reaped: list[str] = []
        self.dog = self.make()

    def make(self, reap: Callable[[Task], Awaitable[None]] | None = None) -> Rescuer:
        approvals = Approvals(self.store, self.clock)
        endings = TaskEndings(self.store, self.clock, terms)
        return Rescuer(self.store, self.clock, self.engine, approvals, endings, owner=ME, reap=reap or self.reap)  # type: ignore[arg-type]

    async def reap(self, task: Task) -> None:
        self.reaped.append(task.id)

    async def add_running_task(self, owner: str = OTHER, **fields: Any) -> Task:
        """Return a task that runs in another process."""
        task = await put(self.store, **fields)
        ((running_task, _),) = (await self.store.claim(claim_request(1, owner=owner), task.due_at)).taken
        return running_task  # type: ignore[no-any-return]

    async def now(self, task: Task) -> Task:
        stored_task = await self.store.get_task(task.id)
        assert stored_task is not None
        return stored_task  # type: ignore[no-any-return]

    async def kinds(self, task: Task) -> list[str]:
        return [e.kind for e in await self.store.read_events(0, EventFilter(task_id=task.id))]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    store = await SqliteStore.open(":memory:")
    new_desk = Desk(store)
    yield new_desk
    await new_desk.dog.stop()
    await store.close()


# -- the rule ----------------------------------------------------------------------------------------------------

RULES = [
    (on_crash, rescues, stop)
    for on_crash in get_args(OnCrash)
    for rescues in (0, 1, MAX_RESCUES - 1, MAX_RESCUES, MAX_RESCUES + 1)
    for stop in (None, *get_args(Stop))
]


@pytest.mark.parametrize(("on_crash", "rescues", "stop"), RULES)
def test_a_task_of_a_dead_process_follows_its_crash_rule(on_crash: Any, rescues: int, stop: Any) -> None:
    task = a_task(status="running", attempt=3, on_crash=on_crash, rescues=rescues, stop_requested=stop, lease_owner="i")
    before = tuple(task)
    step, action = rescue(task, NOW)
    changes = step.changes
    (update,) = changes.updates
    fields = dict(update.fields)
    assert (tuple(task), step.task) == (before, task._replace(**fields))
    ends = {} if fields["status"] == "pending" else {"steers": 0}  # its last heartbeat was read
    assert update.guard == {"status": "running", "attempt": 3, "stop_requested": stop, **ends}
    assert fields["status"] in TRANSITIONS["running"]
    assert (fields["lease_owner"], fields["pgid"], fields["token_hash"], fields["wait"]) == (None, None, None, None)
    event = changes.events[0]
    assert (event.kind, event.payload["owner"], event.payload["rescues"]) == ("task_rescued", "i", rescues + 1)
    if stop == "cancel":
        assert (fields["status"], fields["outcome"], action) == ("cancelled", "cancelled", "cancelled")
    elif on_crash == "fail" or rescues >= MAX_RESCUES:
        assert (fields["status"], fields["outcome"], action) == ("failed", "lost", "fail")
        assert ("retry" in fields["error"]) == (rescues < MAX_RESCUES)
        assert event.payload["action"] == "fail"
    else:
        assert (fields["status"], action, event.payload["action"]) == ("pending", on_crash, on_crash)
        assert (fields["rescues"], fields["stop_requested"]) == (rescues + 1, None)
    finished = [e.kind for e in changes.events[1:]]
    assert finished == ([] if fields["status"] == "pending" else ["task_finished"])


def test_the_event_of_a_cancelled_task_has_its_outcome() -> None:
    step, action = rescue(a_task(status="running", on_crash="rerun", stop_requested="cancel"), NOW)
    assert step.changes.events[0].payload["action"] == action


async def test_a_task_that_keeps_killing_its_process_fails(desk: Desk) -> None:
    task = await put(desk.store, on_crash="rerun", route="console", notices="all")
    for number in range(MAX_RESCUES + 1):
        await desk.store.claim(claim_request(owner=f"i_{number}"), task.due_at)
        desk.engine.buried.add(f"i_{number}")
        assert not await desk.dog.rescue()
    ended_task = await desk.now(task)
    assert (ended_task.status, ended_task.outcome, ended_task.attempt) == ("failed", "lost", MAX_RESCUES + 1)
    assert f"{MAX_RESCUES + 1} times" in (ended_task.error or "")
    assert (await desk.kinds(task)).count("task_rescued") == MAX_RESCUES + 1
    assert {d.notice for d in await desk.store.list_deliveries(task_id=task.id)} == {"failed", "started"}


# -- recovery ----------------------------------------------------------------------------------------------------


async def test_tasks_of_dead_processes_are_recovered_after_their_children_were_ended(desk: Desk) -> None:
    dead, alive = await desk.add_running_task("i_dead", on_crash="rerun"), await desk.add_running_task("i_alive")
    mine = await desk.add_running_task(ME)
    desk.engine.buried |= {"i_dead", ME}  # the process does not recover its own tasks
    assert await desk.dog.rescue()
    assert [(await desk.now(t)).status for t in (dead, alive, mine)] == ["pending", "running", "running"]
    assert desk.reaped == [dead.id]
    desk.engine.buried.add("i_alive")
    assert not await desk.dog.rescue()
    assert desk.reaped == [dead.id, alive.id]


async def test_open_events_of_a_dead_attempt_are_closed(desk: Desk) -> None:
    lineage = {"parent_turn_id": "t_root.2", "trace_path": "t_root/t_child", "source": "delegate"}
    task = await desk.add_running_task(on_crash="rerun", **lineage)
    payloads = (TurnStart(user_message="x"), ToolExecStart(tool="dig", tool_call_id="1"))
    about = {**meta(task), "turn_id": f"{task.id}.1"}
    await desk.store.apply(Changes(fence=fence(task), events=tuple(event(p, NOW, **about) for p in payloads)))
    question, changes = ask(task, Question(text="Go?"), 60, NOW)
    await desk.store.apply(changes)
    desk.engine.buried.add(OTHER)
    await desk.dog.rescue()
    kinds = await desk.kinds(task)
    assert kinds[-4:] == ["tool_exec_end", "turn_end", "approval_resolved", "task_rescued"]
    assert await desk.store.list_open_events(fence(task)) == []
    resolved = await desk.store.get_approval(question.id)
    assert resolved is not None and resolved.status == "expired"
    ends = await desk.store.read_events(0, EventFilter(kinds=("tool_exec_end", "turn_end")))
    assert {(e.turn_id, e.attempt) for e in ends} == {(f"{task.id}.1", 1)}
    assert ends[0].payload["is_error"] and ends[1].payload["status"] == "aborted"
    again = (await desk.store.claim(claim_request(1, owner=ME), NOW)).taken[0].task
    assert (again.attempt, correlate(again)) == (2, lineage)
    events = await desk.store.read_events(0, EventFilter(task_id=task.id))
    assert {(e.parent_turn_id, e.trace_path, e.source) for e in events} == {tuple(lineage.values())}


async def test_a_task_recovered_by_another_process_is_not_changed(desk: Desk) -> None:
    task = await desk.add_running_task(on_crash="rerun")
    other_task = await desk.add_running_task(on_crash="rerun")

    async def reap(dying: Task) -> None:
        if dying.id == task.id:  # meanwhile another leader recovered the task
            await desk.store.apply(rescue(task, NOW)[0].changes)

    desk.dog = desk.make(reap)
    desk.engine.buried.add(OTHER)
    await desk.dog.rescue()
    assert [(await desk.now(t)).rescues for t in (task, other_task)] == [1, 1]
    assert (await desk.kinds(task)).count("task_rescued") == 1


async def test_a_concurrent_cancel_is_kept(desk: Desk) -> None:
    """A stop written after the tasks of the dead process were read fails the guard; the next check sees it."""
    task = await desk.add_running_task(on_crash="rerun")

    async def reap(dying: Task) -> None:
        if (await desk.now(task)).stop_requested is None:
            update = Update("task", task.id, {"stop_requested": "cancel"}, guard_ownership(task))
            await desk.store.apply(Changes(updates=(update,)))

    desk.dog = desk.make(reap)
    desk.engine.buried.add(OTHER)
    await desk.dog.rescue()
    assert (await desk.now(task)).status == "running"
    await desk.dog.rescue()
    assert (await desk.now(task)).status == "cancelled"


async def test_a_task_whose_processes_cannot_be_ended_does_not_delay_others(desk: Desk) -> None:
    bad, good = await desk.add_running_task(on_crash="rerun"), await desk.add_running_task(on_crash="rerun")

    async def reap(dying: Task) -> None:
        if dying.id == bad.id:
            raise PermissionError("not ours")

    desk.dog = desk.make(reap)
    desk.engine.buried.add(OTHER)
    with suppress(PermissionError):
        await desk.dog.rescue()
    assert (await desk.now(good)).status == "pending"


async def test_dead_processes_are_removed_and_live_ones_are_kept(desk: Desk) -> None:
    for number, name in enumerate((ME, "i_dead", "i_alive")):
        await desk.store.add_instance(
            Instance(id=name, role="library", host="h", boot_id="b", pid=number, agents=(), slots=1, started_at=number)
        )
    desk.engine.buried |= {"i_dead", ME}
    await desk.dog.rescue()
    assert [i.id for i in await desk.store.list_instances()] == [ME, "i_alive"]


# -- the loop ----------------------------------------------------------------------------------------------------


async def let_time_pass(desk: Desk, seconds: float) -> None:
    """Advance the clock in small steps; the store's thread answers in between."""
    await _idle(desk)
    await desk.clock.advance(seconds)
    await _idle(desk)


async def _idle(desk: Desk) -> None:
    for _ in range(20):
        await desk.store.describe()  # one complete call of the store
        await settle()


async def test_tasks_of_earlier_processes_are_recovered_at_startup(desk: Desk) -> None:
    task = await desk.add_running_task(on_crash="rerun")
    desk.engine.buried.add(OTHER)
    await desk.dog.start()
    assert (await desk.now(task)).status == "pending"


async def test_a_process_that_does_not_lead_changes_nothing(desk: Desk) -> None:
    desk.engine.leading = False
    task = await desk.add_running_task(on_crash="rerun")
    desk.engine.buried.add(OTHER)
    await desk.dog.start()
    await let_time_pass(desk, 3 * HOUR)
    assert (await desk.now(task)).status == "running"
    desk.engine.leading = True
    desk.dog.wake()
    await _idle(desk)
    assert (await desk.now(task)).status == "pending"


async def test_other_processes_are_checked_while_they_run_tasks(desk: Desk) -> None:
    task = await desk.add_running_task(on_crash="rerun")
    await desk.dog.start()
    await let_time_pass(desk, LIFE_CHECK_SECONDS)
    assert (await desk.now(task)).status == "running"
    desk.engine.buried.add(OTHER)
    await let_time_pass(desk, LIFE_CHECK_SECONDS)
    assert (await desk.now(task)).status == "pending"


async def test_a_question_expires_on_time(desk: Desk) -> None:
    task = await desk.add_running_task(ME)
    question, changes = ask(task, Question(text="Go?"), 30, desk.clock.now())
    await desk.store.apply(changes)
    await desk.dog.start()
    await let_time_pass(desk, 29.9)
    assert len(await desk.store.list_approvals("pending")) == 1
    await let_time_pass(desk, 0.2)
    (expired,) = await desk.store.list_approvals("expired")
    assert expired.id == question.id


async def test_a_question_expires_soon_after_the_clock_was_set_forward(desk: Desk) -> None:
    """A laptop that slept for a night: wall time has passed and monotonic time has not."""
    task = await desk.add_running_task(ME)
    await desk.store.apply(ask(task, Question(text="Go?"), 1800, desk.clock.now())[1])
    await desk.dog.start()
    await _idle(desk)
    desk.clock.set(desk.clock.now() + 7200 * SECOND)
    await let_time_pass(desk, LONGEST_NAP)
    assert len(await desk.store.list_approvals("expired")) == 1


async def test_the_rescuer_continues_after_a_store_failure(desk: Desk) -> None:
    failures: list[Exception] = [StoreUnavailable("full"), RuntimeError("odd")]
    real = desk.store

    class FailingStore:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        async def find_next_expiry(self) -> int | None:
            if failures:
                raise failures.pop()
            return await real.find_next_expiry()  # type: ignore[no-any-return]

    desk.store = FailingStore()
    desk.dog = desk.make()
    task = await desk.add_running_task(ME)
    await real.apply(ask(task, Question(text="Go?"), 5, desk.clock.now())[1])
    await desk.dog.start()
    for _ in range(4):
        await let_time_pass(desk, 2)
    assert failures == []
    assert len(await real.list_approvals("expired")) == 1


async def test_stopping_twice_is_safe_and_leaves_nothing(desk: Desk) -> None:
    before = asyncio.all_tasks()
    await desk.dog.stop()
    await desk.dog.start()
    await _idle(desk)
    await desk.dog.stop()
    await desk.dog.stop()
    assert asyncio.all_tasks() == before
    await let_time_pass(desk, 2 * HOUR)  # no timer remains that would wake it


async def test_many_questions_do_not_make_the_rescuer_loop(desk: Desk) -> None:
    class CountingStore:
        queries = 0

        def __getattr__(self, name: str) -> Any:
            self.queries += name == "list_running_tasks"
            return getattr(real, name)

    real, counted = desk.store, CountingStore()
    desk.clock, desk.store = SystemClock(), counted  # type: ignore[assignment]
    desk.dog = desk.make()
    task = await desk.add_running_task(ME)
    await desk.store.apply(ask(task, Question(text="first"), 0, desk.clock.now())[1])
    for _ in range(500):
        await desk.store.apply(ask(task, Question(text="later"), 5000, desk.clock.now() + SECOND)[1])
    await desk.dog.start()
    for _ in range(30):
        await _idle(desk)
    assert 0 < counted.queries < 10

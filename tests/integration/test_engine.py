"""Test the embedded engine: the leader, dead processes, and the order of claims. With real locks and real processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from internals import engine_of
from midwatch import Runtime, Settings, Task
from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import HomeUnusable, StoreUnavailable
from midwatch.base.home import OWNER_RETRY_SECONDS, Home
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.event import EventFilter
from midwatch.domain.instance import Instance
from midwatch.domain.store import Commit
from midwatch.domain.task_store import Claim, Claims
from midwatch.engines.embedded import LEAD_POLL_SECONDS, NEIGHBOUR_SECONDS, EmbeddedEngine
from midwatch.loops.rescuer import LIFE_CHECK_SECONDS
from midwatch.running.slots import Slots
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, ScriptedAgent, result, settle, wait_for
from records import put
from servers import until


class Worker:
    """A worker that records its claims and keeps each slot until the test ends the task."""

    def __init__(self, total: int = 10, **per_agent: int) -> None:
        self.slots = Slots(total, per_agent or {"demo": 10})
        self.started: list[Task] = []

    def start(self, claim: Claim) -> None:
        self.slots.take(claim.task.agent)
        self.started.append(claim.task)

    def done(self, agent: str = "demo") -> None:
        self.slots.give(agent)

    def ids(self) -> list[str]:
        return [task.id for task in self.started]


class CountingStore:
    """A store that counts claims and can fail or delay the next ones."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.claims = 0
        self.failures: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest, now: int) -> Claims:
        self.claims += 1
        if self.failures:
            raise self.failures.pop(0)
        claims = await self._store.claim(request, now)
        self.waiting.set()
        await self.open.wait()
        return claims


class Desk:
    """Engines of several "processes" on one home and one store, with a fake clock."""

    def __init__(self, store: SqliteStore, home: Home) -> None:
        self.store = store
        self.home = home
        self.clock = FakeClock(SystemClock().now())
        self.engines: list[EmbeddedEngine] = []
        self.led: list[str] = []
        store.on_commit(self._notify)

    def _notify(self, commit: Commit) -> None:
        if "task" in commit.topics:
            for engine in self.engines:
                engine.wake()

    async def engine(
        self,
        name: str,
        worker: Worker,
        role: Any = "library",
        *,
        store: Any = None,
        agents: tuple[str, ...] = ("demo",),
        patience: float = OWNER_RETRY_SECONDS,
    ) -> EmbeddedEngine:
        instance = Instance(
            id=name, role=role, host="here", boot_id="b", pid=1, agents=agents, slots=9, started_at=self.clock.now()
        )
        engine = EmbeddedEngine(
            store or self.store, self.clock, self.home, worker, instance, lambda: self.led.append(name)  # type: ignore[arg-type]
        )  # fmt: skip
        engine.take_life_lock(patience)
        await engine.start()
        self.engines.append(engine)
        return engine

    async def put(self, **fields: Any) -> Task:
        now = self.clock.now()
        return await put(self.store, **{"created_at": now, "due_at": now, **fields})

    async def end(self, engine: EmbeddedEngine) -> None:
        self.engines.remove(engine)
        await engine.stop_taking()
        await engine.stop()

    async def wait_until_idle(self) -> None:
        """Wait until all work in progress has ended: each iteration is a complete call of the store."""
        for _ in range(15):
            await self.store.describe()
            await settle()

    async def advance(self, seconds: float) -> None:
        await self.wait_until_idle()
        await self.clock.advance(seconds)
        await self.wait_until_idle()


@pytest.fixture
async def desk(home: Path) -> AsyncIterator[Desk]:
    folder = Home(home)
    folder.prepare()
    store = await SqliteStore.open(":memory:")
    engine_desk = Desk(store, folder)
    yield engine_desk
    for engine in list(engine_desk.engines):
        await engine_desk.end(engine)
    await store.close()


# -- leadership --------------------------------------------------------------------------------------------------


async def test_one_process_leads_and_another_takes_over(desk: Desk) -> None:
    first, second, third = [await desk.engine(name, Worker()) for name in ("i_1", "i_2", "i_3")]
    assert [e.leads() for e in (first, second, third)] == [True, False, False]
    await desk.advance(10 * LEAD_POLL_SECONDS)
    assert desk.led == ["i_1"]
    await desk.end(first)
    await desk.advance(LEAD_POLL_SECONDS)
    assert [e.leads() for e in (second, third)].count(True) == 1
    assert len(desk.led) == 2  # it was notified


async def test_the_loops_lead_at_once_and_are_notified_later(desk: Desk) -> None:
    first, second = [await desk.engine(name, Worker()) for name in ("i_1", "i_2")]
    await desk.end(first)
    assert second.leads()
    await desk.advance(LEAD_POLL_SECONDS)
    assert desk.led == ["i_1", "i_2"]


# -- live and dead processes -------------------------------------------------------------------------------------


async def test_a_process_with_its_lock_is_alive_and_all_others_are_dead(desk: Desk) -> None:
    first, second = [await desk.engine(name, Worker()) for name in ("i_1", "i_2")]
    assert first.dead(["i_1", "i_2", "i_never", ""]) == {"i_never", ""}
    await desk.advance(600)
    assert first.dead(["i_1", "i_2"]) == set()  # time does not matter
    await desk.end(second)
    assert first.dead(["i_1", "i_2"]) == {"i_2"}
    assert [i.id for i in await desk.store.list_instances()] == ["i_1"]
    assert sorted(file.name for file in desk.home.run.glob("*.lock")) == ["i_1.lock", "leader.lock"]


async def test_a_process_name_in_use_is_refused(desk: Desk) -> None:
    engine = await desk.engine("i_1", Worker())
    with pytest.raises(HomeUnusable):
        await desk.engine("i_1", Worker(), patience=0.05)
    assert engine.dead(["i_1"]) == set()


async def test_an_engine_that_cannot_unregister_still_releases_its_lock(desk: Desk) -> None:
    class UnremovableStore:
        def __getattr__(self, name: str) -> Any:
            return getattr(desk.store, name)

        async def remove_instances(self, ids: Any) -> None:
            raise StoreUnavailable("the disk is full")

    engine = await desk.engine("i_1", Worker(), store=UnremovableStore())
    await desk.end(engine)
    two = await desk.engine("i_2", Worker())
    assert two.leads()
    assert two.dead(["i_1"]) == {"i_1"}


# -- claiming ----------------------------------------------------------------------------------------------------


async def test_tasks_are_claimed_in_order_as_slots_become_free(desk: Desk) -> None:
    worker = Worker(1, demo=1)
    low, person, high, plain = [
        await desk.put(**fields)
        for fields in ({"priority": -5}, {"cause": "message", "priority": -100}, {"priority": 5}, {})
    ]
    await desk.engine("i_1", worker)
    for _ in range(4):
        await desk.wait_until_idle()
        worker.done()
    await desk.wait_until_idle()
    assert worker.ids() == [person.id, high.id, plain.id, low.id]


async def test_an_agent_at_its_limit_does_not_delay_another(desk: Desk) -> None:
    worker = Worker(3, demo=1, other=5)
    first, second = await desk.put(priority=9), await desk.put(priority=8)
    other_tasks = [await desk.put(agent="other", priority=priority) for priority in (3, 2, 1)]
    await desk.engine("i_1", worker, agents=("demo", "other"))
    await desk.wait_until_idle()
    assert worker.ids() == [first.id, other_tasks[0].id, other_tasks[1].id]
    worker.done("other")
    await desk.wait_until_idle()
    assert worker.ids()[3:] == [other_tasks[2].id]
    worker.done("demo")
    await desk.wait_until_idle()
    assert worker.ids()[4:] == [second.id]


async def test_a_delayed_task_starts_on_time_and_not_before(desk: Desk) -> None:
    worker = Worker()
    await desk.engine("i_1", worker)
    now = desk.clock.now()
    late = await desk.put(due_at=now + 100 * SECOND, wait="delay")
    soon = await desk.put(due_at=now + 10 * SECOND, wait="delay")
    await desk.advance(9.9)
    assert worker.ids() == []
    await desk.advance(0.2)
    assert worker.ids() == [soon.id]
    for _ in range(8):
        await desk.advance(10)
    assert worker.ids() == [soon.id]
    await desk.advance(10)
    assert worker.ids() == [soon.id, late.id]


async def test_a_delayed_task_starts_after_the_clock_was_set_forward(desk: Desk) -> None:
    worker = Worker()
    await desk.engine("i_1", worker)
    task = await desk.put(due_at=desk.clock.now() + 7200 * SECOND, wait="delay")
    await desk.wait_until_idle()
    desk.clock.set(desk.clock.now() + 7200 * SECOND)
    await desk.advance(30)
    assert worker.ids() == [task.id]


async def test_an_idle_engine_does_not_query_the_store(desk: Desk) -> None:
    store = CountingStore(desk.store)
    await desk.engine("i_1", Worker(), store=store)
    await desk.put(agent="somebody elses")
    await desk.put(agent="somebody elses", due_at=desk.clock.now() + 5 * SECOND, wait="delay")
    await desk.advance(60)
    claims = store.claims
    for _ in range(10):
        await desk.advance(360)
    assert store.claims == claims <= 5


async def test_a_failing_store_is_queried_again_after_a_pause(desk: Desk) -> None:
    store, worker = CountingStore(desk.store), Worker()
    store.failures = [StoreUnavailable("busy")] * 3
    await desk.engine("i_1", worker, store=store)
    task = await desk.put()
    for _ in range(4):
        await desk.advance(0.5)
    assert worker.ids() == [task.id]
    assert store.failures == []


async def test_an_unexpected_error_does_not_stop_the_claiming(desk: Desk) -> None:
    store, worker = CountingStore(desk.store), Worker()
    store.failures = [RuntimeError("odd")]
    await desk.engine("i_1", worker, store=store)
    try:
        await desk.wait_until_idle()
        task = await desk.put()
        await desk.advance(5)
        assert worker.ids() == [task.id]
    finally:
        engine = desk.engines.pop()
        with suppress(RuntimeError):
            await engine.stop_taking()
        await engine.stop()


async def test_a_claim_in_progress_at_the_stop_is_not_lost(desk: Desk) -> None:
    store, worker = CountingStore(desk.store), Worker()
    store.open.clear()
    engine = await desk.engine("i_1", worker, store=store)
    task = await desk.put()
    await store.waiting.wait()
    await desk.wait_until_idle()
    stopping = asyncio.create_task(engine.stop_taking())
    await desk.wait_until_idle()
    assert not stopping.done()
    store.open.set()
    await stopping
    stored_task = await desk.store.get_task(task.id)
    assert stored_task is not None
    assert (stored_task.status == "running") == (worker.ids() == [task.id])
    later = await desk.put()
    await desk.advance(60)
    assert later.id not in worker.ids()
    waiting_task = await desk.store.get_task(later.id)
    assert waiting_task is not None and waiting_task.status == "pending"


async def test_claiming_can_be_stopped_twice_and_before_it_began(desk: Desk) -> None:
    engine = await desk.engine("i_1", Worker())
    await engine.stop_taking()
    await engine.stop_taking()
    assert engine.leads()


# -- several processes -------------------------------------------------------------------------------------------


async def test_run_claims_only_its_own_task(desk: Desk) -> None:
    worker = Worker()
    await desk.engine("i_run", worker, "run")
    theirs, own = await desk.put(submitter="i_other"), await desk.put(submitter="i_run")
    nobodys = await desk.put()
    await desk.advance(60)
    assert worker.ids() == [own.id]
    for task in (theirs, nobodys):
        stored_task = await desk.store.get_task(task.id)
        assert stored_task is not None and stored_task.status == "pending"


async def test_a_library_claims_everything_alone_but_only_its_own_tasks_beside_a_server(desk: Desk) -> None:
    worker = Worker(10, demo=5, mine=5)
    await desk.engine("i_lib", worker, agents=("demo", "mine"))
    alone = await desk.put(submitter="i_other")
    await desk.wait_until_idle()
    assert worker.ids() == [alone.id]
    up = desk.home.claim_up()
    try:
        server = Worker()
        await desk.engine("i_up", server, "up")
        await desk.clock.advance(NEIGHBOUR_SECONDS)
        theirs, own = await desk.put(submitter="i_other"), await desk.put(submitter="i_lib")
        only = await desk.put(agent="mine", submitter="i_other")
        await desk.wait_until_idle()
        assert theirs.id in server.ids() and theirs.id not in worker.ids()
        assert only.id in worker.ids()
        assert own.id in worker.ids() + server.ids()
    finally:
        up.release()


async def test_a_library_claims_tasks_the_server_cannot_run(desk: Desk) -> None:
    """The library checked just before the server ended, and the server's last commit arrived just after."""
    worker = Worker()
    up = desk.home.claim_up()
    server = await desk.engine("i_up", Worker(1, demo=0), "up")  # it has no slot for it
    library = await desk.engine("i_lib", worker)
    task = await desk.put(submitter="i_other")
    await desk.wait_until_idle()
    assert worker.ids() == []
    await desk.end(server)
    up.release()
    library.wake()
    await desk.advance(60)
    assert worker.ids() == [task.id]


# -- processes ---------------------------------------------------------------------------------------------------

PROCESS = """
import asyncio, sys
from midwatch import Runtime
from midwatch.testing import ScriptedAgent, wait_for

async def main():
    agent = ScriptedAgent(wait_for(asyncio.Event()))
    async with Runtime.open(sys.argv[1], agents={"it": agent}, role=sys.argv[2]) as desk:
        task = await desk.tasks.submit("x", agent="it", on_crash="rerun")
        while (await desk.tasks.get(task.id)).status != "running":
            await asyncio.sleep(0.005)
        print(task.id, desk.id, int(desk.crew.engine.leads()), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def process(home: Path, role: str = "library") -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start another midwatch process that runs a task; it prints its task, its name, and whether it leads."""
    started = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(home), role], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        yield started, started.stdout.readline().split()
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize("role", ["library", "up"])
async def test_another_process_leads_after_the_leader_was_killed_and_runs_its_task(home: Path, role: str) -> None:
    with process(home, role) as (child, (task_id, name, leads)):
        assert leads == "1"
        async with Runtime.open(home, agents={"it": ScriptedAgent(result("taken over"))}) as desk:
            engine = engine_of(desk)
            assert not engine.leads() and engine.dead([name]) == set()
            child.kill()
            child.wait()
            assert engine.dead([name]) == {name}
            async with asyncio.timeout(30):
                ended_task = await desk.tasks.wait(task_id)
            assert (ended_task.status, ended_task.result, ended_task.attempt, ended_task.rescues) == (
                "done",
                "taken over",
                2,
                1,
            )
            assert engine.leads()
            (event,) = await desk.store.read_events(0, EventFilter(kinds=("task_rescued",)))
            assert event.payload["owner"] == name
            async with asyncio.timeout(30):  # a dead process is removed after its tasks were recovered
                while name in {i.id for i in await desk.store.list_instances()}:
                    await asyncio.sleep(0.02)


async def test_a_process_stopped_for_an_hour_is_alive_and_a_killed_one_is_dead(home: Path) -> None:
    clock = FakeClock(SystemClock().now())
    settings = Settings.load(home, shutdown_grace=0)
    agents = {"it": ScriptedAgent(wait_for(asyncio.Event()))}
    async with Runtime.open(settings=settings, agents=agents, clock=clock) as desk:
        engine = engine_of(desk)
        assert engine.leads()
        with process(home) as (child, (task_id, name, leads)):
            assert leads == "0"
            child.send_signal(signal.SIGSTOP)
            for _ in range(60):
                await clock.advance(60)
                await desk.store.list_running_tasks()
            assert engine.dead([name]) == set()
            task = await desk.tasks.get(task_id)
            assert (task.status, task.rescues, task.lease_owner) == ("running", 0, name)
            child.send_signal(signal.SIGCONT)
            child.send_signal(signal.SIGKILL)
            child.wait()

            async def is_recovered() -> bool:
                await clock.advance(LIFE_CHECK_SECONDS)
                return (await desk.tasks.get(task_id)).rescues == 1

            await until(is_recovered)

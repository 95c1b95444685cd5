"""Test the procrastinate engine: jobs that are lost, doubled or late, processes without slots, and a lost database."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from internals import engine_of, heartbeat_of
from midwatch import Runtime, Settings
from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import StoreUnavailable
from midwatch.domain.agent import AgentTerms
from midwatch.domain.event import EventFilter
from midwatch.domain.instance import DEAD_SECONDS, Beat, Instance
from midwatch.engines.heartbeat import BEAT_SECONDS, SOUND_SECONDS, Heartbeat
from midwatch.engines.jobs import LOOK, Hinter, build_queue, name_queue, open_queue, prepare
from midwatch.engines.procrastinate import ProcrastinateEngine
from midwatch.engines.queue_upkeep import SPARE_JOBS, STALLED_SECONDS, QueueUpkeep
from midwatch.stores.postgres import PostgresStore
from midwatch.testing import FakeClock, ScriptedAgent, ask, result, wait_for
from proxy import Proxy
from records import CLOCK, claim_tasks, put
from servers import until


def desk(folder: Path, name: str, url: str, **options: Any) -> Any:
    """Open a runtime with a home of its own."""
    settings = Settings.load(
        folder / name, db=url, detect_agents=False, shutdown_grace=0, slots=options.pop("slots", 8)
    )
    return Runtime.open(settings=settings, **{"role": "worker", **options})


def make_agent(*steps: Any, slots: int = 4, on_crash: Any = "rerun") -> ScriptedAgent:
    return ScriptedAgent(*steps, terms=AgentTerms(timeout_seconds=60.0, on_crash=on_crash, slots=slots))


def jobs(url: str) -> list[tuple[str, str]]:
    with psycopg.connect(url, autocommit=True) as admin:
        return admin.execute("SELECT queue_name, status FROM procrastinate_jobs ORDER BY id").fetchall()


async def list_starters(runtime: Runtime, task_id: str) -> list[str]:
    """Return the process that started each attempt."""
    events = await runtime.store.read_events(0, EventFilter(task_id=task_id, kinds=("task_started",)))
    return [event.payload["owner"] for event in events]


# -- jobs --------------------------------------------------------------------------------------------------------


async def test_a_job_is_added_in_the_transaction_of_its_task(database: str) -> None:
    store = await PostgresStore.open(database, Hinter())
    await prepare(database)
    await prepare(database)
    try:
        task = await put(store, session_key="chat:1")
        await put(store, session_key="chat:1", due_at=task.due_at + 3_600_000_000, agent="other")
        with psycopg.connect(database, autocommit=True) as admin:
            cursor = admin.execute("SELECT queue_name, scheduled_at, task_name, lock, args FROM procrastinate_jobs")
            first, second = cursor.fetchall()
        assert first == (name_queue("demo"), None, LOOK, None, {})
        assert second[0] == name_queue("other") and second[1].timestamp() == pytest.approx(
            task.due_at / 1e6 + 3600, abs=1
        )
    finally:
        await store.close()


async def test_finished_jobs_are_deleted(database: str, tmp_path: Path) -> None:
    async with desk(tmp_path, "a", database, agents={"it": make_agent(result("ok"))}) as runtime:
        tasks = [await runtime.tasks.submit("x", agent="it") for _ in range(20)]
        for task in tasks:
            assert (await runtime.tasks.wait(task.id)).status == "done"
        await until(lambda: jobs(database) == [])


async def test_tasks_without_a_job_are_found_at_startup_and_by_the_leader(database: str, tmp_path: Path) -> None:
    store = await PostgresStore.open(database)  # it has no engine, so nobody is notified
    try:
        before = [await put(store, agent="it") for _ in range(3)]
        agents = {"it": make_agent(result("ok"))}
        async with desk(tmp_path, "a", database, agents=agents) as runtime:
            for task in before:
                assert (await runtime.tasks.wait(task.id)).status == "done"
            await until(lambda: engine_of(runtime).leads())
            later = await put(store, agent="it")
            async with asyncio.timeout(60):
                assert (await runtime.tasks.wait(later.id)).status == "done"
    finally:
        await store.close()


async def test_the_leader_adds_missing_jobs_and_deletes_surplus_ones(database: str) -> None:
    store = await PostgresStore.open(database)
    await prepare(database)
    queue_upkeep = QueueUpkeep(store, database, SystemClock(), lambda: True)
    try:
        for _ in range(3):
            await put(store, agent="it")
        await put(store, agent="nobody")
        await queue_upkeep.run_once()
        assert jobs(database) == []  # no process is there to check
        await store.add_instance(instance("i_1", "it"))
        await queue_upkeep.run_once()
        assert jobs(database) == [(name_queue("it"), "todo")] * 3
        await queue_upkeep.run_once()
        assert len(jobs(database)) == 4  # always one more: some may be due later
        with psycopg.connect(database, autocommit=True) as admin:
            old = "SELECT procrastinate_register_worker_v1()"
            (worker_id,) = admin.execute(old).fetchone() or (None,)
            (alive,) = admin.execute(old).fetchone() or (None,)
            stale = "UPDATE procrastinate_workers SET last_heartbeat = now() - make_interval(secs => %s) WHERE id = %s"
            admin.execute(stale, (STALLED_SECONDS + 5, worker_id))
            admin.execute("UPDATE procrastinate_jobs SET status = 'doing', worker_id = %s", (worker_id,))
            newest = "(SELECT max(id) FROM procrastinate_jobs)"
            admin.execute(f"UPDATE procrastinate_jobs SET worker_id = %s WHERE id = {newest}", (alive,))
        await claim_tasks(store, agents={"it": 10, "nobody": 10})
        await queue_upkeep.run_once()
        assert jobs(database) == [(name_queue("it"), "doing")]
    finally:
        await store.close()


async def test_the_leader_deletes_jobs_without_a_task(database: str) -> None:
    store = await PostgresStore.open(database, Hinter())
    await prepare(database)
    try:
        for _ in range(SPARE_JOBS + 20):
            await put(store, agent="it")
        later = await put(store, agent="it", due_at=CLOCK.now() + 3600 * SECOND, wait="delay")
        await claim_tasks(store, free=SPARE_JOBS + 15, agents={"it": SPARE_JOBS + 15})
        await store.add_instance(instance("i_1", "it"))
        await QueueUpkeep(store, database, SystemClock(), lambda: True).run_once()
        with psycopg.connect(database) as admin:
            jobs = admin.execute("SELECT scheduled_at FROM procrastinate_jobs ORDER BY id").fetchall()
        assert later.wait and sum(at is not None for (at,) in jobs) == 1
        assert len(jobs) == SPARE_JOBS + 5 + 1 + 1  # spare jobs, five tasks, one due later, one always
    finally:
        await store.close()


def instance(name: str, *agents: str) -> Instance:
    return Instance(id=name, role="worker", host="h", boot_id="b", pid=1, agents=agents, slots=1, started_at=1)


async def test_a_process_without_free_slots_leaves_jobs_to_others(database: str, tmp_path: Path) -> None:
    """The first process has slots for other agents, and would fetch the jobs of this one in vain."""
    go_on = asyncio.Event()
    agents = {"it": make_agent(wait_for(go_on), result("ok"), slots=1), "other": make_agent(result("ok"))}
    async with desk(tmp_path, "a", database, agents=agents) as first:
        busy = await first.tasks.submit("x", agent="it")
        await until(lambda: first.running == 1)
        async with desk(tmp_path, "b", database, agents={"it": make_agent(result("quick"), slots=1)}) as second:
            await until(lambda: heartbeat_of(second).is_connected())
            spent = []
            for _ in range(10):
                began = time.monotonic()
                task = await first.tasks.submit("x", agent="it")
                assert (await first.tasks.wait(task.id)).result == "quick"
                spent.append(time.monotonic() - began)
            print(f"beside a full process: {sorted(spent)[5] * 1e3:.0f} ms, at most {max(spent) * 1e3:.0f} ms")
            assert sorted(spent)[5] < 3.0
            go_on.set()
            assert (await first.tasks.wait(busy.id)).result == "ok"


async def test_a_turn_that_waits_for_an_answer_frees_its_slot(database: str, tmp_path: Path) -> None:
    agents = {"asks": make_agent(ask("Go on?"), result("ok"), slots=1)}
    async with desk(tmp_path, "a", database, agents=agents, slots=1) as runtime:
        tasks = [await runtime.tasks.submit("x", agent="asks") for _ in range(4)]
        await until(lambda: _pending(runtime, 4))
        for approval in await runtime.approvals.list("pending"):
            await runtime.approvals.answer(approval.id, "yes")
        for task in tasks:
            assert (await runtime.tasks.wait(task.id)).status == "done"


async def _pending(runtime: Runtime, count: int) -> bool:
    return len(await runtime.approvals.list("pending")) == count


async def test_a_run_claims_only_its_own_tasks(database: str, tmp_path: Path) -> None:
    agents = {"it": make_agent(result("by the run"))}
    store = await PostgresStore.open(database)
    try:
        async with desk(tmp_path, "a", database, agents=agents, role="run") as run:
            foreign = await put(store, agent="it")
            mine = await run.tasks.submit("x", agent="it")
            assert (await run.tasks.wait(mine.id)).result == "by the run"
            stored_task = await store.get_task(foreign.id)
            assert stored_task is not None and stored_task.status == "pending"
    finally:
        await store.close()


async def test_stopping_ends_turns_and_leaves_nothing_behind(database: str, tmp_path: Path) -> None:
    agents = {"it": make_agent(wait_for(asyncio.Event()))}
    async with desk(tmp_path, "a", database, agents=agents) as runtime:
        task = await runtime.tasks.submit("x", agent="it")
        await until(lambda: runtime.running == 1)
        await until(lambda: "todo" not in dict(jobs(database)).values())  # the worker of the queue has started
        began = time.monotonic()
    print(f"stopping with a turn took {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < 20
    store = await PostgresStore.open(database)
    try:
        stored_task = await store.get_task(task.id)
        assert stored_task is not None and (stored_task.status, stored_task.interruptions) == ("pending", 1)
        assert await store.list_instances() == []
        with psycopg.connect(database) as admin:
            assert admin.execute("SELECT instance FROM leader").fetchone() == (None,)
            assert admin.execute("SELECT count(*) FROM procrastinate_workers").fetchone() == (0,)
    finally:
        await store.close()


# -- a lost database ---------------------------------------------------------------------------------------------


def end_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_queue_cancelled_while_opening_leaves_nothing_behind() -> None:
    tasks_before = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        host, port = server.getsockname()

        async def use() -> None:
            async with open_queue(build_queue(f"postgresql://nobody@{host}:{port}/nothing")):
                raise AssertionError("nobody answers")

        using = asyncio.create_task(use())
        async with asyncio.timeout(30):
            connection, _ = await asyncio.get_running_loop().sock_accept(server)
            using.cancel()
            connection.close()
            with pytest.raises(asyncio.CancelledError):
                await using
            await until(lambda: asyncio.all_tasks() == tasks_before)


async def test_lost_connections_stop_no_agent_and_log_no_noise(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started_ids: list[str] = []

    async def work(turn: Any) -> str:
        started_ids.append(turn.task_id)
        await asyncio.sleep(0.3)
        return "ok"

    agents = {"it": make_agent(work, on_crash="fail")}
    async with desk(tmp_path, "a", database, agents=agents) as runtime:
        tasks = []
        for _ in range(6):
            tasks += [await runtime.tasks.submit("x", agent="it") for _ in range(3)]
            await asyncio.to_thread(end_connections, database)
        async with asyncio.timeout(90):
            ended_tasks = [await runtime.tasks.wait(task.id) for task in tasks]
        assert {task.status for task in ended_tasks} == {"done"}
        assert sorted(started_ids) == sorted(task.id for task in tasks)
        last = (await runtime.store.read_log_bounds()).last_seq
        events = await runtime.store.read_events(0)
        returned = [event.payload["reason"] for event in events if event.kind == "task_interrupted"]
        assert set(returned) <= {"unstarted"}  # claims whose reply was lost: none of them had started
        assert len(events) == last == 5 * len(tasks) + 2 * len(returned)
    gc.collect()  # a task whose exception nobody read is logged when it is collected
    loud = [record for record in caplog.records if record.levelno >= logging.ERROR or record.name.startswith("asyncio")]
    assert [record.getMessage() for record in loud] == []


@pytest.mark.timeout(240)
async def test_a_long_database_outage_pauses_tasks_and_fails_none(database: str, tmp_path: Path) -> None:
    """The outage lasts longer than a process may be silent: all were silent, so none is declared dead."""
    go_on = asyncio.Event()
    agents = {"it": make_agent(wait_for(go_on), result("ok"), on_crash="fail"), "quick": make_agent(result("ok"))}
    with Proxy(int(conninfo_to_dict(database)["port"])) as proxy:
        url = make_conninfo(database, host="127.0.0.1", port=proxy.port)
        async with (
            desk(tmp_path, "a", url, agents=agents) as first_desk,
            desk(tmp_path, "b", url, agents=agents) as second_desk,
        ):
            tasks = [await first_desk.tasks.submit("x", agent="it") for _ in range(6)]
            await until(lambda: first_desk.running + second_desk.running == 6)
            await until(lambda: engine_of(first_desk).leads() or engine_of(second_desk).leads())
            proxy.cut()
            await asyncio.sleep(DEAD_SECONDS / 2)
            go_on.set()  # turns end while nothing can be written
            with pytest.raises(StoreUnavailable):
                await first_desk.tasks.submit("x", agent="quick")
            await asyncio.sleep(DEAD_SECONDS / 2 + 2 * BEAT_SECONDS)
            proxy.mend()
            began = time.monotonic()
            async with asyncio.timeout(60):
                ended_tasks = [await second_desk.tasks.wait(task.id) for task in tasks]
                print(f"ends were written {time.monotonic() - began:.1f} s after the database came back")
                assert {(t.status, t.attempt, t.rescues) for t in ended_tasks} == {("done", 1, 0)}
                fresh = await first_desk.tasks.submit("x", agent="quick")
                assert (await first_desk.tasks.wait(fresh.id)).status == "done"
                print(f"new work was done after {time.monotonic() - began:.1f} s")


async def test_a_claim_without_a_reply_is_released(database: str, tmp_path: Path) -> None:
    """The lease is ours and no turn of it runs here: another attempt is made although the task must not be repeated."""
    agents = {"it": make_agent(result("ok"), on_crash="fail")}
    async with desk(tmp_path, "a", database, agents=agents) as runtime:
        assert isinstance(engine_of(runtime), ProcrastinateEngine)
        await until(heartbeat_of(runtime).is_connected)
        real, answers = runtime.store.claim, [StoreUnavailable("the answer was lost")]

        async def claim(request: Any, now: int) -> Any:
            claims = await real(request, now)
            if claims.taken and answers:
                raise answers.pop()
            return claims

        runtime.store.claim = claim
        task = await runtime.tasks.submit("x", agent="it")
        async with asyncio.timeout(60):
            ended_task = await runtime.tasks.wait(task.id)
        assert (ended_task.status, ended_task.attempt) == ("done", 2)
        assert len(await list_starters(runtime, task.id)) == 2


# -- heartbeats --------------------------------------------------------------------------------------------------


async def test_a_live_process_that_was_removed_registers_again(database: str, tmp_path: Path) -> None:
    go_on = asyncio.Event()
    agents = {"it": make_agent(wait_for(go_on), result("ok"))}
    async with desk(tmp_path, "a", database, agents=agents) as runtime:
        task = await runtime.tasks.submit("x", agent="it")
        await until(lambda: runtime.running == 1)
        with psycopg.connect(database, autocommit=True) as admin:  # no check afterwards: it may register again at once
            deleted_rows = admin.execute("DELETE FROM instances RETURNING id").fetchall()
        assert deleted_rows == [(runtime.id,)]
        await until(lambda: not heartbeat_of(runtime).is_sound())  # for a while it claims nothing
        await until(lambda: _is_registered(runtime))
        go_on.set()
        assert (await runtime.tasks.wait(task.id)).attempt == 1
        again = await runtime.tasks.submit("x", agent="it")
        async with asyncio.timeout(60):
            assert (await runtime.tasks.wait(again.id)).status == "done"


async def _is_registered(runtime: Runtime) -> bool:
    return [instance.id for instance in await runtime.living()] == [runtime.id]


async def test_a_lost_lease_ends_the_turn(database: str, tmp_path: Path) -> None:
    agent = make_agent(wait_for(asyncio.Event()))
    async with desk(tmp_path, "a", database, agents={"it": agent}) as runtime:
        task = await runtime.tasks.submit("x", agent="it")
        await until(lambda: runtime.running == 1 and agent.turns)
        with psycopg.connect(database, autocommit=True) as admin:  # as a leader does that considers this process dead
            admin.execute("UPDATE tasks SET status = 'failed', completed_at = 1 WHERE id = %s", (task.id,))
        await until(lambda: runtime.running == 0)
        assert agent.interrupts
        late = await runtime.store.read_events(0, EventFilter(task_id=task.id, kinds=("task_late",)))
        assert len(late) == 1


class FakePulse:
    """A pulse with the given beats."""

    def __init__(self, *beats: Beat | None) -> None:
        self.beats = list(beats)
        self.last = beats[-1]

    def beat(self) -> Beat:
        next_beat = self.beats.pop(0) if self.beats else self.last
        if next_beat is None:
            raise StoreUnavailable("away")
        return next_beat

    def resign(self) -> None: ...
    def close(self) -> None: ...


class IdleWorker:
    running: dict[str, Any] = {}  # noqa: RUF012


def beat(*alive: str, known: bool = True, leads: bool = True) -> Beat:
    return Beat(known=known, leases=frozenset(), leads=leads, alive=frozenset(alive))


class ControlledHeartbeat:
    """A heartbeat whose beats and clock are controlled by the test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.led = 0
        self.introduced = 0
        self.heartbeat = Heartbeat(FakePulse(None), self.clock, IdleWorker(), self._leads, self._introduce)  # type: ignore[arg-type]

    def _leads(self) -> None:
        self.led += 1

    async def _introduce(self) -> None:
        self.introduced += 1

    async def beat(self, new_beat: Beat | None, after: float = BEAT_SECONDS) -> None:
        await self.clock.advance(after)
        self.heartbeat._begun += 1
        self.heartbeat._record(new_beat, set(), self.heartbeat._begun, self.clock.monotonic())
        await asyncio.sleep(0)


async def test_a_process_is_dead_only_by_a_later_heartbeat() -> None:
    controlled = ControlledHeartbeat()
    for _ in range(5):
        await controlled.beat(beat("i_me"))
    assert controlled.heartbeat.dead({"i_new"}) == set()  # it may have registered after the last beat
    await controlled.beat(beat("i_me", "i_new"))
    assert controlled.heartbeat.dead({"i_new", "i_gone"}) == set()
    await controlled.beat(beat("i_me", "i_new"))
    assert controlled.heartbeat.dead({"i_new", "i_gone"}) == {"i_gone"}
    await controlled.beat(beat("i_me"))
    assert controlled.heartbeat.dead({"i_new", "i_gone"}) == {"i_new", "i_gone"}


async def test_a_process_after_an_outage_declares_no_other_dead_for_a_while() -> None:
    controlled = ControlledHeartbeat()
    for _ in range(6):
        controlled.heartbeat.dead({"i_gone"})
        await controlled.beat(beat("i_me"))
    assert controlled.heartbeat.dead({"i_gone"}) == {"i_gone"}
    await controlled.beat(None)
    assert (
        controlled.heartbeat.dead({"i_gone"}) == set()
        and not controlled.heartbeat.leads()
        and not controlled.heartbeat.is_connected()
    )
    for _ in range(4):
        await controlled.beat(beat("i_me"))
        assert controlled.heartbeat.dead({"i_gone"}) == set()
    await controlled.beat(beat("i_me"))
    assert controlled.heartbeat.dead({"i_gone"}) == {"i_gone"}
    await controlled.clock.advance(SOUND_SECONDS + 1)  # it was stopped, so its information is outdated
    assert controlled.heartbeat.dead({"i_gone"}) == set()
    await controlled.beat(beat("i_me"), after=DEAD_SECONDS)
    assert controlled.heartbeat.dead({"i_gone"}) == set()


async def test_a_process_that_missed_heartbeats_claims_nothing_until_it_is_healthy() -> None:
    controlled = ControlledHeartbeat()
    await controlled.beat(beat("i_me"))
    assert controlled.heartbeat.is_sound()
    await controlled.clock.advance(SOUND_SECONDS + 1)
    assert not controlled.heartbeat.is_sound()
    await controlled.beat(beat("i_me", known=False))
    assert controlled.introduced == 1 and not controlled.heartbeat.is_sound()
    await controlled.beat(beat("i_me"))
    assert not controlled.heartbeat.is_sound()
    await controlled.beat(beat("i_me"))
    assert controlled.heartbeat.is_sound()


async def test_the_loops_wake_on_leadership_and_when_a_process_dies() -> None:
    controlled = ControlledHeartbeat()
    await controlled.beat(beat("i_me", leads=False))
    assert controlled.led == 0
    await controlled.beat(beat("i_me", "i_other"))
    assert controlled.led == 1
    await controlled.beat(beat("i_me", "i_other"))
    assert controlled.led == 1
    await controlled.beat(beat("i_me"))
    assert controlled.led == 2


async def test_tasks_of_an_unhealthy_process_are_claimed_by_others(database: str, tmp_path: Path) -> None:
    agents = {"it": make_agent(result("ok"))}
    async with desk(tmp_path, "a", database, agents=agents) as first:
        heart = heartbeat_of(first)
        await until(heart.is_connected)
        heart._sound_from = first.clock.monotonic() + 600
        task = await first.tasks.submit("x", agent="it")
        async with desk(tmp_path, "b", database, agents=agents) as second, asyncio.timeout(60):
            assert (await first.tasks.wait(task.id)).status == "done"
            assert await list_starters(first, task.id) == [second.id]

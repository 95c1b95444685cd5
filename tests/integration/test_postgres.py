"""Test the PostgreSQL store with servers that refuse, connections that break, and unusual texts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, SchemaTooNew, StoreCorrupt, StoreUnavailable
from midwatch.domain.changes import Changes, Update
from midwatch.domain.instance import DEAD_SECONDS, Instance
from midwatch.domain.session import Session
from midwatch.domain.store import EVERY_TOPIC, Commit
from midwatch.domain.task import end, guard_ownership
from midwatch.stores import postgres as module
from midwatch.stores.postgres import PostgresStore, hide_password
from midwatch.stores.pulse import PostgresPulse
from midwatch.stores.verbs import changes as change
from proxy import Proxy
from records import CLOCK, a_task, claim_request, claim_tasks, fence, progress, put, submit_and_claim


@asynccontextmanager
async def open_store(url: str, hint: Any = None) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, hint)
    try:
        yield store
    finally:
        await store.close()


def through(url: str, proxy: Proxy) -> str:
    """Return the database's address by way of the proxy."""
    return make_conninfo(url, host="127.0.0.1", port=proxy.port)


def port_of(url: str) -> int:
    return int(conninfo_to_dict(url)["port"])


# -- servers that cannot be used ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "value"), [("port", "1"), ("dbname", "nowhere"), ("host", "nowhere.invalid"), ("user", "nobody")]
)
async def test_a_failed_connection_is_reported_without_the_password(database: str, part: str, value: str) -> None:
    url = make_conninfo(database, password="s3cret", **{part: value})
    with pytest.raises(StoreUnavailable) as caught:
        await PostgresStore.open(url)
    message = str(caught.value)
    assert "\n" not in message and "s3cret" not in message
    assert "Check the address" in message


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:s3cret@host:5432/name", "postgresql://me@host:5432/name"),
        ("postgresql://me:p%40s3cret@host/name?password=s3cret", "postgresql://me@host/name"),
        ("host=h user=me password=s3cret dbname=d", "postgresql://me@h/d"),
        ("postgresql:///local", "postgresql:///local"),
        ("no address, s3cret", "the database"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, told: str) -> None:
    assert hide_password(url) == told


async def test_a_user_without_rights_gets_an_error(database: str) -> None:
    guest = f"guest_of_{conninfo_to_dict(database)['dbname']}"  # roles belong to the whole server
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        admin.execute(f"CREATE ROLE {guest} LOGIN")
        try:
            with pytest.raises(StoreUnavailable, match="no permission") as caught:
                await PostgresStore.open(make_conninfo(database, user=guest))
            assert "\n" not in str(caught.value)
        finally:
            admin.execute(f"DROP ROLE {guest}")


async def test_a_database_of_a_newer_midwatch_is_not_changed(database: str) -> None:
    async with open_store(database) as store:
        await put(store)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("UPDATE midwatch_schema SET version = 99")
    with pytest.raises(SchemaTooNew, match=r"schema 99.*upgrade midwatch"):
        await PostgresStore.open(database)


async def test_a_database_of_another_program_is_not_changed(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE TABLE tasks (id int)")
    with pytest.raises(StoreCorrupt, match="another program"):
        await PostgresStore.open(database)


async def test_an_older_schema_is_upgraded_once(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    async with open_store(database):
        pass
    migrations = module.load_migrations("postgres")
    extra = (migrations[-1][0] + 1, "CREATE TABLE once (n int); INSERT INTO once VALUES (1)")
    monkeypatch.setattr(module, "load_migrations", lambda kind: [*migrations, extra])
    stores = await asyncio.gather(*(PostgresStore.open(database) for _ in range(6)))
    assert {(await store.describe())["schema"] for store in stores} == {extra[0]}
    for store in stores:
        await store.close()
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM once").fetchall() == [(1,)]


async def test_an_old_server_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLDEST_SERVER", 990_000)
    with pytest.raises(StoreUnavailable, match="midwatch needs 14 or newer"):
        await PostgresStore.open(database)


async def test_a_read_only_server_is_reported(database: str) -> None:
    async with open_store(database) as store:
        with psycopg.connect(database, autocommit=True) as admin:
            name = conninfo_to_dict(database)["dbname"]
            admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            end_connections(admin)
        with pytest.raises(StoreUnavailable, match="is read-only"):
            await put(store)


# -- connections that break --------------------------------------------------------------------------------------


def end_connections(admin: Any) -> None:
    admin.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


async def test_lost_connections_are_replaced(database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "psycopg")
    async with open_store(database) as store:
        tasks = await asyncio.gather(*(put(store) for _ in range(12)))
        for _ in range(3):
            with psycopg.connect(database, autocommit=True) as admin:
                end_connections(admin)
            more = await asyncio.gather(*(put(store) for _ in range(12)))
            assert len(await claim_tasks(store, free=100, agents={"demo": 100})) == len(tasks) + len(more)
            assert len(await store.list_running_tasks()) >= len(more)
            tasks = []
        last = (await store.read_log_bounds()).last_seq
        assert [e.seq for e in await store.read_events(0)] == list(range(1, last + 1))
    assert not [record for record in caplog.records if record.name.startswith("psycopg")]


async def test_a_commit_without_a_reply_is_checked_and_not_repeated(database: str) -> None:
    """The proxy drops the reply to COMMIT, then the connection. The write has happened, once."""
    with Proxy(port_of(database)) as proxy:
        async with open_store(through(database, proxy)) as store:
            task = await submit_and_claim(store)

            def commit_and_drop_reply(tx: Any, changes: Changes) -> None:
                change.apply(tx, changes)
                proxy.answers.clear()

            async def hang_up() -> None:
                with psycopg.connect(database, autocommit=True) as admin:
                    query = "SELECT count(*) FROM events WHERE kind = 'task_progress'"
                    while admin.execute(query).fetchone() != (1,):
                        await asyncio.sleep(0.01)
                proxy.drop()
                proxy.answers.set()

            hanging_up = asyncio.create_task(hang_up())
            async with asyncio.timeout(20):
                await store.write(commit_and_drop_reply, Changes(fence=fence(task), events=(progress(task),)))
            await hanging_up
            kinds = [e.kind for e in await store.read_events(0)]
            assert kinds == ["task_submitted", "task_started", "task_progress"]


async def test_a_transaction_interrupted_before_its_commit_is_repeated(database: str) -> None:
    with Proxy(port_of(database)) as proxy:
        async with open_store(through(database, proxy)) as store:
            task = await submit_and_claim(store)
            runs: list[int] = []

            def cut_off(tx: Any, changes: Changes) -> None:
                runs.append(1)
                change.apply(tx, changes)
                if len(runs) == 1:
                    proxy.drop()

            await store.write(cut_off, Changes(fence=fence(task), events=(progress(task),)))
            kinds = [e.kind for e in await store.read_events(0)]
            assert (len(runs), kinds) == (2, ["task_submitted", "task_started", "task_progress"])


async def test_a_driver_error_counts_as_a_lost_connection(database: str) -> None:
    """The driver may fail before it knows that the connection is lost."""
    async with open_store(database) as store:
        task = await submit_and_claim(store)
        runs: list[int] = []

        def fail_in_driver(tx: Any, changes: Changes) -> None:
            runs.append(1)
            change.apply(tx, changes)
            if len(runs) == 1:
                raise psycopg.OperationalError("cannot exit pipeline mode while busy")

        await store.write(fail_in_driver, Changes(fence=fence(task), events=(progress(task),)))
        kinds = [e.kind for e in await store.read_events(0)]
        assert (len(runs), kinds) == (2, ["task_submitted", "task_started", "task_progress"])


async def test_without_a_database_every_method_fails_and_works_again_later(database: str) -> None:
    with Proxy(port_of(database)) as proxy:
        async with open_store(through(database, proxy)) as store:
            task = await submit_and_claim(store)
            commits: asyncio.Queue[Commit] = asyncio.Queue()
            store.on_commit(commits.put_nowait)
            proxy.cut()
            verbs: list[Callable[[], Any]] = [
                lambda: put(store),
                lambda: claim_tasks(store),
                lambda: store.get_task(task.id),
                lambda: store.apply(Changes(fence=fence(task), events=(progress(task),))),
            ]
            for verb in verbs:
                with pytest.raises(StoreUnavailable) as caught:
                    await verb()
                assert "\n" not in str(caught.value)
            proxy.mend()
            async with asyncio.timeout(30):
                while (await commits.get()) != Commit(EVERY_TOPIC, (), foreign=True):  # any error may have changed data
                    pass
            await store.apply(Changes(fence=fence(task), events=(progress(task),)))
            async with open_store(database) as other_store:
                await put(other_store)
            async with asyncio.timeout(30):
                while "task" not in (await commits.get()).topics:
                    pass


async def test_closing_is_quick_without_a_database(database: str) -> None:
    with Proxy(port_of(database)) as proxy:
        store = await PostgresStore.open(through(database, proxy))
        await put(store)
        proxy.cut()
        began = time.monotonic()
        await store.close()
        await store.close()
        assert time.monotonic() - began < 10
        with pytest.raises(StoreUnavailable, match="closed"):
            await put(store)


@pytest.mark.parametrize("asked", [True, False])
async def test_a_stopped_process_does_not_block_others_for_long(database: str, asked: bool) -> None:
    """The process is stopped while it holds a lock: after a reply, or while it sends."""
    async with open_store(database) as store, open_store(database) as other_store:
        await store.add_instance(instance("i_other"))
        pulse = PostgresPulse(database, "i_other")
        waits, goes_on = threading.Event(), threading.Event()

        def stop(tx: Any) -> None:
            tx.run("session.touch", vars_of(Session(key="chat:1", agent="a", gate_key="chat:1")))
            if asked:
                tx.row("session.get", {"key": "chat:1"})
            if not waits.is_set():
                waits.set()
                goes_on.wait(100)

        stopped = asyncio.create_task(store.write(stop))
        await asyncio.to_thread(waits.wait)
        going_on = asyncio.create_task(
            other_store.apply(Changes(sessions=(Session(key="chat:1", agent="b", gate_key="chat:1"),)))
        )
        try:
            async with asyncio.timeout(30):
                while not going_on.done():
                    await asyncio.to_thread(pulse.beat)
                    await asyncio.wait({going_on}, timeout=0.5)
        finally:
            goes_on.set()
        await going_on
        pulse.close()
        await stopped  # it resumes, finds its connection lost and repeats the write
        session = await other_store.get_session("chat:1")
        assert session is not None and session.agent == "a"


def vars_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


# -- particular to PostgreSQL ------------------------------------------------------------------------------------


async def test_characters_postgres_cannot_store_are_replaced_or_escaped(database: str) -> None:
    async with open_store(database) as store:
        task = await put(store, prompt="a\0b")
        stored_task = await store.get_task(task.id)
        assert stored_task is not None and stored_task.prompt == "a\ufffdb"
        (claimed_task,) = await claim_tasks(store)
        await store.apply(Changes(fence=fence(claimed_task), events=(progress(claimed_task, "x\0y"),)))
        assert (await store.read_events(0))[-1].payload["text"] == "x\0y"


async def test_concurrent_changes_fail_independently(database: str) -> None:
    """The changes share a transaction; one that failed after a write is repeated without the others."""
    async with open_store(database) as store:
        tasks = [await submit_and_claim(store) for _ in range(10)]

        def step(number: int) -> Changes:
            task = tasks[number]
            wrong = (Update("task", task.id, {"wait": "y"}, {"attempt": 9}),) if number % 3 == 0 else ()
            right = Update("task", task.id, {"wait": "x"}, guard_ownership(task))
            return Changes(updates=(right, *wrong), events=(progress(task, str(number)),))

        for _ in range(5):
            results = await asyncio.gather(*(store.apply(step(n)) for n in range(10)), return_exceptions=True)
            assert [type(r) for r in results] == [Conflict if n % 3 == 0 else type(None) for n in range(10)]
        numbers = [int(e.payload["text"]) for e in await store.read_events(0) if e.kind == "task_progress"]
        assert sorted(numbers) == sorted([n for n in range(10) if n % 3] * 5)
        waits = [(await store.get_task(task.id)).wait for task in tasks]  # type: ignore[union-attr]
        assert waits == [None if n % 3 == 0 else "x" for n in range(10)]


async def test_hints_are_written_in_the_same_transaction(database: str) -> None:
    """A hint is written with the connection of the transaction: a failed write leaves none, and each names an agent and
    a time.
    """

    def hint(connection: Any, due: list[tuple[str, int]]) -> None:
        for pair in due:
            connection.execute("INSERT INTO hints VALUES (%s, %s)", pair)

    async with open_store(database, hint) as store:
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute("CREATE TABLE hints (agent text, due bigint)")

            def hints() -> list[tuple[str, int]]:
                return admin.execute("DELETE FROM hints RETURNING agent, due").fetchall()

            first = await put(store, session_key="chat:1")
            second = await put(store, session_key="chat:1", agent="other", due_at=first.due_at + 5)
            alone = await put(store)
            assert sorted(hints()) == sorted((t.agent, t.due_at) for t in (first, second, alone))
            with pytest.raises(Conflict):
                doubled = a_task(internal_key="k")
                await store.submit(doubled)
                twice = a_task(internal_key="k")
                await store.submit(twice)
            assert hints() == [("demo", doubled.due_at)]
            claimed_tasks = {t.id: t for t in await claim_tasks(store, agents={"demo": 9, "other": 9})}
            assert hints() == []
            await store.apply(end(claimed_tasks[alone.id], CLOCK.now(), outcome="ok")[1])
            assert hints() == []  # no task can have waited for its own private session
            await store.apply(end(claimed_tasks[first.id], CLOCK.now(), outcome="ok")[1])
            assert hints() == [("other", second.due_at)]
            later = CLOCK.now() + 60 * SECOND
            back = {"status": "pending", "wait": "backoff", "due_at": later}
            await store.apply(
                Changes(updates=(Update("task", doubled.id, back, guard_ownership(claimed_tasks[doubled.id])),))
            )
            assert hints() == [("demo", later)]


async def test_a_claim_is_quick_whatever_the_planner_believes(database: str) -> None:
    """Statistics of an empty table, then ten thousand tasks: the index is read in order and nothing is sorted."""
    async with open_store(database) as store:
        await store.refresh_statistics(["tasks"])
        for _ in range(10):
            await asyncio.gather(*(put(store) for _ in range(400)))
        took = []
        for _ in range(10):
            began = time.perf_counter()
            assert len((await store.claim(claim_request(1), CLOCK.now())).taken) == 1
            took.append(time.perf_counter() - began)
        print(f"claim with 4000 pending: {sorted(took)[5] * 1e3:.2f} ms")
        sql, params = store._statements["task.claimable"], {"rank": -9999, "due_at": 0, "id": "", "limit": 1}
        params |= {"now": CLOCK.now(), "owner": "x", "own_only": False, "agents": '["demo"]', "leave": "[]"}
        with psycopg.connect(database) as admin:
            admin.execute("SET enable_sort = off")
            plan = "\n".join(row[0] for row in admin.execute(f"EXPLAIN {sql}", params))
        assert "Index Scan using tasks_claim" in plan and "Sort" not in plan


# -- heartbeats --------------------------------------------------------------------------------------------------


def instance(name: str) -> Instance:
    return Instance(id=name, role="worker", host="h", boot_id="b", pid=1, agents=("a",), slots=1, started_at=1)


def make_heartbeat_older(url: str, name: str, seconds: float) -> None:
    """Make a heartbeat, and the leadership of its process, so much older."""
    with psycopg.connect(url, autocommit=True) as admin:
        older = (seconds, name)
        admin.execute("UPDATE instances SET heartbeat = heartbeat - make_interval(secs => %s) WHERE id = %s", older)
        admin.execute("UPDATE leader SET renewed = renewed - make_interval(secs => %s) WHERE instance = %s", older)


async def test_a_heartbeat_returns_live_processes_the_leader_and_leases(database: str) -> None:
    async with open_store(database) as store:
        first_pulse, second_pulse = PostgresPulse(database, "i_one"), PostgresPulse(database, "i_two")
        assert not first_pulse.beat().known  # it has not registered
        first_pulse.resign()
        await store.add_instance(instance("i_one"))
        await store.add_instance(instance("i_two"))
        task = await submit_and_claim(store)
        first, second = first_pulse.beat(), second_pulse.beat()
        assert (first.known, first.leads, first.leases) == (True, True, {fence(task)})
        assert (second.known, second.leads, second.leases) == (True, False, frozenset())
        assert first.alive == second.alive == {"i_one", "i_two"}
        make_heartbeat_older(database, "i_one", DEAD_SECONDS + 1)
        later = second_pulse.beat()
        assert later.leads and later.alive == {"i_two"}
        assert [i.id for i in await store.living()] == ["i_two"]
        late = first_pulse.beat()
        assert (late.known, late.leads) == (False, False)  # it was late, and others may have declared it dead
        assert first_pulse.beat().known
        second_pulse.resign()
        assert first_pulse.beat().leads
        await store.remove_instances(["i_one"])
        assert not first_pulse.beat().known
        first_pulse.close()
        second_pulse.close()


async def test_heartbeats_resume_after_a_lost_connection(database: str) -> None:
    async with open_store(database) as store:
        await store.add_instance(instance("i_one"))
        with Proxy(port_of(database)) as proxy:
            pulse = PostgresPulse(through(database, proxy), "i_one")
            assert pulse.beat().known
            proxy.cut()
            with pytest.raises(StoreUnavailable):
                pulse.beat()
            proxy.mend()
            assert pulse.beat().known
            pulse.close()

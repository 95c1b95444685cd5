"""Test several processes on one PostgreSQL: who runs a task, how fast a cancel arrives, and who takes over."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from midwatch import Runtime, Settings
from midwatch.domain.event import EventFilter
from midwatch.engines import procrastinate, queue_upkeep
from midwatch.testing import ScriptedAgent, result, wait_for
from servers import WorkerProcess, environment, eventually, processes_with

CONFIG = """
db = "{url}"
detect_agents = false
shutdown_grace = 0
[agents.shell]
kind = "command"
argv = ["sh", "-c", "{{prompt}}"]
on_crash = "rerun"
"""


def desk(folder: Path, name: str, url: str, **options: Any) -> Any:
    """Open a runtime with a home of its own."""
    return Runtime.open(settings=Settings.load(folder / name, db=url, detect_agents=False, shutdown_grace=0), **options)


@asynccontextmanager
async def worker_processes(folder: Path, url: str, count: int) -> AsyncIterator[dict[int, WorkerProcess]]:
    """Start real worker processes and yield them by pid, once all know each other."""
    workers = [WorkerProcess(folder / f"w{n}") for n in range(count)]
    for worker in workers:
        worker.home.mkdir()
        (worker.home / "midwatch.toml").write_text(CONFIG.format(url=url))
        worker.start()
    try:
        async with desk(folder, "look", url, work=False) as looking:
            async with asyncio.timeout(90):
                while len(await looking.living()) < count:
                    await asyncio.sleep(0.05)
        yield {worker.process.pid: worker for worker in workers if worker.process is not None}
    finally:
        for worker in workers:
            await worker.stop()


async def wait_for_owner(looking: Runtime, task_id: str, attempt: int) -> Any:
    """Return the process that runs this attempt, once it does."""
    which = EventFilter(task_id=task_id, kinds=("task_started",))
    async for started in looking.bus.follow(0, which):
        if started.attempt == attempt:
            instances = {instance.id: instance for instance in await looking.store.list_instances()}
            return instances.get(started.payload["owner"])
    raise AssertionError("the log ended")


async def test_tasks_run_only_in_processes_with_their_agent(database: str, tmp_path: Path) -> None:
    first_agent, second_agent = ScriptedAgent(result("by one")), ScriptedAgent(result("by two"))
    async with (
        desk(tmp_path, "a", database, agents={"one": first_agent}, role="worker"),
        desk(tmp_path, "b", database, agents={"two": second_agent}, role="worker"),
        desk(tmp_path, "c", database, work=False) as client,
    ):
        tasks = [await client.tasks.submit("x", agent=name) for name in ("one", "two") * 5]
        async with asyncio.timeout(30):
            ended_tasks = [await client.tasks.wait(task.id) for task in tasks]
        assert [task.result for task in ended_tasks] == ["by one", "by two"] * 5


async def test_a_task_without_an_agent_reports_it_and_starts_when_one_joins(database: str, tmp_path: Path) -> None:
    agents = {"rare": ScriptedAgent(result("at last"))}
    async with desk(tmp_path, "c", database, work=False) as client:
        async with desk(tmp_path, "a", database, agents=agents, role="worker"):
            task = await client.tasks.submit("x", agent="rare", delay=1)
        async with desk(tmp_path, "b", database, role="worker"), asyncio.timeout(30):
            while (await client.tasks.get(task.id)).wait != "agent":
                await asyncio.sleep(0.1)
        async with desk(tmp_path, "d", database, agents=agents, role="worker"), asyncio.timeout(30):
            assert (await client.tasks.wait(task.id)).result == "at last"


async def test_a_cancel_reaches_an_agent_in_another_process(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queue_upkeep, procrastinate):  # it was notified and did not have to poll
        monkeypatch.setattr(module, "UPKEEP_SECONDS", 3600.0)
    agent = ScriptedAgent(wait_for(asyncio.Event()))
    async with (
        desk(tmp_path, "a", database, agents={"it": agent}, role="worker"),
        desk(tmp_path, "c", database, work=False) as client,
        asyncio.timeout(30),
    ):
        task = await client.tasks.submit("x", agent="it")
        await wait_for_owner(client, task.id, 1)
        began = time.monotonic()
        await client.tasks.cancel(task.id)
        assert (await client.tasks.wait(task.id)).status == "cancelled"
        print(f"a cancel took {time.monotonic() - began:.3f} s across processes")


async def test_slots_and_gates_hold_across_processes(database: str, tmp_path: Path) -> None:
    running: list[str] = []
    overlaps = 0

    async def work(turn: Any) -> str:
        nonlocal overlaps
        overlaps += turn.session_key in running
        running.append(turn.session_key)
        await asyncio.sleep(0.01)
        running.remove(turn.session_key)
        return "ok"

    agents = {"it": ScriptedAgent(work)}
    async with (
        desk(tmp_path, "a", database, agents=agents, role="worker"),
        desk(tmp_path, "b", database, agents=agents, role="worker"),
        desk(tmp_path, "c", database, work=False) as client,
        asyncio.timeout(60),
    ):
        tasks = [await client.tasks.submit("x", agent="it", session_key=f"chat:{n % 3}") for n in range(30)]
        ended_tasks = [await client.tasks.wait(task.id) for task in tasks]
        assert {task.status for task in ended_tasks} == {"done"}
        assert overlaps == 0


@pytest.mark.timeout(180)
async def test_a_task_of_a_killed_worker_runs_elsewhere_and_leadership_moves(database: str, tmp_path: Path) -> None:
    async with (
        worker_processes(tmp_path, database, 2) as workers,
        desk(tmp_path, "c", database, work=False) as client,
        asyncio.timeout(120),
    ):
        task = await client.tasks.submit("sleep 600", agent="shell", workdir=str(tmp_path))
        first = await wait_for_owner(client, task.id, 1)
        led = find_leader(database) == first.id
        await workers.pop(first.pid).kill()
        began = time.monotonic()
        second = await wait_for_owner(client, task.id, 2)
        print(f"the task ran elsewhere after {time.monotonic() - began:.1f} s (its worker led: {led})")
        assert second.pid in workers
        assert find_leader(database) == second.id
        await client.tasks.cancel(task.id)
        assert (await client.tasks.wait(task.id)).status == "cancelled"
        assert await eventually(lambda: not processes_with(f"MIDWATCH_TASK={task.id}/1"))


@pytest.mark.timeout(180)
async def test_a_stopped_worker_that_resumes_has_lost_its_task(database: str, tmp_path: Path) -> None:
    async with (
        worker_processes(tmp_path, database, 2) as workers,
        desk(tmp_path, "c", database, work=False) as client,
        asyncio.timeout(120),
    ):
        task = await client.tasks.submit("sleep 600", agent="shell", workdir=str(tmp_path))
        first = await wait_for_owner(client, task.id, 1)
        workers[first.pid].signal(signal.SIGSTOP)
        second = await wait_for_owner(client, task.id, 2)
        assert second.pid != first.pid
        workers[first.pid].signal(signal.SIGCONT)
        assert await eventually(lambda: not processes_with(f"MIDWATCH_TASK={task.id}/1"), 60)
        stored_task = await client.tasks.get(task.id)
        assert (stored_task.status, stored_task.attempt) == ("running", 2)
        again = await client.tasks.submit("echo back", agent="shell", workdir=str(tmp_path))
        assert (await client.tasks.wait(again.id)).result == "back"
        await client.tasks.cancel(task.id)
        assert (await client.tasks.wait(task.id)).status == "cancelled"


@pytest.mark.timeout(180)
async def test_leadership_is_taken_over(database: str, tmp_path: Path) -> None:
    async with (
        worker_processes(tmp_path, database, 3) as workers,
        desk(tmp_path, "c", database, work=False) as client,
        asyncio.timeout(120),
    ):
        while (led := find_leader(database)) is None:
            await asyncio.sleep(0.05)
        (first,) = (instance for instance in await client.living() if instance.id == led)
        await workers.pop(first.pid).kill()
        began = time.monotonic()
        while find_leader(database) == first.id:
            await asyncio.sleep(0.05)
        print(f"the lead was taken over after {time.monotonic() - began:.1f} s")
        assert find_leader(database) in {instance.id for instance in await client.living()}


OTHER_MACHINE = "import socket; socket.gethostname = lambda: 'elsewhere'; from midwatch.cli.main import main; main()"


class RemoteWorker(WorkerProcess):
    """A worker that acts as if it ran on another machine, where nobody else can end its agents."""

    def start(self) -> None:
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", OTHER_MACHINE, "worker"],
                env=environment(self.home), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


@pytest.mark.timeout(180)
async def test_a_worker_considered_dead_ends_its_own_agent(database: str, tmp_path: Path) -> None:
    agents = {"shell": ScriptedAgent(wait_for(asyncio.Event()))}
    far = RemoteWorker(tmp_path / "far")
    far.home.mkdir()
    (far.home / "midwatch.toml").write_text(CONFIG.format(url=database))
    far.start()
    try:
        async with desk(tmp_path, "c", database, work=False) as client, asyncio.timeout(120):
            while not await client.living():
                await asyncio.sleep(0.05)
            task = await client.tasks.submit("sleep 600", agent="shell", on_crash="rerun", workdir=str(tmp_path))
            await wait_for_owner(client, task.id, 1)
            mark = f"MIDWATCH_TASK={task.id}/1"
            assert await eventually(lambda: bool(processes_with(mark)))
            async with desk(tmp_path, "near", database, agents=agents, role="worker") as near:
                far.signal(signal.SIGSTOP)
                owner = await wait_for_owner(client, task.id, 2)
                assert owner.id == near.id
                assert processes_with(mark)  # no process here could end it
                far.signal(signal.SIGCONT)
                began = time.monotonic()
                assert await eventually(lambda: not processes_with(mark), 60)
                print(f"an agent that was taken away ended {time.monotonic() - began:.1f} s after its worker came back")
                assert (await client.tasks.get(task.id)).attempt == 2
                await client.tasks.cancel(task.id)
                assert (await client.tasks.wait(task.id)).status == "cancelled"
    finally:
        await far.stop()


def find_leader(url: str) -> str | None:
    """Return the id of the leading process."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT instance FROM leader").fetchone()
        return row[0] if row else None

"""Test the runtime: it opens completely or not at all, always closes, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from internals import engine_of, worker_of
from midwatch import AgentError, Runtime, Settings, Task, Turn
from midwatch.base.errors import AlreadyRunning, BadConfig, HomeUnusable, SchemaTooNew, StoreCorrupt, StoreUnavailable
from midwatch.base.home import Home, ServerInfo
from midwatch.domain.event import MessageUpdate
from midwatch.domain.task_store import TaskFilter
from midwatch.programs.guard import guard
from midwatch.runtime.crew import Part
from midwatch.testing import FakeClock, RecordingChannel, ScriptedAgent, raise_, result, settle, wait_for
from servers import processes_with, until

SHELL = """
[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
on_crash = "rerun"
"""


class Footprint(NamedTuple):
    """The resources that this process holds."""

    threads: frozenset[str] = frozenset()
    tasks: frozenset[asyncio.Task[Any]] = frozenset()
    descriptors: int = 0
    children: frozenset[int] = frozenset()


NOTHING = Footprint()


def footprint() -> Footprint:
    gc.collect()  # ignore what earlier tests left
    return Footprint(
        frozenset(t.name for t in threading.enumerate() if not t.name.startswith("asyncio")),
        frozenset(asyncio.all_tasks()),
        len(list(Path("/proc/self/fd").iterdir())),
        frozenset(child.pid for child in psutil.Process().children(recursive=True)),
    )


def compare_footprint(before: Footprint) -> Footprint:
    """Return the resources held now but not before. Resources of other tests may have been freed meanwhile."""
    now = footprint()
    return Footprint(
        now.threads - before.threads,
        now.tasks - before.tasks,
        max(0, now.descriptors - before.descriptors),
        now.children - before.children,
    )


def locks(home: Path) -> set[str]:
    """Return the lock files of processes; `up` and `leader` belong to the home and stay."""
    return {file.stem for folder in Home(home).lock_folders for file in folder.glob("*.lock")} - {"up", "leader"}


def is_free(home: Path) -> bool:
    return not any(Home(home).lock(name).is_taken() for name in ("up", "leader"))


def load_settings(home: Path, text: str = SHELL) -> Settings:
    home.mkdir(parents=True, exist_ok=True)
    (home / "midwatch.toml").write_text(text)
    return Settings.load(home, shutdown_grace=0, detect_agents=False)


async def wait_for_end(desk: Runtime, task: Task) -> Task:
    async with asyncio.timeout(20):
        return await desk.tasks.wait(task.id)


# -- closing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["library", "up", "run"])
async def test_a_closed_runtime_leaves_nothing_behind(home: Path, role: Any) -> None:
    settings = load_settings(home)
    await asyncio.to_thread(lambda: None)
    before = footprint()
    for _ in range(3):
        channel = RecordingChannel("there")
        async with Runtime.open(settings=settings, role=role, channels={"there": channel}) as desk:
            tasks = [await desk.tasks.submit("echo hi", agent="shell", route="there") for _ in range(3)]
            for task in tasks:
                assert (await wait_for_end(desk, task)).status == "done"
            follower = asyncio.create_task(_read(desk))
            await settle(50)
        await follower
        assert channel.closed
        assert compare_footprint(before) == NOTHING
        assert locks(home) == set()
        assert is_free(home)


async def _read(desk: Runtime) -> int:
    return len([event async for event in desk.bus.follow(0, live=True)])


async def test_a_read_only_runtime_runs_nothing_and_does_not_lead(home: Path) -> None:
    before = footprint()
    async with Runtime.open(home, work=False) as desk:
        assert is_free(home) and locks(home) == set()
        assert (desk.running, await desk.store.list_instances()) == (0, [])
        task = await desk.tasks.submit("x", agent="demo")
        await settle(50)
        assert (await desk.tasks.get(task.id)).status_text == "pending: no live process has agent 'demo'"
    assert compare_footprint(before) == NOTHING
    async with Runtime.open(home) as desk:
        assert (await wait_for_end(desk, task)).status == "done"


class ForeignError(Exception):
    """An error that is not one of midwatch."""


@pytest.mark.parametrize("problem", [ForeignError("in the body"), KeyboardInterrupt(), SystemExit(3)])
async def test_an_error_in_the_body_still_shuts_down(home: Path, problem: BaseException) -> None:
    settings = load_settings(home)
    await asyncio.to_thread(lambda: None)
    before = footprint()
    with pytest.raises(type(problem)):
        async with Runtime.open(settings=settings, role="up") as desk:
            task = await desk.tasks.submit("sleep 600", agent="shell")
            await until(lambda: bool(processes_with(f"MIDWATCH_TASK={task.id}/1")))
            raise problem
    assert processes_with(f"MIDWATCH_TASK={task.id}/1") == []
    assert compare_footprint(before) == NOTHING
    assert locks(home) == set() and is_free(home)
    async with Runtime.open(settings=settings, work=False) as desk:
        stored_task = await desk.tasks.get(task.id)
        assert (stored_task.status, stored_task.interruptions, stored_task.lease_owner) == ("pending", 1, None)


async def test_a_cancelled_body_still_shuts_down(home: Path) -> None:
    opened = asyncio.Event()
    agent = ScriptedAgent(wait_for(asyncio.Event()))

    async def main() -> None:
        async with Runtime.open(settings=Settings.load(home, shutdown_grace=0), agents={"it": agent}) as desk:
            await desk.tasks.submit("x", agent="it")
            await until(lambda: len(agent.turns) == 1)
            opened.set()
            await asyncio.Event().wait()

    await asyncio.to_thread(lambda: None)
    before = footprint()
    running = asyncio.create_task(main())
    await opened.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert compare_footprint(before) == NOTHING
    assert (agent.closed, locks(home)) == (1, set())


async def test_a_channel_that_does_not_close_does_not_block_shutdown(home: Path) -> None:
    class HangingChannel(RecordingChannel):
        async def close(self) -> None:
            raise OSError("no")

    other_channel = RecordingChannel("other")
    before = footprint()
    async with Runtime.open(home, channels={"stuck": HangingChannel("stuck"), "other": other_channel}):
        pass
    assert other_channel.closed
    assert compare_footprint(before) == NOTHING


async def test_a_part_that_does_not_stop_does_not_block_the_others(home: Path) -> None:
    async def broken() -> None:
        raise ForeignError("while stopping")

    await asyncio.to_thread(lambda: None)
    before = footprint()
    with pytest.raises(ForeignError):
        async with Runtime.open(home) as desk:
            desk._parts.append(Part(stop=broken))
    assert compare_footprint(before) == NOTHING
    assert locks(home) == set() and is_free(home)


# -- after the close ---------------------------------------------------------------------------------------------


async def test_a_closed_runtime_refuses_calls(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(result("x"))}) as desk:
        task = await desk.tasks.submit("hello", agent="it")
        await wait_for_end(desk, task)
    for call in (
        desk.tasks.submit("x", agent="it"),
        desk.tasks.get(task.id),
        desk.tasks.list(),
        desk.tasks.cancel(task.id),
        desk.tasks.wait(task.id),
        desk.approvals.list(),
        desk.sessions.list(),
    ):
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(10):
                await call
    assert await _read(desk) == 0  # its followers have ended


async def test_waiting_for_a_task_of_a_closed_runtime_ends(home: Path) -> None:
    async with Runtime.open(home, work=False) as desk:
        task = await desk.tasks.submit("hello", agent="demo")
        await settle(50)
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable):
            await desk.tasks.wait(task.id)


# -- opening -----------------------------------------------------------------------------------------------------


async def test_a_second_server_is_refused_and_the_first_continues(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Home, "claim_up", partialmethod(Home.claim_up, 0.05))
    agents = {"it": ScriptedAgent(result("x"))}
    async with Runtime.open(home, role="up", agents=agents) as desk:
        await wait_for_end(desk, await desk.tasks.submit("hello", agent="it"))
        before = footprint()
        for _ in range(10):
            with pytest.raises(AlreadyRunning, match="midwatch down"):
                async with Runtime.open(home, role="up"):
                    pass
        growth = compare_footprint(before)  # the first runtime continues and may have opened files since
        assert (len(growth.threads) < 5, len(growth.tasks) < 5, growth.descriptors < 10) == (True, True, True), growth
        assert not growth.children
        assert (await wait_for_end(desk, await desk.tasks.submit("hello", agent="it"))).status == "done"
    async with Runtime.open(home, role="up"):
        pass


async def test_a_server_keeps_its_home_and_its_tasks_when_the_directory_run_is_deleted(home: Path) -> None:
    gate = asyncio.Event()
    server_agent = ScriptedAgent(wait_for(gate), result("done by the server"))
    async with Runtime.open(home, role="up", agents={"it": server_agent}) as server:
        info = ServerInfo(os.getpid(), "http://127.0.0.1:1", "1")
        server.home.announce(info)
        task = await server.tasks.submit("x", agent="it")
        await until(lambda: server.running == 1)
        shutil.rmtree(home / "run")
        with pytest.raises(AlreadyRunning, match=f"pid {info.pid}, {info.url}"):
            async with Runtime.open(home, role="up"):
                pass
        async with Runtime.open(home, agents={"it": ScriptedAgent(result("done twice"))}) as other:
            assert not engine_of(other).leads()
            assert engine_of(other).dead([server.id]) == set()
            await other.crew.rescuer.rescue()
            assert (await other.tasks.get(task.id)).lease_owner == server.id
        gate.set()
        ended = await wait_for_end(server, task)
        assert (ended.result, ended.attempt) == ("done by the server", 1)


def newer(home: Path) -> None:
    connection = sqlite3.connect(home / "midwatch.db")
    connection.execute("PRAGMA user_version = 9999")
    connection.execute("PRAGMA application_id = 1835623543")
    connection.execute("CREATE TABLE something (new)")
    connection.commit()
    connection.close()


def garbage(home: Path) -> None:
    (home / "midwatch.db").write_bytes(b"garbage" * 1000)


def unknown_agent(home: Path) -> None:
    (home / "midwatch.toml").write_text('[agents.x]\nkind = "wizard"\n')


def bad_agent(home: Path) -> None:
    (home / "midwatch.toml").write_text('[agents.x]\nkind = "command"\n')


def unknown_channel(home: Path) -> None:
    (home / "midwatch.toml").write_text('[channels.x]\nkind = "pigeon"\n')


def blocked(home: Path) -> None:
    (home / "run").write_text("")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (newer, SchemaTooNew),
        (garbage, StoreCorrupt),
        (unknown_agent, BadConfig),
        (bad_agent, BadConfig),
        (unknown_channel, BadConfig),
        (blocked, HomeUnusable),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
async def test_a_failed_start_is_reported_in_one_line_and_leaves_nothing(
    home: Path, spoil: Callable[[Path], None], problem: type[Exception]
) -> None:
    home.mkdir()
    spoil(home)
    await asyncio.to_thread(lambda: None)
    before = footprint()
    with pytest.raises(problem) as caught:
        async with Runtime.open(home, role="up"):
            pass
    assert len(str(caught.value).splitlines()) == 1
    del caught
    assert compare_footprint(before)._replace(descriptors=0) == NOTHING
    if spoil is not blocked:
        assert is_free(home) and locks(home) == set()


async def test_a_late_failure_at_startup_is_undone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails when everything except the engine has started."""

    async def broken(self: Any, instance: Any) -> None:
        raise StoreUnavailable("the disk is full")

    await asyncio.to_thread(lambda: None)
    before = footprint()
    with monkeypatch.context() as broke:
        broke.setattr("midwatch.stores.base.VerbStore.add_instance", broken)
        with pytest.raises(StoreUnavailable):
            async with Runtime.open(home, role="up"):
                pass
    assert compare_footprint(before) == NOTHING
    assert is_free(home) and locks(home) == set()
    async with Runtime.open(home, role="up", agents={"it": ScriptedAgent(result("x"))}) as desk:
        assert (await wait_for_end(desk, await desk.tasks.submit("hello", agent="it"))).status == "done"


# -- two runtimes in one process ---------------------------------------------------------------------------------


async def test_two_runtimes_of_one_home_run_each_task_once(home: Path) -> None:
    done: list[str] = []

    async def work(turn: Turn) -> str:
        done.append(turn.task_id)
        return "done"

    agents = {"it": ScriptedAgent(work)}
    await asyncio.to_thread(lambda: None)
    before = footprint()
    async with Runtime.open(home, agents=agents) as first_desk, Runtime.open(home, agents=agents) as second_desk:
        assert first_desk.id != second_desk.id
        assert [engine_of(desk).leads() for desk in (first_desk, second_desk)] == [True, False]
        tasks = [await desk.tasks.submit(str(n), agent="it") for n in range(10) for desk in (first_desk, second_desk)]
        for task in tasks:
            assert (await wait_for_end(second_desk, task)).status == "done"
            assert (await wait_for_end(first_desk, task)).status == "done"
        assert sorted(done) == sorted(task.id for task in tasks)
        assert {i.id for i in await first_desk.store.list_instances()} == {first_desk.id, second_desk.id}
    assert compare_footprint(before) == NOTHING
    assert locks(home) == set()


async def test_closing_one_runtime_does_not_affect_agents_of_another(home: Path) -> None:
    settings = load_settings(home)
    async with Runtime.open(settings=settings) as desk:
        async with Runtime.open(settings=settings.model_copy(update={"agents": {}})):
            task = await desk.tasks.submit("sleep 600", agent="shell")
            mark = f"MIDWATCH_TASK={task.id}/1"
            await until(lambda: bool(processes_with(mark)))
        assert processes_with(mark) != []
        assert guard.pid is not None  # the guard still watches it
        await desk.tasks.cancel(task.id)
        assert (await wait_for_end(desk, task)).status == "cancelled"
    assert processes_with(mark) == []
    assert guard.pid is None


async def test_a_closing_runtime_leaves_its_task_to_another(home: Path) -> None:
    settings = Settings.load(home, shutdown_grace=0)
    slow = {"it": ScriptedAgent(wait_for(asyncio.Event()))}
    quick = {"it": ScriptedAgent(result("by the other"))}
    async with Runtime.open(settings=settings, agents=slow) as first:
        task = await first.tasks.submit("x", agent="it")
        await until(lambda: first.running == 1)
        async with Runtime.open(settings=settings, agents=quick) as second:
            for run in list(worker_of(first).running.values()):
                run.interrupt("shutdown")
            await engine_of(first).stop_taking()
            ends = await wait_for_end(second, task)
            assert (ends.status, ends.interruptions) == ("done", 1)


# -- texts that cannot be stored ---------------------------------------------------------------------------------

HALF = "half of a pair: \ud83d"


async def tell_half(turn: Turn) -> str:
    await turn.emit(MessageUpdate(message_id="m", role="agent", message=HALF))
    return "told"


@pytest.mark.parametrize(
    "step", [result(HALF), raise_(AgentError(HALF)), result("x", thread_id=HALF), tell_half],
    ids=["result", "error", "thread", "event"],
)  # fmt: skip
async def test_a_task_ends_whatever_its_agent_returns(home: Path, step: Any) -> None:
    async with Runtime.open(settings=Settings.load(home, shutdown_grace=0), agents={"it": ScriptedAgent(step)}) as desk:
        task = await desk.tasks.submit("x", agent="it")
        async with asyncio.timeout(20):
            ended_task = await desk.tasks.wait(task.id)
        assert ended_task.status in ("done", "failed")


# -- registered agents -------------------------------------------------------------------------------------------


def shout(prompt: str) -> str:
    return prompt.upper()


async def test_functions_agents_and_dotted_paths_can_be_registered(home: Path) -> None:
    agents = {"fn": shout, "path": "textwrap:dedent", "it": ScriptedAgent(result("scripted"))}
    async with Runtime.open(home, agents=agents) as desk:
        tasks = {name: await desk.tasks.submit("  hello", agent=name) for name in agents}
        results = {name: (await wait_for_end(desk, task)).result for name, task in tasks.items()}
    assert results == {"fn": "  HELLO", "path": "hello", "it": "scripted"}


async def test_a_registered_agent_wins_over_a_configured_one(home: Path) -> None:
    settings = load_settings(home)
    async with Runtime.open(settings=settings, agents={"shell": ScriptedAgent(result("mine"))}) as desk:
        assert (await wait_for_end(desk, await desk.tasks.submit("echo theirs", agent="shell"))).result == "mine"


async def test_the_configured_route_and_agent_are_the_defaults(home: Path) -> None:
    channel = RecordingChannel("there")
    settings = load_settings(home, 'notify = "there"\ndefault_agent = "it"\n')
    agents = {"it": ScriptedAgent(result("x"))}
    async with Runtime.open(settings=settings, agents=agents, channels={"there": channel}) as desk:
        task = await desk.tasks.submit("x")
        assert (task.agent, task.route) == ("it", "there")
        await channel.until(lambda c: len(c.delivered) == 1)


async def test_old_data_is_pruned_by_the_settings(home: Path) -> None:
    clock = FakeClock()
    settings = load_settings(home, '[retention]\ntasks = 2\ntask_age = "10m"\n')
    async with Runtime.open(settings=settings, agents={"it": ScriptedAgent(result("x"))}, clock=clock) as desk:
        for _ in range(5):
            task = await desk.tasks.submit("x", agent="it")
            await until(lambda task=task: _is_done(desk, task))  # type: ignore[misc]

        async def has_tasks(count: int, later: float = 0.0) -> bool:
            await clock.advance(later)
            return len(await desk.store.list_tasks(TaskFilter())) == count

        await clock.advance(60)
        await until(lambda: has_tasks(2))
        await until(lambda: has_tasks(0, later=60))


async def _is_done(desk: Runtime, task: Task) -> bool:
    return not (await desk.tasks.get(task.id)).open


async def test_a_runtime_works_on_any_event_loop(home: Path) -> None:
    """The server runs on uvloop, a script on the loop of asyncio."""
    script = (
        "import asyncio, sys, uvloop, midwatch\n"
        "async def main():\n"
        "    async with midwatch.Runtime.open(sys.argv[1]) as desk:\n"
        "        task = await desk.tasks.submit('hello', agent='demo', timeout=60)\n"
        "        print((await desk.tasks.wait(task.id)).status)\n"
        "uvloop.run(main()) if sys.argv[2] == 'uvloop' else asyncio.run(main())\n"
    )
    for loop in ("uvloop", "asyncio"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", script, str(home), loop,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ},
        )  # fmt: skip
        output, problems = await process.communicate()
        assert (output.decode().strip(), problems.decode(), process.returncode) == ("done", "", 0)

"""Test cgroups: with those of this machine, and the limits with a directory tree that stands in for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from midwatch import Runtime, Settings
from midwatch.agents.command import CommandAgent, CommandOptions
from midwatch.base.errors import AgentError, BadConfig
from midwatch.cli.doctor import check_cgroups
from midwatch.domain.agent import ProgramUsage
from midwatch.domain.event import EventFilter
from midwatch.programs import cgroup
from midwatch.programs.cgroup import Cgroup, Cgroups, Limits, find_limit_problem, make_name
from midwatch.programs.guard import guard
from midwatch.programs.process import Child, Output, Program
from midwatch.programs.reaper import _is_running as alive
from midwatch.programs.reaper import identify, reap
from midwatch.programs.sandbox import _try_sandbox, build_sandbox
from midwatch.running.outcome import TurnOutcome, explain_kill
from midwatch.testing import RecordingTurn
from servers import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]


def find_problem() -> str | None:
    try:
        cgroup.find_usable(cgroup.find_own(os.getpid()))
    except (OSError, cgroup.Unusable) as problem:
        return str(problem)
    return None


PROBLEM = find_problem()
real = pytest.mark.skipif(PROBLEM is not None, reason=f"cgroups cannot be used here: {PROBLEM}")

HIDE = """
import os, sys
def hide(*after):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("daemon.new", "w") as note:
                note.write(str(os.getpid()))
            os.rename("daemon.new", "daemon")
            for end in (0, 1, 2):
                os.close(end)
            os.execve("/bin/sleep", ["sleep", "600"], {})
        os._exit(0)
    os.wait()
hide()
while not os.path.exists("daemon") or "sleep" not in open("/proc/" + open("daemon").read() + "/cmdline").read():
    pass
print("hidden", flush=True)
if sys.argv[1:] == ["stay"]:
    import time; time.sleep(600)
"""
"""A program that starts a daemon outside of its process group and session, with an empty environment."""


def hiding(folder: Path, *arguments: str) -> Program:
    argv = (sys.executable, "-c", HIDE, *arguments)
    return Program(agent="x", argv=argv, workdir=str(folder), sandbox=None)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """Return the file with the number of the daemon. Kill a daemon that midwatch has missed."""
    file = tmp_path / "daemon"
    yield file
    if file.exists() and alive(int(file.read_text())):
        os.kill(int(file.read_text()), signal.SIGKILL)


async def start(program: Program, turn: RecordingTurn) -> Child:
    child = await Child.spawn(program, turn, Output(), Output())
    await child.admit(turn)
    return child


# -- with real cgroups ---------------------------------------------------------------------------------------------


@real
async def test_a_hidden_daemon_ends_with_its_child(daemon: Path, tmp_path: Path) -> None:
    turn = RecordingTurn()
    child = await start(hiding(tmp_path), turn)
    await child.exited.wait()
    pid = int(daemon.read_text())
    assert alive(pid) and os.getsid(pid) != child.pgid
    folder = Path(identify(child.pgid).split(":", 3)[3])
    assert folder.name == f"{turn.task_id}-1" and (folder / str(child.pgid)).is_dir()
    await child.end()
    assert not alive(pid)
    assert not folder.exists()
    assert turn.program_usage.cpu_seconds > 0


@real
async def test_a_helper_ends_only_its_own_processes(daemon: Path, tmp_path: Path) -> None:
    turn = RecordingTurn()
    main = await start(hiding(tmp_path, "stay"), turn)
    assert await eventually(daemon.exists)
    program = Program(agent="x", argv=("true",), workdir="/", sandbox=None)
    helper = await Child.spawn(program, turn, Output(), Output(), helper=True)
    await helper.admit(None)
    await helper.end()
    assert alive(int(daemon.read_text())) and not main.exited.is_set()
    await main.end()
    assert not alive(int(daemon.read_text()))


@real
async def test_a_later_turn_gets_the_usage_of_an_open_program() -> None:
    first, later = RecordingTurn(), RecordingTurn()
    script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo counted; cat"
    out = Output()
    child = await Child.spawn(Program(agent="x", argv=("sh", "-c", script), workdir="/", sandbox=None), first, out, out)
    await child.admit(first, more=True)
    assert await eventually(lambda: "counted" in out.text())
    child.report_usage()
    used = first.program_usage.cpu_seconds
    assert used > 0
    await child.serve(later)
    assert later.groups == [child.pgid]
    await child.end()
    assert first.program_usage.cpu_seconds == used
    assert later.program_usage.cpu_seconds < used


@real
async def test_reap_ends_a_hidden_daemon(daemon: Path, tmp_path: Path) -> None:
    turn = RecordingTurn()
    child = await start(hiding(tmp_path, "stay"), turn)
    assert await eventually(daemon.exists)
    boot, _, rest = identify(child.pgid).partition(":")
    child.interrupt("kill")
    await child.exited.wait()
    await reap("t_other", 1, None, f"other-{boot}:{rest}")
    assert alive(int(daemon.read_text())), "the number of another boot means nothing"
    assert await reap("t_other", 1, None, f"{boot}:{rest}") == 1
    assert not alive(int(daemon.read_text()))
    await child.end()


SERVER = """
import asyncio, os, sys
from midwatch.programs import cgroup
from midwatch.programs.guard import guard
from midwatch.programs.process import Child, Output, Program
from midwatch.testing import RecordingTurn

async def main():
    turn = RecordingTurn()
    program = Program(agent="x", argv=(sys.executable, "-c", sys.argv[1], "stay"), workdir=os.getcwd(), sandbox=None)
    child = await Child.spawn(program, turn, Output(), Output())
    await child.admit(turn)
    print(guard.pid, cgroup.cgroups.base, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[subprocess.Popen[str], int, Path]]:
    """Start a process whose program hides a daemon, and yield the process, its guard and its cgroup."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, HIDE], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    watching, base = process.stdout.readline().split()
    yield process, int(watching), Path(base)
    process.kill()
    process.wait()
    process.stdout.close()


@real
async def test_the_guard_ends_a_hidden_daemon_when_the_server_is_killed(
    server: tuple[subprocess.Popen[str], int, Path], daemon: Path
) -> None:
    process, _, base = server
    assert await eventually(daemon.exists)
    process.kill()
    assert await eventually(lambda: not alive(int(daemon.read_text())) and not base.exists())


@real
async def test_the_next_start_ends_a_hidden_daemon_of_a_dead_server_and_its_guard(
    server: tuple[subprocess.Popen[str], int, Path], daemon: Path, home: Path
) -> None:
    process, watching, base = server
    assert await eventually(daemon.exists)
    async with Runtime.open(settings=Settings.load(home, detect_agents=False)):
        assert alive(int(daemon.read_text())), "its server lives"
    os.kill(watching, signal.SIGKILL)
    process.kill()
    process.wait()
    assert alive(int(daemon.read_text()))
    async with Runtime.open(settings=Settings.load(home, detect_agents=False)):
        assert not alive(int(daemon.read_text()))
        assert not base.exists()


@real
async def test_a_cancelled_and_a_finished_task_leave_no_hidden_daemon(home: Path, daemon: Path, tmp_path: Path) -> None:
    options = CommandOptions(argv=(sys.executable, "-c", HIDE, "{prompt}"), workdir=str(tmp_path))
    settings = Settings.load(home, detect_agents=False, shutdown_grace=0)
    async with Runtime.open(settings=settings, agents={"x": CommandAgent("x", options)}) as desk:
        task = await desk.tasks.submit("stay", agent="x")
        assert await eventually(daemon.exists)
        await desk.tasks.cancel(task.id)
        async with asyncio.timeout(PATIENCE):
            assert (await desk.tasks.wait(task.id)).outcome == "cancelled"
        assert not alive(int(daemon.read_text()))
        daemon.unlink()
        task = await desk.tasks.submit("leave", agent="x")
        async with asyncio.timeout(PATIENCE):
            assert (await desk.tasks.wait(task.id)).result == "hidden"
        assert not alive(int(daemon.read_text()))
        (end,) = await desk.store.read_events(0, EventFilter(kinds=("turn_end",), task_id=task.id))
        assert end.payload["cpu_seconds"] > 0


@real
@pytest.mark.skipif(_try_sandbox("bwrap") is not None, reason="bubblewrap cannot be used here")
async def test_a_sandboxed_program_cannot_leave_its_cgroup(tmp_path: Path) -> None:
    own = cgroup.find_own(os.getpid())
    assert own is not None
    for box in (build_sandbox("x", "bwrap", str(tmp_path / "home"), write=[], read=[]), None):
        script = f"echo 0 > {own}/cgroup.procs && echo left; mkdir {own}/midwatch-test && rmdir {own}/midwatch-test"
        program = Program(agent="x", argv=("sh", "-c", script), workdir=str(tmp_path), sandbox=box)
        out, turn = Output(), RecordingTurn()
        child = await Child.spawn(program, turn, out, Output())
        await child.admit(turn)
        await child.exited.wait()
        await child.end()
        assert (out.text() == "left\n", child.returncode == 0) == (box is None, box is None)


@real
async def test_cgroups_work_after_the_guard_has_ended(daemon: Path, tmp_path: Path) -> None:
    for _ in range(2):
        child = await start(hiding(tmp_path), RecordingTurn())
        await child.exited.wait()
        await child.end()
        assert not alive(int(daemon.read_text()))
        daemon.unlink()
        guard.close()
        assert cgroup.cgroups.base is not None and not cgroup.cgroups.base.exists()


# -- limits, with plain files instead of those of the kernel --------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory like the cgroup of a service whose manager has delegated all controllers."""
    own = tmp_path / "midwatch.service"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.subtree_control").write_text("\n")
    (own / "cgroup.type").write_text("domain\n")
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return own


def fake_cgroups(own: Path) -> Cgroups:
    found = Cgroups()
    found.base = own / make_name(os.getpid())
    return found


def test_limits_are_written_and_midwatch_steps_aside(tree: Path) -> None:
    found = fake_cgroups(tree)
    assert found.base is not None
    placed = found.place("x", "t_1/2", 77, Limits(memory=4 << 30, pids=512))
    assert placed is not None
    attempt = found.base / "t_1-2"
    assert placed.path == attempt / "77"
    assert (attempt / "memory.max").read_text() == str(4 << 30)
    assert (attempt / "pids.max").read_text() == "512"
    assert (placed.path / "cgroup.procs").read_text() == "77"
    for folder in (tree, found.base):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids"
    server = tree / f"{found.base.name}.server"
    assert (server / "cgroup.procs").read_text() == str(os.getpid())


def test_without_limits_midwatch_stays_where_it_is(tree: Path) -> None:
    found = fake_cgroups(tree)
    placed = found.place("x", "t_1/1", 77, None)
    assert placed is not None and not (placed.attempt / "memory.max").exists()
    assert (tree / "cgroup.subtree_control").read_text() == "\n"
    assert not list(tree.glob("*.server"))


def test_limits_that_cannot_be_set_are_an_error(tree: Path) -> None:
    (tree / "cgroup.controllers").write_text("cpu pids\n")
    with pytest.raises(AgentError, match=r"agents\.x cannot be set: .* has no controller 'memory'; run midwatch as"):
        fake_cgroups(tree).place("x", "t_1/1", 77, Limits(memory=1 << 30))
    assert find_limit_problem(tree, "pids", os.getpid()) is None
    (tree / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    with pytest.raises(AgentError, match=f"processes of others, such as {os.getppid()}"):
        fake_cgroups(tree).place("x", "t_1/1", 77, Limits(pids=5))
    assert not list(tree.glob("*.server")), "nothing was moved"


def test_doctor_tells_which_limits_can_be_set(tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "midwatch.toml").write_text('[agents.x]\nargv = ["true"]\nmemory = "1G"\npids = 9\n')
    monkeypatch.setattr(cgroup, "find_own", lambda pid: tree)
    monkeypatch.setattr(cgroup, "find_usable", lambda own: own)
    (ok,) = check_cgroups(Settings.load(home))
    assert ok.state == "ok" and ok.told.endswith("limits that can be set: memory, pids")
    (tree / "cgroup.controllers").write_text("pids\n")
    ok, bad = check_cgroups(Settings.load(home))
    assert ok.told.endswith("limits that can be set: pids")
    assert (bad.state, bad.what, bad.told) == ("bad", "agent x", "its limit memory cannot be set")
    monkeypatch.undo()
    monkeypatch.setattr(cgroup, "find_own", lambda pid: None)
    ok, *bad_ones = check_cgroups(Settings.load(home))
    assert ok.told == "not used: this system has no cgroup v2" and len(bad_ones) == 2


@pytest.mark.usefixtures("without_cgroups")
async def test_a_program_with_limits_never_runs_without_them(tmp_path: Path) -> None:
    program = Program(agent="x", argv=("touch", "ran"), workdir=str(tmp_path), sandbox=None, limits=Limits(pids=5))
    with pytest.raises(AgentError, match="this system has no cgroup v2"):
        await start(program, RecordingTurn())
    assert not (tmp_path / "ran").exists()


def test_usage_is_read_and_a_lack_of_memory_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "t_1-1" / "77"
    path.mkdir(parents=True)
    (path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (path.parent / "memory.peak").write_text("4096\n")
    (path.parent / "memory.events").write_text("low 0\noom 1\noom_kill 2\noom_group_kill 0\n")
    one = Cgroup(path)
    assert one.take_usage() == ProgramUsage(1.5, 4096, 2)
    (path / "cpu.stat").write_text("usage_usec 2000000\n")
    assert one.take_usage() == ProgramUsage(0.5, 4096, 2)
    failed = TurnOutcome("error", error="x was ended by SIGKILL")
    assert "reached the memory limit" in (explain_kill(failed, one.take_usage()).error or "")
    assert explain_kill(failed, ProgramUsage()) is failed
    fine = TurnOutcome("ok", text="done")
    assert explain_kill(fine, one.take_usage()) is fine


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('kind = "demo"\nmemory = "1G"', "agents.x.memory: kind demo starts no programs; remove the setting."),
        ('kind = "demo"\npids = 9', "agents.x.pids: kind demo starts no programs; remove the setting."),
        ('argv = ["true"]\nmemory = "many"', "write a number of bytes, or a text such as 512M or 4G"),
        ('argv = ["true"]\nmemory = "1K"', "at least 1048576"),
    ],
)
async def test_wrong_limits_are_refused(section: str, message: str, home: Path) -> None:
    home.mkdir()
    (home / "midwatch.toml").write_text(f"[agents.x]\n{section}\n")
    with pytest.raises(BadConfig) as refused:
        async with Runtime.open(home):
            pass
    assert message in str(refused.value)


def test_sizes_are_read(home: Path) -> None:
    home.mkdir()
    for text, size in (('"4G"', 4 << 30), ('"1.5 M"', 3 << 19), ('"2048k"', 2 << 20), ("2097152", 2 << 20)):
        (home / "midwatch.toml").write_text(f"[agents.x]\nmemory = {text}\n")
        assert Settings.load(home).agents["x"].memory == size

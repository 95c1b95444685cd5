"""Test child processes with real programs: the start gate, output, endings, the guard, and recovery."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from midwatch.base.errors import AgentError, LeaseLost, TransientError
from midwatch.domain.agent import Turn, TurnResult
from midwatch.programs import process, reaper
from midwatch.programs.guard import Guard, guard
from midwatch.programs.process import Child, Output, ProcessConversation, Program
from midwatch.programs.reaper import _is_running as alive
from midwatch.programs.reaper import end_group, end_strays, identify, members, reap
from midwatch.testing import RecordingTurn
from servers import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]

NOWHERE = 5_000_000
"""Above the largest process number, so that a signal to it reaches nobody."""


def shell(script: str, **fields: object) -> Program:
    return Program(**{"agent": "x", "argv": ("sh", "-c", script), "workdir": "/", "sandbox": None, **fields})


# Not a shell: dash loses an interrupt that comes while it starts a program.
HANG = "import time; print('ready', flush=True); time.sleep(600)"
HANGING = Program(agent="x", argv=(sys.executable, "-c", HANG), workdir="/", sandbox=None)


class OutputBuffer:
    """A buffer of output that tests can wait for."""

    def __init__(self) -> None:
        self.text = ""
        self.news = asyncio.Event()
        self.output = Output(tell=self.add)

    def add(self, text: str) -> None:
        self.text += text
        self.news.set()

    async def until(self, part: str) -> None:
        while part not in self.text:
            self.news.clear()
            await self.news.wait()


@asynccontextmanager
async def start_child(program: Program, turn: RecordingTurn | None = None) -> AsyncIterator[tuple[Child, OutputBuffer]]:
    turn = turn or RecordingTurn()
    buffer = OutputBuffer()
    child = await Child.spawn(program, turn, buffer.output, Output())
    try:
        await child.admit(turn)
        yield child, buffer
    finally:
        child.interrupt("kill")
        await child.end()


async def run(program: Program, turn: RecordingTurn | None = None, stdin: bytes = b"") -> tuple[Child, str, str]:
    turn = turn or RecordingTurn()
    out, err = Output(), Output()
    child = await Child.spawn(program, turn, out, err)
    await child.admit(turn, stdin)
    await child.exited.wait()
    await child.end()
    return child, out.text(), err.text()


# -- starting ----------------------------------------------------------------------------------------------------


async def test_both_streams_and_the_exit_code_are_returned() -> None:
    child, out, err = await run(shell("echo one; echo two >&2; exit 7"))
    assert (child.returncode, out, err) == (7, "one\n", "two\n")


async def test_standard_input_after_the_gate_belongs_to_the_program() -> None:
    data = b"go\n" + b"line\n" * 200_000
    _, out, _ = await run(Program(agent="x", argv=("cat",), workdir="/", sandbox=None), stdin=data)
    assert out.encode() == data


async def test_unread_input_does_not_delay_the_end() -> None:
    child, _, _ = await run(shell("exit 0"), stdin=b"x" * 5_000_000)
    assert child.returncode == 0


async def test_the_program_runs_only_after_its_group_was_recorded(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class SlowTurn(RecordingTurn):
        async def own_group(self, pgid: int) -> None:
            assert alive(pgid)
            assert os.getpgid(pgid) == os.getsid(pgid) == pgid != os.getpgid(0)
            assert not ran.exists()
            await super().own_group(pgid)

    turn = SlowTurn()
    child, _, _ = await run(shell(f"touch {ran}"), turn)
    assert turn.groups == [child.pgid]
    assert ran.exists()


async def test_without_the_go_signal_the_program_never_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    child = await Child.spawn(shell(f"touch {ran}"), RecordingTurn(), Output(), Output())
    child.end_input()
    await child.exited.wait()
    await child.end()
    assert child.returncode == 125
    assert not ran.exists()


async def test_a_refused_group_is_ended_before_it_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class RefusingTurn(RecordingTurn):
        async def own_group(self, pgid: int) -> None:
            self.groups.append(pgid)
            raise LeaseLost(self.task_id, self.attempt)

    class ShellConversation(ProcessConversation):
        async def work(self, turn: Turn) -> TurnResult:
            async with self.child(shell(f"touch {ran}"), turn, Output(), Output()) as child:
                await child.admit(turn)
                await child.exited.wait()
            return TurnResult()

    turn = RefusingTurn()
    with pytest.raises(LeaseLost):
        await ShellConversation().turn(turn)
    assert members(turn.groups[0]) == set()
    assert not ran.exists()


def test_the_directory_of_a_child_is_in_its_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PWD", "/elsewhere")
    assert shell("true", workdir=str(tmp_path)).environment({})["PWD"] == str(tmp_path)


async def test_environment_variables_are_merged_from_server_agent_and_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MW_A", "MW_B", "MW_C"):
        monkeypatch.setenv(name, "ours")
    turn = RecordingTurn(env={"MW_C": "turn"})
    program = shell("echo $MW_A $MW_B $MW_C $MIDWATCH_TASK", env={"MW_B": "agent", "MW_C": "agent"})
    _, out, _ = await run(program, turn)
    assert out.split() == ["ours", "agent", "turn", f"{turn.task_id}/1"]


async def test_a_missing_program_is_reported_before_anything_starts(tmp_path: Path) -> None:
    turn = RecordingTurn()
    with pytest.raises(AgentError, match=r"program 'no-such-x' is not installed .* change agents\.x\.argv"):
        await Child.spawn(Program(agent="x", argv=("no-such-x",), workdir="/", sandbox=None), turn, Output(), Output())
    plain = tmp_path / "plain"
    plain.write_text("not executable")
    assert Program(agent="x", argv=(str(plain),), workdir="/", sandbox=None).problem() is not None
    assert turn.groups == []


async def test_programs_are_found_in_the_path_of_the_child(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    for program in (
        Program(agent="x", argv=("./tool",), workdir=str(tmp_path), sandbox=None),
        Program(agent="x", argv=("tool",), workdir="/", sandbox=None, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}),
    ):
        assert (await run(program))[1] == "found\n"
    assert Program(agent="x", argv=("./tool",), workdir="/", sandbox=None).problem() is not None


def test_a_missing_working_directory_is_reported(tmp_path: Path) -> None:
    problem = shell("true", workdir=str(tmp_path / "gone")).problem()
    assert problem is not None and "does not exist" in problem and "agents.x.workdir" in problem


def test_temporary_failures_are_distinguished() -> None:
    convert = shell("true")._convert_error
    assert isinstance(convert(OSError(11, "Resource temporarily unavailable")), TransientError)
    assert not isinstance(convert(OSError(13, "Permission denied")), TransientError)


# -- output ------------------------------------------------------------------------------------------------------


def read_output(output: Output, *chunks: bytes) -> str:
    for chunk in chunks:
        output.data_received(chunk)
    return output.text()


def test_output_within_the_limit_is_complete() -> None:
    assert read_output(Output(10), b"01234", b"56789") == "0123456789"


def test_of_too_much_output_head_and_tail_are_kept() -> None:
    text = read_output(Output(10), *(bytes([48 + n % 10]) for n in range(1000)))
    assert text == "01234\n… 990 bytes left out …\n56789"


def test_no_character_is_split_at_the_cut() -> None:
    sign = "€".encode()
    assert read_output(Output(10), sign * 100) == "€\n… 294 bytes left out …\n€"


def test_invalid_bytes_and_nul_do_no_harm() -> None:
    assert read_output(Output(), b"a\xff\0b\xe2\x82") == "a\ufffdb\ufffd"


def test_a_character_split_over_two_reads_is_sent_whole() -> None:
    pieces: list[str] = []
    read_output(Output(tell=pieces.append), "€".encode()[:1], "€".encode()[1:] + b"\0!")
    assert pieces == ["€!"]


def test_no_output_is_sent_above_the_limit() -> None:
    pieces: list[str] = []
    read_output(Output(10, pieces.append), b"123456", b"7890AB", b"CD")
    assert "".join(pieces) == "1234567890"


def test_fifty_megabytes_use_limited_memory() -> None:
    output, chunk = Output(1_000_000), b"x" * 65536
    tracemalloc.start()
    try:
        for _ in range(800):
            output.data_received(chunk)
        text = output.text()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert output.total == 800 * 65536
    assert len(text) < 1_000_100
    assert peak < 10_000_000


async def test_fifty_megabytes_from_a_child_do_not_block_the_loop() -> None:
    out, turn = Output(), RecordingTurn()
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.thread_time()  # the CPU time of the loop itself, however busy the machine is
            await asyncio.sleep(0.001)
            worst = max(worst, time.thread_time() - before)

    ticking = asyncio.create_task(tick())
    child = await Child.spawn(shell("head -c 50000000 /dev/zero | tr '\\0' x"), turn, out, Output())
    await child.admit(turn)
    await child.exited.wait()
    await child.end()
    ticking.cancel()
    assert child.returncode == 0
    assert out.total == 50_000_000
    assert len(out.text()) < process.OUTPUT_LIMIT + 100
    assert worst < 1.0


# -- ending ------------------------------------------------------------------------------------------------------


async def test_each_interrupt_sends_its_signal_to_the_whole_group() -> None:
    script = "trap 'echo int' INT; trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done"
    async with start_child(shell(script)) as (child, buffer):
        await buffer.until("ready")
        child.interrupt("stop")
        await buffer.until("int")
        child.interrupt("terminate")
        await buffer.until("term")
        assert not child.exited.is_set()
        child.interrupt("kill")
        await child.end()
        assert child.returncode == -signal.SIGKILL
        assert members(child.pgid) == set()


async def test_a_child_that_ignores_signals_is_killed() -> None:
    async with start_child(shell("trap '' INT TERM; echo ready; while :; do sleep 0.05; done")) as (child, buffer):
        await buffer.until("ready")
        await child.end()
        assert child.returncode == -signal.SIGKILL
        assert members(child.pgid) == set()


async def test_remaining_processes_of_the_group_are_ended(tmp_path: Path) -> None:
    polite = "sleep 600 &"
    stubborn = "(trap '' TERM; touch on; while :; do sleep 0.05; done) & while ! test -e on; do sleep 0.01; done"
    for script in (polite, stubborn):
        child, _, _ = await run(shell(f"{script}\nexit 3", workdir=str(tmp_path)))
        assert child.returncode == 3
        assert members(child.pgid) == set()


LEAVER = """
import subprocess, sys
stray = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
while not open(f"/proc/{stray}/environ").read(): pass  # a program that begins has none yet
print(stray, flush=True)
if sys.argv[1:] == ["stay"]: sys.stdin.read(); import time; time.sleep(600)
"""


def leaver(*arguments: str) -> Program:
    return Program(agent="x", argv=(sys.executable, "-c", LEAVER, *arguments), workdir="/", sandbox=None)


@pytest.mark.usefixtures("without_cgroups")
async def test_a_process_that_left_the_group_does_not_delay_the_end() -> None:
    turn = RecordingTurn()
    child, out, _ = await run(leaver(), turn)
    stray = int(out)
    assert child.returncode == 0
    assert alive(stray), "one that left by itself after a good end is let go"
    assert await end_strays(turn.task_id, 11) == 0
    assert await end_strays(turn.task_id[:-1], 1) == 0
    assert alive(stray)
    assert await end_strays(turn.task_id, 1) == 1
    assert not alive(stray)


async def test_an_interrupt_ends_processes_that_left_the_group() -> None:
    async with start_child(leaver("stay"), RecordingTurn()) as (child, buffer):
        await buffer.until("\n")
        stray = int(buffer.text)
        assert os.getpgid(stray) != child.pgid
        child.interrupt("terminate")
        await child.end()
        assert not alive(stray)


async def test_end_strays_returns_after_the_processes_are_gone() -> None:
    turn = RecordingTurn()
    heavy = "x = b'x' * 200_000_000; print(flush=True); import time; time.sleep(600)"  # freeing its memory takes time
    with subprocess.Popen(
        [sys.executable, "-c", heavy], stdout=subprocess.PIPE, env={**os.environ, **turn.env}, start_new_session=True
    ) as stray:
        assert stray.stdout is not None and stray.stdout.readline()
        assert await end_strays(turn.task_id, turn.attempt) == 1
        assert not alive(stray.pid)


async def test_an_abandoned_turn_leaves_no_process() -> None:
    class ShellConversation(ProcessConversation):
        async def work(self, turn: Turn) -> TurnResult:
            async with self.child(shell("trap '' TERM; sleep 600"), turn, Output(), Output()) as child:
                await child.admit(turn)
                await child.exited.wait()
            return TurnResult()

    talk, turn = ShellConversation(), RecordingTurn()
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: bool(t.groups))
    working.cancel()
    working.cancel()
    await asyncio.wait({working})
    await talk.close()
    assert members(turn.groups[0]) == set()


async def test_an_interrupt_before_the_child_exists_is_not_lost() -> None:
    class ShellConversation(ProcessConversation):
        async def work(self, turn: Turn) -> TurnResult:
            await self.interrupt("terminate")
            async with self.child(shell("sleep 600"), turn, Output(), Output()) as child:
                await child.admit(turn)
                await child.exited.wait()
            return TurnResult(text=str(child.returncode))

    assert (await ShellConversation().turn(RecordingTurn())).text == str(-signal.SIGTERM)


def test_a_child_receives_sigint_although_the_server_ignores_it(tmp_path: Path) -> None:
    parent = f"""
import asyncio, signal, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from test_process import HANGING, guard, start_child
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

async def main():
    async with start_child(HANGING) as (child, heard):
        await heard.until("ready")
        child.interrupt("stop")
        await child.exited.wait()
    assert child.returncode == -signal.SIGINT
    signal.raise_signal(signal.SIGINT)  # we still ignore it
    print("heard")

asyncio.run(main())
"""
    deaf = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", parent)
    assert subprocess.run(deaf, capture_output=True, text=True, timeout=60).stdout == "heard\n"


async def test_processes_work_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    child, out, _ = await run(shell("echo hello; exit 5"))
    assert (child.returncode, out) == (5, "hello\n")


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_processes_work_on_every_event_loop(run_loop: Callable[..., None]) -> None:
    async def scenario() -> None:
        data = b"x" * 1_000_000
        child, out, _ = await run(Program(agent="x", argv=("cat",), workdir="/", sandbox=None), stdin=data)
        assert (child.returncode, len(out)) == (0, len(data))
        async with start_child(HANGING) as (child, buffer):
            await buffer.until("ready")
            child.interrupt("stop")
            await child.exited.wait()
            await child.end()
            assert child.returncode == -signal.SIGINT

    run_loop(scenario())


# -- process marks -----------------------------------------------------------------------------------------------


async def test_a_process_mark_survives_exec_and_is_unique() -> None:
    turn = RecordingTurn()
    buffer = OutputBuffer()
    child = await Child.spawn(shell("echo ready; exec sleep 600"), turn, buffer.output, Output())
    at_the_gate = identify(child.pgid)
    await child.admit(turn)
    await buffer.until("ready")
    assert identify(child.pgid) == at_the_gate != identify(os.getpid())
    child.interrupt("kill")
    await child.end()
    assert identify(child.pgid) == ""


async def test_a_group_is_ended_only_if_its_mark_matches() -> None:
    async with start_child(shell("sleep 600 & echo ready; wait")) as (child, buffer):
        await buffer.until("ready")
        mark = identify(child.pgid)
        boot, start, _ = mark.split(":", 2)
        for wrong in ("", None, f"{boot}:{int(start) - 1}", f"another-boot:{start}"):
            assert await end_group(child.pgid, wrong) == 0
        assert not child.exited.is_set()
        assert await end_group(child.pgid, mark) == 2
        await child.exited.wait()


async def test_reap_ends_the_group_and_processes_that_left_it() -> None:
    turn = RecordingTurn()
    async with start_child(leaver("stay"), turn) as (child, buffer):
        await buffer.until("\n")
        assert await reap(turn.task_id, turn.attempt, child.pgid, identify(child.pgid)) == 2
        assert not alive(int(buffer.text))
    assert await reap(turn.task_id, turn.attempt, child.pgid, identify(child.pgid)) == 0
    assert await reap(turn.task_id, turn.attempt, None, None) == 0


async def test_reap_finds_processes_of_the_attempt_that_opened_the_conversation() -> None:
    first, later = RecordingTurn(), RecordingTurn()
    async with start_child(leaver("stay"), first) as (child, buffer):
        await buffer.until("\n")
        mark = identify(child.pgid)
        child.interrupt("kill")
        await child.exited.wait()
        assert await reap(later.task_id, later.attempt, child.pgid, mark) == 1
        assert not alive(int(buffer.text))


async def test_without_proc_nothing_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reaper, "PROC", tmp_path / "none")
    monkeypatch.setattr(reaper, "boot_id", lambda: "")
    assert identify(os.getpid()) == ""
    assert await reap("t_none", 1, os.getpgid(0), identify(os.getpgid(0))) == 0


# -- the guard ---------------------------------------------------------------------------------------------------

PARENT = """
import asyncio, os, sys, time
from midwatch.programs.process import Child, Output, Program
from midwatch.testing import RecordingTurn

async def main(how):
    turn = RecordingTurn()
    argv = ("sh", "-c", "touch ran; sleep 600 & sleep 600")
    program = Program(agent="x", argv=argv, workdir=os.getcwd(), sandbox=None)
    child = await Child.spawn(program, turn, Output(), Output())
    if how != "gate":
        await child.admit(turn)
    copy = os.fork() if how == "fork" else None
    if copy == 0:
        time.sleep(600)
    print(child.pgid, *filter(None, [copy]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], list[int]]]]:
    running: list[subprocess.Popen[str]] = []

    def start(how: str) -> tuple[subprocess.Popen[str], list[int]]:
        child = subprocess.Popen(
            [sys.executable, "-c", PARENT, how], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        running.append(child)
        assert child.stdout is not None
        return child, [int(number) for number in child.stdout.readline().split()]

    yield start
    for child in running:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


async def test_the_guard_ends_all_groups_when_the_server_is_killed(
    parent: Callable[[str], tuple[subprocess.Popen[str], list[int]]], tmp_path: Path
) -> None:
    dying, (pgid,) = parent("run")
    assert await eventually(lambda: (tmp_path / "ran").exists() and len(members(pgid)) == 3)
    dying.kill()
    assert await eventually(lambda: not members(pgid))


async def test_a_server_killed_before_the_go_signal_never_runs_the_program(
    parent: Callable[[str], tuple[subprocess.Popen[str], list[int]]], tmp_path: Path
) -> None:
    dying, (pgid,) = parent("gate")
    assert len(members(pgid)) == 1
    dying.kill()
    assert await eventually(lambda: not members(pgid))
    assert not (tmp_path / "ran").exists()


async def test_a_fork_of_the_server_does_not_keep_the_guard_alive(
    parent: Callable[[str], tuple[subprocess.Popen[str], list[int]]],
) -> None:
    dying, (pgid, copy) = parent("fork")
    try:
        dying.kill()
        assert await eventually(lambda: not members(pgid))
        assert alive(copy)
    finally:
        os.kill(copy, signal.SIGKILL)


async def test_the_guard_exits_silently_with_the_server() -> None:
    code = f"""
import asyncio, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from test_process import HANGING, guard, run, shell, Child, Output, RecordingTurn

async def main():
    await run(shell("true"))
    turn = RecordingTurn()
    child = await Child.spawn(HANGING, turn, Output(), Output())
    await child.admit(turn)
    print(guard.pid, child.pgid)

asyncio.run(main())
"""
    result = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    watching, pgid = map(int, result.stdout.split())
    assert await eventually(lambda: not alive(watching) and not members(pgid))


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return running[-1]

    yield start
    for child in running:
        child.kill()
        child.wait()


def orphan(own_guard: Guard) -> None:
    """Close the connection to the guard, as the end of the process would."""
    own_guard._close_pipe()


def test_the_guard_tracks_hundreds_of_groups_correctly(
    sleeper: Callable[[], subprocess.Popen[bytes]],
) -> None:
    watched, forgotten = sleeper(), sleeper()
    own_guard = Guard()
    other_pgids = [
        NOWHERE + n for n in (*range(400), *range(10_000, 10_400), 10 * watched.pid, int(f"9{watched.pid}0"))
    ]
    for pgid in (*other_pgids[:300], forgotten.pid, *other_pgids[300:600], watched.pid, *other_pgids[600:]):
        own_guard.watch(pgid)
    for pgid in (*reversed(other_pgids), forgotten.pid, NOWHERE - 1):
        own_guard.forget(pgid)
    orphan(own_guard)
    assert watched.wait(timeout=30) == -signal.SIGKILL
    assert forgotten.poll() is None


def test_a_dead_guard_is_replaced_with_all_groups(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    first, second = sleeper(), sleeper()
    own_guard = Guard()
    own_guard.watch(first.pid)
    dead = own_guard._process
    assert dead is not None
    dead.kill()
    dead.wait()
    assert first.poll() is None, "a guard that is killed ends nothing"
    own_guard.watch(second.pid)
    assert own_guard.pid != dead.pid
    orphan(own_guard)
    assert first.wait(timeout=30) == second.wait(timeout=30) == -signal.SIGKILL


def test_a_guard_that_does_not_read_blocks_nobody(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    process = sleeper()
    own_guard = Guard()
    own_guard.watch(process.pid)
    deaf = own_guard.pid
    assert deaf is not None
    os.kill(deaf, signal.SIGSTOP)
    for n in range(20_000):
        own_guard.forget(NOWHERE + n)
    assert own_guard.pid != deaf
    assert process.poll() is None
    orphan(own_guard)
    assert process.wait(timeout=30) == -signal.SIGKILL


def test_the_guard_is_idle_only_without_groups() -> None:
    own_guard = Guard()
    own_guard.close()
    own_guard.watch(NOWHERE)
    watching = own_guard.pid
    own_guard.close()
    assert own_guard.pid == watching is not None
    own_guard.forget(NOWHERE)
    own_guard.close()
    assert own_guard.pid is None and not alive(watching)


async def test_the_guard_removes_a_group_that_ended() -> None:
    child, _, _ = await run(shell("exit 0"))
    assert child.pgid not in guard._groups

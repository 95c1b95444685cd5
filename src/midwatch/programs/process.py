"""Child processes: each child starts behind a gate, in a process group of its own, which is ended as a whole.

The gate is a shell that waits for one line and then becomes the program. midwatch sends the line after the process
group was written to the store. If midwatch dies before that, the shell reads end-of-file from its pipe and exits, and
the program never runs. If midwatch dies later, the guard ends the group. When the task is rescued, `reap` ends
processes that are still alive. Where cgroups can be used, the shell is also put in a cgroup before it becomes the
program, and all processes in the cgroup end with the child.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from midwatch.base.directories import open_pinned
from midwatch.base.errors import AgentError, Conflict, TransientError
from midwatch.base.threads import in_thread
from midwatch.domain.agent import Interrupt, ProgramOwner, Turn, TurnResult
from midwatch.programs.cgroup import Cgroup, Limits, cgroups
from midwatch.programs.egress import Egress
from midwatch.programs.guard import guard
from midwatch.programs.reaper import ATTEMPTS_BY_GROUP, PATIENCE, end_members, end_strays, signal_group
from midwatch.programs.sandbox import Sandbox

GATE = 'read -r _ || exit 125; exec "$@"'
TOGETHER = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
"""A value for `Program.enter` that joins standard output and standard error of the program in one pipe, in order."""
SIGNALS: Mapping[Interrupt, signal.Signals] = {
    "stop": signal.SIGINT,
    "terminate": signal.SIGTERM,
    "kill": signal.SIGKILL,
}
PREPARE_SECONDS = 30.0
OUTPUT_LIMIT = 10_000_000
GRACE = 0.5  # seconds between SIGTERM and SIGKILL for the remaining processes of a group
DRAIN = 0.2  # seconds to wait for the end of output when a process that left the group still holds the pipe
TEMPORARY_ERRORS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to start: its agent, its command line, its working directory, its sandbox and its variables."""

    agent: str
    argv: tuple[str, ...]
    workdir: str
    sandbox: Sandbox | None
    """The sandbox, or None. The field has no default, so that no program is started without a sandbox by mistake."""
    limits: Limits | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    enter: tuple[str, ...] = ()
    """A command that runs before the program, outside of the sandbox, and becomes the program."""

    def environment(self, turn_env: Mapping[str, str]) -> dict[str, str]:
        """Return the child's environment: the variables of midwatch, of the agent and of the turn.

        If a name occurs twice, the variable of the turn replaces that of the agent, and both replace that of midwatch.
        PWD is the child's own directory, because some programs work in the directory that it names.
        """
        own = os.environ if self.sandbox is None else self.sandbox.environment(os.environ)
        return {**own, "PWD": self.workdir, **self.env, **turn_env}

    def problem(self) -> str | None:
        """Return why the program cannot be started here, or None."""
        if not Path(self.workdir).is_dir():
            return f"working directory {self.workdir!r} does not exist; create it or change agents.{self.agent}.workdir"
        name = self.argv[0]
        if "/" in name:
            path = os.path.join(self.workdir, name)  # noqa: PTH118 - an absolute name must win, as in exec
            exists = os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113
        else:
            exists = shutil.which(name, path=self.environment({}).get("PATH", os.defpath)) is not None
        if not exists:
            return f"program {name!r} is not installed or not executable; install it or change agents.{self.agent}.argv"
        return self.sandbox.problem(self.workdir) if self.sandbox is not None else None

    def open_egress(self, turn_env: Mapping[str, str]) -> Egress | None:
        """Return the way out of the sandbox, if its network has a proxy."""
        if self.sandbox is None or self.sandbox.network != "proxy":
            return None
        return Egress.for_agent(self.agent, self.sandbox.hosts, turn_env)

    async def spawn(
        self, turn_env: Mapping[str, str], egress: Egress | None, pin: str | None
    ) -> subprocess.Popen[bytes]:
        """Start the shell that waits at the gate. If the working directory has a pin, the shell starts only there.

        An agent may have written the files that are read before, or a file system may not answer. So they are read in a
        thread and in limited time. The shell is started on the thread of the event loop: if the thread that started a
        sandbox ends, the system ends the sandbox.
        """
        with nullcontext() if pin is None else open_pinned(self.workdir, pin) as directory:
            try:
                argv, env = await in_thread(
                    partial(self._prepare, turn_env, egress, directory), seconds=PREPARE_SECONDS
                )
                return self._spawn(argv, env, egress, directory)
            except TimeoutError:
                text = f"the file system of {self.workdir} did not answer within {PREPARE_SECONDS:g} s; check it"
                raise TransientError(text) from None
            except Conflict as problem:
                raise AgentError(str(problem)) from None
            except OSError as problem:
                raise self._convert_error(problem) from problem

    def _prepare(
        self, turn_env: Mapping[str, str], egress: Egress | None, directory: int | None
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command line and the environment of the child. Raise AgentError if it cannot be started here."""
        if problem := self.problem():
            raise AgentError(problem)
        argv, env = self.argv, self.environment(turn_env)
        if egress is not None:
            argv = egress.wrap(argv)
        return (argv, env) if self.sandbox is None else self.sandbox.command(argv, self.workdir, env, directory)

    def _spawn(
        self, argv: tuple[str, ...], env: Mapping[str, str], egress: Egress | None, directory: int | None
    ) -> subprocess.Popen[bytes]:
        """Start the shell in the open directory, or in the directory at the path if nothing is open."""
        _stop_ignoring_interrupts()
        held = f"/proc/self/fd/{directory}"
        return subprocess.Popen(
            ("/bin/sh", "-c", GATE, "midwatch-child", *self.enter, *argv),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            cwd=held if directory is not None and Path(held).exists() else self.workdir, env=env,
            start_new_session=True, pass_fds=egress.pass_fds if egress else (),
        )  # fmt: skip

    def _convert_error(self, problem: OSError) -> AgentError:
        if problem.errno == errno.E2BIG:
            return AgentError(
                "the prompt is too long for a command line; leave {prompt} out of "
                f"agents.{self.agent}.argv to pass it on standard input"
            )
        text = f"program {self.argv[0]!r} could not be started: {problem.strerror}"
        return TransientError(text) if problem.errno in TEMPORARY_ERRORS else AgentError(text)


def _stop_ignoring_interrupts() -> None:
    """Make sure that children do not ignore SIGINT.

    If a script starts midwatch in the background, midwatch ignores SIGINT, and its children would ignore SIGINT too.
    With an empty handler midwatch also does nothing on SIGINT, but children do not inherit a handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: None)


class Pipe(asyncio.Protocol):
    """One pipe between midwatch and a child. `closed` is set when the pipe is closed by either side."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def cut(self) -> None:
        """Close midwatch's side of the pipe."""
        if self.transport is not None:
            self.transport.close()


class Inlet(Pipe):
    """The pipe to the standard input of a child. `ready` is set while the pipe accepts more data."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()
        self.ready.set()

    def pause_writing(self) -> None:
        self.ready.clear()

    def resume_writing(self) -> None:
        self.ready.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.ready.set()


class Output(Pipe):
    """An output pipe of a child, with the text that the child has written.

    If the child writes more than `limit` bytes, only the start and the end of the text are kept. `tell` is called with
    each new piece of text within the first `limit` bytes.
    """

    def __init__(self, limit: int = OUTPUT_LIMIT, tell: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self.total = 0
        self._limit = limit
        self._head_room = limit // 2
        self._tail_room = limit - self._head_room
        self._head, self._tail = bytearray(), bytearray()
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def data_received(self, data: bytes) -> None:
        if self._tell is not None and self.total < self._limit:
            new = data[: self._limit - self.total]
            if text := self._decoder.decode(new).replace("\0", ""):
                self._tell(text)
        self.total += len(data)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    def text(self) -> str:
        """Return the text that the child has written, without NUL characters and without a part that is too long."""
        if self.total <= self._limit:
            return _text(self._head + self._tail)
        head, tail = self._head, self._tail[-self._tail_room :] if self._tail_room else bytearray()
        head, tail = head[: _count_complete(head)], tail[_count_incomplete(tail) :]
        left_out = self.total - len(head) - len(tail)
        return f"{_text(head)}\n… {left_out} bytes left out …\n{_text(tail)}"


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace").replace("\0", "")


def _count_complete(data: bytearray) -> int:
    """Return the length of `data` without an incomplete UTF-8 character at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(bytes(data[-4:]))
    return len(data) - len(decoder.getstate()[0])


def _count_incomplete(data: bytearray) -> int:
    """Return the number of bytes at the start of `data` that belong to an incomplete UTF-8 character."""
    return next((n for n, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


class Child:
    """A program in its own process group.

    A `helper` is a second child of the same turn. When a helper is ended, processes of the turn outside of the helper's
    group stay alive, because they may belong to the main child.
    """

    def __init__(
        self, popen: subprocess.Popen[bytes], turn: ProgramOwner, pipes: tuple[Pipe, Pipe], *, helper: bool = False
    ) -> None:
        self.pgid = popen.pid
        self.exited = asyncio.Event()
        self.interrupted = False
        self._popen = popen
        self._turn = turn
        self._task = (turn.task_id, turn.attempt)
        self._cgroup: Cgroup | None = None
        self._egress: Egress | None = None
        ATTEMPTS_BY_GROUP[self.pgid] = f"{turn.task_id}/{turn.attempt}"
        self._pipes = pipes
        self._helper = helper
        self._input = Inlet()
        self._stdin: asyncio.WriteTransport | None = None
        self._gone = False
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(cls, program: Program, turn: ProgramOwner, out: Pipe, err: Pipe, **more: Any) -> Self:
        """Start the shell of a child; it waits until `admit` is called. `more` is passed to the constructor."""
        pin = turn.pin if program.workdir == turn.workdir else None
        egress = program.open_egress(turn.env)
        try:
            popen = await program.spawn(turn.env, egress, pin)
        except BaseException:
            if egress is not None:
                egress.close()
            raise
        child = cls(popen, turn, (out, err), **more)
        child._egress = egress
        try:
            if egress is not None:
                egress.start()
            guard.watch(child.pgid)
            child._watch_exit()
            await child._connect()
            child._enter_cgroup(program)
        except OSError as problem:
            await child.end()
            raise TransientError(f"program {program.argv[0]!r} cannot be watched: {problem.strerror}") from problem
        except BaseException:
            await child.end()
            raise
        return child

    async def admit(self, turn: ProgramOwner | None, stdin: bytes = b"", *, more: bool = False) -> None:
        """Write the child's group to the store, then let the child become the program with `stdin` as its input.

        With `more`, the input stays open for `write`. Only the group of a turn's main child is stored. For a helper,
        pass None as `turn`: its processes are found by the variable MIDWATCH_TASK in their environment.
        """
        if turn is not None:
            await turn.own_group(self.pgid)
        self.write(b"go\n" + stdin)
        if not more:
            self.end_input()

    async def serve(self, turn: ProgramOwner) -> None:
        """Work for a later turn: write the child's group to the store for this turn, and report the usage to it."""
        await turn.own_group(self.pgid)
        self._turn = turn

    def report_usage(self) -> None:
        """Tell the turn what the child has used since the last report."""
        if self._cgroup is not None:
            self._turn.note_usage(self._cgroup.take_usage())

    def write(self, data: bytes) -> None:
        """Write to the standard input of the child."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    async def wait_for_drain(self) -> None:
        """Wait until the child's standard input accepts more data or is closed."""
        await self._input.ready.wait()

    def end_input(self) -> None:
        """Close the child's standard input."""
        if self._stdin is not None:
            self._stdin.close()

    def interrupt(self, mode: Interrupt) -> None:
        """Send the signal of this mode to the whole process group."""
        self.interrupted = True
        self._signal(SIGNALS[mode])

    @property
    def returncode(self) -> int | None:
        """The exit code of the child, or the negative number of the signal that ended it; None while the child runs.

        Reading the exit code does not reap the child. Its process id is also the number of the group, and the system
        must not give that number to another process before `end` has signalled the group.
        """
        if self._popen.returncode is None and hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                status = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if status is not None:
                    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        return self._popen.returncode

    async def end(self) -> None:
        """End all processes of the group, first with SIGTERM, then with SIGKILL.

        Processes that have left the group are killed too, if they are in the cgroup of the child. Without a cgroup,
        they are killed only if the child was interrupted or still ran.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        finished = self.exited.is_set()
        self._signal(signal.SIGTERM)  # before the leader is reaped, because its number may be reused afterwards
        if not await wait_within(GRACE, self.exited):
            self._signal(signal.SIGKILL)
            await wait_within(PATIENCE, self.exited)
        self._popen.poll()
        self._gone = await end_members(self.pgid, grace=GRACE, patience=PATIENCE)
        if self._cgroup is not None:
            self.report_usage()
            await self._cgroup.end()
            self._cgroup = None
        if not self._helper and (self.interrupted or not finished):
            await end_strays(*self._task)
        for pipe in self._pipes:
            if pipe.transport is not None:
                await wait_within(0.01 if self.interrupted else DRAIN, pipe.closed)
        self._close_pipes()
        if self._egress is not None:
            self._egress.close()
        if self._gone:
            guard.forget(self.pgid)
            ATTEMPTS_BY_GROUP.pop(self.pgid, None)

    def _enter_cgroup(self, program: Program) -> None:
        attempt = ATTEMPTS_BY_GROUP[self.pgid]
        self._cgroup = cgroups.place(program.agent, attempt, self.pgid, program.limits)
        if self._cgroup is not None:
            ATTEMPTS_BY_GROUP[self.pgid] = f"{attempt}:{self._cgroup.attempt}"

    def _signal(self, number: signal.Signals) -> None:
        if not self._gone:
            signal_group(self.pgid, number)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._stdin, _ = await loop.connect_write_pipe(lambda: self._input, self._popen.stdin)
        await loop.connect_read_pipe(lambda: self._pipes[0], self._popen.stdout)
        await loop.connect_read_pipe(lambda: self._pipes[1], self._popen.stderr)

    def _close_pipes(self) -> None:
        if self._stdin is not None and not self._input.closed.is_set():
            self._stdin.abort()
        for pipe in self._pipes:
            pipe.cut()
        owned = (self._stdin, *(pipe.transport for pipe in self._pipes))
        for transport, file in zip(owned, (self._popen.stdin, self._popen.stdout, self._popen.stderr), strict=True):
            if transport is None and file is not None:
                file.close()

    def _watch_exit(self) -> None:
        """Set `exited` when the child's first process ends. The process is not reaped if the system allows that."""
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(self.pgid)
        except (AttributeError, OSError):
            self._poll_exit(loop)
        else:
            loop.add_reader(descriptor, self._finish_watch, loop, descriptor)

    def _finish_watch(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        self.exited.set()

    def _poll_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._popen.poll() is None:
            loop.call_later(0.02, self._poll_exit, loop)
        else:
            self.exited.set()


class ProcessConversation:
    """A conversation in which each turn is a child process. A turn is interrupted by a signal to its process group."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._working = False
        self._interrupted: Interrupt | None = None

    async def work(self, turn: Turn) -> TurnResult:
        """Work on one turn. A subclass implements this method and starts the turn's child with `child`."""
        raise NotImplementedError

    async def turn(self, turn: Turn) -> TurnResult:
        """Run one turn with `work`, and remember that a turn runs."""
        self._working, self._interrupted = True, None
        try:
            return await self.work(turn)
        finally:
            self._working = False

    async def interrupt(self, mode: Interrupt) -> None:
        """Send the signal of this mode to the group of the running child, or to the next child of this turn."""
        if self._working:
            self._interrupted = mode
            if self._child is not None:
                self._child.interrupt(mode)

    async def close(self) -> None:
        """End all processes of the running child."""
        if self._child is not None:
            self._child.interrupt("kill")
            await self._child.end()

    @asynccontextmanager
    async def child(self, program: Program, turn: Turn, out: Pipe, err: Pipe) -> AsyncIterator[Child]:
        """Start a child that waits for `admit`. After the `async with` block, all processes of its group are ended."""
        child = self._child = await Child.spawn(program, turn, out, err)
        try:
            if self._interrupted is not None:
                child.interrupt(self._interrupted)
            yield child
        finally:
            await child.end()


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int | None) -> str:
    """Return how a program ended, such as "failed with exit code 1" or "was ended by SIGKILL"."""
    if code is not None and code < 0:
        return f"was ended by {signal_name(-code)}"
    return f"failed with exit code {code}" if code else f"ended with exit code {code}"


async def wait_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait at most `seconds` until an event is set, and return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()

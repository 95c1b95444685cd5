"""Run commands and servers of `midwatch`, each in a process of its own. They are forked from a process that has already
loaded the program, because loading takes longer than most commands run. Some tests start the program as people do.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

LOADER_SCRIPT = (
    "midwatch.cli.main",
    "midwatch.api.app",
    "midwatch.client",
    "midwatch.runtime.runtime",
    "midwatch.runtime.serve",
    "midwatch.runtime.serve_agentapi",
    "midwatch.agents.terminal.kind",
    "midwatch.engines.embedded",
    "httpcore2",
    "anyio._backends._asyncio",
)
LONGEST_MESSAGE = 1 << 20
WORD = 8


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, said: str | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command to its end, as `subprocess.run` does."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write((said or "").encode())
        stdin.seek(0)
        fds = (stdin.fileno(), stdout.fileno(), stderr.fileno())
        process = Process({"arguments": list(arguments), "env": dict(env), "cwd": str(cwd or Path.cwd())}, fds)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout)
            raise
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, stdout.read().decode(), stderr.read().decode())


def start(
    arguments: Sequence[str], *, env: Mapping[str, str], log: BinaryIO, cwd: Path | None = None,
    stdin: int | None = None, stdout: int | None = None,
) -> Process:  # fmt: skip
    """Start a command in a session of its own, as `subprocess.Popen` does. `stdin` and `stdout` are file descriptors;
    without them its input is empty and its output goes to `log`.
    """
    request = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd or Path.cwd()), "session": True}
    with Path(os.devnull).open("rb") as nothing:
        fds = (nothing.fileno() if stdin is None else stdin, log.fileno() if stdout is None else stdout, log.fileno())
        return Process(request, fds)


class Process:
    """A running command."""

    def __init__(self, request: Mapping[str, object], fds: Sequence[int]) -> None:
        self._told, tell = os.pipe()
        try:
            socket.send_fds(_loader(), [json.dumps(request).encode()], [*fds, tell])
        finally:
            os.close(tell)
        self.pid = int.from_bytes(os.read(self._told, WORD))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        return self._status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _status(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            if not select.select([self._told], [], [], seconds)[0]:
                return None
            status = os.read(self._told, WORD)
            assert status, "the process that starts commands has ended"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status))
            os.close(self._told)
        return self.returncode


_socket: socket.socket | None = None
_loading = threading.Lock()


def _loader() -> socket.socket:
    """Return the connection to the process that has loaded the program; several threads may call this at once."""
    global _socket
    with _loading:
        if _socket is None:
            _socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (_socket, there):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_MESSAGE)
            started = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()], start_new_session=True
            )
            there.close()
            atexit.register(_end, _socket, started)
        return _socket


def _end(connection: socket.socket, started: subprocess.Popen[bytes]) -> None:
    connection.close()
    started.wait(60)


# -- in the process that has loaded the program ------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Fork for each command. The process that waits for it is a fork too, so that many commands can run at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit.register(_leave)  # registered first, so that it is called last
    for name in LOADER_SCRIPT:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the garbage collector does not check loaded objects again, so forks share their memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(connection, LONGEST_MESSAGE, 4)
        if not request:
            return
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run_command(json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _run_command(request: dict[str, object], fds: list[int]) -> None:
    """Start the command and send its pid and its status; return in the command's process, which then acts as a main
    program.
    """
    stdin, stdout, stderr, tell = fds
    process = os.fork()
    if process:
        os.write(tell, process.to_bytes(WORD))
        os.write(tell, os.waitpid(process, 0)[1].to_bytes(WORD))
        os._exit(0)
    if request.get("session"):
        os.setsid()
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    _become(request)


def _become(request: dict[str, object]) -> NoReturn:
    env, arguments = request["env"], request["arguments"]
    assert isinstance(env, dict)
    assert isinstance(arguments, list)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    tempfile.tempdir = None
    sys.path[0:1] = [str(Path(sys.executable).parent), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["midwatch", *arguments]
    from midwatch.cli.main import main

    global _status
    try:
        main(arguments)
    except SystemExit as end:
        _status = end.code
        raise
    raise AssertionError("a command ends its process")


_status: object = None


def _leave() -> None:
    """End the process after all other exit handlers. If Python freed every object, each shared page of memory would be
    copied first, which takes longer than most commands.
    """
    if isinstance(_status, int):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

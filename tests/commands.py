"""Commands of `midwatch`, each in a process of its own. They are forked from one that has loaded the program already,
since to load it takes longer than most of them run; what starts a server, or is watched while it runs, is started as
people start it."""

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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

LOADED = (
    "midwatch.cli.main",
    "midwatch.api.app",
    "midwatch.client",
    "midwatch.runtime",
    "midwatch.engines.embedded",
    "httpcore2",
    "anyio._backends._asyncio",
)
MOST = 1 << 20


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, said: str | None = None,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command to its end, as `subprocess.run` does."""
    request = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(cwd or Path.cwd())}).encode()
    told, tell = os.pipe()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write((said or "").encode())
        stdin.seek(0)
        try:
            socket.send_fds(_loader(), [request], [stdin.fileno(), stdout.fileno(), stderr.fileno(), tell])
            os.close(tell)
            status = _status(told, timeout, arguments)
        finally:
            os.close(told)
        return subprocess.CompletedProcess(arguments, status, *(_text(file) for file in (stdout, stderr)))


def _text(file: tempfile._TemporaryFileWrapper[bytes]) -> str:  # type: ignore[name-defined]
    file.seek(0)
    return file.read().decode()


def _status(told: int, timeout: float, arguments: Sequence[str]) -> int:
    """What it ended with. First its process is told, which is killed when it takes too long."""
    said = b""
    deadline = time.monotonic() + timeout
    while True:
        ready, _, _ = select.select([told], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            if said:
                os.kill(int(said), signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        more = os.read(told, 100)
        if not more:
            return os.waitstatus_to_exitcode(int(said.split()[1]))
        said += more


_socket: socket.socket | None = None


def _loader() -> socket.socket:
    """The connection to the process that has loaded the program."""
    global _socket
    if _socket is None:
        _socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (_socket, there):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
        started = subprocess.Popen(
            [sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()], start_new_session=True
        )
        there.close()
        atexit.register(_end, _socket, started)
    return _socket


def _end(connection: socket.socket, started: subprocess.Popen[bytes]) -> None:
    connection.close()
    started.wait(10)


# -- in the process that has loaded it ---------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Fork for each command. Who waits for it is a fork, too, so that many can run at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded is not looked at again by those who share it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(connection, MOST, 4)
        if not request:
            return
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _attend(json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _attend(request: dict[str, object], fds: list[int]) -> None:
    """Start the command and tell its process and its status; returns in the command's process, as a main program."""
    stdin, stdout, stderr, tell = fds
    process = os.fork()
    if process:
        os.write(tell, f"{process} ".encode())
        os.write(tell, f"{os.waitpid(process, 0)[1]}".encode())
        os._exit(0)
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
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
    sys.argv = ["midwatch", *arguments]
    from midwatch.cli.main import main

    main(arguments)
    raise AssertionError("a command ends its process")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

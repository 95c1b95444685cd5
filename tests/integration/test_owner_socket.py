"""Test the owner's socket: commands of the owner get the owner's token there, and processes of agents do not."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from commands import run
from midwatch.base.home import Home
from midwatch.client import Client
from midwatch.programs.cgroup import Unusable, find_own, find_usable
from midwatch.runtime.owner_socket import OwnerSocket
from servers import PATIENCE, PROGRAM, Server, environment

CONFIG = """
detect_agents = false
default_agent = "sh"
shutdown_grace = 0
owner_access = "socket"
[agents.sh]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
"""
ASK = """
import os, socket, sys, time
if "orphan" in sys.argv:  # ask when the parent has ended
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.01)
asking = socket.socket(socket.AF_UNIX)
asking.connect(sys.argv[1])
print(asking.makefile().read(), flush=True)
"""

DAEMON = "env -i setsid -f {ask} orphan > {out}; while ! [ -s {out} ]; do sleep 0.05; done; cat {out}"
"""A process without the parent, the session and the variables of the agent. Only its cgroup shows where it is from."""
try:
    CGROUPS = bool(find_usable(find_own(os.getpid())))
except (OSError, Unusable):
    CGROUPS = False


@pytest.fixture
async def server(home: Path) -> AsyncIterator[Server]:
    """A server without a token file; an earlier server has left one behind."""
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG)
    (home / "token").write_text("an-old-token\n")
    served = Server(home)
    await served.start()
    yield served
    await served.stop()


def midwatch(server: Server, *arguments: str) -> str:
    done = run(arguments, env=server.env)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_owner_uses_all_commands_without_a_token_file(server: Server) -> None:
    assert not (server.home / "token").exists()
    path = server.home / "run" / "owner.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(midwatch(server, "run", "echo hello", "--json"))["result"] == "hello"
    assert "running" in midwatch(server, "status")
    assert "no file; the server gives it out" in run(["doctor"], env=server.env).stdout
    task = json.loads(midwatch(server, "submit", "true", "--json"))["id"]
    assert task in midwatch(server, "tasks", "--json")
    link = midwatch(server, "open", "--print").split()[-1]
    async with httpx2.AsyncClient(base_url=server.url) as client:
        old = await client.get("/api/v1/tasks", headers={"authorization": "Bearer an-old-token"})
        assert old.status_code == 401, "the token of the old file is not valid any more"
        signed_in = await client.post("/api/v1/sign-in", json={"code": link.partition("#")[2]})
        assert signed_in.status_code == 200
    midwatch(server, "down")
    assert "hello" in midwatch(server, "tasks"), "without a server, a command opens the store"
    assert not (server.home / "token").exists()


async def test_processes_of_an_agent_do_not_get_the_token(server: Server) -> None:
    """The agent tries it as itself, without its variables, and in a session of its own."""
    program = server.home / "work" / "ask.py"
    program.write_text(ASK)
    ask, home = f"{sys.executable} {program} {server.home}/run/owner.sock", f"MIDWATCH_HOME={server.home}"
    tries = (
        ask,
        f"env -i {ask}",
        f"setsid -w {ask}",
        f"env -i setsid -w {ask}",
        f"exec env -i setsid -w {ask}",
        f"env -i {home} {PROGRAM} tasks; true",
        f"env -i {ask} orphan | cat",  # its parent has ended, but its session is that of the agent
        *([DAEMON.format(ask=ask, out=server.home / "work" / "out")] if CGROUPS else []),
    )
    for script in tries:
        task = json.loads(midwatch(server, "run", f"({script}) 2>&1", "--json"))
        assert "belongs to the task of an agent" in task["result"], (script, task)
        assert '"token"' not in task["result"], script
    reply = json.loads(midwatch(server, "run", f"{home} {PROGRAM} tasks --json", "--json"))
    assert "tasks" in reply["result"], "with its own token the agent may read, as always"


def test_a_socket_tells_who_asks(tmp_path: Path) -> None:
    place = Home(tmp_path)
    place.prepare("socket")
    with OwnerSocket(place.owner_socket, "the-token"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place.owner_socket))
        assert json.loads(client.makefile().read()) == {"token": "the-token"}
    assert not place.owner_socket.exists()
    assert not place.token_file.exists()


class CrowdedSocket(OwnerSocket):
    """A socket whose process has too many open files when the first client connects."""

    crowded = True

    def _accept(self) -> socket.socket:
        if self.crowded:
            self.crowded = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super()._accept()


def test_a_socket_goes_on_after_the_process_had_too_many_open_files(tmp_path: Path) -> None:
    place = Home(tmp_path)
    place.prepare("socket")
    with CrowdedSocket(place.owner_socket, "the-token") as crowded, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place.owner_socket))
        assert json.loads(client.makefile().read()) == {"token": "the-token"}
        assert not crowded.crowded


async def test_the_token_file_comes_back_with_the_setting(server: Server) -> None:
    await server.stop()
    (server.home / "midwatch.toml").write_text(CONFIG.replace('"socket"', '"file"'))
    await server.start()
    assert (server.home / "token").exists()
    assert run(["tasks"], env=environment(server.home)).returncode == 0


async def test_a_follower_gets_the_token_of_a_server_that_was_started_again(server: Server) -> None:
    async with Client.for_home(server.home) as client, aclosing(client.follow(0)) as events:
        async with asyncio.timeout(PATIENCE):
            midwatch(server, "run", "true")
            first = await anext(events)
            await server.stop()
            await server.start()
            midwatch(server, "run", "echo again")
            async for event in events:
                if event["kind"] == "task_finished" and event["payload"]["result"] == "again":
                    break
    assert first["seq"] == 1

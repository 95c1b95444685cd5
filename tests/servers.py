"""A real `midwatch up` in its own process, for tests that call it, kill it and start it again."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from commands import Process, start
from postgres import free_port

PROGRAM = Path(sys.executable).with_name("midwatch")
PATIENCE = 60.0
"""Seconds for expected changes: a busy machine is slow, and a long limit costs nothing when the change comes."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a midwatch process on that home, without settings of the caller's environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MIDWATCH_")}
    return {**inherited, "MIDWATCH_HOME": str(home), **more}


class Server:
    """A server on one home and one port that can be killed and started again."""

    def __init__(self, home: Path, **env: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process | None = None
        self.env = environment(home, **env)
        self.log = home.parent / "server.log"

    async def start(self) -> None:
        """Start it and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = start(["up", "--port", str(self.port)], env=self.env, log=log)
        async with httpx2.AsyncClient() as client:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    if (await client.get(f"{self.url}/api/v1/health")).status_code == 200:
                        return
                except httpx2.HTTPError:
                    pass
                assert self.process.poll() is None, self.log.read_text()[-2000:]
                assert time.monotonic() < deadline, self.log.read_text()[-2000:]
                await asyncio.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal to the server alone, not to its children."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        await asyncio.to_thread(self.process.wait)

    async def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, PATIENCE)

    def client(self) -> httpx2.AsyncClient:
        """Yield a client with the owner's token."""
        token = (self.home / "token").read_text().strip()
        return httpx2.AsyncClient(
            base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE
        )


class WorkerProcess:
    """A real `midwatch worker` that can be killed and started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: Process | None = None

    def start(self) -> None:
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self.process = start(["worker"], env=environment(self.home), log=log)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        await asyncio.to_thread(self.process.wait)

    async def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, PATIENCE)


def processes_with(mark: str) -> list[int]:
    """Return the processes whose environment contains `mark`."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environ = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and mark.encode() in environ.split(b"\0"):
                pids.append(int(entry.name))
    return pids


async def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Return whether `condition` becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def until(condition: Callable[[], Any], seconds: float = 2 * PATIENCE) -> Any:
    """Return the first true result of `condition`, which may be awaitable; other work runs between two checks."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.005)


def poll_until(read: Callable[[], Any], good: Callable[[Any], object]) -> Any:
    """Return the result of `read` once `good` accepts it; for tests without an event loop."""
    deadline = time.monotonic() + 2 * PATIENCE
    while not good(result := read()):
        assert time.monotonic() < deadline, result
        time.sleep(0.05)
    return result

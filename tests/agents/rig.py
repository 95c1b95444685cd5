"""One real agent under a real `midwatch up` with a fake model, all in one folder."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from agents.known import Known, program
from fakes.model_server import Model, serve
from midwatch.client import Client
from servers import Server, eventually, processes_with

Json = dict[str, Any]
ENDED = ("done", "failed", "cancelled")
PATIENCE = 90.0
"""Seconds for one turn; the machine may be busy."""


def toml(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


async def wait_for(read: Callable[[], Awaitable[Any]], what: str, seconds: float = PATIENCE) -> Any:
    """Return the first true result of `read`."""
    deadline = time.monotonic() + seconds
    while not (value := await read()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.05)
    return value


class Rig:
    """The server, a client of it, and the requests that the agent's model received."""

    def __init__(self, known: Known, way: str, folder: Path, url: str, model: Model, options: Json) -> None:
        self.known, self.model = known, model
        self.work = folder / "work"
        self.work.mkdir()
        self.mark = f"rig-{uuid.uuid4().hex}"
        environment = known.environment(folder / "agent", url)
        home = folder / "home"
        home.mkdir()
        env = {**environment, "AGENT_RIG": self.mark}
        settings = {**known.settings(way), **options}
        if way == "terminal":  # programs find a terminal with colours
            env = {name: value for name, value in env.items() if name not in ("TERM", "NO_COLOR")}
        if "sandbox" in options:
            env.pop("TMPDIR")  # a sandbox has its own
        settings["env"] = {**env, **settings.get("env", {})}
        lines = [f"{name} = {toml(value)}" for name, value in settings.items()]
        config = ["detect_agents = false", f"default_agent = {toml(known.name)}", f"[agents.{known.name}]", *lines]
        (home / "midwatch.toml").write_text("\n".join(config) + "\n")
        self.server = Server(home)
        self.server.env = {
            "PATH": environment["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "MIDWATCH_HOME": str(home)
        }  # fmt: skip
        if "sandbox" in options:
            self.server.env["HOME"] = environment["HOME"]
        self.client: Client

    async def start(self) -> None:
        """Start the server, also after it was killed."""
        await self.server.start()
        token = (self.server.home / "token").read_text().strip()
        self.client = Client(self.server.url, token)

    async def kill(self) -> None:
        """Kill the server, and no other process."""
        await self.client.close()
        await self.server.kill()

    async def stop(self) -> None:
        """Stop the server; no process of the agent may remain."""
        await self.client.close()
        assert await self.server.stop() == 0, self.log()
        assert await self.has_no_processes(), self.leftovers()

    async def make_due(self, task_id: str) -> None:
        """Stop the server, make a waiting task due, and start the server again."""
        await self.stop()
        with closing(sqlite3.connect(self.server.home / "midwatch.db")) as database, database:
            moved = database.execute("UPDATE tasks SET due_at = ? WHERE id = ?", (time.time_ns() // 1000, task_id))
            assert moved.rowcount == 1
        await self.start()

    def log(self) -> str:
        """Return the end of the server's output."""
        return self.server.log.read_text()[-3000:]

    async def has_no_processes(self) -> bool:
        """Return whether all processes of the agent end soon."""
        return await eventually(lambda: not processes_with(f"AGENT_RIG={self.mark}"), 60.0)

    def leftovers(self) -> list[str]:
        """Return the command lines of the remaining processes."""
        lines = []
        for pid in processes_with(f"AGENT_RIG={self.mark}"):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            lines.append(f"{pid}: {b' '.join(arguments).decode(errors='replace')[:200]}")
        return lines

    async def open(self) -> str:
        """Open a conversation and return its key."""
        return (await self.client.create_session(agent=self.known.name, workdir=str(self.work)))["key"]

    async def send(self, key: str, text: str) -> str:
        """Send a message and return the id of its task."""
        return (await self.client.send(key, text))["id"]

    async def wait_for_end(self, task_id: str, seconds: float = PATIENCE) -> Json:
        """Return the task once it has ended."""

        async def look() -> Json | None:
            task = await self.client.get(task_id)
            return dict(task) if task["status"] in ENDED else None

        try:
            ended_task: Json = await wait_for(look, "the task has ended", seconds)
        except AssertionError as late:
            raise AssertionError(
                f"{late}\n{json.dumps(await self.client.get(task_id), indent=1)}\n{self.log()}"
            ) from None
        return ended_task

    async def turn(self, key: str, text: str) -> str:
        """Send a message, wait for a successful answer, and return it."""
        task = await self.wait_for_end(await self.send(key, text))
        assert (task["status"], task["outcome"]) == ("done", "ok"), (task["outcome"], task["error"], self.log())
        return task["result"] or ""

    async def wait_for_question(self, task_id: str, status: str = "pending") -> Json:
        """Return the question of a waiting task, or with the status `all` its newest question."""

        async def look() -> Json | None:
            approvals = [
                dict(approval) for approval in await self.client.approvals(status) if approval["task_id"] == task_id
            ]
            return approvals[0] if approvals else None

        question: Json = await wait_for(look, "the agent asks")
        return question

    async def wait_for_hold(self, name: str) -> None:
        """Return once the model delays an answer."""
        await self.model.until(lambda model: name in model.held, PATIENCE)

    def make_name(self) -> str:
        """Return an unused name."""
        return uuid.uuid4().hex[:8]


@asynccontextmanager
async def start_rig(known: Known, way: str, folder: Path, **options: Any) -> AsyncIterator[Rig]:
    """Start a rig and check that no process remains at its end."""
    async with serve() as (url, model):
        rig = Rig(known, way, folder, url, model, options)
        await rig.start()
        try:
            yield rig
        finally:
            await rig.stop()


def missing(known: Known, way: str) -> str | None:
    """Return the missing programs."""
    needed = known.program(way)
    return None if program(needed) else f"{needed} is not installed: run tests/agents/install"

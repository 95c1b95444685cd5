"""One real agent under a real `midwatch up` with a fake model, all in one folder."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

from agents.known import KEY, Known, program
from fakes.model_server import Model, serve
from midwatch.base.errors import Conflict, NotFound
from midwatch.client import Client
from servers import Server, eventually, processes_with

Json = dict[str, Any]
ENDED = ("done", "failed", "cancelled")
PATIENCE = 90.0
"""Seconds for one turn; the machine may be busy."""
RENAMING = Path(__file__).with_name("renaming.py")


def toml(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
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

    def __init__(self, known: Known, kind: str, folder: Path, url: str, model: Model) -> None:
        self.known, self.kind, self.folder, self.url, self.model = known, kind, folder, url, model
        self.work, self.home = folder / "work", folder / "home"
        self.mark = f"rig-{uuid.uuid4().hex}"
        self.server = Server(self.home)
        self.client: Client

    def configure(self, *, key: str = KEY, **options: Any) -> None:
        """Write the configuration; it counts from the next start of the server on."""
        for folder in (self.work, self.home):
            folder.mkdir(exist_ok=True)
        env = {**self.known.environment(self.folder / "agent", self.url, key), "AGENT_RIG": self.mark}
        shim = self.folder / "shim"
        env["PATH"] = f"{shim}:{env['PATH']}" if shim.exists() else env["PATH"]
        server = {"PATH": env["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8", "MIDWATCH_HOME": str(self.home)}
        if self.kind == "terminal":  # programs find a terminal with colours
            env = {name: value for name, value in env.items() if name not in ("TERM", "NO_COLOR")}
        if "sandbox" in options:
            env.pop("TMPDIR")  # a sandbox has its own
            server["HOME"] = env["HOME"]
        settings = {**self.known.settings(self.kind), **options}
        settings["env"] = {**env, **settings.get("env", {})}
        lines = [f"{name} = {toml(value)}" for name, value in settings.items()]
        name = self.known.name
        config = ["detect_agents = false", f"default_agent = {toml(name)}", f"[agents.{name}]", *lines]
        (self.home / "midwatch.toml").write_text("\n".join(config) + "\n")
        self.server.env = server

    def intercept(self) -> None:
        """Run the agent's program behind the filter that renames what it prints; nothing is renamed yet."""
        name = self.known.program(self.kind)
        file = self.folder / "shim" / name
        file.parent.mkdir()
        command = (sys.executable, str(RENAMING), str(self.folder / "plan"), self.kind, str(program(name)))
        file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        file.chmod(0o755)

    def rename(self, **plan: Any) -> None:
        """Rename fields, types or signs in everything that the program prints from now on."""
        (self.folder / "plan.new").write_text(json.dumps(plan))
        (self.folder / "plan.new").rename(self.folder / "plan")

    async def start(self) -> None:
        """Start the server, also after it was killed."""
        await self.server.start()
        token = (self.server.home / "token").read_text().strip()
        self.client = Client(self.server.url, token)

    async def kill(self) -> None:
        """Kill the server, and no other process."""
        await self.client.close()
        await self.server.kill()
        assert await self.has_no_processes(), self.leftovers()

    async def stop(self) -> None:
        """Stop the server; no process of the agent may remain."""
        await self.client.close()
        assert await self.server.stop() == 0, self.log()
        assert await self.has_no_processes(), self.leftovers()

    async def restart(self, **options: Any) -> None:
        """Stop the server and start it again, with other options if there are any."""
        await self.stop()
        if options:
            self.configure(**options)
        await self.start()

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

    def tell(self, task: Json) -> str:
        """Return what a failed check needs to be understood."""
        return f"{task['outcome']}: {task['error'] or task['result']}\n{self.log()}"

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

    async def open(self, **fields: Any) -> str:
        """Open a conversation and return its key."""
        return (await self.client.create_session(agent=self.known.name, workdir=str(self.work), **fields))["key"]

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
            task = await self.client.get(task_id)
            asked = await self.client.approvals("all")
            raise AssertionError(f"{late}\n{json.dumps(task, indent=1)}\n{asked}\n{self.log()}") from None
        return ended_task

    async def grant_until_end(self, task_id: str, seconds: float = PATIENCE) -> Json:
        """Return the task once it has ended, and grant what the program asks, such as to trust a folder."""
        granting = asyncio.create_task(self.grant())
        try:
            return await self.wait_for_end(task_id, seconds)
        finally:
            granting.cancel()

    async def grant(self) -> None:
        """Grant every request of the program."""
        while True:
            for question in await self.client.approvals():
                with suppress(Conflict, NotFound):  # the question may have ended since it was read
                    await self.client.approve(question["id"])
            await asyncio.sleep(0.1)

    async def turn(self, key: str, text: str, seconds: float = PATIENCE) -> str:
        """Send a message, wait for a successful answer, and return it."""
        task = await self.grant_until_end(await self.send(key, text), seconds)
        assert (task["status"], task["outcome"]) == ("done", "ok"), (task["outcome"], task["error"], self.log())
        return task["result"] or ""

    async def wait_for_question(self, task_id: str, status: str = "pending") -> Json:
        """Return the question of a waiting task, or with the status `all` its newest question."""

        async def look() -> Json | None:
            approvals = [
                dict(approval) for approval in await self.client.approvals(status) if approval["task_id"] == task_id
            ]
            task = await self.client.get(task_id)
            assert approvals or task["status"] not in ENDED, f"it ended without a question: {task}\n{self.log()}"
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
async def start_rig(
    known: Known, kind: str, folder: Path, *, intercepted: bool = False, **options: Any
) -> AsyncIterator[Rig]:
    """Start a rig and check that no process remains at its end. `options` are those of `Rig.configure`."""
    async with serve() as (url, model):
        rig = Rig(known, kind, folder, url, model)
        if intercepted:
            rig.intercept()
        rig.configure(**options)
        await rig.start()
        try:
            yield rig
        finally:
            await rig.stop()


def missing(known: Known, kind: str) -> str | None:
    """Return the missing programs."""
    needed = known.program(kind)
    return None if program(needed) else f"{needed} is not installed: run tests/agents/install"

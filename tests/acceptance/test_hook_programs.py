"""Test a server whose hook programs fail in every way: the tool is not run, the turn goes on, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import serve
from midwatch.client import Client
from servers import PATIENCE, Server, eventually, processes_with, until

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent.parent / "fakes" / "hook_program.py"
CONFIG = """
detect_agents = false
hooks = [{{ argv = ["{hook}", "{way}", "{bad}"], seams = ["before_tool", "observe"], timeout = "2s", name = "policy" }}]

[agents.it]
kind = "llm"
model = "openai:fake"
base_url = "{url}/v1"
tools = ["command"]

[agents.it.approvals]
default = "allow"
"""
PROMPT = '[[tool run_command {"command": "touch made"}]] [[say done]]'
SHOWN = {
    "deaf": "no decision within 2 s",
    "flood": "a line of more than",
    "heir": "exit code 3",
    "stopped": "no decision within 2 s",
    "gone": "not installed or not executable",
}
"""What the event says for each way in which the program fails. Other ways are in the test of hooks."""

WAITING = ("deaf", "stopped", "gone")
"""The ways in which nothing happens before the deadline."""

GROWTH = 30_000
"""How much memory a failing program may take of the server, in kB."""


class HookServer:
    """A server with an agent on a fake model, and a hook program."""

    def __init__(self, folder: Path, url: str, way: str) -> None:
        self.bad, self.work, self.hook = folder / "bad", folder / "work", folder / "hook"
        home = folder / "home"
        for directory in (home, self.work):
            directory.mkdir()
        self.hook.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} "$@"\n')
        self.hook.chmod(0o700)
        (home / "midwatch.toml").write_text(CONFIG.format(hook=self.hook, way=way, bad=self.bad, url=url))
        self.mark = f"HOOK_TEST={folder}"
        self.server = Server(home, OPENAI_API_KEY="sk-fake", HOOK_TEST=str(folder))

    async def run(self, prompt: str = PROMPT) -> tuple[Any, list[Any]]:
        """Run a task, and return it and its decisions of hooks."""
        async with Client.for_home(self.server.home) as client:
            task = await client.submit(prompt, {"agent": "it", "workdir": str(self.work)})

            async def read() -> Any:
                found = await client.get(task["id"])
                return found if found["status"] in ("done", "failed") else None

            ended = await until(read)
            decided = (await client.events(task_id=task["id"], kinds=["hook_decided"]))["events"]
        return ended, [event["payload"] for event in decided]

    async def has_state(self, state: str) -> bool:
        async with Client.for_home(self.server.home) as client:
            return (await client.hooks())[0]["state"] == state

    def list_starts(self) -> list[int]:
        starts = self.bad.with_suffix(".starts")
        return [int(pid) for pid in starts.read_text().split()] if starts.exists() else []

    def read_peak(self) -> int:
        """Return the greatest memory that the server has used, in kB."""
        assert self.server.process is not None
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])


@pytest.fixture
async def model() -> AsyncIterator[str]:
    async with serve() as (url, _):
        yield url


@pytest.mark.parametrize("way", SHOWN)
async def test_a_failing_program_denies_in_time_and_leaves_nothing(tmp_path: Path, model: str, way: str) -> None:
    hooked = HookServer(tmp_path, model, way)
    await hooked.server.start()
    try:
        await until(lambda: hooked.has_state("running"))
        await hooked.run()  # it loads the libraries of models
        (hooked.work / "made").unlink()
        hooked.bad.touch()
        before = hooked.read_peak()
        if way == "deaf":  # more than fits into the pipe
            await asyncio.gather(*(hooked.run("[[say hello]]" + 5000 * "x") for _ in range(60)))
        if way == "gone":
            hooked.hook.unlink()
            os.kill(hooked.list_starts()[0], signal.SIGKILL)
            await until(lambda: hooked.has_state("waiting"))
        async with asyncio.timeout(PATIENCE):
            task, decided = await hooked.run()
        assert (task["outcome"], (hooked.work / "made").exists()) == ("ok", False)
        shortest = 1.99 if way in WAITING else 0.0  # the timers of the server count whole milliseconds
        assert decided[0]["decision"] == "deny" and shortest <= decided[0]["duration"] < PATIENCE
        assert SHOWN[way] in f"hook policy denied it: {decided[0]['reason']}", decided
        assert hooked.read_peak() - before < GROWTH
    finally:
        assert await hooked.server.stop() == 0
    assert await eventually(lambda: not processes_with(hooked.mark))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_that_ends_during_a_call_leaves_no_program(
    tmp_path: Path, model: str, number: signal.Signals
) -> None:
    hooked = HookServer(tmp_path, model, "stopped")
    config = hooked.server.home / "midwatch.toml"
    config.write_text(config.read_text().replace('timeout = "2s"', 'timeout = "1h"'))
    await hooked.server.start()
    try:
        await until(lambda: hooked.has_state("running"))
        hooked.bad.touch()
        async with Client.for_home(hooked.server.home) as client:
            await client.submit(PROMPT, {"agent": "it", "workdir": str(hooked.work)})
        (pid,) = hooked.list_starts()
        assert await eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
    finally:
        if number == signal.SIGTERM:
            await hooked.server.stop()
        else:
            await hooked.server.kill()
    assert await eventually(lambda: not processes_with(hooked.mark))
    assert not (hooked.work / "made").exists()

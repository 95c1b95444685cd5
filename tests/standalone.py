"""Run `midwatch agentapi server` in a process of its own, with an agent that echoes its input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from commands import start
from servers import eventually, processes_with

ECHO = """
import os, sys
print("Welcome to echo", os.get_terminal_size().columns)
while True:
    try:
        said = input("> ")
        word, _, rest = said.partition(" ")
        if word == "leave": sys.exit(int(rest))
        if word == "size": print("size", *os.get_terminal_size())
        elif word == "start": print("started", os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "1000"]))
        else: print("you said", said)
    except KeyboardInterrupt: print("interrupted")
"""
AGENT = [sys.executable, "-I", "-S", "-c", ECHO]


class StandaloneServer:
    """A server of one agent in a process of its own."""

    def __init__(self, folder: Path, *flags: str, agent: list[str] = AGENT, stdin: str | None = "", **env: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MIDWATCH_", "AGENTAPI_"))}
        self.errors = folder / "errors.log"
        self.mark = f"AGENTAPI_TEST={folder}"
        (server_stdin, our_stdin), (our_stdout, server_stdout) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(our_stdin, "w"), os.fdopen(our_stdout)
        with self.errors.open("ab") as errors:
            self.process = start(
                ["agentapi", "server", "--port", "0", "--json", *flags, "--", *agent],
                env={**inherited, "TMPDIR": str(folder), "AGENTAPI_TEST": str(folder), **env}, log=errors, cwd=folder,
                stdin=server_stdin, stdout=server_stdout,
            )  # fmt: skip
        os.close(server_stdin)
        os.close(server_stdout)
        if stdin is not None:
            self.stdin.write(stdin)
            self.stdin.close()
        self.http = httpx2.AsyncClient(trust_env=False, timeout=60.0)

    async def wait_for_start(self) -> dict[str, Any]:
        line = await asyncio.to_thread(self.stdout.readline)
        assert line, self.errors.read_text()
        announcement: dict[str, Any] = json.loads(line)
        self.http.base_url = httpx2.URL(announcement["url"])
        return announcement

    async def wait_until_stable(self) -> None:
        """Wait until the server reports the agent as stable."""
        async with asyncio.timeout(60):
            while not await self._is_stable():
                await asyncio.sleep(0.02)

    async def _is_stable(self) -> bool:
        return bool((await self.http.get("/status")).json()["status"] == "stable")

    async def screen(self) -> str:
        """Return the text on the terminal."""
        async with self.http.stream("GET", "/internal/screen") as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    return str(json.loads(line.removeprefix("data: "))["screen"])
        raise AssertionError("the stream of screens has ended")

    async def send(self, content: str, kind: str = "user") -> None:
        reply = await self.http.post("/message", json={"content": content, "type": kind})
        assert reply.status_code == 200, reply.text

    async def messages(self) -> list[str]:
        return [message["content"] for message in (await self.http.get("/messages")).json()["messages"]]

    async def wait_for_exit(self, number: int | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 60)

    async def close(self) -> None:
        """Stop the server if it runs, and close the pipes and the HTTP client."""
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, 60)
        self.stdin.close()
        self.stdout.close()
        await self.http.aclose()


@asynccontextmanager
async def start_standalone(folder: Path, *flags: str, **options: Any) -> AsyncIterator[StandaloneServer]:
    """Start a server and check that nothing of it remains at the end."""
    server = StandaloneServer(folder, *flags, **options)
    try:
        await server.wait_for_start()
        yield server
    finally:
        await server.close()
    assert await eventually(lambda: not processes_with(server.mark)), "a process was left behind"
    assert await eventually(lambda: not [*folder.glob("midwatch-*")]), "a temporary folder was left behind"

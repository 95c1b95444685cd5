"""Commands that midwatch runs for an agent below its root directory. They end when the conversation ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from midwatch.agents.acp.files import Files, Refused
from midwatch.base.errors import AgentError
from midwatch.domain.agent import Turn
from midwatch.programs.process import DRAIN, TOGETHER, Child, Pipe, Program, signal_name, wait_within

OUTPUT_LIMIT = 1_000_000
"""Bytes of output that are kept of one command. Agents cannot increase this, because many commands may run at once."""
MOST_TERMINALS = 50


class Tail(Pipe):
    """Keeps the end of a command's output."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = max(1, min(limit, OUTPUT_LIMIT))
        self.truncated = False
        self._kept = bytearray()

    def data_received(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * self.limit:
            del self._kept[: -self.limit]
            self.truncated = True

    def text(self) -> str:
        """Return the kept output as text. A character that was cut at the beginning is left out."""
        if len(self._kept) > self.limit:
            self.truncated = True
        last_bytes = bytes(self._kept[-self.limit :])
        torn = next((n for n, byte in enumerate(last_bytes[:4]) if byte & 0xC0 != 0x80), 0) if self.truncated else 0
        return last_bytes[torn:].decode("utf-8", "replace")


class Terminal:
    """One command that midwatch runs for an agent."""

    def __init__(self, child: Child, tail: Tail) -> None:
        self.child = child
        self.tail = tail

    def status(self) -> dict[str, Any] | None:
        """Return the exit code or the signal that ended the command; None while it runs."""
        if not self.child.exited.is_set():
            return None
        code = self.child.returncode
        if code is None or code >= 0:
            return {"exitCode": code or 0, "signal": None}
        return {"exitCode": None, "signal": signal_name(-code).removeprefix("signal ")}

    def output(self) -> dict[str, Any]:
        """Return the output, and the exit status if the command has ended."""
        answer = {"output": self.tail.text(), "truncated": self.tail.truncated}
        status = self.status()
        return answer if status is None else {**answer, "exitStatus": status}

    async def wait(self) -> dict[str, Any]:
        """Wait until the command has ended and its output is read, and return its exit status."""
        await self.child.exited.wait()
        await wait_within(DRAIN, self.tail.closed)
        return self.status() or {}

    async def kill(self) -> dict[str, Any]:
        """End the command. Its output can still be read."""
        self.child.interrupt("terminate")
        await self.child.end()
        return {}


class Terminals:
    """The commands of one conversation."""

    def __init__(self, program: Program, files: Files) -> None:
        self._program = program
        self._files = files
        self._open: dict[str, Terminal] = {}
        self._count = 0

    async def create(self, turn: Turn, request: Mapping[str, Any]) -> str:
        """Start a command and return its id."""
        if len(self._open) >= MOST_TERMINALS:
            raise Refused(f"{MOST_TERMINALS} terminals are open already; release one with terminal/release")
        command, args = request["command"], request.get("args") or []
        cwd = self._files.place(request.get("cwd") or self._files.root)
        # Some agents send a whole line, which a shell must run.
        argv = ("/bin/sh", "-c", command) if not args and re.search(r"\s", command) else (command, *args)
        env = {pair["name"]: pair["value"] for pair in request.get("env") or ()}
        program = replace(self._program, argv=argv, workdir=cwd, env={**self._program.env, **env}, enter=TOGETHER)
        if program.problem():
            raise Refused(f"the program {argv[0]!r} or the directory {cwd} does not exist")
        limit = request.get("outputByteLimit")
        tail = Tail(OUTPUT_LIMIT if limit is None else limit)
        try:
            child = await Child.spawn(program, turn, tail, Pipe(), helper=True)
        except (AgentError, ValueError) as problem:  # a NUL character, or an invalid name of a variable
            raise Refused(str(problem)) from problem
        await child.admit(None)
        self._count += 1
        name = f"term-{self._count}"
        self._open[name] = Terminal(child, tail)
        return name

    def get(self, name: str) -> Terminal:
        """Return the terminal with this id. Raise Refused if there is none."""
        if name not in self._open:
            raise Refused(f"there is no terminal {name!r}")
        return self._open[name]

    async def release(self, name: str) -> dict[str, Any]:
        """End the command and forget its output."""
        if name in self._open:
            await self._open.pop(name).child.end()
        return {}

    async def close(self) -> None:
        """End all commands."""
        await asyncio.gather(*(self.release(name) for name in list(self._open)))

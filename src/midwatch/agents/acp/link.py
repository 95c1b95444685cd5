"""The connection to a running agent, over the standard input and output of its process.

Both sides send JSON messages, one in each line. An update is handled before the next line is read. So an agent that
sends updates faster than midwatch can store them has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from midwatch.agents.acp.faults import last_words
from midwatch.agents.acp.waiting import ErrorLog, LogReader
from midwatch.agents.streams.lines import Lines
from midwatch.base.errors import AgentError
from midwatch.domain.agent import Turn
from midwatch.programs.process import Child, Program, describe_exit

if TYPE_CHECKING:
    from acp.connection import Connection

LONGEST_LINE = 64_000_000
MOST_REQUESTS = 64  # requests of an agent that are answered at the same time
LARGEST_ID = 2**63
UPDATE = "session/update"
EXTENSION = ("_", "$/")  # methods outside the protocol begin so


class Host(Protocol):
    """Handles the updates of an agent and answers the agent's requests."""

    async def update(self, params: Mapping[str, Any], *, more: bool) -> None:
        """Handle an update of the agent. `more` means that the next line has arrived already."""
        ...

    async def serve(self, method: str, params: Mapping[str, Any]) -> Any:
        """Answer a request of the agent, or raise RequestError."""
        ...

    def note_unknown(self, method: str) -> None:
        """Handle a notification of the agent that midwatch does not know."""
        ...


class Gone(Exception):
    """Raised when the agent's process has ended."""


class Wire:
    """Reads and writes messages for the protocol library. Invalid messages of the agent are left out."""

    def __init__(self, child: Child, lines: Lines, host: Host) -> None:
        self.room = asyncio.Semaphore(MOST_REQUESTS)
        self.failure: Exception | None = None  # the error of an update; nothing is read after it
        self._child = child
        self._lines = lines
        self._host = host

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message to the agent. Wait while the pipe to the agent is full."""
        self._child.write(orjson.dumps(message, default=str) + b"\n")
        await self._child.wait_for_drain()

    async def receive(self) -> dict[str, Any] | None:
        """Handle updates until another message arrives, and return that message; None at the end of the output."""
        while (message := await self._lines.next()) is not None:
            method = message.get("method")
            params = message.get("params")
            if method == UPDATE:
                try:
                    await self._host.update(params if isinstance(params, dict) else {}, more=self._lines.more)
                except Exception as problem:
                    self.failure = problem
                    return None
            elif isinstance(method, str):
                if isinstance(name := message.get("id"), int) and abs(name) >= LARGEST_ID:
                    continue  # a request with an id that cannot be answered
                if "id" in message:
                    await self.room.acquire()
                return message
            elif isinstance(message.get("id"), int | str):
                if "error" in message and not isinstance(message["error"], dict):
                    message["error"] = {"code": -32603, "message": str(message["error"])}
                return message
        return None

    async def close(self) -> None:
        """Do nothing, because the child's pipes are closed with the child."""


class Link:
    """A running agent that answers requests."""

    def __init__(
        self, program: Program, host: Host, on_data: Callable[[], None], read_log: LogReader | None = None
    ) -> None:
        self.program = program
        self.lines = Lines(on_data, LONGEST_LINE, strict=True)
        self.errors = ErrorLog(read_log)
        self.over = asyncio.Event()
        self._host = host
        self.child: Child | None = None  # the process, once it is started
        self._connection: Connection | None = None
        self._wire: Wire | None = None
        self._watching: asyncio.Task[None] | None = None

    async def open(self, turn: Turn) -> None:
        """Start the program. It runs only after its process group is in the store."""
        library = await asyncio.to_thread(import_module, "acp.connection")  # the import takes long
        self.child = await Child.spawn(self.program, turn, self.lines, self.errors)
        await self.child.admit(turn, more=True)
        self._wire = Wire(self.child, self.lines, self._host)
        self._connection = library.Connection(self._serve, self._wire)
        self._watching = asyncio.create_task(self._watch())

    async def serve(self, turn: Turn) -> None:
        """Let the agent work for a later turn."""
        assert self.child is not None
        await self.child.serve(turn)

    @property
    def alive(self) -> bool:
        """Whether the agent can answer requests."""
        return self.child is not None and not self.child.exited.is_set() and not self.over.is_set()

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return the answer.

        Raise RequestError if the agent refuses the request, and Gone if the process ends before the answer.
        """
        assert self._connection is not None
        try:
            answer = await self._connection.send_request(method, dict(params))
        except ConnectionError as problem:
            raise Gone from problem
        return answer if isinstance(answer, dict) else {}

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification. Do nothing if the process has ended."""
        if self._connection is not None and self.alive:
            try:
                await self._connection.send_notification(method, dict(params))
            except ConnectionError:
                return

    async def close(self) -> None:
        """End all processes of the agent and wait for their end."""
        if self._watching is not None:
            self._watching.cancel()
        if self._connection is not None:
            await self._connection.close()
        if self.child is not None:
            await self.child.end()
        self.over.set()

    async def explain_end(self, when: str) -> AgentError:
        """End the remaining processes of the agent. Return an error that says why and when the agent ended."""
        failure = self._wire.failure if self._wire else None
        await self.close()
        if isinstance(failure, AgentError):
            return failure
        name = self.program.argv[0].rpartition("/")[2]
        if self.lines.too_long:
            return AgentError(f"{name} was ended: it sent a message longer than {LONGEST_LINE} bytes; retry the task.")
        code = self.child.returncode if self.child else None
        output = last_words(self.errors.text()) or self.lines.first_noise
        reason = f"an update could not be handled: {failure!r}" if failure is not None else output
        return AgentError(f"{name} {describe_exit(code)} {when}" + (f": {reason}" if reason else ""))

    async def _watch(self) -> None:
        """Wait until the process has ended or has closed its output, and read the remaining output.

        Another process may keep the pipe open after the agent's process has ended.
        """
        assert self.child is not None
        ends = [asyncio.create_task(task.wait()) for task in (self.child.exited, self.lines.closed)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
        await self.lines.drain()
        self.over.set()

    async def _serve(self, method: str, params: Any, notification: bool) -> Any:
        if notification:
            if not method.startswith(EXTENSION):
                self._host.note_unknown(method)
            return None
        assert self._wire is not None
        try:
            return await self._host.serve(method, params if isinstance(params, dict) else {})
        finally:
            self._wire.room.release()

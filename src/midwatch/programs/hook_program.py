"""A hook that is a program: JSON-RPC 2.0 over its standard input and output, one JSON object in each line.

The program is started once, and started again if it ends. It must answer the request `hello` before it is used. Every
line that it writes must be the answer to an open request. After any other line the program is ended and started anew,
because nobody can know what its later answers mean. Requests have increasing ids and may be answered in any order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from midwatch.base.clock import SystemClock
from midwatch.base.errors import AgentError, BadConfig, MidwatchError
from midwatch.base.text import cut, escape_controls
from midwatch.domain.agent import ProgramUsage
from midwatch.domain.event import Event, Payload
from midwatch.domain.hook import (
    PRIORITY,
    SECONDS,
    HookDecision,
    HookFailure,
    HookMeta,
    Seam,
    check_hook_name,
    read_decision,
)
from midwatch.programs.process import DRAIN, Child, Pipe, Program, describe_exit, wait_within

log = logging.getLogger("midwatch.hooks")

VERSION = 1
"""The version of the protocol."""
LINE_LIMIT = 1 << 20
HELLO_SECONDS = 10.0
END_SECONDS = 2.0
"""How long a program may run after its standard input was closed; then it is ended by signals."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before a program is started again: doubled after each start, until the program has run for a while."""
STEADY_SECONDS = 10.0
"""A program that ran for this time was started well: the next pause is the first again."""
HANGING = 0.9
"""A program hangs if it is silent for this part of the time of a call. A call that ended earlier does not show it."""
MOST_LATE = 1000
SHOWN = 200
STDERR_LINES, STDERR_SECONDS = 50, 10.0
"""How many lines of its standard error are logged in this time; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookProgramSettings:
    """How a hook program is started and called."""

    name: str
    argv: tuple[str, ...]
    seams: tuple[Seam, ...]
    workdir: str
    priority: int = PRIORITY
    seconds: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class _Lines(Pipe):
    """Passes each line of a pipe on. A line above the limit is passed as None, and what follows is not read."""

    def __init__(self, take: Callable[[bytes | None], None], limit: int) -> None:
        super().__init__()
        self._take = take
        self._limit = limit
        self.begun = bytearray()
        """The line that has not ended yet."""
        self._broken = False

    def data_received(self, data: bytes) -> None:
        *ended, unfinished = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            if not self._broken:
                self._take(bytes(self.begun))
                self.begun.clear()
        self._add(unfinished)

    def _add(self, piece: bytes) -> None:
        if not self._broken:
            self.begun += piece
            if len(self.begun) > self._limit:
                self._broken = True
                self.begun.clear()
                self._take(None)


class _Owner:
    """The owner of the program's process. It belongs to no task."""

    attempt = 0
    thread_id: str | None = None
    pin: str | None = None
    resumed = False

    def __init__(self, settings: HookProgramSettings) -> None:
        self.task_id = f"hook-{settings.name}"
        self.workdir: str | None = settings.workdir
        self.env: Mapping[str, str] = settings.env

    async def emit(self, payload: Payload) -> None:
        """Do nothing: a hook program has no turn."""

    async def own_group(self, pgid: int) -> None:
        """Do nothing: the guard knows the group, and no other process continues the work of a hook."""

    def note_usage(self, usage: ProgramUsage) -> None:
        """Do nothing: no task pays for a hook."""


class HookProgram:
    """Implements `midwatch.domain.hook.HookPart` for a program. Raise BadConfig if the program does not exist."""

    kind = "program"

    def __init__(self, settings: HookProgramSettings) -> None:
        self._settings = settings
        self.name, self.priority, self.seams = settings.name, settings.priority, settings.seams
        self.seconds = settings.seconds
        self.state = "stopped"
        self._program = Program(
            agent=settings.name, argv=settings.argv, workdir=settings.workdir, sandbox=None, env=settings.env
        )
        _check_program(settings)
        self._running: asyncio.Task[None] | None = None
        self._link: _Link | None = None
        self._ready = asyncio.Event()
        self.restarts = 0
        self.last_end: HookFailure | None = None
        self._problem: str | None = None

    def explain(self) -> str | None:
        """Return why the program cannot answer now, or None."""
        if self.state in ("running", "stopped"):
            return None
        return self._problem or "the program is not ready yet."

    async def start(self) -> None:
        """Start the program in the background."""
        if self._running is None:
            self.state = "starting"
            self._running = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self) -> None:
        """Close the program's standard input, and end the program and its children if they do not end soon."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
        self.state = "stopped"

    async def decide(self, seam: Seam, subject: dict[str, Any], meta: HookMeta) -> HookDecision:
        """Ask the program. Wait for it if it is being started."""
        link = await self._connect()
        seconds = self.seconds or SECONDS[seam]
        return read_decision(seam, await link.request(seam, {"meta": meta._asdict(), **subject}, seconds))

    async def observe(self, event: Event) -> None:
        """Send the event to the program, which does not answer."""
        link = await self._connect()
        await link.notify("event", event.snapshot())

    async def _connect(self) -> _Link:
        """Start the program if it is stopped, and wait until it can be asked."""
        await self.start()
        while self._link is None:  # a program that broke at once is gone again when this wakes
            await self._ready.wait()
        return self._link

    async def _supervise(self) -> None:
        """Keep the program running."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            self.state = "starting"
            try:
                await self._run_once()
            except MidwatchError as problem:
                self._problem = str(problem)
            except Exception as problem:
                self._problem = f"the program could not be started: {type(problem).__name__}."
                log.exception("hook %s could not be started", self.name)
            pause = FIRST_PAUSE if time.monotonic() - began >= STEADY_SECONDS else pause
            self.last_end = HookFailure(str(self._problem), SystemClock().now())
            log.warning("hook %s: %s It is started again in %.1f s.", self.name, self._problem, pause)
            self.state = "waiting"
            await asyncio.sleep(pause)
            self.restarts += 1
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _run_once(self) -> None:
        """Start the program, and use it until it ends or breaks the protocol."""
        _check_program(self._settings)
        link = _Link(self.name)
        child = await Child.spawn(self._program, _Owner(self._settings), link.out, link.err, helper=True)
        try:
            link.child = child
            await child.admit(None, more=True)
            watching = asyncio.get_running_loop().create_task(link.watch_end())
            try:
                await link.say_hello(self._settings)
                self._link, self.state = link, "running"
                self._ready.set()
                await link.broken.wait()
                raise AgentError(link.problem)
            finally:
                watching.cancel()
        finally:
            self._ready.clear()
            self._link = None
            if not link.broken.is_set():  # the desk is being closed
                link.fail("the program is being stopped.")
                child.end_input()
                await wait_within(END_SECONDS, child.exited)
            await child.end()


class _Link:
    """The connection to one running program: its open requests, and what is wrong with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.child: Child | None = None
        self.out = _Lines(self._take, LINE_LIMIT)
        self.err = _Lines(_StderrLog(name).take, LINE_LIMIT)
        self.broken = asyncio.Event()
        self.problem = "the program was ended."
        self._last_id = 0
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._late: dict[int, None] = {}
        """The ids of requests whose callers no longer wait. Their answers are ignored."""
        self._heard_at = 0.0

    async def say_hello(self, settings: HookProgramSettings) -> None:
        """Wait until the program answers `hello` with the version of the protocol."""
        params = {"name": settings.name, "version": VERSION, "seams": settings.seams}
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                reply = await self.request("hello", params, HELLO_SECONDS)
        except TimeoutError:
            raise AgentError(f"the program did not answer `hello` within {HELLO_SECONDS:g} s.") from None
        if not isinstance(reply, Mapping) or reply.get("version") != VERSION:
            raise AgentError(f'the program did not answer `hello` with {{"version": {VERSION}}}.')

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Any:
        """Send a request and return the result. Raise AgentError if the program fails or answers with an error.

        If the caller stops waiting after `seconds`, and the program has been silent since the request, the program
        hangs and is ended. A caller may also stop earlier: its turn was cancelled, or the program was being started.
        """
        assert self.child is not None
        asked_at, number = time.monotonic(), None
        try:
            await self.child.wait_for_drain()
            if self.broken.is_set():
                raise AgentError(self.problem)
            self._last_id += 1
            number = self._last_id
            answer = self._open[number] = asyncio.get_running_loop().create_future()
            self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await answer
        except asyncio.CancelledError:
            if number is not None:
                self._late[number] = None
            hangs = self._heard_at < asked_at and time.monotonic() - asked_at >= HANGING * seconds
            if hangs or len(self._late) > MOST_LATE:
                self.fail("the program did not answer in time.")
            raise
        finally:
            if number is not None:
                self._open.pop(number, None)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, as soon as the program reads its input."""
        assert self.child is not None
        await self.child.wait_for_drain()
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def watch_end(self) -> None:
        """End all open requests when the program has ended or has closed its output. Read its last lines before."""
        assert self.child is not None
        exited, closed = self.child.exited, self.out.closed
        waits = [asyncio.ensure_future(event.wait()) for event in (exited, closed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await wait_within(DRAIN, closed if exited.is_set() else exited)
        how = describe_exit(self.child.returncode) if exited.is_set() else "closed its standard output"
        self.fail(f"the program {how}{' in the middle of a line' if self.out.begun else ''}.")

    def fail(self, problem: str) -> None:
        """End all open requests with an error, and read nothing more; the program is then started again."""
        if not self.broken.is_set():
            self.problem = problem
            self.broken.set()
            self.out.cut()
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(AgentError(self.problem))

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.child is not None
        try:
            line = orjson.dumps(message, default=str)
        except TypeError:  # a number or a text of a model that orjson refuses
            line = json.dumps(message, default=str).encode()
        self.child.write(line + b"\n")

    def _take(self, line: bytes | None) -> None:
        """Take a line of the program: the answer to an open request."""
        self._heard_at = time.monotonic()
        if self.broken.is_set():
            return
        if line is None:
            self.fail(f"the program wrote a line of more than {LINE_LIMIT} bytes.")
            return
        try:
            message = orjson.loads(line)
        except ValueError:
            message = None
        number = message.get("id") if isinstance(message, dict) else None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or type(number) is not int:
            shown = escape_controls(line[:SHOWN].decode("utf-8", "replace"))
            self.fail(f"the program wrote a line that is no answer in JSON-RPC: {shown!r}.")
        elif number in self._open:
            self._settle(self._open[number], message)
        elif number in self._late:
            del self._late[number]
        else:
            self.fail(f"the program answered the request {number}, which is not open.")

    def _settle(self, answer: asyncio.Future[Any], message: Mapping[str, Any]) -> None:
        if answer.done():
            return
        if ("result" in message) == ("error" in message):
            answer.set_exception(AgentError("the program's answer must have either `result` or `error`."))
        elif "error" in message:
            error = message["error"]
            text = error.get("message") if isinstance(error, dict) else error
            answer.set_exception(AgentError(f"the program answered with an error: {cut(str(text), SHOWN)}"))
        else:
            answer.set_result(message["result"])


class _StderrLog:
    """Logs what a program writes to its standard error, but not too many lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._since = -STDERR_SECONDS
        self._lines = 0

    def take(self, line: bytes | None) -> None:
        """Log a line. None is a line that was too long; what follows it is not read."""
        now = time.monotonic()
        if now - self._since >= STDERR_SECONDS:
            if self._lines > STDERR_LINES:
                log.info("hook %s: %d more lines are left out", self._name, self._lines - STDERR_LINES)
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines <= STDERR_LINES:
            text = "(a line that is too long)" if line is None else line.decode("utf-8", "replace")
            log.info("hook %s: %s", self._name, escape_controls(cut(text, SHOWN)))


def _check_program(settings: HookProgramSettings) -> None:
    """Raise BadConfig if the name is not valid, or if the program does not exist or is not executable."""
    check_hook_name(settings.name)
    name = settings.argv[0]
    if "/" in name:
        path = Path(settings.workdir) / name
        found = path.is_file() and os.access(path, os.X_OK)
    else:
        found = shutil.which(name, path={**os.environ, **settings.env}.get("PATH", os.defpath)) is not None
    if not found:
        raise BadConfig(
            f"hooks: the program {name!r} of hook {settings.name} is not installed or not executable; correct `argv`."
        )

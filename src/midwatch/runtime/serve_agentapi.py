"""`midwatch agentapi server`: one agent in a terminal, one conversation, one port on this machine, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import uvloop

from midwatch.agents.registry import build
from midwatch.agents.terminal.profiles import PROFILES
from midwatch.api.agentapi.allowed_origins import Rules
from midwatch.api.agentapi.app import standalone
from midwatch.api.agentapi.statefile import PidFile, Saved, StateFile, Unusable, prompt_to_send
from midwatch.api.agentapi.talk import NotTaken, Talk
from midwatch.api.agentapi.uploads import Uploads
from midwatch.api.protocol import Limits
from midwatch.api.server import Server, listen, url_of
from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.desk.config import Settings
from midwatch.domain.agent import Agent
from midwatch.runtime.runtime import Runtime
from midwatch.runtime.serve import on_signals, room_for, write_log

HOST = "127.0.0.1"
FOR_EVER = 365 * 86400.0

log = logging.getLogger("midwatch.agentapi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the server was told on its command line."""

    argv: tuple[str, ...]
    agent_type: str
    port: int
    chat_base: str
    columns: int
    rows: int
    rules: Rules
    prompt: Callable[[], str]
    """May wait: what comes by standard input is read to its end."""
    state: Path | None = None
    load: bool = False
    save: bool = False
    pid: Path | None = None
    home: Path | None = None
    """None: one of its own, which goes with it."""


class End(NamedTuple):
    """How it ended: the exit status, and what the terminal showed last if that tells why."""

    status: int
    screen: str | None = None


def serve(wishes: Wishes, started: Callable[[str], None]) -> End:
    """Serve until a signal, or until the agent ends. `started` hears the address once requests are answered."""
    pid = PidFile(wishes.pid) if wishes.pid else None
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(HOST, wishes.port, command="midwatch agentapi server"))
        if pid is not None:
            pid.claim()
            stack.callback(pid.release)
        home = wishes.home
        if home is None:
            home = Path(tempfile.mkdtemp(prefix="midwatch-agentapi-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        settings = Settings.load(home, detect_agents=False, keep_open=FOR_EVER, shutdown_grace=0)
        write_log(settings)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(_serve(wishes, settings, listener, started))


def agent_of(wishes: Wishes) -> Agent:
    """The agent that the command line describes."""
    argv = with_flags(wishes.argv, PROFILES[wishes.agent_type].argv)
    options = {"profile": wishes.agent_type, "argv": argv, "columns": wishes.columns, "rows": wishes.rows}
    return build(wishes.agent_type, "terminal", options)


def with_flags(argv: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """A command line with the flags its profile relies on, such as those that keep an agent on the screen with a
    history. What was said counts; other programs and subcommands are left alone."""
    flags = [part for part in known[1:] if part.startswith("-")]
    plain = all(part.startswith("-") for part in (*argv[1:2], *known[1:2]))
    if Path(argv[0]).name != "".join(known[:1]) or not plain or any(flag in argv for flag in flags):
        return argv
    needed: list[str] = []
    for part in known[1:]:
        if "{thread}" in part:
            needed = needed[:-1]
        else:
            needed.append(part)
    return (argv[0], *needed, *argv[1:])


async def _serve(wishes: Wishes, settings: Settings, listener: socket.socket, started: Callable[[str], None]) -> End:
    stopping = asyncio.Event()
    on_signals(stopping)
    agent = agent_of(wishes)
    if "problem" in agent.describe():
        name = wishes.argv[0]
        raise BadConfig(f"program {name!r} is not installed or not executable; install it or name another after --.")
    uploads = Uploads()
    try:
        async with (
            Runtime.open(settings.home, settings=settings, agents={agent.name: agent}) as desk,
            _conversation(desk, agent, wishes) as keeper,
        ):
            app = standalone(desk, keeper.talk, wishes.rules, wishes.chat_base, uploads)
            limits = Limits(connections=room_for(settings))
            server = Server(app, stopping, lambda: started(url_of(HOST, listener)), limits)
            ended = asyncio.create_task(_until_gone(keeper.talk, stopping))
            await server.serve([listener])
            ended.cancel()
            return _end_of(keeper.talk, agent)
    finally:
        uploads.close()


async def _until_gone(talk: Talk, stopping: asyncio.Event) -> None:
    await talk.gone.wait()
    stopping.set()


def _end_of(talk: Talk, agent: Agent) -> End:
    """What the end of the agent means; one that was stopped by a signal ended well."""
    exits = getattr(agent, "exits", {})
    left = exits.get(talk.key)
    code, screen = (left.code, left.screen or "") if left is not None else talk.exit or (0, "")
    return End(0) if code == 0 else End(1, screen or talk.feed.screen)


@asynccontextmanager
async def _conversation(desk: Runtime, agent: Agent, wishes: Wishes) -> AsyncIterator[Keeper]:
    """The conversation, with the agent started, the state taken up, and kept as it goes on."""
    file = StateFile(wishes.state) if wishes.state else None
    saved, trouble = Saved(), None
    if file is not None and wishes.load:
        try:
            saved = await asyncio.to_thread(file.load)
        except Unusable as problem:
            trouble = f"Failed to restore previous session: {problem}"
    view, _ = await desk.sessions.create(agent=agent.name, workdir=str(Path.cwd()), title="agentapi")
    await desk.sessions.recall(view.session.key, [(said.role, said.message, said.time) for said in saved.messages])
    talk = Talk(desk, view.session, kind=agent.kind, own=True, resumed=bool(saved.messages))
    await talk.begin()
    keeper = Keeper(talk, file if wishes.save else None, saved)
    try:
        if trouble is not None:
            log.warning("%s", trouble)
            talk.feed.emit_error(trouble, "warning")
        await talk.open()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, keeper.save_soon)
        keeper.begin(wishes.prompt)
        yield keeper
    finally:
        await keeper.end()
        await talk.close()


class Keeper:
    """Sends the initial prompt, and keeps the conversation in its file whenever the agent waits for input."""

    def __init__(self, talk: Talk, file: StateFile | None, saved: Saved) -> None:
        self.talk = talk
        self._file = file
        self._saved = saved
        self._prompt, self._sent = saved.initial_prompt, saved.initial_prompt_sent
        self._tasks: list[asyncio.Task[None]] = []
        self._saving: set[asyncio.Task[None]] = set()

    def begin(self, prompt: Callable[[], str]) -> None:
        """Start what goes on beside the requests."""
        self._tasks = [asyncio.create_task(self._ask_first(prompt)), asyncio.create_task(self._keep())]

    async def end(self) -> None:
        """Write the last state."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._saving, return_exceptions=True)
        self._save()

    def save_soon(self) -> None:
        """Somebody asked for it."""
        saving = asyncio.create_task(asyncio.to_thread(self._save))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    def _save(self) -> None:
        if self._file is None:
            return
        try:
            self._file.save(self.talk.feed.messages, self._prompt, self._sent)
        except OSError as problem:
            log.error("the state file %s cannot be written: %s", self._file.path, problem.strerror)

    async def _keep(self) -> None:
        reader, _ = self.talk.feed.subscribe("status_change")
        while told := await reader.take():
            if told[-1].body["status"] == "stable":
                await asyncio.to_thread(self._save)

    async def _ask_first(self, prompt: Callable[[], str]) -> None:
        given = (await _in_thread(prompt)).strip()
        self._prompt, self._sent = prompt_to_send(given, self._saved)
        if not self._prompt or self._sent:
            return
        await self.talk.stable()
        self._sent = True
        try:
            await self.talk.send(self._prompt)
        except (MidwatchError, NotTaken) as problem:
            log.warning("the initial prompt was not sent: %s", problem)
            self.talk.feed.emit_error(f"the initial prompt was not sent: {problem}", "warning")


async def _in_thread(read: Callable[[], str]) -> str:
    """Read in a thread that keeps nobody from ending: a pipe may stay open for ever."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def told(text: str) -> None:
        if not done.done():
            done.set_result(text)

    def work() -> None:
        text = read()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(told, text)

    threading.Thread(target=work, daemon=True).start()
    return await done

"""`midwatch agentapi server`: serves one conversation with one agent, on one port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import uvloop

from midwatch.agents.registry import build
from midwatch.agents.terminal.profiles import PROFILES
from midwatch.api.agentapi import statefile
from midwatch.api.agentapi.allowed_origins import Rules
from midwatch.api.agentapi.app import create_standalone
from midwatch.api.agentapi.bodies import StatusChangeBody
from midwatch.api.agentapi.follower import NoReaction, SessionFollower
from midwatch.api.agentapi.statefile import SavedMessage, State, StateFile, UnusableState, choose_prompt
from midwatch.api.agentapi.uploads import Uploads
from midwatch.api.protocol import Limits
from midwatch.api.server import Server, listen, local_url
from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.threads import in_thread
from midwatch.desk.config import Settings
from midwatch.domain.agent import Agent
from midwatch.programs.scratch import ScratchFolder
from midwatch.runtime.loop_monitor import LoopMonitor
from midwatch.runtime.runtime import Runtime, collect_garbage_seldom
from midwatch.runtime.serve import limit_connections, on_signals, write_log

HOST = "127.0.0.1"
FOR_EVER = 365 * 86400.0
COLLECT_SECONDS = 1.0
"""Seconds after the start until garbage is collected, so that the start is quick."""
PROMPT_SECONDS = 2.0
"""Seconds in which standard input must end, so that its text is sent before clients can send messages."""

log = logging.getLogger("midwatch.agentapi")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of the server, from its command line."""

    argv: tuple[str, ...]
    agent_type: str
    port: int
    chat_base: str
    columns: int
    rows: int
    rules: Rules
    read_prompt: Callable[[], str]
    """Returns the initial prompt. The call may block, because it may read standard input until end-of-file."""
    state: Path | None = None
    load: bool = False
    save: bool = False
    pid: Path | None = None
    acp: bool = False
    """Whether the agent speaks the Agent Client Protocol. Otherwise it runs in a terminal."""
    home: Path | None = None
    """The home, or None for a temporary home, which is removed at the end."""


class ServerExit(NamedTuple):
    """The exit status of the server and, if the agent failed, its last screen."""

    status: int
    screen: str | None = None


def serve(options: ServerOptions, started: Callable[[str], None]) -> ServerExit:
    """Serve until a signal arrives or the agent ends. `started` gets the address when the server answers requests."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(HOST, options.port, command="midwatch agentapi server"))
        if options.pid is not None:
            statefile.claim_pid_file(options.pid)
            stack.callback(statefile.release_pid_file, options.pid)
        home = options.home
        if home is None:
            home = stack.enter_context(contextlib.closing(ScratchFolder("midwatch-agentapi-"))).path
        settings = Settings.load(home, detect_agents=False, keep_open=FOR_EVER, shutdown_grace=0)
        write_log(settings)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(_serve(options, settings, listener, started))


def build_agent(options: ServerOptions) -> Agent:
    """Return the agent that the command line describes."""
    if options.acp:
        from midwatch.agents.acp.profiles import PROFILES as ACP_PROFILES

        known = {"profile": options.agent_type} if options.agent_type in ACP_PROFILES else {}
        return build(options.agent_type, "acp", {"argv": options.argv, **known})
    argv = add_profile_flags(options.argv, PROFILES[options.agent_type].argv)
    size = {"columns": options.columns, "rows": options.rows}
    return build(options.agent_type, "terminal", {"profile": options.agent_type, "argv": argv, **size})


def add_profile_flags(argv: tuple[str, ...], profile: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line `argv` with the flags that it needs from `profile`, the command line of its profile.

    For example, such a flag keeps the agent's output in the terminal's history. The command line is returned unchanged
    if it contains one of the flags already, starts a subcommand, or starts another program than the profile.
    """
    flags = [part for part in profile[1:] if part.startswith("-")]
    plain = all(part.startswith("-") for part in (*argv[1:2], *profile[1:2]))
    if Path(argv[0]).name != "".join(profile[:1]) or not plain or any(flag in argv for flag in flags):
        return argv
    needed: list[str] = []
    for part in profile[1:]:
        if "{thread}" in part:
            needed = needed[:-1]
        else:
            needed.append(part)
    return (argv[0], *needed, *argv[1:])


async def _serve(
    options: ServerOptions, settings: Settings, listener: socket.socket, started: Callable[[str], None]
) -> ServerExit:
    stopping = asyncio.Event()
    on_signals(stopping)
    agent = build_agent(options)
    if "problem" in agent.describe():
        name = options.argv[0]
        raise BadConfig(f"program {name!r} is not installed or not executable; install it, or change it after `--`.")
    with contextlib.closing(Uploads()) as uploads:
        async with (
            Runtime.open(settings.home, settings=settings, agents={agent.name: agent}) as desk,
            _open_conversation(desk, agent, options) as follower,
        ):
            app = create_standalone(desk, follower, options.rules, options.chat_base, uploads)
            limits = Limits(connections=limit_connections(settings))
            server = Server(app, stopping, lambda: started(local_url(HOST, listener)), limits)
            waiting = asyncio.create_task(_stop_with_program(follower, stopping))
            asyncio.get_running_loop().call_later(COLLECT_SECONDS, collect_garbage_seldom)
            with LoopMonitor(settings.loop_limit, desk.count_standstill):
                await server.serve([listener])
            waiting.cancel()
            return _explain_end(follower, agent)


async def _stop_with_program(follower: SessionFollower, stopping: asyncio.Event) -> None:
    await follower.program_ended.wait()
    stopping.set()


def _explain_end(follower: SessionFollower, agent: Agent) -> ServerExit:
    """Return the exit status of the server: 0 if the agent ended with exit code 0 or still ran, otherwise 1."""
    exited = getattr(agent, "exits", {}).get(follower.key)
    code, screen = (exited.code, exited.screen or "") if exited is not None else follower.exit or (0, "")
    return ServerExit(0) if code == 0 else ServerExit(1, screen or follower.feed.screen)


@asynccontextmanager
async def _open_conversation(desk: Runtime, agent: Agent, options: ServerOptions) -> AsyncIterator[SessionFollower]:
    """Start the agent, with the messages of its state file if that is loaded, and keep the state file up to date."""
    file = StateFile(options.state, writable=options.save) if options.state else None
    state, warning = State(), None
    if file is not None and options.load:
        try:
            state = await asyncio.to_thread(file.load)
        except UnusableState as problem:
            warning = f"Failed to restore previous session: {problem}"
    view, _ = await desk.sessions.create(agent=agent.name, workdir=str(Path.cwd()), title="agentapi")
    messages = [(message.role, message.message, message.time) for message in state.messages]
    await desk.sessions.add_history(view.session.key, messages)
    in_terminal = agent.kind == "terminal"
    follower = SessionFollower(desk, view.session, kind=agent.kind, needs_terminal=in_terminal, resumed=bool(messages))
    await follower.start()
    keeper = StateKeeper(follower, file, state, desk.clock.now)
    try:
        if warning is not None:
            keeper.warn(warning)
        if in_terminal:
            await follower.open_terminal()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, keeper.save_soon)
        keeper.start(options.read_prompt)
        yield follower
    finally:
        await keeper.close()
        await follower.close()


class StateKeeper:
    """Sends the initial prompt, and saves the conversation to the state file whenever the agent waits for input."""

    def __init__(self, follower: SessionFollower, file: StateFile | None, state: State, now: Callable[[], int]) -> None:
        self._follower = follower
        self._file = file
        self._state = state
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self._saving: set[asyncio.Task[None]] = set()

    def start(self, read_prompt: Callable[[], str]) -> None:
        """Start to send the initial prompt and to save the conversation, in the background."""
        self._follower.hold(True)
        self._tasks = [asyncio.create_task(work) for work in (self._send_prompt(read_prompt), self._save_when_stable())]

    async def close(self) -> None:
        """Stop the background work, and save the conversation a last time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._saving, return_exceptions=True)
        self._save()

    def save_soon(self) -> None:
        """Save the conversation in the background."""
        saving = asyncio.create_task(asyncio.to_thread(self._save))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    def warn(self, message: str) -> None:
        """Write a warning to the server's log file, and send it to the clients."""
        log.warning("%s", message)
        self._follower.feed.emit_error(message, "warning", self._now())

    def _save(self) -> None:
        if self._file is None:
            return
        messages = [SavedMessage(**dict(message)) for message in self._follower.feed.messages]
        try:
            self._file.save(self._state.model_copy(update={"messages": messages}))
        except OSError as problem:
            log.error("the state file %s cannot be written: %s", self._file.path, problem.strerror)

    async def _save_when_stable(self) -> None:
        async for _ in self._follower.feed.follow(StatusChangeBody):
            if self._follower.feed.status == "stable":
                await asyncio.to_thread(self._save)

    async def _send_prompt(self, read_prompt: Callable[[], str]) -> None:
        """Send the initial prompt if it was not sent before. Clients see the status `stable` only after its turn."""
        try:
            prompt = await self._read_prompt(read_prompt)
            state = self._state = choose_prompt(prompt, self._state)
            if not state.initial_prompt or state.initial_prompt_sent:
                return
            self._follower.hold(True)
            await self._follower.wait_until_ready()
            self._state = state.model_copy(update={"initial_prompt_sent": True})
            await self._follower.send_message(state.initial_prompt, initial=True)
        except (MidwatchError, NoReaction) as problem:
            self.warn(f"the initial prompt was not sent: {problem}")
        finally:
            self._follower.hold(False)

    async def _read_prompt(self, read_prompt: Callable[[], str]) -> str:
        """Return the initial prompt. If it does not come soon, clients may send messages meanwhile."""
        reading = asyncio.ensure_future(in_thread(read_prompt))  # the server can end although a pipe stays open
        await asyncio.wait({reading}, timeout=PROMPT_SECONDS)
        if not reading.done():
            self._follower.hold(False)
        return (await reading).strip()

"""A session followed for its agentapi clients: its messages by place, whether it can be spoken to, and speaking."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from midwatch.agents.terminal.format import BLANK, agent_type, format_agent_message
from midwatch.agents.terminal.sending import clean
from midwatch.api.agentapi.feed import Feed, Role, Said
from midwatch.api.events import watched
from midwatch.base.errors import AgentError, Conflict, InvalidInput, MidwatchError, StoreError
from midwatch.desk.desk import Desk
from midwatch.domain.agent import Screenshot
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.session import Session
from midwatch.domain.watch_state import SessionState
from midwatch.live.bus import Shown

PAGE = 500
TOLD_EVERY = 0.1
TOLD_PER_SECOND = 40_000
"""Characters of a message that is being written: it is told whole each time, so a long one is told less often."""
FIRST_LOOK, LAST_LOOK = 0.05, 0.5
"""Seconds between looks at a terminal that is not ready yet; more and more."""
REACTION_SECONDS = 20.0
REMEMBERED_TURNS = 100
MOST_TALKS = 100
GREETING = ""
"""What the first message, the screen the agent started with, is kept by."""

log = logging.getLogger("midwatch.agentapi")


class NotTaken(Exception):
    """The agent did not react to a message."""


@dataclass(slots=True)
class Turn:
    """How far a task of the session is."""

    begun: bool = False
    reacted: bool = False
    ended: bool = False
    error: str | None = None


class Talk:
    """One session. `feed` is what its clients see."""

    def __init__(self, desk: Desk, session: Session, *, kind: str, own: bool = False, resumed: bool = False):
        """With `own` its terminal has to be open. A conversation that is `resumed` begins with what was said."""
        self.key = session.key
        self.transport = "pty" if kind == "terminal" else "acp"
        self.feed = Feed(_type_of(desk, session), desk.clock.now)
        self.gone = asyncio.Event()
        """Set when the program in the terminal has ended."""
        self.exit: tuple[int | None, str] | None = None
        """Its exit code and last screen, when it ended while it worked."""
        self._desk = desk
        self._own = own
        self._said: dict[str, Said] = {}
        self._greets = self.transport == "pty" and not resumed
        if self._greets:
            self._put(GREETING, "agent", "", session.created_at)
        self._writing: dict[str, str] = {}
        self._number = 0
        self._turns: dict[str, Turn] = {}
        self._open: set[str] = set()
        self._sending = False
        self._seen: Screenshot | None = None
        self._was_open = False
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None
        self._told_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._last_error = 0

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Follow the session; returns when its state is known."""
        batches = await watched(self._desk, EventFilter(session_key=self.key), None)
        known = asyncio.Event()

        async def follow() -> None:
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        for one in batch:
                            await self._note(one)
                        known.set()
            except StoreError as problem:
                log.warning("session %s is no longer followed: %s", self.key, problem)
            finally:
                known.set()
                self.feed.close()
                looking.cancel()

        looking = asyncio.create_task(self._look_on())
        self._tasks = [asyncio.create_task(follow()), looking]
        await known.wait()
        await self._look()

    async def close(self) -> None:
        """Follow it no more."""
        if self._telling is not None:
            self._telling.cancel()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self.feed.close()

    @property
    def following(self) -> bool:
        """Whether it still hears of its session."""
        return bool(self._tasks) and not self._tasks[0].done()

    # -- what clients do ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Have the program in the terminal started; AgentError when that cannot be."""
        await self._desk.terminals.open(self.key)
        self._was_open = True
        self._wake.set()

    async def send(self, text: str, *, actor: str | None = None) -> None:
        """Say something and wait until the agent reacts. Conflict when it does not wait for input, NotTaken when it
        does not react, AgentError when it fails at once."""
        if not clean(text):
            raise InvalidInput("message must not be empty", field="content")
        if self.feed.status != "stable" or self._sending:
            raise Conflict("message can only be sent when the agent is waiting for user input")
        self._sending = True
        self._judge()
        try:
            task = await self._desk.sessions.send(self.key, text, actor=actor)
            with suppress(TimeoutError):
                async with asyncio.timeout(REACTION_SECONDS):
                    await self._until(lambda: self._reacted(task.id))
        finally:
            self._sending = False
            self._judge()
        turn = self._turns.get(task.id)
        if turn is not None and turn.ended and turn.error is not None and not turn.reacted:
            raise AgentError(turn.error) if self._seen is None else NotTaken(turn.error)

    async def press(self, keys: str) -> None:
        """Type into the terminal, whatever goes on there."""
        await self._desk.terminals.send_keys(self.key, keys.encode())
        self._wake.set()

    async def stable(self) -> None:
        """Return once the agent waits for input."""
        await self._until(lambda: self.feed.status == "stable" and not self._sending)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            news = self._news
            self._wake.set()
            await news.wait()

    def _reacted(self, task_id: str) -> bool:
        turn = self._turns.get(task_id)
        if turn is None or turn.ended or turn.reacted:
            return turn is not None
        if self.transport != "pty":
            return turn.begun
        seen = self._seen
        busy = seen is not None and (seen.status == "asking" or (seen.status == "busy" and seen.evidence != "reaction"))
        return turn.begun and busy

    # -- what happens in the session ---------------------------------------------------------------------------------

    async def _note(self, one: Event | Shown) -> None:
        if isinstance(one, Shown):
            await self._start_from(one)
            return
        payload, turn = one.payload, self._turn(one.task_id)
        if one.kind == "message_update":
            if payload["role"] in ("user", "agent"):
                self._writing.pop(payload["message_id"], None)
                if payload["role"] == "user":
                    turn.begun = True
                    self.feed.emit_status("running")
                self._put(payload["message_id"], payload["role"], payload["message"], one.time)
                self._tell()
        elif one.kind == "message_delta":
            turn.reacted = True
            self._write(payload["message_id"], payload["offset"], payload["text"])
        elif one.kind == "screen_update":
            self._show(payload["screen"], one.time)
        elif one.kind == "agent_error":
            self._last_error = one.time
            self.feed.emit_error(payload["message"], payload["level"], one.time)
        elif one.kind == "agent_exited":
            self.exit = payload["code"], payload["screen"] or ""
            self.gone.set()
        elif one.kind == "task_submitted" and one.task_id:
            self._open.add(one.task_id)
        elif one.kind == "task_finished":
            self._open.discard(one.task_id or "")
            turn.ended, turn.error = True, payload.get("error")
        self._judge()

    async def _start_from(self, shown: Shown) -> None:
        """Take in a moment of the store, also again after some events were lost."""
        state = shown.state
        assert isinstance(state, SessionState)
        while page := await self._desk.sessions.messages(self.key, self._number, PAGE):
            for message in page:
                if message.role in ("user", "agent"):
                    self._put(message.id, "user" if message.role == "user" else "agent", message.text, message.time)
            self._number = page[-1].number
        for fault in state.errors:
            if fault.time > self._last_error:
                self.feed.emit_error(fault.message, "warning" if fault.level == "warning" else "error", fault.time)
                self._last_error = fault.time
        for written in shown.partial:
            self._writing[written.message_id] = written.text
        self._open = {task.id for task in (*state.queue, *((state.running,) if state.running else ()))}
        if shown.screen is not None:
            self._show(shown.screen, self._desk.clock.now())
        self._tell()
        self._judge()

    def _turn(self, task_id: str | None) -> Turn:
        if task_id is None:
            return Turn()
        if task_id not in self._turns and len(self._turns) >= REMEMBERED_TURNS:
            del self._turns[next(iter(self._turns))]
        return self._turns.setdefault(task_id, Turn())

    # -- messages ----------------------------------------------------------------------------------------------------

    def _put(self, name: str, role: Role, text: str, time: int) -> None:
        known = self._said.get(name)
        if known is None or known.message != text:
            self._said[name] = Said(known.id if known else len(self._said), text, role, time)

    def _show(self, screen: str, time: int) -> None:
        self.feed.emit_screen(screen)
        self._greet(screen, time)
        self._wake.set()

    def _greet(self, screen: str, time: int) -> None:
        """Until somebody speaks, the first message is what the agent shows."""
        if self._greets and len(self._said) == 1:
            text = format_agent_message(self.feed.agent_type, screen, "").rstrip(BLANK)
            self._put(GREETING, "agent", text, time)
            self._tell_soon(len(text))

    def _write(self, name: str, offset: int, text: str) -> None:
        """More of a message; what would leave a hole is left to the whole message that follows."""
        before = self._writing.get(name, "")
        if offset <= len(before):
            self._writing[name] = before[:offset] + text
            self._tell_soon(len(self._writing[name]))

    def _tell_soon(self, size: int) -> None:
        if self._telling is None:
            loop = asyncio.get_running_loop()
            due = self._told_at + max(TOLD_EVERY, size / TOLD_PER_SECOND)
            self._telling = loop.call_at(max(due, loop.time()), self._tell)

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._told_at = asyncio.get_running_loop().time()
        for name, text in self._writing.items():
            self._put(name, "agent", text, self._desk.clock.now())
        self.feed.emit_messages(tuple(self._said.values()))

    # -- whether it waits --------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Work out the status; everybody who waits for something looks again."""
        ready = self._seen.status == "idle" if self._seen is not None else not self._own
        waits = not self._open and not self._sending and (ready or self.transport != "pty")
        if waits and self._telling is not None:
            self._tell()  # who hears that it waits has all that was said
        self.feed.emit_status("stable" if waits else "running")
        if not waits:
            self._wake.set()
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _look_on(self) -> None:
        """Look at the terminal whenever what it does may have changed, and until it waits for input."""
        pause = FIRST_LOOK
        while True:
            self._wake.clear()
            if self._sending or not self._open:
                await self._look()
            unsettled = self._sending or (not self._open and self.feed.status != "stable")
            try:
                async with asyncio.timeout(pause if unsettled else None):
                    await self._wake.wait()
                pause = FIRST_LOOK
            except TimeoutError:
                pause = min(2 * pause, LAST_LOOK)

    async def _look(self) -> None:
        if self.transport != "pty":
            return
        before = self._seen
        try:
            self._seen = await self._desk.terminals.screenshot(self.key)
        except MidwatchError:
            self._seen = None
        if self._seen is not None:
            self._was_open = True
            self.feed.emit_screen(self._seen.text)
            self._greet(self._seen.text, self._desk.clock.now())
        elif self._was_open and not self._open:
            self.gone.set()
        state = self._seen and (self._seen.status, self._seen.evidence)
        if state != (before and (before.status, before.evidence)):
            self._judge()


class Talks:
    """The sessions that are followed for clients."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._known: dict[str, Talk] = {}
        self._beginning = asyncio.Lock()

    async def of(self, key: str) -> Talk:
        """The session's, or NotFound."""
        known = self._known.get(key)
        if known is not None and known.following:
            return known
        async with self._beginning:
            known = self._known.get(key)
            if known is not None and known.following:
                return known
            session = (await self._desk.sessions.get(key)).session
            talk = Talk(self._desk, session, kind=await kind_of(self._desk, session))
            await talk.begin()
            self._known[key] = talk
            await self._make_room()
            return talk

    async def _make_room(self) -> None:
        """Follow those no longer that nobody watches, when there are many."""
        for key, talk in list(self._known.items())[:-1]:
            if len(self._known) <= MOST_TALKS:
                return
            if not len(talk.feed):
                del self._known[key]
                await talk.close()

    async def close(self) -> None:
        """Follow nothing any more."""
        for talk in self._known.values():
            await talk.close()
        self._known.clear()


async def kind_of(desk: Desk, session: Session) -> str:
    """The kind of a session's agent. Of one that works elsewhere it is only seen whether it has a terminal open."""
    agent = desk.agents.get(session.agent)
    if agent is not None:
        return agent.kind
    with suppress(MidwatchError):
        await desk.terminals.screenshot(session.key)
        return "terminal"
    return ""


def _type_of(desk: Desk, session: Session) -> str:
    options = getattr(desk.agents.get(session.agent), "options", None)
    return agent_type(str(getattr(options, "profile", None) or session.agent))

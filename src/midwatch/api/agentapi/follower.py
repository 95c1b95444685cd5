"""Follow a session for its agentapi clients: number its messages, find out its status, send messages to its agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from midwatch.agents.terminal.format import BLANK, find_agent_type, format_agent_message
from midwatch.agents.terminal.sending import clean
from midwatch.api.agentapi.bodies import ConversationRole, MessageUpdateBody, Transport
from midwatch.api.agentapi.feed import Feed
from midwatch.api.events import watch
from midwatch.base.clock import iso
from midwatch.base.errors import AgentError, Conflict, InvalidInput, MidwatchError, StoreError
from midwatch.desk.desk import Desk
from midwatch.domain.agent import Screenshot
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.identity import AnyActor
from midwatch.domain.session import Session
from midwatch.domain.watch_state import SessionState
from midwatch.live.bus import InitialView

PAGE = 500
PUBLISH_SECONDS = 0.1
PUBLISH_CHARACTERS = 40_000
"""Maximum characters per second that are sent for an unfinished message. Each update contains the whole message, so a
long message is updated less often."""
FIRST_PAUSE, LAST_PAUSE = 0.05, 0.5
"""Seconds between two polls of a terminal until its agent waits for input: the shortest and the longest pause."""
REACTION_SECONDS = 20.0
MAX_FOLLOWERS = 100
GREETING = ""
"""The id of the first message, which shows the first screen of the agent."""

log = logging.getLogger("midwatch.agentapi")


class NoReaction(Exception):
    """Raised when the agent did not react to a message."""


@dataclass(slots=True)
class Turn:
    """The progress of the turn of one task."""

    begun: bool = False
    reacted: bool = False
    ended: bool = False
    error: str | None = None


class SessionFollower:
    """A follower of one session. Its `feed` holds the state that clients see."""

    def __init__(
        self, desk: Desk, session: Session, *, kind: str, needs_terminal: bool = False, resumed: bool = False
    ) -> None:
        """Prepare to follow a session; `start` begins. `kind` is the kind of the session's agent.

        With `needs_terminal`, the status is `stable` only while the terminal is open. With `resumed`, the conversation
        begins with its old messages, not with the first screen.
        """
        self.key = session.key
        self.transport: Transport = "pty" if kind == "terminal" else "acp"
        self.feed = Feed(_find_agent_type(desk, session))
        self.program_ended = asyncio.Event()
        self.exit: tuple[int | None, str] | None = None
        """Exit code and last screen of the agent's program, if the program ended during a turn."""
        self._desk = desk
        self._needs_terminal = needs_terminal
        self._messages: dict[str, MessageUpdateBody] = {}
        self._drafts: dict[str, str] = {}
        self._reply: tuple[str, str] | None = None
        """Id and text of the last message, if it is the reply to the last turn that this follower has seen."""
        self._greets = self.transport == "pty" and not resumed
        if self._greets:
            self._set_message(GREETING, "agent", "", session.created_at)
        self._last_number = 0
        self._last_error = 0
        self._turns: dict[str, Turn] = {}
        self._open_tasks: set[str] = set()
        self._parked: set[str] = set()
        """Tasks that wait for the end of a usage limit. They are not open, because the agent takes other messages."""
        self._sending = False
        self._held = False
        self._screenshot: Screenshot | None = None
        self._was_open = False
        self._poll_now = asyncio.Event()
        self._changed = asyncio.Event()
        self._publishing: asyncio.TimerHandle | None = None
        self._published_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    # -- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to follow the session. Return when the state of the session is loaded."""
        batches = await watch(self._desk, EventFilter(session_key=self.key), None)
        loaded = asyncio.Event()

        async def follow() -> None:
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        for event in batch:
                            await self._handle(event)
                        loaded.set()
            except StoreError as problem:
                log.warning("agentapi clients get no more events of session %s: %s", self.key, problem)
            finally:
                loaded.set()
                self.feed.close()
                polling.cancel()

        polling = asyncio.create_task(self._poll_terminal())
        self._tasks = [asyncio.create_task(follow()), polling]
        await loaded.wait()
        await self._read_terminal()

    async def close(self) -> None:
        """Stop following the session."""
        if self._publishing is not None:
            self._publishing.cancel()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self.feed.close()

    @property
    def is_following(self) -> bool:
        """Return whether the follower still gets the events of its session."""
        return bool(self._tasks) and not self._tasks[0].done()

    # -- requests of clients -----------------------------------------------------------------------------------------

    async def open_terminal(self) -> None:
        """Start the agent's program in its terminal. Raise AgentError if this fails."""
        await self._desk.terminals.open(self.key)
        self._was_open = True
        self._poll_now.set()

    def hold(self, held: bool) -> None:
        """While the follower is held, the status is not `stable`, and only the initial prompt is sent."""
        self._held = held
        self._update_status()

    async def send_message(self, text: str, *, actor: AnyActor = None, initial: bool = False) -> None:
        """Send a message, and wait until the agent reacts or some time has passed. `initial`: the initial prompt.

        Raise Conflict if the agent does not wait for input. If the turn fails before the agent reacts, raise NoReaction
        for an agent in a terminal, AgentError for another agent.
        """
        await self._desk.authorization.check_session(actor, "manage", self.key)
        if not clean(text):
            raise InvalidInput("message must not be empty", field="content")
        if not self._is_ready() or (self._held and not initial):
            raise Conflict("message can only be sent when the agent is waiting for user input")
        self._sending = True
        self._turns.clear()
        self._update_status()
        try:
            await self._cancel_parked(actor)
            task = await self._desk.sessions.send(self.key, text, actor=actor)
            with suppress(TimeoutError):
                async with asyncio.timeout(REACTION_SECONDS):
                    await self._wait_until(lambda: self._has_reacted(task.id))
        finally:
            self._sending = False
            self._update_status()
        turn = self._turns.get(task.id)
        if turn is not None and turn.ended and turn.error is not None and not turn.reacted:
            raise NoReaction(turn.error) if self.transport == "pty" else AgentError(turn.error)

    async def _cancel_parked(self, actor: AnyActor) -> None:
        """Cancel the tasks that wait for the end of a usage limit, because a new message replaces them."""
        for task_id in sorted(self._parked):
            with suppress(Conflict):
                await self._desk.tasks.cancel(task_id, actor=actor)

    async def type_keys(self, keys: str, *, actor: AnyActor = None) -> None:
        """Type keys into the terminal, even while the agent works. Raise Conflict if the agent has no terminal."""
        if self.transport != "pty":
            raise Conflict("the agent has no terminal to type into; send a message of the type user")
        await self._desk.terminals.send_keys(self.key, keys.encode(), actor=actor)
        self._poll_now.set()

    async def wait_until_ready(self) -> None:
        """Return when the agent waits for input."""
        await self._wait_until(self._is_ready)

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            changed = self._changed
            self._poll_now.set()
            await changed.wait()

    def _has_reacted(self, task_id: str) -> bool:
        turn = self._turns.get(task_id)
        if turn is None or turn.ended or turn.reacted:
            return turn is not None
        if self.transport != "pty":
            return turn.begun
        shot = self._screenshot
        busy = shot is not None and (shot.status == "asking" or (shot.status == "busy" and shot.evidence != "reaction"))
        return turn.begun and busy

    # -- events of the session ---------------------------------------------------------------------------------------

    async def _handle(self, event: Event | InitialView) -> None:
        if isinstance(event, InitialView):
            await self._load(event)
            return
        payload, turn = event.payload, self._find_turn(event.task_id)
        if event.kind == "message_update":
            if payload["role"] in ("user", "agent") and event.task_id not in self._parked:
                self._finish_draft(payload["message_id"], payload["message_id"])
                if payload["role"] == "user":
                    turn.begun = True
                    self.feed.emit_status("running")
                self._set_message(payload["message_id"], payload["role"], payload["message"], event.time)
                self._reply = (payload["message_id"], payload["message"]) if payload["role"] == "agent" else None
                self._publish()
        elif event.kind == "message_delta":
            turn.reacted = True
            self._extend_draft(payload["message_id"], payload["offset"], payload["text"])
        elif event.kind == "screen_update":
            self._show_screen(payload["screen"], event.time)
        elif event.kind == "agent_error":
            self._last_error = event.time
            self.feed.emit_error(payload["message"], payload["level"], event.time)
        elif event.kind == "agent_exited":
            self.exit = payload["code"], payload["screen"] or ""
            self.program_ended.set()
        elif event.kind in ("task_submitted", "task_started") and event.task_id:
            self._open_tasks.add(event.task_id)
            self._parked.discard(event.task_id)
        elif event.kind == "task_waiting" and event.task_id and payload["wait"] == "limit":
            turn.reacted = True
            self._park(event.task_id, payload["reason"], payload["until"], event.time)
            self._publish()
        elif event.kind == "task_finished":
            self._open_tasks.discard(event.task_id or "")
            self._parked.discard(event.task_id or "")
            turn.ended, turn.error = True, payload.get("error")
        self._update_status()

    async def _load(self, shown: InitialView) -> None:
        """Take over the state of the session: at the start, and again after events were lost."""
        state = shown.state
        assert isinstance(state, SessionState)
        while page := await self._desk.sessions.messages(self.key, self._last_number, PAGE):
            for message in page:
                if message.role in ("user", "agent"):
                    role: ConversationRole = "user" if message.role == "user" else "agent"
                    self._set_message(message.id, role, message.text, message.time)
            self._last_number = page[-1].number
        for fault in state.errors:
            if fault.time > self._last_error:
                self.feed.emit_error(fault.message, "warning" if fault.level == "warning" else "error", fault.time)
                self._last_error = fault.time
        self._drafts.update({draft.message_id: draft.text for draft in shown.partial})
        self._open_tasks = {task.id for task in (*state.queue, *((state.running,) if state.running else ()))}
        for task in state.queue:
            if task.wait == "limit":
                self._park(task.id, None, iso(task.due_at), self._desk.clock.now())
        if shown.screen is not None:
            self._show_screen(shown.screen, self._desk.clock.now())
        self._publish()
        self._update_status()

    def _find_turn(self, task_id: str | None) -> Turn:
        """Return the turn of a task. The turn is remembered only while `send_message` runs."""
        return self._turns.setdefault(task_id, Turn()) if task_id and self._sending else Turn()

    # -- messages ----------------------------------------------------------------------------------------------------

    def _park(self, task_id: str, reason: str | None, until: str | None, time: int) -> None:
        """Show a message about a usage limit, instead of the unfinished reply of the task that waits for its end."""
        self._open_tasks.discard(task_id)
        self._parked.add(task_id)
        self._finish_draft(task_id, f"{task_id}.limit")
        why = f": {reason.rstrip('.')}" if reason else ""
        text = f"[usage limit{why}] Your message is sent again at {until}, unless you send another one before."
        self._set_message(f"{task_id}.limit", "agent", text, time)

    def _set_message(self, message_id: str, role: ConversationRole, text: str, time: int) -> None:
        old = self._messages.get(message_id)
        if old is None or old.message != text:
            number = old.id if old else len(self._messages)
            self._messages[message_id] = MessageUpdateBody(id=number, role=role, message=text, time=time)

    def _show_screen(self, screen: str, time: int) -> None:
        self.feed.emit_screen(screen)
        self._set_greeting(screen, time)
        self._poll_now.set()

    def _set_greeting(self, screen: str, time: int) -> None:
        """Use the screen as the text of the first message, until a user sends a message."""
        if self._greets and len(self._messages) == 1:
            text = format_agent_message(self.feed.agent_type, screen, "").rstrip(BLANK)
            self._set_message(GREETING, "agent", text, time)
            self._publish_soon(len(text))

    def _extend_draft(self, message_id: str, offset: int, text: str) -> None:
        """Add a text to an unfinished message. If earlier text is missing, skip it: the whole message comes later."""
        draft = self._drafts.get(message_id, "")
        if offset <= len(draft):
            self._drafts[message_id] = draft[:offset] + text
            self._publish_soon(len(self._drafts[message_id]))

    def _finish_draft(self, owner: str, message_id: str) -> None:
        """Forget the drafts of a turn or task (`owner`). The message `message_id` replaces the last of them."""
        prefix = f"{owner}."
        unfinished = [draft_id for draft_id in self._drafts if draft_id.startswith(prefix)]
        if message_id not in self._messages and unfinished:
            renamed = {unfinished[-1]: message_id}
            self._messages = {renamed.get(old, old): message for old, message in self._messages.items()}
        for draft_id in (message_id, *unfinished):
            self._drafts.pop(draft_id, None)

    def _publish_soon(self, size: int) -> None:
        if self._publishing is None:
            loop = asyncio.get_running_loop()
            due = self._published_at + max(PUBLISH_SECONDS, size / PUBLISH_CHARACTERS)
            self._publishing = loop.call_at(max(due, loop.time()), self._publish)

    def _publish(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self._published_at = asyncio.get_running_loop().time()
        for message_id, text in self._drafts.items():
            self._set_message(message_id, "agent", text, self._desk.clock.now())
        self.feed.emit_messages(tuple(self._messages.values()))

    # -- status ------------------------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        """Return whether the agent waits for input."""
        idle = self._screenshot.status == "idle" if self._screenshot is not None else not self._needs_terminal
        return not self._open_tasks and not self._sending and (idle or self.transport != "pty")

    def _update_status(self) -> None:
        """Compute the status of the agent, and wake all calls of `_wait_until`."""
        stable = self._is_ready() and not self._held
        if stable and self._publishing is not None:
            self._publish()  # clients get every message before the status `stable`
        self.feed.emit_status("stable" if stable else "running")
        if not stable:
            self._poll_now.set()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _poll_terminal(self) -> None:
        """Read the terminal after each possible change, and repeatedly until the agent waits for input."""
        pause = FIRST_PAUSE
        while True:
            self._poll_now.clear()
            if self._sending or not self._open_tasks:
                await self._read_terminal()
            unsettled = self._sending or not (self._open_tasks or self._is_ready())
            try:
                async with asyncio.timeout(pause if unsettled else None):
                    await self._poll_now.wait()
                pause = FIRST_PAUSE
            except TimeoutError:
                pause = min(2 * pause, LAST_PAUSE)

    async def _read_terminal(self) -> None:
        if self.transport != "pty":
            return
        before = self._screenshot
        try:
            self._screenshot = screenshot = await self._desk.terminals.screenshot(self.key)
        except MidwatchError:
            self._screenshot = screenshot = None
        if screenshot is not None:
            self._was_open = True
            self.feed.emit_screen(screenshot.text)
            self._set_greeting(screenshot.text, self._desk.clock.now())
            if before is None or screenshot.text != before.text:
                await self._add_late_output()
        elif self._was_open and not self._open_tasks:
            self.program_ended.set()
        if (screenshot and (screenshot.status, screenshot.evidence)) != (before and (before.status, before.evidence)):
            self._update_status()

    async def _add_late_output(self) -> None:
        """Add what the program has written since the last turn to the last message."""
        with suppress(MidwatchError):
            late = await self._desk.terminals.late_output(self.key)
            if self._reply is None or self._sending or self._open_tasks:
                return
            message_id, text = self._reply
            whole = "\n".join(filter(None, (text, late)))
            if self._messages[message_id].message != whole:
                self._set_message(message_id, "agent", whole, self._desk.clock.now())
                self._publish_soon(len(whole))


class SessionFollowers:
    """The followers of the sessions that clients have requested, by key."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._followers: dict[str, SessionFollower] = {}
        self._starting = asyncio.Lock()

    async def find(self, key: str) -> SessionFollower:
        """Return the follower of a session; start one if necessary. Raise NotFound if the session does not exist."""
        follower = self._find_started(key)
        if follower is None:
            async with self._starting:
                follower = self._find_started(key) or await self._start(key)
        return follower

    def _find_started(self, key: str) -> SessionFollower | None:
        follower = self._followers.get(key)
        return follower if follower is not None and follower.is_following else None

    async def _start(self, key: str) -> SessionFollower:
        session = (await self._desk.sessions.get(key)).session
        follower = SessionFollower(self._desk, session, kind=await find_kind(self._desk, session))
        await follower.start()
        self._followers[key] = follower
        await self._make_room()
        return follower

    async def _make_room(self) -> None:
        """While there are too many followers, close the oldest without readers. Never close the newest follower."""
        for key, follower in list(self._followers.items())[:-1]:
            if len(self._followers) <= MAX_FOLLOWERS:
                return
            if not len(follower.feed):
                del self._followers[key]
                await follower.close()


async def find_kind(desk: Desk, session: Session) -> str:
    """Return the kind of a session's agent. For an agent in another process, return "terminal" or an empty text."""
    agent = desk.agents.get(session.agent)
    if agent is not None:
        return agent.kind
    with suppress(MidwatchError):
        await desk.terminals.screenshot(session.key)
        return "terminal"
    return ""


def _find_agent_type(desk: Desk, session: Session) -> str:
    options = getattr(desk.agents.get(session.agent), "options", None)
    return find_agent_type(str(getattr(options, "profile", None) or session.agent))

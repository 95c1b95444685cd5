"""Open agents: agents' processes that stay open between the turns of a session.

While a conversation is open here, the store names this process as its owner, and only this process takes the session's
tasks. When the conversation is closed, or this process is dead, any process may take the next task. It opens the
conversation again by its thread id, with a higher epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from midwatch.base.clock import Clock, Timer
from midwatch.base.errors import Conflict, StoreError
from midwatch.domain.agent import Agent, Conversation, ProgramOwner, has_terminal, lasts
from midwatch.domain.changes import Fence
from midwatch.domain.event import Event, ScreenUpdate, event
from midwatch.domain.instance import LiveStore
from midwatch.domain.session import Session
from midwatch.domain.task import OUTSIDE, Task, has_conversation
from midwatch.running.outcome import open_conversation
from midwatch.running.turn import LiveTurn

log = logging.getLogger("midwatch.worker")

CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class Kept:
    """A conversation that waits for the next turn."""

    agent: Agent
    conversation: Conversation
    timer: Timer


class OpenAgents:
    """The conversations that are open in this process and wait."""

    def __init__(
        self,
        store: LiveStore,
        clock: Clock,
        owner: str,
        agents: Mapping[str, Agent],
        *,
        idle_seconds: float = 1800.0,
        most: int = 50,
        show: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """`agents` are those whose conversations may stay open; `show` gets the screens of their terminals."""
        self._store = store
        self._clock = clock
        self._owner = owner
        self._agents = agents
        self._idle_seconds = idle_seconds
        self._most = most
        self._show = show
        self._open: dict[str, Conversation] = {}
        """All open conversations, by session: they wait, or have a turn."""
        self._with: dict[str, Agent] = {}
        """The agent of each."""
        self._kept: dict[str, Kept] = {}
        self._held: dict[str, int] = {}
        """Epochs of the sessions the store knows to be live here; their turns may be running."""
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self._stopping = False

    @property
    def any(self) -> bool:
        """Whether only this process may take the tasks of some session."""
        return bool(self._held)

    async def take(self, agent: Agent, session: Session, turn: LiveTurn) -> Conversation:
        """Return the session's conversation for a turn: the one that waits, or a new one."""
        stays = may_last(turn.task)
        await self._wait_until_closed(session.key)
        kept = self._kept.pop(session.key, None)
        if kept is not None:
            kept.timer.cancel()
            if stays and kept.agent is agent and lasts(kept.conversation) and kept.conversation.alive:
                return kept.conversation
            await self._end(kept.conversation, session.key)
        conversation = await self._open_new(agent, session)
        if stays and lasts(conversation):
            await self._hold(conversation, session.key, turn.fence)
        return conversation

    def find(self, key: str) -> Conversation | None:
        """Return the session's conversation, if it is open here."""
        return self._open.get(key)

    async def begin(self, agent: Agent, session: Session, turn: ProgramOwner) -> Conversation:
        """Open the terminal of a conversation before its first prompt.

        Conflict when it is open in another process, or when its agent has no terminal.
        """
        await self._wait_until_closed(session.key)
        if (known := self._open.get(session.key)) is not None:
            return known
        if session.live_owner not in (None, self._owner):
            raise Conflict(f"the conversation of session {session.key} is open in another process.")
        conversation = await self._open_new(agent, session)
        if not has_terminal(conversation):
            await self._end(conversation, session.key)
            raise Conflict(f"agent {agent.name} has no terminal; use an agent of kind terminal.")
        await self._hold(conversation, session.key, None)
        try:
            await conversation.start(turn)
        except BaseException:
            await self._end(conversation, session.key)
            await self.release(session.key)
            raise
        self._wait(session.key, agent, conversation)
        return conversation

    def keep(self, turn: LiveTurn, conversation: Conversation) -> bool:
        """Keep the conversation open for the next turn, if possible. Otherwise the caller closes it."""
        key, agent = turn.session_key, self._agents.get(turn.task.agent)
        if self._stopping or agent is None or not may_last(turn.task) or key not in self._held:
            return False
        if not (lasts(conversation) and conversation.alive) or self._with.get(key) is not agent:
            return False
        self._wait(key, agent, conversation)
        self.look()  # a restart may have been requested while it worked
        return True

    async def release(self, key: str) -> None:
        """Let any process take the session's next task; the conversation is closed."""
        self._open.pop(key, None)
        self._with.pop(key, None)
        if key in self._held:
            del self._held[key]
            try:
                await self._store.release_session(key, self._owner)
            except StoreError as problem:
                log.warning("session %s stays with this process until it ends: %s", key, problem)

    def close_unregistered(self) -> None:
        """Close the conversations that wait for an agent which is no longer registered."""
        here = {id(agent) for agent in self._agents.values()}
        for key, kept in list(self._kept.items()):
            if id(kept.agent) not in here:
                self._close_soon(key)

    def look(self) -> None:
        """Close conversations whose sessions were closed, restarted or taken over meanwhile."""
        if not self._kept:
            return
        if self._looking is not None:
            self._look_again = True
            return
        self._looking = asyncio.get_running_loop().create_task(self._close_closed())
        self._looking.add_done_callback(self._end_look)

    async def stop(self) -> None:
        """Close everything."""
        self._stopping = True
        for key in list(self._kept):
            self._close_soon(key)
        while self._closing:
            await asyncio.wait(set(self._closing.values()))

    # -- inside --------------------------------------------------------------------------------------------------

    async def _open_new(self, agent: Agent, session: Session) -> Conversation:
        conversation = await open_conversation(agent, session)
        self._open[session.key] = conversation
        self._with[session.key] = agent
        if has_terminal(conversation):
            about = {"session_key": session.key, "agent_id": agent.name}
            conversation.listen(lambda text: self._show(event(ScreenUpdate(screen=text), self._clock.now(), **about)))
        return conversation

    async def _hold(self, conversation: Conversation, key: str, fence: Fence | None) -> None:
        try:
            self._held[key] = await self._store.hold_session(key, self._owner, fence)
        except BaseException:
            await self._end(conversation, key)
            raise

    def _wait(self, key: str, agent: Agent, conversation: Conversation) -> None:
        timer = self._clock.call_later(self._idle_seconds, lambda: self._close_soon(key))
        self._kept[key] = Kept(agent, conversation, timer)
        if len(self._kept) > self._most:
            self._close_soon(next(iter(self._kept)))  # the one that has waited longest

    async def _close_closed(self) -> None:
        before = dict(self._held)
        mine = await self._store.list_live_sessions(self._owner)
        for key in list(self._kept):
            held = before.get(key)  # the look may be older than what has been opened since
            if held is not None and held == self._held.get(key) and held != mine.get(key):
                self._close_soon(key)

    def _end_look(self, look: asyncio.Task[None]) -> None:
        self._looking = None
        if not look.cancelled() and (problem := look.exception()) is not None:
            log.warning("closed sessions could not be looked up: %s", problem)
        elif self._look_again:
            self._look_again = False
            self.look()

    def _close_soon(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.timer.cancel()
            self._closing[key] = asyncio.get_running_loop().create_task(self._close(key, kept.conversation))
            self._closing[key].add_done_callback(lambda _: self._closing.pop(key, None))

    async def _wait_until_closed(self, key: str) -> None:
        """Wait until a conversation that is being closed is over, before another one of its session begins."""
        if (closing := self._closing.get(key)) is not None:
            await asyncio.wait({closing})

    async def _close(self, key: str, conversation: Conversation) -> None:
        """Close a conversation, then let other processes open it."""
        await self._end(conversation, key)
        if key not in self._kept:
            await self.release(key)

    async def _end(self, conversation: Conversation, key: str) -> None:
        if self._open.get(key) is conversation:
            del self._open[key], self._with[key]
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await conversation.close()
        except Exception:
            log.exception("the conversation of session %s did not close cleanly", key)


def may_last(task: Task) -> bool:
    """Return whether the conversation of a task may stay open for the next one, as it may when a person speaks.

    A task of an automation or a goal starts a process of its own, which finds its rights in its environment.
    """
    return has_conversation(task) and task.cause in OUTSIDE

"""Open agents: conversations whose agent programs keep running between the turns of a session.

While this midwatch process has the conversation of a session open, the store names it as the owner of the session, and
only this process claims the session's tasks. After the conversation was closed, or this process has died, any process
may claim the next task. That process opens the conversation again with the same thread id, and the session gets a
higher epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from midwatch.base.clock import Clock, Timer
from midwatch.base.errors import Conflict, StoreError
from midwatch.base.foreign import CONTAIN_AGENT
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
class IdleConversation:
    """A conversation that waits for the next turn."""

    agent: Agent
    conversation: Conversation
    timer: Timer


class OpenAgents:
    """The open conversations of this process."""

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
        """Build the list of open conversations. Only conversations with one of `agents` may stay open after a turn.

        A conversation without a turn is closed after `idle_seconds`, or earlier if more than `most` such conversations
        are open. `show` is called with the screens of their terminals.
        """
        self._store = store
        self._clock = clock
        self._owner = owner
        self._agents = agents
        self._idle_seconds = idle_seconds
        self._most = most
        self._show = show
        self._open: dict[str, Conversation] = {}
        """All open conversations by session key, idle or in a turn."""
        self._agent_of: dict[str, Agent] = {}
        """The agents of the open conversations, by session key."""
        self._idle: dict[str, IdleConversation] = {}
        self._epochs: dict[str, int] = {}
        """The epochs of the sessions that belong to this process in the store, by session key."""
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self._stopping = False

    @property
    def has_sessions(self) -> bool:
        """Whether a session belongs to this process in the store."""
        return bool(self._epochs)

    async def take(self, agent: Agent, session: Session, turn: LiveTurn) -> Conversation:
        """Return the conversation of a session for a turn: the open conversation if possible, otherwise a new one."""
        stays = may_last(turn.task)
        await self._wait_until_closed(session.key)
        idle = self._idle.pop(session.key, None)
        if idle is not None:
            idle.timer.cancel()
            if stays and idle.agent is agent and lasts(idle.conversation) and idle.conversation.alive:
                return idle.conversation
            await self._end(idle.conversation, session.key)
        conversation = await self._open_new(agent, session)
        if stays and lasts(conversation):
            await self._hold(conversation, session.key, turn.fence)
        return conversation

    def find(self, key: str) -> Conversation | None:
        """Return the conversation of a session if this process has it open, otherwise None."""
        return self._open.get(key)

    async def begin(self, agent: Agent, session: Session, turn: ProgramOwner) -> Conversation:
        """Open the conversation of a session and start its terminal, before the first prompt.

        Raise Conflict if the conversation is open in another process, or if the agent has no terminal.
        """
        await self._wait_until_closed(session.key)
        if (open_here := self._open.get(session.key)) is not None:
            return open_here
        if session.live_owner not in (None, self._owner):
            raise Conflict(f"the conversation of session {session.key} is open in another process; continue it there.")
        conversation = await self._open_new(agent, session)
        if not has_terminal(conversation):
            await self._end(conversation, session.key)
            raise Conflict(f"agent {agent.name} has no terminal; use an agent of kind `terminal`.")
        await self._hold(conversation, session.key, None)
        try:
            with CONTAIN_AGENT:
                await conversation.start(turn)
        except BaseException:
            await self._end(conversation, session.key)
            await self.release(session.key)
            raise
        self._wait(session.key, agent, conversation)
        return conversation

    def keep(self, turn: LiveTurn, conversation: Conversation) -> bool:
        """Keep the conversation of a turn open for the next turn and return True, or return False if it must close."""
        key, agent = turn.session_key, self._agents.get(turn.task.agent)
        if self._stopping or agent is None or not may_last(turn.task) or key not in self._epochs:
            return False
        if not (lasts(conversation) and conversation.alive) or self._agent_of.get(key) is not agent:
            return False
        self._wait(key, agent, conversation)
        self.close_outdated()  # a restart may have been requested during the turn
        return True

    async def release(self, key: str) -> None:
        """Let any process claim the next task of a session, because this process has closed its conversation."""
        self._open.pop(key, None)
        self._agent_of.pop(key, None)
        if key in self._epochs:
            del self._epochs[key]
            try:
                await self._store.release_session(key, self._owner)
            except StoreError as problem:
                log.warning("only this process can run the tasks of session %s until it ends: %s", key, problem)

    def close_unregistered(self) -> None:
        """Close the idle conversations of agents that are no longer registered."""
        here = {id(agent) for agent in self._agents.values()}
        for key, idle in list(self._idle.items()):
            if id(idle.agent) not in here:
                self._close_soon(key)

    def close_outdated(self) -> None:
        """Close the idle conversations of sessions that were closed, restarted or taken over by another process."""
        if not self._idle:
            return
        if self._reading is not None:
            self._read_again = True
            return
        self._reading = asyncio.get_running_loop().create_task(self._close_all_outdated())
        self._reading.add_done_callback(self._end_read)

    async def stop(self) -> None:
        """Close all idle conversations. From now on no conversation stays open after its turn."""
        self._stopping = True
        for key in list(self._idle):
            self._close_soon(key)
        while self._closing:
            await asyncio.wait(set(self._closing.values()))

    # -- internal ------------------------------------------------------------------------------------------------

    async def _open_new(self, agent: Agent, session: Session) -> Conversation:
        conversation = await open_conversation(agent, session)
        self._open[session.key] = conversation
        self._agent_of[session.key] = agent
        if has_terminal(conversation):
            about = {"session_key": session.key, "agent_id": agent.name}
            conversation.listen(lambda text: self._show(event(ScreenUpdate(screen=text), self._clock.now(), **about)))
        return conversation

    async def _hold(self, conversation: Conversation, key: str, fence: Fence | None) -> None:
        try:
            self._epochs[key] = await self._store.hold_session(key, self._owner, fence)
        except BaseException:
            await self._end(conversation, key)
            raise

    def _wait(self, key: str, agent: Agent, conversation: Conversation) -> None:
        timer = self._clock.call_later(self._idle_seconds, lambda: self._close_soon(key))
        self._idle[key] = IdleConversation(agent, conversation, timer)
        if len(self._idle) > self._most:
            self._close_soon(next(iter(self._idle)))  # the conversation that has been idle longest

    async def _close_all_outdated(self) -> None:
        before = dict(self._epochs)
        mine = await self._store.list_live_sessions(self._owner)
        for key in list(self._idle):
            epoch = before.get(key)  # the session may have been opened again after the read
            if epoch is not None and epoch == self._epochs.get(key) and epoch != mine.get(key):
                self._close_soon(key)

    def _end_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled() and (problem := reading.exception()) is not None:
            log.warning("the sessions of this process could not be read from the store: %s", problem)
        elif self._read_again:
            self._read_again = False
            self.close_outdated()

    def _close_soon(self, key: str) -> None:
        idle = self._idle.pop(key, None)
        if idle is not None:
            idle.timer.cancel()
            self._closing[key] = asyncio.get_running_loop().create_task(self._close(key, idle.conversation))
            self._closing[key].add_done_callback(lambda _: self._closing.pop(key, None))

    async def _wait_until_closed(self, key: str) -> None:
        """Wait until the old conversation of a session is closed, if it is being closed now."""
        if (closing := self._closing.get(key)) is not None:
            await asyncio.wait({closing})

    async def _close(self, key: str, conversation: Conversation) -> None:
        """Close a conversation, then let other processes claim the tasks of its session."""
        await self._end(conversation, key)
        if key not in self._idle:
            await self.release(key)

    async def _end(self, conversation: Conversation, key: str) -> None:
        if self._open.get(key) is conversation:
            del self._open[key], self._agent_of[key]
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                with CONTAIN_AGENT:
                    await conversation.close()
        except Exception:
            log.exception("the conversation of session %s did not close cleanly", key)


def may_last(task: Task) -> bool:
    """Return whether the conversation of a task may stay open for the next task.

    This is so for tasks that come from outside, such as messages of people. A task of an automation or a goal needs an
    agent process of its own, because it has its own rights, and the process gets them in environment variables.
    """
    return has_conversation(task) and task.cause in OUTSIDE

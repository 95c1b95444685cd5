"""Conversations that last: agents' processes that stay open between the turns of a session.

While a conversation is open here the store says so, and only this process takes the session's tasks. Its name goes when
the conversation is closed, and counts no more when this process is dead: whoever takes the next task opens the
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
from midwatch.domain.task import OUTSIDE, Task, conversation
from midwatch.running.outcome import opened
from midwatch.running.turn import LiveTurn

log = logging.getLogger("midwatch.worker")

CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class Kept:
    """A conversation that waits for the next turn."""

    agent: Agent
    talk: Conversation
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
        """`agents` are those whose conversations may last; `show` is told what the terminals of conversations show."""
        self._store = store
        self._clock = clock
        self._owner = owner
        self._agents = agents
        self._idle_seconds = idle_seconds
        self._most = most
        self._show = show
        self._open: dict[str, Conversation] = {}
        """All that are open here, by session: they wait, or have a turn."""
        self._with: dict[str, Agent] = {}
        """Whom each is with."""
        self._kept: dict[str, Kept] = {}
        self._held: dict[str, int] = {}
        """Epochs of the sessions the store knows to be live here; their turns may be running."""
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._look: asyncio.Task[None] | None = None
        self._look_again = False
        self._stopping = False

    @property
    def any(self) -> bool:
        """Whether some session's tasks are for this process alone."""
        return bool(self._held)

    async def take(self, agent: Agent, session: Session, turn: LiveTurn) -> Conversation:
        """The session's conversation for a turn: the one that waits, or a new one."""
        stays = may_last(turn.task)
        await self._closed(session.key)
        kept = self._kept.pop(session.key, None)
        if kept is not None:
            kept.timer.cancel()
            if stays and kept.agent is agent and lasts(kept.talk) and kept.talk.alive:
                return kept.talk
            await self._end(kept.talk, session.key)
        talk = await self._opened(agent, session)
        if stays and lasts(talk):
            await self._hold(talk, session.key, turn.fence)
        return talk

    def find(self, key: str) -> Conversation | None:
        """The session's conversation, if it is open here."""
        return self._open.get(key)

    async def begin(self, agent: Agent, session: Session, turn: ProgramOwner) -> Conversation:
        """Have the terminal of a conversation open before it is spoken to. Conflict when it is open elsewhere, or is
        none that can be opened so."""
        await self._closed(session.key)
        if (known := self._open.get(session.key)) is not None:
            return known
        if session.live_owner not in (None, self._owner):
            raise Conflict(f"the conversation of session {session.key} is open in another process.")
        talk = await self._opened(agent, session)
        if not has_terminal(talk):
            await self._end(talk, session.key)
            raise Conflict(f"agent {agent.name} has no terminal; use an agent of kind terminal.")
        await self._hold(talk, session.key, None)
        try:
            await talk.start(turn)
        except BaseException:
            await self._end(talk, session.key)
            await self.let_go(session.key)
            raise
        self._wait(session.key, agent, talk)
        return talk

    def keep(self, turn: LiveTurn, talk: Conversation) -> bool:
        """Keep the conversation open for the next turn, if it can be. Otherwise it is the caller's to close."""
        key, agent = turn.session_key, self._agents.get(turn.task.agent)
        if self._stopping or agent is None or not may_last(turn.task) or key not in self._held:
            return False
        if not (lasts(talk) and talk.alive) or self._with.get(key) is not agent:
            return False
        self._wait(key, agent, talk)
        self.heard()  # it may have been told to start again while it worked
        return True

    async def let_go(self, key: str) -> None:
        """The conversation is closed: any process may take the session's next task."""
        self._open.pop(key, None)
        self._with.pop(key, None)
        if key in self._held:
            del self._held[key]
            try:
                await self._store.release_session(key, self._owner)
            except StoreError as problem:
                log.warning("session %s stays with this process until it ends: %s", key, problem)

    def part(self) -> None:
        """Agents have gone: what waits for the next turn of theirs is closed."""
        here = {id(agent) for agent in self._agents.values()}
        for key, kept in list(self._kept.items()):
            if id(kept.agent) not in here:
                self._close_soon(key)

    def heard(self) -> None:
        """Sessions changed: some of those that wait here may have been closed, restarted, or taken over."""
        if not self._kept:
            return
        if self._look is not None:
            self._look_again = True
            return
        self._look = asyncio.get_running_loop().create_task(self._close_closed())
        self._look.add_done_callback(self._looked)

    async def stop(self) -> None:
        """Close everything."""
        self._stopping = True
        for key in list(self._kept):
            self._close_soon(key)
        while self._closing:
            await asyncio.wait(set(self._closing.values()))

    # -- inside --------------------------------------------------------------------------------------------------

    async def _opened(self, agent: Agent, session: Session) -> Conversation:
        talk = await opened(agent, session)
        self._open[session.key] = talk
        self._with[session.key] = agent
        if has_terminal(talk):
            about = {"session_key": session.key, "agent_id": agent.name}
            talk.listen(lambda text: self._show(event(ScreenUpdate(screen=text), self._clock.now(), **about)))
        return talk

    async def _hold(self, talk: Conversation, key: str, fence: Fence | None) -> None:
        try:
            self._held[key] = await self._store.hold_session(key, self._owner, fence)
        except BaseException:
            await self._end(talk, key)
            raise

    def _wait(self, key: str, agent: Agent, talk: Conversation) -> None:
        timer = self._clock.call_later(self._idle_seconds, lambda: self._close_soon(key))
        self._kept[key] = Kept(agent, talk, timer)
        if len(self._kept) > self._most:
            self._close_soon(next(iter(self._kept)))  # the one that has waited longest

    async def _close_closed(self) -> None:
        before = dict(self._held)
        mine = await self._store.live_sessions(self._owner)
        for key in list(self._kept):
            held = before.get(key)  # the look may be older than what has been opened since
            if held is not None and held == self._held.get(key) and held != mine.get(key):
                self._close_soon(key)

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._look = None
        if not look.cancelled() and (problem := look.exception()) is not None:
            log.warning("whether sessions were closed could not be seen: %s", problem)
        elif self._look_again:
            self._look_again = False
            self.heard()

    def _close_soon(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.timer.cancel()
            self._closing[key] = asyncio.get_running_loop().create_task(self._close(key, kept.talk))
            self._closing[key].add_done_callback(lambda _: self._closing.pop(key, None))

    async def _closed(self, key: str) -> None:
        """A conversation that is being closed is over before another one of its session begins."""
        if (closing := self._closing.get(key)) is not None:
            await asyncio.wait({closing})

    async def _close(self, key: str, talk: Conversation) -> None:
        """Nobody else may open it before it is closed."""
        await self._end(talk, key)
        if key not in self._kept:
            await self.let_go(key)

    async def _end(self, talk: Conversation, key: str) -> None:
        if self._open.get(key) is talk:
            del self._open[key], self._with[key]
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await talk.close()
        except Exception:
            log.exception("the conversation of session %s did not close cleanly", key)


def may_last(task: Task) -> bool:
    """Whether a task's agent may stay open, and be one that did: when a person speaks. What belongs to an automation or
    a goal begins a process of its own, which finds in its environment what it is and what it may say."""
    return conversation(task) and task.cause in OUTSIDE

"""The runtime: opens the desk of a home, starts its parts in order, and stops them in reverse order.

async with midwatch.Runtime.open() as desk:
    task = await desk.tasks.submit("Say hello", agent="demo")
    print((await desk.tasks.wait(task.id)).result)
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager

from midwatch.base.clock import Clock, SystemClock
from midwatch.base.foreign import ContainExit
from midwatch.base.home import Home
from midwatch.desk.build import Registered, build_agents, build_channels, choose_agents, open_store
from midwatch.desk.config import Settings
from midwatch.desk.desk import Desk
from midwatch.desk.foundation import Setup
from midwatch.desk.hooks import build_hooks
from midwatch.domain.channel import Channel
from midwatch.domain.instance import Role
from midwatch.domain.store import Commit
from midwatch.live.telemetry import telemetry
from midwatch.programs.guard import guard
from midwatch.runtime.crew import FOREIGN, Crew, Pace, Part
from midwatch.runtime.loopback import Loopback
from midwatch.runtime.ping import Ping

log = logging.getLogger("midwatch.runtime")

PACE = Pace()


class Runtime(Desk):
    """A desk and, unless it was opened with `work=False`, the crew that runs its tasks."""

    def __init__(
        self,
        setup: Setup,
        *,
        role: Role = "library",
        url: str | None = None,
        pace: Pace = PACE,
    ) -> None:
        """Build the desk and its crew. `url` is the server's address; if it is None, agents use the loopback port."""
        self._loopback = Loopback(self._answer)
        super().__init__(setup, lambda: url or (self._loopback.url if setup.work else None))
        self._telemetry = telemetry() if setup.work else None
        self._parts = self._desk_parts(setup.work)
        if setup.work:
            self.crew = Crew(self, role, pace, self._telemetry)
            self._parts += self.crew.parts()
            if self.settings.ping_url:
                ping = Ping(self.settings.ping_url, self.alerts.list_loud)
                self.routines.register("ping", self.settings.ping_every, ping.send)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        home: str | os.PathLike[str] | None = None,
        *,
        agents: Mapping[str, Registered] | None = None,
        channels: Mapping[str, Channel] | None = None,
        hooks: Iterable[object] = (),
        settings: Settings | None = None,
        role: Role = "library",
        work: bool = True,
        only: Collection[str] | None = None,
        clock: Clock | None = None,
        url: str | None = None,
    ) -> AsyncIterator[Runtime]:
        """Open the desk of a home directory and close it at the end of the block.

        `agents`, `channels` and `hooks` are added to the configured ones. `only` limits the agents that work in this
        process. With `work=False` this process runs no tasks; it can submit and read them. If a `midwatch up` runs on
        the same SQLite home, this process runs only tasks that were submitted here, or that no other process can run.
        """
        settings = settings or Settings.load(home)
        chain = build_hooks(settings, hooks)
        place = Home(settings.home)
        place.prepare(settings.owner_access)
        up = place.claim_up() if role == "up" else None
        if role != "library":  # the process belongs to midwatch
            collect_garbage_seldom()
        try:
            store = await open_store(settings, place)
            try:
                known = choose_agents(build_agents(settings, agents or {}), only)
                ways = {**build_channels(settings), **(channels or {})}
                setup = Setup(settings, place, store, known, ways, clock or SystemClock(), work, chain)
                desk = cls(setup, role=role, url=url)
                try:
                    await desk._start()
                    yield desk
                finally:
                    await desk._stop()
            finally:
                await store.close()
        finally:
            if up is not None:
                up.release()

    def _desk_parts(self, work: bool) -> list[Part]:
        """Return the parts that every desk has, in the order in which they start."""
        parts = [Part(stop=_close_guard), Part(stop=self._close_channels)]
        if self.relay is not None:
            parts.append(Part(self._open_relay if work else Part().start, self.relay.close))
        return [
            *parts,
            Part(stop=self._close_telemetry),
            Part(self._follow_commits, self.bus.stop),
            Part(stop=self.tokens.close),
            Part(stop=self._loopback.close),
            Part(stop=self.hooks.close),
            Part(stop=self.subscriptions.stop),
        ]

    async def _start(self) -> None:
        for part in self._parts:
            await part.start()

    async def _stop(self) -> None:
        """Stop all parts in reverse order, so that nothing is lost.

        First no more tasks are claimed, then running tasks end, notices are sent, and locks are released. If a part
        fails, all other parts are still stopped, and the first error is raised at the end. Parts that were not started
        are stopped too, because they may hold a lock.
        """
        failures: list[Exception] = []
        for part in reversed(self._parts):
            try:
                await part.stop()
            except Exception as problem:
                log.exception("a part of the desk did not stop cleanly")
                failures.append(problem)
        if failures:
            raise failures[0]

    async def _follow_commits(self) -> None:
        await self.bus.start()
        self.store.on_commit(self._on_commit)

    def _on_commit(self, commit: Commit) -> None:
        self.bus.receive_commit(commit)
        topics = commit.topics | {FOREIGN} if commit.foreign else commit.topics
        for part in self._parts:
            if part.topics and not part.topics.isdisjoint(topics):
                part.wake(topics)

    async def _open_relay(self) -> None:
        assert self.relay is not None
        self.relay.open()

    async def _close_channels(self) -> None:
        for channel in self.channels.values():
            try:
                with ContainExit(f"channel {channel.name}"):
                    await channel.close()
            except Exception:
                log.exception("channel %s did not close cleanly", channel.name)

    async def _close_telemetry(self) -> None:
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)

    async def _answer(self, listener: socket.socket, stopping: asyncio.Event) -> None:
        server = await asyncio.to_thread(_load_server)
        await server(self, listener, stopping)


def _load_server() -> Callable[[Desk, socket.socket, asyncio.Event], Awaitable[None]]:
    from midwatch.api.server import answer  # slow to import and rarely needed

    return answer


async def _close_guard() -> None:
    guard.close()


def collect_garbage_seldom() -> None:
    """Make Python's garbage collector run less often, for a process that runs for a long time.

    The objects that exist now are never collected, because they are mostly loaded modules. Few later objects need the
    collector, because most records form no reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)

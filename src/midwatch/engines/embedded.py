"""The embedded engine: claims tasks after each commit, and knows by file locks which processes of a home live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock, Timer
from midwatch.base.errors import HomeUnusable, StoreError
from midwatch.base.home import OWNER_RETRY_SECONDS, Home
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.instance import Instance
from midwatch.domain.store import Store
from midwatch.running.worker import Worker

log = logging.getLogger("midwatch.engine")

PAUSE_SECONDS = 0.5
NEIGHBOUR_SECONDS = 0.5
"""Seconds between two checks whether a server runs on the same home."""
LEAD_POLL_SECONDS = 1.0


class EmbeddedEngine:
    """Implements `midwatch.domain.engine.Engine` for one process on one home."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        home: Home,
        worker: Worker,
        instance: Instance,
        on_lead: Callable[[], None],
        *,
        nap: float = LONGEST_NAP,
    ) -> None:
        self._store = store
        self._clock = clock
        self._home = home
        self._worker = worker
        self._instance = instance
        self._on_lead = on_lead
        self._longest_nap = nap
        self._life = home.lock(instance.id)
        self._lead = home.lock("leader")
        self._up = home.lock("up")
        self._bell = worker.slots.freed
        self._taking = False
        self._loop: asyncio.Task[None] | None = None
        self._lead_timer: Timer | None = None
        self._server_agents: frozenset[str] = frozenset()
        self._next_check = 0.0
        self._checked = False

    async def start(self) -> None:
        await self._store.add_instance(self._instance)
        self._store.on_submit(self.wake)  # so that a task is often claimed in the transaction that stores it
        self._taking = True
        self._bell.set()
        self._loop = asyncio.get_running_loop().create_task(self._take())
        self._seek_lead()

    def take_life_lock(self, patience: float = OWNER_RETRY_SECONDS) -> None:
        """Take the lock that shows that this process lives. Call this before this process writes to the store."""
        if not self._life.acquire(patience):
            raise HomeUnusable(f"another process holds the lock {self._life.paths[0]}; try again.")

    async def stop_taking(self) -> None:
        self._taking = False
        self._bell.set()
        if self._loop is not None:
            await self._loop  # wait for a running claim, so that its tasks are started and not lost
            self._loop = None

    async def stop(self) -> None:
        if self._lead_timer is not None:
            self._lead_timer.cancel()
        try:
            await self._store.remove_instances([self._instance.id])
        except StoreError as problem:
            log.warning("the record of this process could not be removed from the store: %s", problem)
        self._lead.release()
        self._life.remove()

    def wake(self) -> None:
        self._bell.set()

    def offer(self, instance: Instance) -> None:
        self._instance = instance
        self.wake()

    def leads(self) -> bool:
        if self._instance.role == "up":  # the only server of a home needs no lock
            return True
        if self._up.is_taken():
            self._lead.release()
            return False
        return self._lead.is_held or self._lead.acquire()

    def dead(self, owners: Iterable[str]) -> set[str]:
        return dead_owners(self._home, owners)

    def _seek_lead(self) -> None:
        if self.leads():
            self._lead_timer = None
            self._on_lead()
            self.wake()
        else:
            self._lead_timer = self._clock.call_later(LEAD_POLL_SECONDS, self._seek_lead)

    async def _take(self) -> None:
        """Claim tasks whenever a task may have become claimable, and sleep in between."""
        timer: Timer | None = None
        while self._taking:
            await self._bell.wait()
            self._bell.clear()
            if timer is not None:
                timer.cancel()
                timer = None
            free = self._worker.slots.free()
            if not self._taking or free <= 0:
                continue
            try:
                claims = await self._store.claim(await self._request(free), self._clock.now())
            except Exception as problem:
                bug = None if isinstance(problem, StoreError) else problem
                log.warning("no task could be claimed: %s", problem, exc_info=bug)
                timer = self._clock.call_later(PAUSE_SECONDS, self._bell.set)
                continue
            for claim in claims.taken:
                self._worker.start(claim)
            pause = (claims.next_due - self._clock.now()) / SECOND if claims.next_due is not None else None
            if self._server_agents and not self._checked:  # the server may have ended since the last check
                pause = min(pause or NEIGHBOUR_SECONDS, NEIGHBOUR_SECONDS)
            if pause is not None:
                timer = self._clock.call_later(min(max(0.0, pause), self._longest_nap), self._bell.set)
        if timer is not None:
            timer.cancel()

    async def _request(self, free: int) -> ClaimRequest:
        instance = self._instance
        return ClaimRequest(
            owner=instance.id,
            host=instance.host,
            free=free,
            agents=self._worker.slots.free_by_agent(),
            own_only=instance.role == "run",
            leave=await self._find_server_agents(),
            shares=self._worker.slots.shares(free),
        )

    async def _find_server_agents(self) -> frozenset[str]:
        """Return the agents of a live server on the same home. This process leaves their tasks to the server."""
        if self._instance.role == "up":
            return frozenset()
        now = self._clock.monotonic()
        self._checked = now >= self._next_check
        if self._checked:
            self._next_check = now + NEIGHBOUR_SECONDS
            self._server_agents = frozenset()
            if self._up.is_taken():
                servers = [instance for instance in await self._store.list_instances() if instance.role == "up"]
                self._server_agents = frozenset(agent for server in servers for agent in server.agents)
        return self._server_agents


def dead_owners(home: Home, owners: Iterable[str]) -> set[str]:
    """Return the owners that are dead: no process holds their lock."""
    return {owner for owner in owners if not home.lock(owner).is_taken()}

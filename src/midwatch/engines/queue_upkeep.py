"""What the leader sees to on a shared database: no task waits without a job, and the job queue stays quick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import procrastinate
from procrastinate import jobs

from midwatch.base.clock import Clock
from midwatch.base.errors import MidwatchError
from midwatch.domain.instance import Instance
from midwatch.domain.store import Store
from midwatch.engines.jobs import AWAY, look_for, open_queue, queue_app, queue_of, reason

log = logging.getLogger("midwatch.engine")

CHORE_SECONDS = 5.0
STATISTICS_SECONDS = 60.0
STALLED_SECONDS = 30.0
SPARE_JOBS = 32
JOB_TABLES = ("procrastinate_jobs", "procrastinate_events")


class SharedStore(Store, Protocol):
    """What the cluster needs of a store beyond the port."""

    async def living(self) -> list[Instance]:
        """The processes that live now."""
        ...

    async def due_by_agent(self, now: int) -> dict[str, int]:
        """How many tasks of each agent wait to be taken now."""
        ...

    async def drop_jobs(self, queue: str, keep: int) -> int:
        """Delete the oldest due jobs of a queue but for so many; how many went."""
        ...

    async def refresh_statistics(self, tables: Iterable[str]) -> None:
        """Keep what the planner knows of these tables fresh."""
        ...


class QueueUpkeep:
    """Done every few seconds by whoever leads."""

    def __init__(self, store: SharedStore, url: str, clock: Clock, leads: Callable[[], bool]) -> None:
        self._store = store
        self._url = url
        self._clock = clock
        self._leads = leads
        self._statistics_at = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(CHORE_SECONDS)
            if self._leads():
                try:
                    await self.do()
                except (MidwatchError, *AWAY) as problem:
                    log.warning("the leader's chores have to wait: %s", reason(problem))

    async def do(self) -> None:
        """Once."""
        async with open_queue(queue_app(self._url)) as app:
            await self._defer_again(app)
            for left in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_SECONDS):
                await app.job_manager.finish_job(left, jobs.Status.FAILED, delete_job=True)
        if self._clock.monotonic() >= self._statistics_at:
            self._statistics_at = self._clock.monotonic() + STATISTICS_SECONDS
            await self._store.refresh_statistics(JOB_TABLES)

    async def _defer_again(self, app: procrastinate.App) -> None:
        """At least one job for every agent that has work: some may have been lost with the process that had them. And
        not many more than there is work: a process that goes on from task to task leaves the jobs of the later ones."""
        due = await self._store.due_by_agent(self._clock.now())
        waiting = {queue["name"]: queue["todo"] for queue in await app.job_manager.list_queues_async()}
        served = {agent for one in await self._store.living() for agent in one.agents}
        for agent in served:
            queue, count = queue_of(agent), due.get(agent, 0)
            if waiting.get(queue, 0) > count + SPARE_JOBS:
                await self._store.drop_jobs(queue, count + SPARE_JOBS)
            if count:
                missing = min(count - waiting.get(queue, 0), SPARE_JOBS)
                await app.job_manager.batch_defer_jobs_async([look_for(queue)] * max(1, missing))

"""The upkeep of the job queue, done by the leader: waiting tasks have jobs, and the queue stays fast."""

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
from midwatch.engines.jobs import AWAY, build_queue, explain, make_job, name_queue, open_queue

log = logging.getLogger("midwatch.engine")

UPKEEP_SECONDS = 5.0
STATISTICS_SECONDS = 60.0
STALLED_SECONDS = 30.0
SPARE_JOBS = 32
JOB_TABLES = ("procrastinate_jobs", "procrastinate_events")


class SharedStore(Store, Protocol):
    """Port: a store that many processes share."""

    async def living(self) -> list[Instance]:
        """Return the live processes."""

    async def count_due_by_agent(self, now: int) -> dict[str, int]:
        """Count the claimable tasks of each agent."""

    async def drop_jobs(self, queue: str, keep: int) -> int:
        """Delete the oldest due jobs of a queue until `keep` jobs remain, and return the number of deleted jobs."""

    async def refresh_statistics(self, tables: Iterable[str]) -> None:
        """Refresh the database's statistics of these tables; with outdated statistics, it is slow to fetch a job."""


class QueueUpkeep:
    """The upkeep of the job queue, which runs every few seconds in the process that leads."""

    def __init__(self, store: SharedStore, url: str, clock: Clock, leads: Callable[[], bool]) -> None:
        self._store = store
        self._url = url
        self._clock = clock
        self._leads = leads
        self._statistics_at = 0.0

    async def run(self) -> None:
        """Call `run_once` every few seconds while this process leads, until this call is cancelled."""
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            if self._leads():
                try:
                    await self.run_once()
                except (MidwatchError, *AWAY) as problem:
                    log.warning("the upkeep of the job queue failed and will be repeated: %s", explain(problem))

    async def run_once(self) -> None:
        """Replace lost jobs, delete jobs that are not needed or were never finished, and refresh the statistics."""
        async with open_queue(build_queue(self._url)) as app:
            await self._defer_again(app)
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_SECONDS):
                await app.job_manager.finish_job(job, jobs.Status.FAILED, delete_job=True)
        if self._clock.monotonic() >= self._statistics_at:
            self._statistics_at = self._clock.monotonic() + STATISTICS_SECONDS
            await self._store.refresh_statistics(JOB_TABLES)

    async def _defer_again(self, app: procrastinate.App) -> None:
        """Keep about as many jobs as there are claimable tasks.

        Every agent with claimable tasks gets at least one new job, because a process that died may have had the jobs.
        Jobs are deleted if there are many more jobs than tasks. This happens because a process may claim many tasks
        after only one job.
        """
        due = await self._store.count_due_by_agent(self._clock.now())
        waiting = {queue["name"]: queue["todo"] for queue in await app.job_manager.list_queues_async()}
        served = {agent for instance in await self._store.living() for agent in instance.agents}
        for agent in served:
            queue, count = name_queue(agent), due.get(agent, 0)
            if waiting.get(queue, 0) > count + SPARE_JOBS:
                await self._store.drop_jobs(queue, count + SPARE_JOBS)
            if count:
                missing = min(count - waiting.get(queue, 0), SPARE_JOBS)
                await app.job_manager.batch_defer_jobs_async([make_job(queue)] * max(1, missing))

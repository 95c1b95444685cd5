"""The procrastinate engine: jobs of a PostgreSQL queue tell processes to look for work.

A job means "look" and carries nothing: whoever gets it claims by the ordinary order whatever it may run. So a job that
is lost, doubled or late does no harm; who owns a task is decided by the store alone. Turns run in tasks of our own:
when the queue's worker ends, as it does on any database error, they go on and a new one is started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import procrastinate
from procrastinate import exceptions, jobs

from midwatch.clock import SECOND, Clock, SystemClock
from midwatch.engine import DEAD_SECONDS, Instance, Pulse
from midwatch.engines.heart import Heart
from midwatch.errors import MidwatchError, StoreError
from midwatch.store import Store
from midwatch.task import ClaimRequest
from midwatch.worker import Worker

log = logging.getLogger("midwatch.engine")

LOOK = "midwatch.look"
POLL_SECONDS = 0.5
CHORE_SECONDS = 5.0
STATISTICS_SECONDS = 60.0
STALLED_SECONDS = 30.0
NO_SLOT_SECONDS = 0.5
"""A process without a free slot puts the job back for this long, for others to take."""
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0)
JOB_TABLES = ("procrastinate_jobs", "procrastinate_events")


class SharedStore(Store, Protocol):
    """What this engine needs of a store beyond the port."""

    async def pending_agents(self, now: int) -> list[str]:
        """Agents that have a task to be taken now."""
        ...

    async def refresh_statistics(self, tables: Iterable[str]) -> None:
        """Keep what the planner knows of these tables fresh."""
        ...


def queue_of(agent: str) -> str:
    """The queue whose jobs are about an agent's tasks."""
    return f"agent.{agent}"


class Hinter:
    """Defers jobs on the store's own connection, in the transaction of what they tell of.

    The app here is never opened: an async one refuses the store's connection, and this one needs none of its own.
    """

    def __init__(self) -> None:
        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector())
        self._look = app.task(name=LOOK)(_nothing)

    def __call__(self, connection: Any, agent: str, due_at: int) -> None:
        due = datetime.fromtimestamp(due_at / SECOND, UTC) if due_at > SystemClock().now() else None
        self._look.configure(queue=queue_of(agent), schedule_at=due, connection=connection).defer()


async def _nothing() -> None:
    """Stands for the job where jobs are only deferred."""


async def prepare(url: str) -> None:
    """Make procrastinate's tables where they are missing."""
    async with _app(url).open_async() as app:
        if await app.check_connection_async():
            return
        try:
            await app.schema_manager.apply_schema_async()
        except exceptions.ConnectorException:
            if not await app.check_connection_async():  # it was not another process that was faster
                raise


def _app(url: str) -> procrastinate.App:
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=4))


class ProcrastinateEngine:
    """Implements `midwatch.engine.Engine` for one of many processes."""

    def __init__(
        self,
        store: SharedStore,
        url: str,
        clock: Clock,
        worker: Worker,
        instance: Instance,
        pulse: Pulse,
        on_lead: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._worker = worker
        self._instance = instance
        self._app = _app(url)
        self._chore_app = _app(url)  # opened now and then, while the other one's worker runs
        self._app.task(name=LOOK, pass_context=True)(self._handle)
        self._taking = False
        self._claims: set[asyncio.Task[asyncio.Future[None] | None]] = set()
        self._looks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._heart = Heart(pulse, clock, worker, on_lead, lambda: store.add_instance(instance))

    async def start(self) -> None:
        await self._store.add_instance(self._instance)
        self._taking = True
        self._heart.start()
        self._loops = [asyncio.create_task(self._chores())]
        if self._instance.role != "run":  # which takes only what it submits, and must not take others' jobs
            self._loops.append(asyncio.create_task(self._listen_to_jobs()))

    async def stop_taking(self) -> None:
        self._taking = False
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for look in self._looks:
            look.cancel()
        while self._claims:  # a claim under way is finished, and what it took is started, never dropped
            await asyncio.wait(set(self._claims))

    async def stop(self) -> None:
        await self._heart.stop()
        with suppress(StoreError):
            await self._store.remove_instances([self._instance.id])

    def wake(self) -> None:
        """Jobs wake it, except for a process that runs only its own tasks."""
        if self._instance.role == "run" and self._taking:
            look = asyncio.create_task(self._look())
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    def leads(self) -> bool:
        return self._heart.leads()

    def dead(self, owners: Iterable[str]) -> set[str]:
        return self._heart.dead(owners)

    # -- looking for work ----------------------------------------------------------------------------------------

    async def _handle(self, context: procrastinate.JobContext) -> None:
        """A job: look, unless there is no room here; then leave it to others."""
        if self._worker.slots.free() > 0:
            await self._look()
        elif self._taking:
            later = {"milliseconds": int(NO_SLOT_SECONDS * 1000)}
            await self._app.configure_task(LOOK, queue=context.job.queue, schedule_in=later).defer_async()

    async def _look(self) -> None:
        """Take a task, wait until its slot is free again, and so on until there is nothing to take."""
        while self._taking:
            claiming = asyncio.create_task(self._claim())
            self._claims.add(claiming)
            claiming.add_done_callback(self._claims.discard)
            slot_given = await asyncio.shield(claiming)
            if slot_given is None:
                return
            await asyncio.shield(slot_given)

    async def _claim(self) -> asyncio.Future[None] | None:
        """Claim one task and start it."""
        request = ClaimRequest(
            owner=self._instance.id,
            host=self._instance.host,
            free=min(1, self._worker.slots.free()),
            agents=self._worker.slots.free_by_agent(),
            own_only=self._instance.role == "run",
        )
        try:
            claims = await self._store.claim(request, self._clock.now())
        except StoreError as problem:
            log.warning("no task could be taken: %s", problem)
            return None
        return self._worker.start(claims.taken[0]) if claims.taken else None

    async def _listen_to_jobs(self) -> None:
        """Run the queue's worker, again and again: any database error ends it."""
        failures = 0
        while True:
            began = self._clock.monotonic()
            try:
                async with self._app.open_async():
                    await self._app.run_worker_async(
                        queues=[queue_of(agent) for agent in self._instance.agents],
                        concurrency=self._instance.slots,
                        name=self._instance.id,
                        fetch_job_polling_interval=POLL_SECONDS,
                        shutdown_graceful_timeout=0,
                        delete_jobs="always",
                        install_signal_handlers=False,
                    )
            except Exception as problem:
                log.warning("the job queue is away: %s", " ".join(str(problem.__cause__ or problem).split()))
            failures = 0 if self._clock.monotonic() - began > DEAD_SECONDS else failures + 1
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1])

    # -- what the leader sees to ---------------------------------------------------------------------------------

    async def _chores(self) -> None:
        statistics_at = 0.0
        while True:
            await asyncio.sleep(CHORE_SECONDS)
            if not self.leads():
                continue
            try:
                async with self._chore_app.open_async() as app:
                    await self._defer_again(app)
                    for stalled in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_SECONDS):
                        await app.job_manager.finish_job(stalled, jobs.Status.FAILED, delete_job=True)
                if self._clock.monotonic() >= statistics_at:
                    statistics_at = self._clock.monotonic() + STATISTICS_SECONDS
                    await self._store.refresh_statistics(JOB_TABLES)
            except (MidwatchError, exceptions.ProcrastinateException) as problem:
                log.warning("the leader's chores have to wait: %s", problem)

    async def _defer_again(self, app: procrastinate.App) -> None:
        """A job for every agent that has work and no job: one may have been lost with the process that had it."""
        for agent in await self._store.pending_agents(self._clock.now()):
            waiting = await app.job_manager.list_jobs_async(queue=queue_of(agent), status=jobs.Status.TODO.value)
            if not any(job.scheduled_at is None for job in waiting):
                await app.configure_task(LOOK, queue=queue_of(agent)).defer_async()

"""The job queue of the package procrastinate. A job only asks a process to claim tasks.

A job is added in the same transaction as the task, fetched by a process with a free slot, and deleted when it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import procrastinate
import psycopg
import psycopg_pool
from procrastinate import exceptions, jobs, manager
from psycopg.types.json import Jsonb

from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import StoreUnavailable

LOOK = "midwatch.look"
POOL_SECONDS = 5.0
LISTEN_AGAIN_SECONDS = 0.5
SIGN_OFF_SECONDS = 3.0
CONNECTION = {
    "connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
    "tcp_user_timeout": 10_000, "application_name": "midwatch jobs",
}  # fmt: skip
AWAY = (exceptions.ConnectorException, psycopg.Error)
"""The errors that the job queue raises if its database cannot be reached."""

for noisy in ("procrastinate", "psycopg", "psycopg.pool"):  # the engine logs one line instead
    if logging.getLogger(noisy).level in (logging.NOTSET, logging.WARNING):  # the driver sets WARNING itself
        logging.getLogger(noisy).setLevel(logging.ERROR)


def explain(problem: BaseException) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(problem.__cause__ or problem).split()) or type(problem).__name__


def name_queue(agent: str) -> str:
    """Return the name of the job queue for the tasks of an agent."""
    return f"agent.{agent}"


class Unanswered(procrastinate.SyncPsycopgConnector):
    """A connector that adds jobs with the caller's connection, and does not wait for the ids of the jobs."""

    def execute_query_all_with_connection(self, connection: Any, query: Any, **arguments: Any) -> list[dict[str, Any]]:
        rows = [job._replace(args=Jsonb(job.args)) for job in arguments["jobs"]]
        connection.execute(query, {"jobs": rows})
        return [{"id": -1} for _ in rows]


class Hinter:
    """Adds jobs to the queue with the store's own connection, in the transaction that makes the task claimable.

    Its procrastinate app is never opened, because it uses the store's connection. The app is a synchronous app, because
    an async app would refuse that connection.
    """

    def __init__(self) -> None:
        self._jobs = procrastinate.App(connector=Unanswered()).job_manager

    def __call__(self, connection: Any, due: Iterable[tuple[str, int]]) -> None:
        now = SystemClock().now()
        self._jobs.batch_defer_jobs(
            [make_job(name_queue(agent), when if when > now else None) for agent, when in due], connection
        )


def make_job(queue: str, when: int | None = None) -> jobs.Job:
    """Return a job of `queue` that is due at the time `when`, in microseconds, or now if `when` is None."""
    at = datetime.fromtimestamp(when / SECOND, UTC) if when is not None else None
    return jobs.Job(queue=queue, task_name=LOOK, lock=None, queueing_lock=None, scheduled_at=at)


class Jobs(manager.JobManager):
    """A job manager that fetches only jobs for which a slot is free.

    If the database cannot be reached, only `fetch_job` raises an error, so that the error is reported once. A job that
    therefore could not be marked as finished is deleted later by the leader.
    """

    def __init__(self, connector: Any, room: Callable[[str], bool]) -> None:
        super().__init__(connector)
        self._room = room
        self._news = False

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> jobs.Job | None:
        """Fetch a job. If there is none, but a new job was announced during the call, fetch again.

        Otherwise the queue's worker would fetch the new job only at its next poll.
        """
        while free_queues := [queue for queue in queues or () if self._room(queue)]:
            self._news = False
            job = await super().fetch_job(free_queues, worker_id)
            if job is not None or not self._news:
                return job
        return None

    async def listen_for_jobs(
        self, *, on_notification: manager.NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        async def note(*, channel: str, notification: jobs.Notification) -> None:
            self._news = True
            await on_notification(channel=channel, notification=notification)

        while True:
            with suppress(*AWAY):
                await super().listen_for_jobs(on_notification=note, queues=queues)
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)

    async def finish_job(self, job: jobs.Job, status: jobs.Status, delete_job: bool) -> None:
        with suppress(*AWAY):
            await super().finish_job(job, status, delete_job)

    async def update_heartbeat(self, worker_id: int) -> None:
        with suppress(*AWAY):
            await super().update_heartbeat(worker_id)

    async def unregister_worker(self, worker_id: int) -> None:
        with suppress(*AWAY, TimeoutError):
            await asyncio.wait_for(super().unregister_worker(worker_id), SIGN_OFF_SECONDS)

    async def list_jobs_to_abort_async(self, queue: str | None = None) -> Iterable[int]:
        return ()  # midwatch aborts no jobs


async def _at_once(connection: Any) -> None:
    await connection.set_autocommit(True)


def _pool(check: object = None, **options: Any) -> psycopg_pool.AsyncConnectionPool[Any]:
    """Return a pool that does not test a connection before it is used.

    This is not needed, because after an error the queue's worker and its pool are replaced. `check` is ignored.
    """
    return psycopg_pool.AsyncConnectionPool(**options)


def build_queue(url: str) -> procrastinate.App:
    """Return a procrastinate app, not opened yet, whose statements are each committed at once."""
    connector = procrastinate.PsycopgConnector(
        pool_factory=_pool, conninfo=url, min_size=1, max_size=4, timeout=POOL_SECONDS, configure=_at_once,
        kwargs=CONNECTION,
    )  # fmt: skip
    return procrastinate.App(connector=connector)


@asynccontextmanager
async def open_queue(app: procrastinate.App) -> AsyncIterator[procrastinate.App]:
    """Open a procrastinate app and close it after the block, also if opening fails or is cancelled.

    Otherwise the app's connection pool would stay open. Its asyncio tasks ignore a cancellation while they connect, so
    the process would never end.
    """
    try:
        await app.open_async()
        yield app
    finally:
        await app.close_async()


async def prepare(url: str) -> None:
    """Create the tables of procrastinate if they are missing."""
    try:
        async with open_queue(build_queue(url)) as app:
            if await app.check_connection_async():
                return
            try:
                await app.schema_manager.apply_schema_async()
            except exceptions.ConnectorException:
                if not await app.check_connection_async():  # no other process has created them meanwhile
                    raise
    except AWAY as problem:
        raise StoreUnavailable(f"no job queue: {explain(problem)}. Check the rights of the database user.") from None

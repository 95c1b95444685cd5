"""The procrastinate engine: processes claim tasks when they get a job from a job queue in PostgreSQL.

A job names no task: the process that gets the job claims tasks in their usual order. Only the store decides which
process owns a task, so a lost, duplicate or late job does no harm. Turns run in asyncio tasks of their own: when the
queue's worker ends after a database error, the turns continue, and a new worker of the queue is started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import procrastinate

from midwatch.base.clock import SECOND, Clock
from midwatch.base.errors import Conflict, StoreError
from midwatch.domain.changes import Changes, Update
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.event import TaskInterrupted, event
from midwatch.domain.instance import Instance, Pulse
from midwatch.domain.task import Task, end, guard_ownership, meta
from midwatch.domain.task_step import TaskStep
from midwatch.engines.heartbeat import Heartbeat
from midwatch.engines.jobs import AWAY, LOOK, Jobs, build_queue, explain, make_job, name_queue, open_queue
from midwatch.engines.queue_upkeep import UPKEEP_SECONDS, QueueUpkeep, SharedStore
from midwatch.running.outcome import RELEASED
from midwatch.running.worker import Worker

log = logging.getLogger("midwatch.engine")

POLL_SECONDS = 0.5
AGAIN_SECONDS = 0.5
"""Seconds until a job that found no free slot, or a claim that failed, is tried again."""
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0)
STEADY_SECONDS = 10.0
STOP_SECONDS = 5.0

Slot = asyncio.Future[None]
"""A future that is done when a turn has released its slot."""


class ProcrastinateEngine:
    """Implements `midwatch.domain.engine.Engine` for one of many processes."""

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
        self._app = build_queue(url)
        self._app.job_manager = Jobs(self._app.connector, self._room)
        self._app.task(name=LOOK, pass_context=True)(self._handle)
        self._queue_upkeep = QueueUpkeep(store, url, clock, self.leads)
        self._taking = False
        self._waiting: list[asyncio.Future[Slot | None]] = []
        self._looking = 0
        self._claiming: asyncio.Task[None] | None = None
        self._claim_lost = False
        self._live_news = False
        self._live_look: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._listening: asyncio.Timeout | None = None
        self._heartbeat = Heartbeat(pulse, clock, worker, on_lead, lambda: store.add_instance(self._instance))

    async def start(self) -> None:
        await self._store.add_instance(self._instance)
        self._taking = True
        self._heartbeat.start()
        self._loops = [asyncio.create_task(self._queue_upkeep.run()), asyncio.create_task(self._wake_regularly())]
        if self._instance.role != "run":  # a process that runs only its own tasks must not take jobs of others
            self._loops.append(asyncio.create_task(self._listen_to_jobs()))

    async def stop_taking(self) -> None:
        self._taking = False
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops, timeout=STOP_SECONDS)
        for look in self._looks:
            look.cancel()
        if self._claiming is not None:  # wait for it, so that its tasks are started and not lost
            await asyncio.wait({self._claiming})

    async def stop(self) -> None:
        await self._heartbeat.stop()
        if self._heartbeat.is_connected():
            with suppress(StoreError):
                await self._store.remove_instances([self._instance.id])

    def wake(self) -> None:
        """Claim the tasks for which this process gets no job.

        If this process runs only its own tasks, these are all its tasks. Otherwise they are the tasks of sessions whose
        conversation is open in this process: another process may get their job, but only this process may claim them.
        """
        if self._instance.role == "run" and not self._waiting:
            self._start_look()
        elif self._worker.conversations.has_sessions:
            self._live_news = True
            if self._live_look is None:
                self._live_look = asyncio.create_task(self._look_for_live_work())

    def offer(self, instance: Instance) -> None:
        """Restart the queue's worker for the agents that `instance` offers, and claim tasks of these agents."""
        self._instance = instance
        if self._listening is not None and not self._listening.expired():
            self._listening.reschedule(0)
        self.wake()

    def leads(self) -> bool:
        return self._heartbeat.leads()

    def dead(self, owners: Iterable[str]) -> set[str]:
        return self._heartbeat.dead(owners)

    async def _look_for_live_work(self) -> None:
        while self._live_news and self._taking:
            self._live_news = False
            with suppress(StoreError):
                if await self._store.has_live_work(self._instance.id, self._clock.now()):
                    self._start_look()
        self._live_look = None

    async def _wake_regularly(self) -> None:
        """Call `wake` at intervals, because this process gets no job when a delayed task of an open session is due."""
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            self.wake()

    # -- claim tasks ---------------------------------------------------------------------------------------------

    def _room(self, queue: str) -> bool:
        """Return whether this process has a slot for one more task of the queue's agent, besides the current claims."""
        free = self._worker.slots.free()
        by_agent = {name_queue(agent): room for agent, room in self._worker.slots.free_by_agent().items()}
        return self._taking and self._heartbeat.is_sound() and min(free, by_agent.get(queue, 0)) > self._looking

    async def _handle(self, context: procrastinate.JobContext) -> None:
        """Handle a job: claim a task. If no slot is free any more, add a new job, which any process may get later."""
        if self._room(context.job.queue):
            await asyncio.shield(self._start_look())
        elif self._taking:
            later = make_job(context.job.queue, self._clock.now() + int(AGAIN_SECONDS * SECOND))
            with suppress(*AWAY):
                await self._app.job_manager.defer_job_async(later)

    def _start_look(self) -> asyncio.Task[None]:
        look = asyncio.create_task(self._look())
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)
        return look

    def _look_around(self) -> None:
        """Try to claim a task for every free slot, because the jobs of waiting tasks may have been lost or deleted."""
        for _ in range(self._worker.slots.free() - self._looking):
            self._start_look()

    async def _look(self) -> None:
        """Claim a task and wait until the task releases its slot. Repeat this until no task can be claimed."""
        while self._taking:
            result: asyncio.Future[Slot | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(result)
            self._looking += 1
            if self._claiming is None:
                self._claiming = asyncio.create_task(self._claim_all())
            try:
                slot = await result
            finally:
                self._looking -= 1
            if slot is None:
                return
            await asyncio.shield(slot)

    async def _claim_all(self) -> None:
        """Claim tasks for all waiting calls of `_look` together, because parallel claims only wait for each other."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                slots = iter(await self._claim(len(waiting)) if self._taking and self._heartbeat.is_sound() else ())
                for result in waiting:
                    if not result.done():
                        result.set_result(next(slots, None))
        finally:
            self._claiming = None

    async def _claim(self, wanted: int) -> list[Slot]:
        """Claim up to `wanted` tasks, start them, and return their slots."""
        free = min(wanted, self._worker.slots.free())
        request = ClaimRequest(
            owner=self._instance.id,
            host=self._instance.host,
            free=free,
            agents=self._worker.slots.free_by_agent(),
            own_only=self._instance.role == "run",
            shares=self._worker.slots.shares(free),
        )
        try:
            if self._claim_lost:
                await self._release_unstarted()
            claims = await self._store.claim(request, self._clock.now())
        except StoreError as problem:
            log.warning("no task could be claimed; trying again: %s", problem)
            self._claim_lost = True
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._start_look)
            return []
        return [self._worker.start(claim) for claim in claims.taken]

    async def _release_unstarted(self) -> None:
        """Release the tasks that this process claimed but did not start, because it did not get the store's answer."""
        for task in await self._store.list_running_tasks(self._instance.id):
            run = self._worker.running.get(task.id)
            if run is None or run.task.attempt != task.attempt:
                with suppress(Conflict):
                    step = _release(task, self._clock.now())
                    await self._store.apply(await self._worker.endings.end_attempt(task, step))
        self._claim_lost = False

    async def _listen_to_jobs(self) -> None:
        """Run the queue's worker, and start it again after each database error."""
        failures = 0
        while self._taking:
            while not self._heartbeat.is_connected():  # noqa: ASYNC110 - another thread checks it every two seconds
                await asyncio.sleep(0.05)
            began, why = self._clock.monotonic(), "the worker of the queue ended"
            self._look_around()
            try:
                async with asyncio.timeout(None) as self._listening, open_queue(self._app):
                    await self._app.run_worker_async(
                        queues=[name_queue(agent) for agent in self._instance.agents],
                        concurrency=self._instance.slots,
                        name=self._instance.id,
                        fetch_job_polling_interval=POLL_SECONDS,
                        shutdown_graceful_timeout=0,
                        delete_jobs="always",
                        install_signal_handlers=False,
                    )
            except Exception as problem:
                why = explain(problem)
            offered = self._listening is not None and self._listening.expired()
            self._listening = None
            if self._taking and not offered:
                failures = 1 if self._clock.monotonic() - began > STEADY_SECONDS else failures + 1
                log.warning("the job queue is unavailable: %s", why)
                await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1])


def _release(task: Task, now: int) -> TaskStep:
    """Return the step that makes a claimed task pending again, or ends the task if it was cancelled."""
    if task.stop_requested == "cancel":
        return TaskStep(*end(task, now, outcome="cancelled"))
    interrupted = event(TaskInterrupted(reason="unstarted"), now, **meta(task))
    update = Update("task", task.id, RELEASED, guard_ownership(task))
    return TaskStep(task._replace(**RELEASED), Changes(updates=(update,), events=(interrupted,)))

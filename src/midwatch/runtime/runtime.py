"""The runtime: builds everything from settings, starts it, stops it. It has no rules of its own.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from midwatch.agents.prices import listed_cost
from midwatch.base.clock import LONGEST_NAP, SECOND, Clock, SystemClock
from midwatch.base.errors import Conflict
from midwatch.base.home import Home, boot_id
from midwatch.base.schedule import host_zone
from midwatch.desk.build import Registered, build_agents, build_channels, chosen, open_store
from midwatch.desk.config import Settings
from midwatch.desk.desk import Desk
from midwatch.domain.agent import Agent
from midwatch.domain.budget import Price, Prices
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import Channel
from midwatch.domain.engine import Engine
from midwatch.domain.instance import Instance, Role
from midwatch.domain.store import Commit, Store
from midwatch.domain.task import Task
from midwatch.engines.embedded import EmbeddedEngine
from midwatch.live.telemetry import ENDS, Telemetry, Workflows, telemetry
from midwatch.loops.courier import Courier, Patience
from midwatch.loops.pruner import PRUNE_SECONDS, Pruner, Retention
from midwatch.loops.rescuer import Rescuer
from midwatch.loops.routines import Routines
from midwatch.loops.scheduler import Scheduler
from midwatch.programs.guard import guard
from midwatch.programs.hook_program import program
from midwatch.programs.reaper import identify, reap
from midwatch.running.open_agents import OpenAgents
from midwatch.running.slots import Slots
from midwatch.running.worker import Worker
from midwatch.runtime.loopback import Loopback
from midwatch.services.day_budget import Day, Purse

log = logging.getLogger("midwatch.runtime")


SCHEDULED = frozenset({"automation", "goal", "session", "handoff"})
"""What the scheduler wants to hear of."""


class Pace(NamedTuple):
    """How often a runtime looks at what nothing wakes it for, in seconds."""

    watchdog: float = 60.0
    """For what is overdue, stuck or silent."""
    prune: float = PRUNE_SECONDS
    """For what is old."""
    handoffs: float = 10.0
    """For handoffs nobody waits for."""
    nap: float = LONGEST_NAP
    """At the wall clock, by whoever sleeps until some time."""


PACE = Pace()


class Runtime(Desk):
    """A desk and, unless told otherwise, what runs its tasks: the worker, the engine and the loops."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        store: Store,
        agents: dict[str, Agent],
        channels: dict[str, Channel],
        clock: Clock,
        *,
        pace: Pace = PACE,
    ) -> None:
        super().__init__(settings, home, store, agents, channels, clock)
        self._pace = pace
        self._loopback: Loopback | None = None
        self._telemetry: Telemetry | None = None
        self._worker: Worker | None = None
        self._engine: Engine | None = None
        self._courier: Courier | None = None
        self._rescuer: Rescuer | None = None
        self._pruner: Pruner | None = None
        self._scheduler: Scheduler | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        home: str | os.PathLike[str] | None = None,
        *,
        agents: Mapping[str, Registered] | None = None,
        channels: Mapping[str, Channel] | None = None,
        settings: Settings | None = None,
        role: Role = "library",
        work: bool = True,
        only: Collection[str] | None = None,
        clock: Clock | None = None,
    ) -> AsyncIterator[Runtime]:
        """Open the desk of a home directory and close it at the end of the block.

        `agents` and `channels` are added to the configured ones; `only` names those of all agents that work here.
        With `work=False` nothing is run here: tasks are only handed in and looked at. Beside a live `midwatch up` on
        SQLite only what was submitted here, or only this process can run, is run.
        """
        settings = settings or Settings.load(home)
        place = Home(settings.home)
        place.prepare()
        up = place.claim_up() if role == "up" else None
        if role in ("up", "worker"):
            collect_garbage_seldom()
        try:
            store = await open_store(settings, place)
            try:
                known = chosen(build_agents(settings, agents or {}), only)
                ways = {**build_channels(settings), **(channels or {})}
                desk = cls(settings, place, store, known, ways, clock or SystemClock())
                await desk.bus.start()
                store.on_commit(desk._heard)
                try:
                    if work:
                        desk._loopback = None if role == "up" else Loopback(desk._answer)
                        await desk._start(role)
                    yield desk
                finally:
                    await desk._stop()
            finally:
                await store.close()
        finally:
            if up is not None:
                up.release()

    async def _start(self, role: Role) -> None:
        settings, pace = self.settings, self._pace
        self.instance = Instance(
            id=self._id,
            role=role,
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=os.getpid(),
            slots=settings.slots,
            started_at=self.clock.now(),
            **offered(self.agents),
        )
        self._telemetry = telemetry()
        self._worker = self._build_worker()
        engine = self._engine = self._build_engine(self._worker, self.instance)
        self._courier = Courier(self.store, self.clock, self.channels, engine.leads, Patience(nap=pace.nap))
        self._rescuer = Rescuer(
            self.store,
            self.clock,
            engine,
            self.approvals,
            owner=self._id,
            reap=reap_left,
            settle=self.settlements.after,
            rescued=self.handoffs.call_off,
            nap=pace.nap,
        )
        kept = settings.retention
        retention = Retention(kept.tasks, kept.task_age, kept.events, kept.event_age)
        self._pruner = Pruner(self.store, self.clock, engine.leads, retention, every=pace.prune, nap=pace.nap)
        self.routines = self._routines(engine)
        terms, stop, prompts = self.roster.terms_of, self.tasks.cancel, settings.goals.templates()
        about = (engine.leads, terms, stop, prompts, self.handoffs.expire)
        self._scheduler = Scheduler(self.store, self.clock, *about, nap=pace.nap)
        if self.relay is not None:
            self.relay.open()
        await self._rescuer.start()
        await engine.start()
        await self._pruner.start()
        self.roster.announce, self.roster.changed = self._announce, self._agents_changed
        await self._courier.start()
        if role != "run":  # it takes only its own task, so what it fired would wait for somebody else
            await self._scheduler.start()
        await self.routines.start()
        if settings.completion_hook:
            await self.hooks.add("completion", program(settings.completion_hook, self._child_env), engine.leads)
        if self._telemetry is not None:
            workflows = Workflows(self._telemetry, self.store)
            await self.subscriptions.add("telemetry", workflows.told, ENDS, durable=True, leads=engine.leads)

    def _build_worker(self) -> Worker:
        settings = self.settings
        return Worker(
            self.store,
            self.clock,
            self.roster.serving,
            self.notifications,
            self.approvals,
            self.handoffs,
            Slots(settings.slots, slots_of(self.agents), settings.max_running_per_actor),
            self._conversations(),
            owner=self._id,
            show=self.bus.show,
            identify=identify,
            env=self._child_env,
            approval_seconds=settings.approval_expiry,
            max_waiting=settings.max_waiting,
            settle=self.settlements.after,
            worktrees=self.worktrees,
            purse=self._purse(),
            observe=self._telemetry.observe if self._telemetry is not None else None,
        )

    async def _announce(self, agents: Mapping[str, Agent]) -> None:
        with suppress(Conflict):  # it was taken for dead, and tells what it has when it makes itself known again
            await self.store.apply(Changes(updates=(Update("instance", self._id, offered(agents)),)))

    def _agents_changed(self) -> None:
        """Some were registered or unregistered."""
        if self.instance is not None and self._engine is not None and self._worker is not None:
            self.instance = replace(self.instance, **offered(self.agents))
            self._worker.slots.offer(slots_of(self.agents))
            self._worker.conversations.part()
            self._engine.offer(self.instance)

    async def _send_telemetry(self) -> None:
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)

    def _routines(self, engine: Engine) -> Routines:
        made = Routines(self.clock, engine.leads)
        made.register("watchdog", self._pace.watchdog, self.alerts.tell)
        made.register("prune", self._pace.prune, self._prune)
        made.register("handoffs", self._pace.handoffs, self._tend_handoffs)
        return made

    def _purse(self) -> Purse:
        """What work here may spend: prices as they are set, those of midwatch's own model calls also by the list."""
        settings = self.settings
        prices = Prices({name: Price(**one.model_dump()) for name, one in settings.prices.items()})
        own = {name: one.day_budget.budget() for name, one in settings.agents.items() if one.day_budget}
        desk = settings.day_budget.budget()
        limited = any(one.data() for one in (desk, *own.values()))
        day = Day(self.store, self.clock, host_zone(), desk, own) if limited else None

        def known(agent: str, model: str, usage: Mapping[str, Any]) -> float | None:
            return listed_cost(model, usage) if self.roster.serving[agent].kind == "llm" else None

        return Purse(prices, day, known)

    def _conversations(self) -> OpenAgents:
        idle, most = self.settings.keep_open, self.settings.max_live
        about = (self.store, self.clock, self._id, self.agents)
        made = OpenAgents(*about, idle_seconds=idle, most=most, show=self.bus.show)
        self.terminals.serve(made)
        return made

    async def _prune(self) -> None:
        """Forget old worktrees and handoffs."""
        before = self.clock.now() - int(self.settings.retention.task_age * SECOND)
        await self.worktrees.prune(before)
        await self.store.prune_handoffs(before)

    async def _tend_handoffs(self) -> None:
        """End those whose process died before their task was made, and those nobody waits for."""
        await self.handoffs.call_off()
        living = [one.id for one in await self.living()]
        for left in await self.store.left_handoffs(living):
            with suppress(Conflict):
                await self.handoffs.abandon(left)

    def _child_env(self) -> dict[str, str]:
        url = self.url or (self._loopback.url if self._loopback else None)
        return {"MIDWATCH_URL": url} if url else {}

    async def _answer(self, listener: socket.socket, stopping: asyncio.Event) -> None:
        server = await asyncio.to_thread(import_module, "midwatch.api.server")  # heavy, and seldom needed
        await server.answer(self, listener, stopping)

    def _build_engine(self, worker: Worker, instance: Instance) -> Engine:
        if self.settings.db:
            from midwatch.engines.procrastinate import ProcrastinateEngine
            from midwatch.stores.pulse import PostgresPulse

            url = self.settings.db
            pulse = PostgresPulse(url, instance.id)
            store: Any = self.store
            return ProcrastinateEngine(store, url, self.clock, worker, instance, pulse, self._leads_now)
        about = (self.store, self.clock, self.home, worker, instance, self._leads_now)
        engine = EmbeddedEngine(*about, nap=self._pace.nap)
        engine.live()
        return engine

    async def _stop(self) -> None:
        """End in the order that loses nothing: no new work, end what runs, send what is due, let go. A part that
        fails keeps no other from stopping; the first failure is raised at the end."""
        steps: list[Callable[[], Awaitable[None]]] = []
        if self._engine and self._worker and self._rescuer and self._pruner and self._courier and self._scheduler:
            worker, grace = self._worker, self.settings.shutdown_grace
            steps = [
                self.routines.stop,
                self._scheduler.stop,
                self._engine.stop_taking,
                lambda: worker.stop(grace),
                self._rescuer.stop,
                self._pruner.stop,
                self._courier.stop,
            ]
            steps.append(self._engine.stop)
        steps.append(self.subscriptions.stop)
        if self._loopback is not None:
            steps.append(self._loopback.close)
        steps += [self.tokens.close, self.bus.stop, self._send_telemetry]
        if self.relay is not None:
            steps.append(self.relay.close)
        failed: list[BaseException] = []
        for step in steps:
            try:
                await step()
            except Exception as problem:
                log.exception("a part of the desk did not stop cleanly")
                failed.append(problem)
        for channel in self.channels.values():
            try:
                await channel.close()
            except Exception:
                log.exception("channel %s did not close", channel.name)
        guard.close()
        if failed:
            raise failed[0]

    def _heard(self, commit: Commit) -> None:
        self.bus.heard(commit)
        if "handoff" in commit.topics:
            self.handoffs.heard()
        if self._worker is None or self._engine is None or self._courier is None or self._rescuer is None:
            return
        self._worker.heard(commit.topics)
        if "task" in commit.topics:
            self._engine.wake()
        if "delivery" in commit.topics:
            self._courier.wake()
        if self._scheduler is not None and not SCHEDULED.isdisjoint(commit.topics):
            self._scheduler.wake()
        if commit.foreign or "approval" in commit.topics:
            self._rescuer.wake()
        if commit.foreign and self._pruner is not None:  # whoever led may be gone
            self._pruner.wake()

    def _leads_now(self) -> None:
        for loop in (self._courier, self._rescuer, self._pruner, self._scheduler):
            if loop is not None:
                loop.wake()

    @property
    def running(self) -> int:
        """How many tasks run in this process now."""
        return len(self._worker.running) if self._worker else 0


def collect_garbage_seldom() -> None:
    """For a process that is ours alone: what is loaded by now stays, and short-lived records seldom form cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def reap_left(task: Task) -> None:
    """Make sure of a dead attempt's processes, if they were on this machine; elsewhere its guard does."""
    if task.host == socket.gethostname():
        await reap(task.id, task.attempt, task.pgid, task.pgid_mark)


def offered(agents: Mapping[str, Agent]) -> dict[str, Any]:
    """What other processes are told of the agents that work here."""
    return {"agents": tuple(sorted(agents)), "terms": {name: tuple(agent.terms) for name, agent in agents.items()}}


def slots_of(agents: Mapping[str, Agent]) -> dict[str, int]:
    """How many tasks of each agent may run at once."""
    return {name: agent.terms.slots for name, agent in agents.items()}

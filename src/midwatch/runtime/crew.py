"""The crew: worker, engine and loops, which run the tasks of a desk in this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from midwatch.base.clock import LONGEST_NAP, SECOND
from midwatch.base.errors import Conflict
from midwatch.base.home import boot_id
from midwatch.desk.build import build_budgets, find_command_runner
from midwatch.desk.desk import Desk
from midwatch.domain.agent import Agent
from midwatch.domain.engine import Engine
from midwatch.domain.instance import Instance, Role
from midwatch.domain.task import Task
from midwatch.engines.embedded import EmbeddedEngine
from midwatch.live.telemetry import Telemetry
from midwatch.loops.courier import Courier, Patience
from midwatch.loops.pruner import PRUNE_SECONDS, Pruner, Retention
from midwatch.loops.rescuer import Rescuer
from midwatch.loops.scheduler import Scheduler
from midwatch.programs.cgroup import remove_leftovers
from midwatch.programs.reaper import identify, reap
from midwatch.running.host import Host
from midwatch.running.slots import Slots
from midwatch.running.worker import Worker
from midwatch.runtime.followers import build_trigger_watch, subscribe
from midwatch.services.agent_registry import describe_offer

FOREIGN = "foreign"
"""The topic that is added to a commit of another process."""


async def do_nothing() -> None:
    """Do nothing. This is the default for the start and the stop of a part."""


class Part(NamedTuple):
    """One part of a running desk. Parts start in order and stop in reverse order."""

    start: Callable[[], Awaitable[object]] = do_nothing
    stop: Callable[[], Awaitable[object]] = do_nothing
    wake: Callable[[frozenset[str]], object] = lambda topics: None
    topics: frozenset[str] = frozenset()
    """A commit with one of these topics wakes the part."""


class _Loop(Protocol):
    """A background loop."""

    async def start(self) -> None:
        """Start the loop."""

    async def stop(self) -> None:
        """Stop the loop."""

    def wake(self) -> None:
        """Check for due work now."""


class Pace(NamedTuple):
    """The intervals of the regular checks, in seconds."""

    watchdog: float = 60.0
    """The interval of the check for overdue, stuck or silent work."""
    prune: float = PRUNE_SECONDS
    """The interval at which old records are removed."""
    handoffs: float = 10.0
    """The interval at which handoffs that no task waits for are cancelled."""
    nap: float = LONGEST_NAP
    """The longest time for which a loop sleeps; then it reads the wall clock again, which may have been changed."""


class Crew:
    """The worker, the engine and the loops of one process."""

    def __init__(self, desk: Desk, role: Role, pace: Pace, telemetry: Telemetry | None) -> None:
        settings, store, clock = desk.settings, desk.store, desk.clock
        self.instance = Instance(
            id=desk.id,
            role=role,
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=os.getpid(),
            slots=settings.slots,
            started_at=clock.now(),
            **describe_offer(desk.agents),
        )
        self._desk = desk
        self._pace = pace
        self._telemetry = telemetry
        slots = Slots(settings.slots, slots_of(desk.agents), settings.max_running_per_actor, settings.max_waiting)
        host = Host(
            store=store,
            clock=clock,
            slots=slots,
            approvals=desk.approvals,
            handoffs=desk.handoffs,
            waiter=desk.waiter,
            hooks=desk.hooks,
            budgets=build_budgets(settings, store, clock, desk.registry.serving),
            show=desk.bus.show,
            identify=identify,
            env=desk.child_env,
            observe=telemetry.observe if telemetry is not None else None,
            run_command=find_command_runner(),
            approval_seconds=settings.approval_expiry,
        )
        self.worker = Worker(
            host, desk.running_tasks, desk.registry.serving, desk.conversations, desk.endings, desk.notifications,
            desk.worktrees, desk.id,
        )  # fmt: skip
        self.engine = self._build_engine()
        self.courier = Courier(store, clock, desk.channels, self.engine.leads, Patience(nap=pace.nap))
        retention = Retention(**settings.retention.model_dump())
        self.pruner = Pruner(store, clock, self.engine.leads, retention, every=pace.prune, nap=pace.nap)
        self.rescuer = Rescuer(
            store, clock, self.engine, desk.approvals, desk.endings,
            owner=desk.id, reap=reap_processes, cancel_orphans=desk.handoffs.cancel_orphans, nap=pace.nap,
        )  # fmt: skip
        self.scheduler = Scheduler(
            store, clock, self.engine.leads, desk.registry.terms_of, desk.tasks.cancel, settings.goals.templates(),
            desk.handoffs.expire, settings.list_calendars(), desk.notifications.plan, nap=pace.nap,
            steps_per_minute=settings.goals.steps_per_minute,
        )  # fmt: skip
        self.trigger_watch = build_trigger_watch(desk, self.engine.leads, pace.nap)
        desk.registry.on_change(self._offer_agents)

    def parts(self) -> list[Part]:
        """Return the parts of the crew in the order in which they start."""
        desk, engine, worker, role = self._desk, self.engine, self.worker, self.instance.role
        parts = [
            Part(remove_leftovers, engine.stop),
            Part(self._start_hooks),
            _loop(self.courier, "delivery"),
            _loop(self.pruner, FOREIGN),
            _loop(self.rescuer, "approval"),
            Part(
                stop=lambda: worker.stop(desk.settings.shutdown_grace),
                wake=worker.wake,
                topics=frozenset({"stop", "session", "steer", "context_item"}),
            ),
            Part(engine.start, engine.stop_taking, lambda topics: engine.wake(), frozenset({"task"})),
        ]
        if role != "run":  # this role runs only its own task, not tasks of automations
            parts.append(_loop(self.scheduler, "automation", "firing", "goal", "session", "handoff"))
            parts.append(_loop(self.trigger_watch, "automation"))
        parts += [Part(self._start_routines, desk.routines.stop), Part(self._subscribe)]
        return parts

    def _build_engine(self) -> Engine:
        desk, worker = self._desk, self.worker
        if desk.settings.db:
            from midwatch.engines.procrastinate import ProcrastinateEngine
            from midwatch.stores.pulse import PostgresPulse

            pulse = PostgresPulse(desk.settings.db, desk.id)
            store: Any = desk.store
            return ProcrastinateEngine(
                store, desk.settings.db, desk.clock, worker, self.instance, pulse, self._take_lead
            )
        engine = EmbeddedEngine(
            desk.store, desk.clock, desk.home, worker, self.instance, self._take_lead, nap=self._pace.nap
        )
        engine.take_life_lock()
        return engine

    def _take_lead(self) -> None:
        """Wake the loops, because this process became the leader."""
        for loop in (self.courier, self.rescuer, self.pruner, self.scheduler, self.trigger_watch):
            loop.wake()

    def _offer_agents(self) -> None:
        """Offer slots for the currently registered agents, after an agent was registered or removed."""
        agents = self._desk.agents
        self.instance = replace(self.instance, **describe_offer(agents))
        self.worker.slots.offer(slots_of(agents))
        self._desk.conversations.close_unregistered()
        self.engine.offer(self.instance)

    async def _start_routines(self) -> None:
        routines = self._desk.routines
        routines.register("watchdog", self._pace.watchdog, self._desk.alerts.send)
        routines.register("prune", self._pace.prune, self._prune)
        routines.register("handoffs", self._pace.handoffs, self._tend_handoffs)
        await routines.start(self.engine.leads)

    async def _prune(self) -> None:
        """Remove old worktrees and handoffs."""
        desk = self._desk
        before = desk.clock.now() - int(desk.settings.retention.task_age * SECOND)
        await desk.worktrees.prune(before)
        await desk.store.prune_handoffs(before)
        await desk.store.prune_firings(before)

    async def _tend_handoffs(self) -> None:
        """End handoffs that no task waits for, and handoffs whose process died before it created their task."""
        desk = self._desk
        await desk.handoffs.cancel_orphans()
        living = [instance.id for instance in await desk.living()]
        for handoff in await desk.store.list_abandoned_handoffs(living):
            with suppress(Conflict):
                await desk.handoffs.abandon(handoff)

    async def _start_hooks(self) -> None:
        """Start the hook programs, and give all events to observing hooks."""
        desk = self._desk
        await desk.hooks.start()
        for name, observe in desk.hooks.observers().items():
            desk.hooks.note_subscription(name, await desk.subscriptions.add(f"hook {name}", observe, live=True))

    async def _subscribe(self) -> None:
        """Subscribe the program for ended tasks, the telemetry and the event logs to the events that they need."""
        await subscribe(self._desk, self._telemetry, self.engine.leads)


def _loop(loop: _Loop, *topics: str) -> Part:
    return Part(loop.start, loop.stop, lambda woken_by: loop.wake(), frozenset(topics))


async def reap_processes(task: Task) -> None:
    """End the programs of an attempt whose midwatch process died, if they ran on this machine.

    On another machine, the guard of the dead process ends them.
    """
    if task.host == socket.gethostname():
        await reap(task.id, task.attempt, task.pgid, task.pgid_mark)


def slots_of(agents: Mapping[str, Agent]) -> dict[str, int]:
    """Return how many tasks of each agent may run at once."""
    return {name: agent.terms.slots for name, agent in agents.items()}

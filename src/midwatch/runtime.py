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
from typing import Any

from midwatch.agent import Agent
from midwatch.agents import build as build_agent
from midwatch.agents.function import FunctionAgent
from midwatch.agents.git import GitProgram
from midwatch.agents.guard import guard
from midwatch.agents.hook import program
from midwatch.agents.prices import listed_cost
from midwatch.agents.profiles import advice, detect
from midwatch.agents.reaping import identify, reap
from midwatch.agents.sandbox import sandbox_of
from midwatch.alerts import Alerts
from midwatch.approval import Approvals
from midwatch.automations import Automations
from midwatch.budget import Price, Prices
from midwatch.bus import Bus
from midwatch.change import Changes, Update
from midwatch.channel import Channel
from midwatch.channels import build as build_channel
from midwatch.clock import SECOND, Clock, SystemClock, new_id
from midwatch.config import Settings
from midwatch.conversations import Conversations
from midwatch.courier import Courier
from midwatch.engine import Engine, Instance, Role
from midwatch.engines.embedded import EmbeddedEngine, dead_owners
from midwatch.errors import BadConfig, Conflict, MidwatchError, UnknownAgent
from midwatch.goal import Ended
from midwatch.goals import Goals
from midwatch.handoffs import Handoffs
from midwatch.home import Home, boot_id
from midwatch.hooks import Hooks
from midwatch.identity import Tokens
from midwatch.loopback import Loopback
from midwatch.notifications import Notifications
from midwatch.relay import Relay
from midwatch.roster import Living, Roster, check_targets
from midwatch.routines import Routines
from midwatch.rules import Policies, Rules
from midwatch.schedule import host_zone
from midwatch.scheduler import Scheduler
from midwatch.sessions import Sessions
from midwatch.settlement import Settlements
from midwatch.slots import Slots
from midwatch.snapshots import Snapshots
from midwatch.spending import Day, Purse
from midwatch.store import Commit, Store
from midwatch.stores.sqlite import SqliteStore
from midwatch.subscriptions import Subscriptions
from midwatch.task import Task
from midwatch.tasks import Limits, Tasks
from midwatch.telemetry import ENDS, Telemetry, Workflows, telemetry
from midwatch.terminals import Terminals
from midwatch.watchdog import Watchdog
from midwatch.worker import Worker
from midwatch.worktrees import Worktrees

log = logging.getLogger("midwatch.runtime")

Registered = Agent | Callable[..., Any] | str
"""An agent, a Python function, or the dotted path of one."""


WATCHDOG_SECONDS = 60.0
PRUNE_SECONDS = 3600.0
HANDOFFS_SECONDS = 10.0
SCHEDULED = frozenset({"automation", "goal", "session", "handoff"})
"""What the scheduler wants to hear of."""


class Runtime:
    """A desk: the services on one home and, unless told otherwise, the processes that do the work."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        store: Store,
        agents: dict[str, Agent],
        channels: dict[str, Channel],
        clock: Clock,
    ) -> None:
        now = clock.now()
        self.settings = settings
        self.home = home
        self.store = store
        self.agents = agents
        self.clock = clock
        self.url: str | None = None
        self._loopback: Loopback | None = None
        self.instance: Instance | None = None
        self.channels = channels
        self.notifications = Notifications(store, clock, self.channels)
        self.living = living_processes(settings, home, store)
        self.approvals = Approvals(store, clock, self.living, Policies(store, settings.policy_of))
        self.rules = Rules(store, clock)
        self.tokens = Tokens(store, clock, home.token())
        self._id = new_id("i", now)
        self.relay = relay_of(settings, self._id)
        self.bus = Bus(store, clock, self.relay)
        self.roster = Roster(agents, settings.default_agent, self.living, advice)
        self.tasks = Tasks(
            store,
            clock,
            self.roster,
            self.notifications.check_route,
            Limits(max_open=settings.max_open, max_open_per_actor=settings.max_open_per_actor),
            submitter=self._id,
            wait_finished=self.bus.finished,
            default_route=settings.notify,
            settle=lambda ended: self.settlements.after(Ended(ended)),
        )
        self.worktrees = Worktrees(
            store, clock, GitProgram(), home=str(home.worktrees), host=socket.gethostname(), lock=home.lock
        )
        self.sessions = Sessions(store, clock, self.tasks, self._pause_automation)
        self.terminals = Terminals(store, agents, self.relay, self._child_env)
        self.settlements = Settlements(store, clock, self.roster.terms_of, settings.goals.templates())
        about = (self.roster.terms_of, self.notifications.check_route, settings.notify)
        self.automations = Automations(store, clock, self.tasks, *about, submitter=self._id)
        self.snapshots = Snapshots(store, clock, self.tasks, self.notifications.check_route)
        self.goals = Goals(store, clock, self.tasks, *about, settings.goals.defaults())
        self.handoffs = build_handoffs(settings, store, clock, self.roster, self._id)
        self._scheduler: Scheduler | None = None
        self.routines = Routines(clock, lambda: False)
        self.subscriptions = Subscriptions(store, self.bus, clock)
        self.hooks = Hooks(store, self.subscriptions)
        self.alerts = Alerts(store, clock, self.roster.live, settings.silence_of)
        self._telemetry: Telemetry | None = None
        self._worker: Worker | None = None
        self._engine: Engine | None = None
        self._courier: Courier | None = None
        self._watchdog: Watchdog | None = None

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
        settings = self.settings
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
        self._courier = Courier(self.store, self.clock, self.channels, engine.leads)
        self._watchdog = Watchdog(
            self.store,
            self.clock,
            engine,
            self.approvals,
            owner=self._id,
            reap=reap_left,
            keep_tasks=settings.retention.tasks,
            task_age_seconds=settings.retention.task_age,
            keep_events=settings.retention.events,
            event_age_seconds=settings.retention.event_age,
            settle=self.settlements.after,
            rescued=self.handoffs.call_off,
        )
        self.routines = self._routines(engine)
        terms, stop, prompts = self.roster.terms_of, self.tasks.cancel, settings.goals.templates()
        expire = self.handoffs.expire
        self._scheduler = Scheduler(self.store, self.clock, engine.leads, terms, stop, prompts, expire)
        if self.relay is not None:
            self.relay.open()
        await self._watchdog.start()
        await engine.start()
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
        made.register("watchdog", WATCHDOG_SECONDS, self.alerts.tell)
        made.register("prune", PRUNE_SECONDS, self._prune)
        made.register("handoffs", HANDOFFS_SECONDS, self._tend_handoffs)
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

    def _conversations(self) -> Conversations:
        idle, most = self.settings.keep_open, self.settings.max_live
        about = (self.store, self.clock, self._id, self.agents)
        made = Conversations(*about, idle_seconds=idle, most=most, show=self.bus.show)
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

    async def _pause_automation(self, automation_id: str, actor: str | None) -> None:
        why = f"{actor or 'a person'} interrupted its run"
        with suppress(MidwatchError):
            await self.automations.pause(automation_id, why=why, actor=actor)

    def _child_env(self) -> dict[str, str]:
        url = self.url or (self._loopback.url if self._loopback else None)
        return {"MIDWATCH_URL": url} if url else {}

    async def _answer(self, listener: socket.socket, stopping: asyncio.Event) -> None:
        server = await asyncio.to_thread(import_module, "midwatch.api.server")  # it knows us, we do not know it
        await server.answer(self, listener, stopping)

    def _build_engine(self, worker: Worker, instance: Instance) -> Engine:
        if self.settings.db:
            from midwatch.engines.procrastinate import ProcrastinateEngine
            from midwatch.stores.pulse import PostgresPulse

            url = self.settings.db
            pulse = PostgresPulse(url, instance.id)
            store: Any = self.store
            return ProcrastinateEngine(store, url, self.clock, worker, instance, pulse, self._leads_now)
        engine = EmbeddedEngine(self.store, self.clock, self.home, worker, instance, self._leads_now)
        engine.live()
        return engine

    async def _stop(self) -> None:
        """End in the order that loses nothing: no new work, end what runs, send what is due, let go. A part that
        fails keeps no other from stopping; the first failure is raised at the end."""
        steps: list[Callable[[], Awaitable[None]]] = []
        if self._engine and self._worker and self._watchdog and self._courier and self._scheduler:
            worker, grace = self._worker, self.settings.shutdown_grace
            steps = [
                self.routines.stop,
                self._scheduler.stop,
                self._engine.stop_taking,
                lambda: worker.stop(grace),
                self._watchdog.stop,
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
        if self._worker is None or self._engine is None or self._courier is None or self._watchdog is None:
            return
        self._worker.heard(commit.topics)
        if "task" in commit.topics:
            self._engine.wake()
        if "delivery" in commit.topics:
            self._courier.wake()
        if self._scheduler is not None and not SCHEDULED.isdisjoint(commit.topics):
            self._scheduler.wake()
        if commit.foreign or "approval" in commit.topics:
            self._watchdog.wake()

    def _leads_now(self) -> None:
        if self._courier is not None and self._watchdog is not None:
            self._courier.wake()
            self._watchdog.wake()
        if self._scheduler is not None:
            self._scheduler.wake()

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


async def open_store(settings: Settings, home: Home) -> Store:
    """The configured store: SQLite in the home directory, or a shared PostgreSQL."""
    if not settings.db:
        return await SqliteStore.open(home.database)
    try:
        from midwatch.engines.procrastinate import Hinter, prepare
        from midwatch.stores.cluster import check_address
        from midwatch.stores.postgres import PostgresStore
    except ImportError as problem:
        raise BadConfig(f"{problem.name} is missing; install it with `pip install 'midwatch[postgres]'`.") from None
    check_address(settings.db)
    store = await PostgresStore.open(settings.db)
    try:
        await prepare(settings.db)
    except BaseException:
        await store.close()
        raise
    store.set_hint(Hinter())
    return store


def relay_of(settings: Settings, instance_id: str) -> Relay | None:
    """What carries live events to and from other processes, where there are some."""
    if not settings.db:
        return None
    from midwatch.stores.relay import PostgresRelay

    return PostgresRelay(settings.db, instance_id)


def living_processes(settings: Settings, home: Home, store: Any) -> Living:
    """How to ask which processes live: by their file locks, or on a shared database by their heartbeats."""
    if settings.db:
        living: Living = store.living
        return living

    async def by_lock() -> list[Instance]:
        known = await store.list_instances()
        dead = dead_owners(home, [one.id for one in known])
        return [one for one in known if one.id not in dead]

    return by_lock


def build_channels(settings: Settings) -> dict[str, Channel]:
    """The configured channels, and the built-in ones that are always there."""
    built = {name: build_channel(name, name, {}) for name in ("console", "webhook")}
    for name, wanted in settings.channels.items():
        built[name] = build_channel(name, wanted.kind, wanted.options())
    return built


def build_agents(settings: Settings, registered: Mapping[str, Registered]) -> dict[str, Agent]:
    """The demo, agent programs found on this machine, the configured agents, and those registered in code."""
    built: dict[str, Agent] = {"demo": build_agent("demo", "demo", {})}
    if settings.detect_agents:
        built.update({found.profile.name: found.agent() for found in detect()})
    for name, wanted in settings.agents.items():
        built[name] = build_agent(
            name,
            wanted.kind,
            wanted.options(),
            timeout=wanted.timeout,
            on_crash=wanted.on_crash,
            max_attempts=wanted.max_attempts,
            slots=wanted.slots,
            share_workdir=wanted.share_workdir,
            budget=wanted.budget,
            submits=wanted.submits,
            sandbox=sandbox_of(
                name, wanted.sandbox, str(settings.home), write=wanted.sandbox_paths, read=wanted.sandbox_read
            ),
            description=wanted.description,
            capabilities=tuple(one.capability() for one in wanted.capabilities),
        )
    for name, given in registered.items():
        if isinstance(given, str):
            built[name] = build_agent(name, "function", {"target": given})
        elif callable(given) and not hasattr(given, "open"):
            built[name] = FunctionAgent(name, given)
        else:
            built[name] = given  # type: ignore[assignment]  # it has the port's `open`
    check_targets(built)
    return built


def offered(agents: Mapping[str, Agent]) -> dict[str, Any]:
    """What other processes are told of the agents that work here."""
    return {"agents": tuple(sorted(agents)), "terms": {name: tuple(agent.terms) for name, agent in agents.items()}}


def slots_of(agents: Mapping[str, Agent]) -> dict[str, int]:
    """How many tasks of each agent may run at once."""
    return {name: agent.terms.slots for name, agent in agents.items()}


def build_handoffs(
    settings: Settings,
    store: Store,
    clock: Clock,
    roster: Roster,
    owner: str,
) -> Handoffs:
    """The service, with its limits, and without the agents that nothing may be handed to."""
    wanted = settings.handoffs
    made = Handoffs(
        store, clock, roster, owner, wanted.limits(), timeout=wanted.timeout, nest_history=wanted.nest_history
    )
    for name, agent in settings.agents.items():
        made.enable(name, agent.handoffs is not False)
    return made


def chosen(known: dict[str, Agent], only: Collection[str] | None) -> dict[str, Agent]:
    """Those of the agents that work here; UnknownAgent when one that was asked for does not exist."""
    for name in only or ():
        if name not in known:
            raise UnknownAgent(name, list(known))
    return known if only is None else {name: known[name] for name in only}

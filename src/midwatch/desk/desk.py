"""The desk: all services on one home, whether or not this process runs tasks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from midwatch.agents.profiles import advice
from midwatch.base.clock import Clock
from midwatch.base.errors import MidwatchError
from midwatch.base.home import Home
from midwatch.base.ids import new_id
from midwatch.desk.config import Settings
from midwatch.domain.agent import Agent
from midwatch.domain.channel import Channel
from midwatch.domain.instance import Instance
from midwatch.domain.relay import Relay
from midwatch.domain.store import Store
from midwatch.engines.embedded import dead_owners
from midwatch.live.bus import Bus
from midwatch.live.hooks import Hooks
from midwatch.live.subscriptions import Subscriptions
from midwatch.loops.routines import Routines
from midwatch.programs.git import GitProgram
from midwatch.running.open_agents import OpenAgents
from midwatch.running.running_tasks import RunningTasks
from midwatch.services.agent_registry import AgentRegistry, Living
from midwatch.services.alerts import Alerts
from midwatch.services.approvals import Approvals
from midwatch.services.automation_transfer import AutomationTransfer
from midwatch.services.automations import Automations
from midwatch.services.goals import Goals
from midwatch.services.handoffs import Handoffs
from midwatch.services.notifications import Notifications
from midwatch.services.rules import Policies, Rules
from midwatch.services.sessions import Sessions
from midwatch.services.task_endings import TaskEndings
from midwatch.services.tasks import Limits, Tasks
from midwatch.services.terminals import Terminals
from midwatch.services.tokens import Tokens
from midwatch.services.waiter import Waiter
from midwatch.services.worktrees import Worktrees


class Desk:
    """All services on one home. They work whether or not this process runs tasks."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        store: Store,
        agents: dict[str, Agent],
        channels: dict[str, Channel],
        clock: Clock,
        *,
        work: bool = False,
        find_url: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`work` says whether this process runs tasks; `find_url` returns the address where agents reach this desk."""
        self.settings = settings
        self.home = home
        self.store = store
        self.agents = agents
        self.channels = channels
        self.clock = clock
        self.id = new_id("i", clock.now())
        self._find_url = find_url
        self.waiter = Waiter()
        self.running_tasks = RunningTasks()
        self.relay = build_relay(settings, self.id)
        self.bus = Bus(store, clock, self.waiter, self.relay)
        self.conversations = OpenAgents(
            store, clock, self.id, agents,
            idle_seconds=settings.keep_open, most=settings.max_live, show=self.bus.show,
        )  # fmt: skip
        self.living = living_processes(settings, home, store)
        self.roster = AgentRegistry(store, self.id, agents, settings.default_agent, self.living, advice)
        self.notifications = Notifications(store, clock, channels)
        self.approvals = Approvals(store, clock, self.living, Policies(store, settings.policy_of))
        self.rules = Rules(store, clock)
        self.tokens = Tokens(store, clock, home.token())
        self.endings = TaskEndings(store, clock, self.roster.terms_of, settings.goals.templates())
        self.tasks = Tasks(
            store,
            clock,
            self.roster,
            self.notifications.check_route,
            Limits(max_open=settings.max_open, max_open_per_actor=settings.max_open_per_actor),
            submitter=self.id,
            waiter=self.waiter,
            default_route=settings.notify,
            endings=self.endings,
        )
        self.worktrees = Worktrees(
            store, clock, GitProgram(), home=str(home.worktrees), host=socket.gethostname(), lock=home.lock
        )
        about = (self.roster.terms_of, self.notifications.check_route, settings.notify)
        self.automations = Automations(store, clock, self.tasks, *about, submitter=self.id)
        self.snapshots = AutomationTransfer(store, clock, self.tasks, self.notifications.check_route)
        self.sessions = Sessions(store, clock, self.tasks, self._pause_automation)
        self.terminals = Terminals(store, agents, self.conversations if work else None, self.relay, self.child_env)
        self.goals = Goals(store, clock, self.tasks, *about, settings.goals.defaults())
        self.handoffs = build_handoffs(settings, store, clock, self.roster, self.id, self.running_tasks, self.waiter)
        self.routines = Routines(clock)
        self.subscriptions = Subscriptions(store, self.bus, clock)
        self.hooks = Hooks(store, self.subscriptions)
        self.alerts = Alerts(store, clock, self.roster.live, settings.silence_of)

    @property
    def running(self) -> int:
        """The number of tasks that run in this process now."""
        return len(self.running_tasks)

    def child_env(self) -> dict[str, str]:
        """Return the environment variables that tell an agent's program where this desk is."""
        url = self._find_url()
        return {"MIDWATCH_URL": url} if url else {}

    async def _pause_automation(self, automation_id: str, actor: str | None) -> None:
        why = f"{actor or 'a person'} interrupted its run"
        with suppress(MidwatchError):
            await self.automations.pause(automation_id, why=why, actor=actor)


def build_relay(settings: Settings, instance_id: str) -> Relay | None:
    """Return what carries live events between processes; None on SQLite."""
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


def build_handoffs(
    settings: Settings,
    store: Store,
    clock: Clock,
    registry: AgentRegistry,
    owner: str,
    running: RunningTasks,
    waiter: Waiter,
) -> Handoffs:
    """Return the handoff service, with its limits, and without the agents that no work may be handed to."""
    wanted = settings.handoffs
    handoffs = Handoffs(
        store, clock, registry, owner, running, waiter, wanted.limits(),
        timeout=wanted.timeout, nest_history=wanted.nest_history,
    )  # fmt: skip
    for name, agent in settings.agents.items():
        handoffs.enable(name, agent.handoffs is not False)
    return handoffs

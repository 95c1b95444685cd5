"""The desk: all services on one home, whether or not this process runs tasks."""

from __future__ import annotations

import socket
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
from midwatch.domain.task import Ended
from midwatch.engines.embedded import dead_owners
from midwatch.live.bus import Bus
from midwatch.live.hooks import Hooks
from midwatch.live.subscriptions import Subscriptions
from midwatch.loops.routines import Routines
from midwatch.programs.git import GitProgram
from midwatch.services.agent_registry import AgentRegistry, Living
from midwatch.services.alerts import Alerts
from midwatch.services.approvals import Approvals
from midwatch.services.authorization import Authorization
from midwatch.services.automation_transfer import AutomationTransfer
from midwatch.services.automations import Automations
from midwatch.services.events import Events
from midwatch.services.goals import Goals
from midwatch.services.handoff_requests import HandoffRequests
from midwatch.services.handoffs import Handoffs
from midwatch.services.notifications import Notifications
from midwatch.services.rules import Policies, Rules
from midwatch.services.sessions import Sessions
from midwatch.services.system import System
from midwatch.services.task_endings import TaskEndings
from midwatch.services.tasks import Limits, Tasks
from midwatch.services.terminals import Terminals
from midwatch.services.tokens import Tokens
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
    ) -> None:
        now = clock.now()
        self.settings = settings
        self.home = home
        self.store = store
        self.agents = agents
        self.clock = clock
        self.url: str | None = None
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
        self.roster = AgentRegistry(agents, settings.default_agent, self.living, advice)
        authorization = Authorization(store, self.roster.terms_of, settings.manage_tasks)
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
            authorization=authorization,
        )
        self.events = Events(store)
        self.system = System(store, clock, self.tasks, self.approvals, home.path)
        host = socket.gethostname()
        self.worktrees = Worktrees(
            store, clock, GitProgram(), authorization, home=str(home.worktrees), host=host, lock=home.lock
        )
        self.sessions = Sessions(store, clock, self.tasks, self._pause_automation)
        self.terminals = Terminals(store, agents, self.relay, self._child_env)
        self.settlements = TaskEndings(store, clock, self.roster.terms_of, settings.goals.templates())
        about = (self.roster.terms_of, self.notifications.check_route, settings.notify)
        self.automations = Automations(store, clock, self.tasks, *about, submitter=self._id)
        self.snapshots = AutomationTransfer(store, clock, self.tasks, self.notifications.check_route)
        self.goals = Goals(store, clock, self.tasks, *about, settings.goals.defaults())
        self.handoffs = build_handoffs(settings, store, clock, self.roster, self._id)
        self.handoff_requests = HandoffRequests(store, self.tasks, self.handoffs)
        self.routines = Routines(clock, lambda: False)
        self.subscriptions = Subscriptions(store, self.bus, clock)
        self.hooks = Hooks(store, self.subscriptions)
        self.alerts = Alerts(store, clock, self.roster.live, settings.silence_of)

    @property
    def running(self) -> int:
        """How many tasks run in this process now."""
        return 0

    def _child_env(self) -> dict[str, str]:
        """What an agent's program is told of this desk."""
        return {"MIDWATCH_URL": self.url} if self.url else {}

    async def _pause_automation(self, automation_id: str, actor: str | None) -> None:
        why = f"{actor or 'a person'} interrupted its run"
        with suppress(MidwatchError):
            await self.automations.pause(automation_id, why=why, actor=actor)


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


def build_handoffs(
    settings: Settings,
    store: Store,
    clock: Clock,
    roster: AgentRegistry,
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

"""The foundation of a desk: the store, the clock, the bus, the agents, and the services that other services use."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from midwatch.agents.profiles import advise
from midwatch.base.clock import Clock
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
from midwatch.running.hook_chain import HookChain
from midwatch.running.open_agents import OpenAgents
from midwatch.running.running_tasks import RunningTasks
from midwatch.services.agent_registry import AgentRegistry, Living
from midwatch.services.approvals import Approvals
from midwatch.services.authorization import Authorization
from midwatch.services.notifications import Notifications
from midwatch.services.rules import Policies, Rules
from midwatch.services.tokens import Tokens
from midwatch.services.waiter import Waiter


@dataclass(frozen=True, slots=True)
class Setup:
    """The objects that a desk is built from."""

    settings: Settings
    home: Home
    store: Store
    agents: dict[str, Agent]
    channels: dict[str, Channel]
    clock: Clock
    work: bool = True
    """Whether this process runs tasks."""
    hooks: HookChain = field(default_factory=HookChain)


class Foundation:
    """The parts of a desk that its services are built on."""

    def __init__(self, setup: Setup, find_url: Callable[[], str | None] = lambda: None) -> None:
        """Build the foundation. `find_url` returns the address at which agents reach this desk, or None."""
        self.settings, self.home, self.store, self.clock = setup.settings, setup.home, setup.store, setup.clock
        self.agents, self.channels, self.hooks = setup.agents, setup.channels, setup.hooks
        self.id = new_id("i", self.clock.now())
        self._find_url = find_url
        self.standstills = 0
        """How often the event loop of this process stood still."""
        self.waiter = Waiter()
        self.running_tasks = RunningTasks()
        self.relay = build_relay(self.settings, self.id)
        self.bus = Bus(self.store, self.clock, self.waiter, self.relay)
        self.conversations = OpenAgents(
            self.store, self.clock, self.id, self.agents,
            idle_seconds=self.settings.keep_open, most=self.settings.max_live, show=self.bus.show,
        )  # fmt: skip
        self.living = build_living(self.settings, self.home, self.store)
        self.registry = AgentRegistry(
            self.store, self.id, self.agents, self.settings.default_agent, self.living, advise,
            self.settings.on_budget,
        )  # fmt: skip
        self.authorization = Authorization(self.store, self.registry.terms_of, self.settings.manage_tasks)
        self.notifications = Notifications(
            self.store, self.clock, self.channels, self.settings.notices(), self.settings.digest_at
        )
        policies = Policies(self.store, self.settings.approvals.policy(), self.settings.policies())
        self.approvals = Approvals(self.store, self.clock, self.living, policies, self.authorization)
        self.rules = Rules(self.store, self.clock, policies, self.settings.default_agent, self.registry.terms_or_none)
        in_file = self.settings.owner_access == "file"
        self.owner_secret = self.home.token() if in_file else secrets.token_urlsafe(32)
        self.tokens = Tokens(self.store, self.clock, self.owner_secret)

    @property
    def running(self) -> int:
        """The number of tasks that run in this process now."""
        return len(self.running_tasks)

    def count_standstill(self) -> None:
        """Count that the event loop of the server stood still."""
        self.standstills += 1

    def find_public_url(self) -> str:
        """Return the address at which others reach this server: the setting `public_url`, or the server's address."""
        port = self.settings.port
        return self.settings.public_url or self._find_url() or f"http://{self.settings.host}:{port}"

    def child_env(self) -> dict[str, str]:
        """Return the environment variable with the address of this desk, for the programs of agents."""
        url = self._find_url()
        return {"MIDWATCH_URL": url} if url else {}


def build_relay(settings: Settings, instance_id: str) -> Relay | None:
    """Return the relay that sends live events to other processes, or None if the store is SQLite."""
    if not settings.db:
        return None
    from midwatch.stores.relay import PostgresRelay

    return PostgresRelay(settings.db, instance_id)


def build_living(settings: Settings, home: Home, store: Any) -> Living:
    """Return a function that lists the live processes of the store.

    On SQLite a live process holds a file lock; on a shared PostgreSQL it sends heartbeats.
    """
    if settings.db:
        living: Living = store.living
        return living

    async def list_by_lock() -> list[Instance]:
        instances = await store.list_instances()
        dead = dead_owners(home, [instance.id for instance in instances])
        return [instance for instance in instances if instance.id not in dead]

    return list_by_lock

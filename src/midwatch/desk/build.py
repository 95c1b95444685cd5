"""Functions that build the store, agents, channels and budgets from the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from midwatch.agents.function import FunctionAgent
from midwatch.agents.prices import find_listed_cost
from midwatch.agents.probe_command import run_command
from midwatch.agents.profiles import build_section, detect
from midwatch.agents.registry import build as build_agent
from midwatch.base.clock import Clock
from midwatch.base.errors import BadConfig, UnknownAgent
from midwatch.base.home import Home
from midwatch.base.schedule import host_zone
from midwatch.channels.registry import build as build_channel
from midwatch.desk.config import Settings
from midwatch.domain.agent import Agent
from midwatch.domain.budget import Price, Prices
from midwatch.domain.channel import Channel
from midwatch.domain.store import Store
from midwatch.programs.cgroup import Limits
from midwatch.programs.sandbox import build_sandbox
from midwatch.running.host import RunCommand
from midwatch.services.agent_registry import check_targets
from midwatch.services.budgets import Budgets, Days
from midwatch.stores.sqlite import SqliteStore

SHARED_OPTIONS = ("on_crash", "max_attempts", "slots", "share_workdir", "budget", "on_budget", "submits", "description")
Registered = Agent | Callable[..., Any] | str
"""An agent, a Python function, or the dotted path of a Python function."""


async def open_store(settings: Settings, home: Home) -> Store:
    """Open the configured store: SQLite in the home directory, or a shared PostgreSQL."""
    if not settings.db:
        return await SqliteStore.open(home.database)
    try:
        from midwatch.engines.jobs import Hinter, prepare
        from midwatch.stores.cluster import check_address
        from midwatch.stores.postgres import PostgresStore
    except ImportError as problem:
        raise BadConfig(f"{problem.name} is missing; install it with `pip install 'midwatch[postgres]'`.") from None
    check_address(settings.db)
    store = await PostgresStore.open(settings.db, Hinter())
    try:
        await prepare(settings.db)
    except BaseException:
        await store.close()
        raise
    return store


def build_channels(settings: Settings) -> dict[str, Channel]:
    """Build the built-in channels and the configured channels, by name."""
    built = {name: build_channel(name, name, {}) for name in ("console", "webhook")}
    for name, channel in settings.channels.items():
        built[name] = build_channel(name, channel.kind, channel.options())
    return built


def build_agents(settings: Settings, registered: Mapping[str, Registered]) -> dict[str, Agent]:
    """Build the demo agent, the agents found on this machine, the configured agents and the `registered` agents.

    If two of them have the same name, the later one in this order is used.
    """
    built: dict[str, Agent] = {"demo": build_agent("demo", "demo", {})}
    sections: dict[str, dict[str, Any]] = {"demo": {"kind": "demo"}}
    for detected in detect() if settings.detect_agents else ():
        built[detected.program.name] = detected.build_agent()
        sections[detected.program.name] = build_section(detected.program, detected.way)
    for name, configured in settings.agents.items():
        agent = configured.complete(sections.get(name, {}))
        built[name] = build_agent(
            name,
            agent.kind,
            agent.options(),
            timeout_seconds=agent.timeout,
            **{option: getattr(agent, option) for option in SHARED_OPTIONS},
            sandbox=build_sandbox(
                name,
                agent.sandbox,
                str(settings.home),
                write=agent.sandbox_paths,
                read=agent.sandbox_read,
                network=agent.network,
                hosts=agent.network_hosts,
            ),
            limits=Limits(agent.memory, agent.pids) if agent.memory or agent.pids else None,
            capabilities=tuple(capability.capability() for capability in agent.capabilities),
        )
    for name, source in registered.items():
        if isinstance(source, str):
            built[name] = build_agent(name, "function", {"target": source})
        elif callable(source) and not hasattr(source, "open"):
            built[name] = FunctionAgent(name, source)
        else:
            built[name] = source  # type: ignore[assignment]  # it has the port's `open`
    check_targets(built)
    return built


def find_command_runner() -> RunCommand:
    """Return the function that runs the commands of tasks like programs of their agents."""
    return run_command


def build_budgets(settings: Settings, store: Store, clock: Clock, agents: Mapping[str, Agent]) -> Budgets:
    """Build the budgets with the configured prices. For agents of kind `llm`, a built-in price list is used too."""
    prices = Prices({name: Price(**price.model_dump()) for name, price in settings.prices.items()})
    by_agent = {name: agent.day_budget.budget() for name, agent in settings.agents.items() if agent.day_budget}
    desk = settings.day_budget.budget()
    limited = any(budget.data() for budget in (desk, *by_agent.values()))
    days = Days(store, clock, host_zone(), desk, by_agent) if limited else None

    def find_cost(agent: str, model: str, usage: Mapping[str, Any]) -> float | None:
        return find_listed_cost(model, usage) if agents[agent].kind == "llm" else None

    return Budgets(prices, days, find_cost)


def choose_agents(known: dict[str, Agent], only: Collection[str] | None) -> dict[str, Agent]:
    """Return the agents of `known` that `only` names, or all agents if `only` is None.

    Raise UnknownAgent if `only` names an agent that does not exist.
    """
    for name in only or ():
        if name not in known:
            raise UnknownAgent(name, list(known))
    return known if only is None else {name: known[name] for name in only}

"""The host: the objects that the running tasks of a process share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from midwatch.base.clock import Clock
from midwatch.base.errors import AgentError
from midwatch.base.trace import Trace
from midwatch.domain.agent import Agent, ProgramOwner
from midwatch.domain.event import Event
from midwatch.domain.probe import CommandResult
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.running.hook_chain import HookChain
from midwatch.running.slots import Slots
from midwatch.services.approvals import Approvals
from midwatch.services.budgets import Budgets
from midwatch.services.handoffs import Handoffs
from midwatch.services.waiter import Waiter


class ObservedTurn(Protocol):
    """Port: the telemetry of one turn."""

    trace: Trace

    def record(self, event: Event) -> None:
        """Record an event of the turn."""
        ...

    def lose(self, now: int) -> None:
        """Record that another process has taken over the task."""
        ...


RunCommand = Callable[[Agent, str, ProgramOwner, float], Coroutine[Any, Any, CommandResult]]


async def refuse_command(agent: Agent, command: str, turn: ProgramOwner, seconds: float) -> CommandResult:
    """Refuse to run a command, where no programs can be started."""
    raise AgentError("no commands can be run here.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The objects that the running tasks of a process share."""

    store: Store
    clock: Clock
    slots: Slots
    approvals: Approvals
    handoffs: Handoffs
    waiter: Waiter = field(default_factory=Waiter)
    budgets: Budgets = field(default_factory=Budgets)
    hooks: HookChain = field(default_factory=HookChain)
    show: Callable[[Event], None] = lambda live: None
    """Shows a live event to the clients that watch."""
    identify: Callable[[int], str] = str
    """Returns the mark of a process group. A later group with the same number has another mark."""
    env: Callable[[], Mapping[str, str]] = dict
    """Returns environment variables for the agent's programs."""
    observe: Callable[[Task], ObservedTurn] | None = None
    run_command: RunCommand = refuse_command
    """Runs a command of a task like a program of its agent: agent, command, turn, seconds."""
    approval_seconds: float = 12 * 3600.0
    """Seconds after which a question expires, if neither the agent nor a rule sets a time."""

"""Base class for agents that receive handoffs. A subclass names its capabilities and does the work in `execute`.

class Coder(HandoffAgent):
    id = "coder"
    capabilities = (AgentCapability(name="code", task_types=("code",), priority=5),)

    async def execute(self, handoff):
        return f"done: {handoff.work.description}"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, ClassVar, Self, Unpack

from midwatch.agents.base import BaseAgent, KindOptions, SharedSettings
from midwatch.agents.function import OnLoop
from midwatch.agents.function_child import write_text
from midwatch.base.errors import AgentError, BadConfig
from midwatch.domain.agent import AgentTerms, Turn, TurnResult
from midwatch.domain.handoff import Handoff, HandoffTask
from midwatch.domain.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffResult:
    """The result of the work of a handoff. If `error` is set, the work has failed."""

    output: Any = None
    error: str | None = None
    duration_ms: int = 0
    """How long the work took, in milliseconds. midwatch measures this; a value that you set is ignored."""


class HandoffAgent(BaseAgent):
    """Base class of agents that receive handoffs. `execute` must not block the event loop."""

    kind: ClassVar[str] = "handoff"
    terms = AgentTerms(timeout_seconds=1800.0, on_crash="rerun", slots=64)
    takes_history = True
    """True: the agent gets earlier messages in the context of the handoff, not as text in the prompt."""
    id: str = ""
    """The name of the agent in handoffs."""

    def __init__(self, id: str | None = None, **shared: Unpack[SharedSettings]) -> None:
        self.id = id or type(self).id
        if not self.id:
            raise BadConfig(f"{type(self).__name__} needs a name for handoffs; set `id` in the class or pass it.")
        if iscoroutinefunction(self.can_handle):  # a coroutine object would always count as true
            raise BadConfig(f"{type(self).__name__}.can_handle must return True or False; define it without async.")
        super().__init__(self.id, **shared)

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> Self:
        """Return the agent that `[agents.NAME]` describes. Its `kind` names this class. It has no options."""
        KindOptions.read(name, options)
        return cls(name, **shared)

    def can_handle(self, work: HandoffTask) -> bool:
        """Return whether this agent can do the work. By default, a capability must cover the type of the work."""
        return any(not capability.task_types or work.type in capability.task_types for capability in self.capabilities)

    async def accept(self, handoff: Handoff) -> None:
        """Accept the handoff. To refuse it, raise an error whose text is the reason."""

    async def execute(self, handoff: Handoff) -> Any:
        """Do the work and return a HandoffResult, a text, or any JSON value. If this raises, the handoff fails."""
        raise NotImplementedError(f"{type(self).__name__} has no method `execute`; write one that does the work")

    async def open(self, session: Session) -> OnLoop:
        """Open a conversation."""
        return OnLoop(self._work)

    async def _work(self, prompt: str, turn: Turn) -> TurnResult:
        handoff = await turn.handoff()
        request = HandoffTask(description=prompt).data()  # without a handoff, the prompt of a task is the work
        result = await self.execute(handoff or Handoff(id=turn.task_id, to_agent=self.id, request=request))
        if isinstance(result, HandoffResult):
            if result.error:
                raise AgentError(result.error)
            result = result.output
        return TurnResult(text=write_text(result))

    def describe(self) -> Mapping[str, Any]:
        """Return `target`, a text with the agent's class and its capabilities."""
        names = ", ".join(capability.name for capability in self.capabilities)
        return {"target": f"{type(self).__qualname__}" + (f": {names}" if names else "")}

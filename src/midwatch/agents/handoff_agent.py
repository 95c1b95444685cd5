"""Agents written for handoffs: one class that says what it can do, takes or refuses work, and does it.

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
from typing import Any, ClassVar, Self

from midwatch.agents.base import BaseAgent, KindOptions
from midwatch.agents.function import OnLoop
from midwatch.agents.function_child import text_of
from midwatch.base.errors import AgentError, BadConfig
from midwatch.domain.agent import AgentCapability, AgentTerms, Turn, TurnResult
from midwatch.domain.handoff import Handoff, HandoffTask
from midwatch.domain.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffResult:
    """What became of the work; with an `error` it has failed."""

    output: Any = None
    error: str | None = None
    duration_ms: int = 0
    """Measured by midwatch."""


class HandoffAgentOptions(KindOptions):
    """Options of a class that is configured: none, unless it has a `from_options` of its own."""


class HandoffAgent(BaseAgent):
    """Base class of agents that are given handoffs. `execute` must not hold up the event loop."""

    kind: ClassVar[str] = "handoff"
    terms = AgentTerms(timeout_seconds=1800.0, on_crash="rerun", slots=64)
    takes_history = True
    """What was said before comes in the handoff's context, not as text in the prompt."""
    id: str = ""
    """What others call it by."""
    capabilities: tuple[AgentCapability, ...] = ()

    def __init__(self, id: str | None = None, *, terms: AgentTerms | None = None, description: str = "") -> None:
        self.id = id or type(self).id
        if not self.id:
            raise BadConfig(f"{type(self).__name__} needs an id: what others call it by.")
        if iscoroutinefunction(self.can_handle):  # what it returns would always count as yes
            raise BadConfig(f"{type(self).__name__}.can_handle returns true or false at once; write it without async.")
        super().__init__(self.id, terms=terms, description=description)
        self.capabilities = type(self).capabilities

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> Self:
        """From `[agents.NAME]`, where its `kind` is the class."""
        HandoffAgentOptions.read(name, options)
        return cls(name, terms=terms, description=description)

    def can_handle(self, work: HandoffTask) -> bool:
        """Whether it could do this: by default, whether one of its capabilities is for it."""
        return any(not one.task_types or work.type in one.task_types for one in self.capabilities)

    async def accept(self, handoff: Handoff) -> None:
        """Take it, or raise to refuse it; the error's text is the reason."""

    async def execute(self, handoff: Handoff) -> Any:
        """Do it. A HandoffResult, a text, or anything that is JSON; what is raised fails the handoff."""
        raise NotImplementedError(f"{type(self).__name__} needs an execute method")

    async def open(self, session: Session) -> OnLoop:
        """Nothing is opened before the first turn."""
        return OnLoop(self._work)

    async def _work(self, prompt: str, turn: Turn) -> TurnResult:
        given = await turn.handoff()
        plain = HandoffTask(description=prompt).data()  # somebody submitted it as a task
        made = await self.execute(given or Handoff(id=turn.task_id, to_agent=self.id, request=plain))
        if isinstance(made, HandoffResult):
            if made.error:
                raise AgentError(made.error)
            made = made.output
        return TurnResult(text=text_of(made))

    def describe(self) -> Mapping[str, Any]:
        """Its class and what it can do."""
        able = ", ".join(one.name for one in self.capabilities)
        return {"target": f"{type(self).__qualname__}" + (f": {able}" if able else "")}

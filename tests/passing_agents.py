"""Agents that do not keep what they are given: one refuses it, one gives it away."""

from __future__ import annotations

from typing import Any

from midwatch.agents.handoff_agent import HandoffAgent
from midwatch.domain.agent import AgentCapability, Turn, TurnResult
from midwatch.domain.handoff import Handoff


class Picky(HandoffAgent):
    """Would be the best to talk, and does not feel like it."""

    capabilities = (AgentCapability(name="talk", task_types=("say",), priority=50),)

    async def accept(self, handoff: Handoff) -> None:
        raise ValueError("not today")

    async def execute(self, handoff: Handoff) -> Any:
        raise AssertionError("it was never taken")


async def gives(prompt: str, turn: Turn) -> TurnResult:
    return TurnResult(outcome="transferred", transfer=await turn.transfer("echo"))

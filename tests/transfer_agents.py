"""Agents that pass on their work: one refuses it, one transfers it."""

from __future__ import annotations

from typing import Any

from midwatch.agents.handoff_agent import HandoffAgent
from midwatch.domain.agent import AgentCapability, Turn, TurnResult
from midwatch.domain.handoff import Handoff


class RefusingAgent(HandoffAgent):
    """An agent that is the best choice for talking and refuses."""

    capabilities = (AgentCapability(name="talk", task_types=("say",), priority=50),)

    async def accept(self, handoff: Handoff) -> None:
        raise ValueError("not today")

    async def execute(self, handoff: Handoff) -> Any:
        raise AssertionError("it was never taken")


async def transfer(prompt: str, turn: Turn) -> TurnResult:
    return TurnResult(outcome="transferred", transfer=await turn.transfer("echo"))

"""Agents that pass on their work: one refuses it, one transfers it, one delegates each line of it with a tool."""

from __future__ import annotations

from typing import Any

from midwatch.agents.handoff_agent import HandoffAgent
from midwatch.domain.agent import AgentCapability, Turn, TurnResult
from midwatch.domain.event import ToolExecEnd, ToolExecStart
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


async def delegate(prompt: str, turn: Turn) -> str:
    for number, line in enumerate(prompt.splitlines()):
        agent, _, words = line.partition(" ")
        tool = {"tool": f"ask_{agent}", "tool_call_id": str(number)}
        await turn.emit(ToolExecStart(**tool))
        answer = await turn.delegate(agent, words)
        await turn.emit(ToolExecEnd(**tool, duration=0.1, result=str(answer.output)))
    return "all answered"

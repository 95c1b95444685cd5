"""A fake agent that spends tokens: a line of its prompt names a number of model calls, or work for another agent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from midwatch.agents.function import FunctionAgent
from midwatch.domain.agent import AgentTerms, Turn, TurnResult
from midwatch.domain.event import LlmRequest, LlmResponse

CALL = {"input_tokens": 80, "output_tokens": 20, "cost_usd": 0.01}


class Spender(FunctionAgent):
    """The agent, on the event loop of the server, so that it can reserve each call."""

    kind = "spender"

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> Spender:
        return cls(name, work, on_loop=True, terms=terms, description=description)


async def work(prompt: str, turn: Turn) -> TurnResult:
    """Run one turn. A line has `call 3`, or is `hold`, or `AGENT: work`; a `;` separates the lines of this work.

    The calls of `unpriced 3` report no cost.
    With `start AGENT: work`, the turn does not wait for the work.
    """
    for line in prompt.splitlines():
        other = re.fullmatch(r"(start )?(\w+): (.*)", line)
        calls = re.search(r"(?:call|unpriced) (\d+)", line)
        if other:
            await turn.delegate(other[2], other[3].replace("; ", "\n"), wait=not other[1])
        elif line == "hold":
            await turn.ask("Shall it go on?", ("Go on", "Stop"))
        elif calls and not await call_model(turn, int(calls[1]), "call" in line):
            return TurnResult(outcome="budget", error="its budget is spent")
    return TurnResult(text="All is done.")


async def call_model(turn: Turn, times: int, priced: bool) -> bool:
    """Call the model this many times, `priced` with a cost. Return false if the budget is spent."""
    usage = CALL if priced else {name: count for name, count in CALL.items() if name != "cost_usd"}
    for _ in range(times):
        if (await turn.reserve()).action != "go_on":
            return False
        await turn.emit(LlmRequest(model="m", messages_count=1))
        await turn.emit(LlmResponse(model="m", usage=usage, finish_reason="stop"))
    return True

"""Tool checks: the decisions about tools that the program of an agent wants to use, by the id of the call.

A decision may wait for a person. The program asks again until there is a decision, and the person is asked only once.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256

from midwatch.domain.event import ToolExecSkipped
from midwatch.domain.tool_call import ToolCall, ToolDecision
from midwatch.running.turn import LiveTurn

MOST_CHECKS = 1000
"""The greatest number of decisions that are kept in a turn; the oldest ones are forgotten."""


class ToolChecks:
    """The checks of one turn."""

    def __init__(self, turn: LiveTurn) -> None:
        self._turn = turn
        self._checks: dict[bytes, asyncio.Task[ToolDecision]] = {}

    async def check(self, call: ToolCall, wait: float) -> ToolDecision | None:
        """Return the decision about a call, or None if there is none after `wait` seconds."""
        about = f"{call.id} {call.name} {call.root} {call.arguments}"  # a program may use an id twice
        key = sha256(about.encode("utf-8", "surrogatepass")).digest()  # arguments may be large
        checking = self._checks.get(key)
        if checking is None:
            checking = self._checks[key] = asyncio.get_running_loop().create_task(self._decide(call))
            while len(self._checks) > MOST_CHECKS:
                self._checks.pop(next(iter(self._checks))).cancel()
        await asyncio.wait({checking}, timeout=wait)
        return checking.result() if checking.done() else None

    async def _decide(self, call: ToolCall) -> ToolDecision:
        decision = await self._turn.before_tool(call.seen_from(self._turn.root))
        if decision.action != "go_on":
            reason = decision.reason or decision.action
            await self._turn.emit(
                ToolExecSkipped(tool=call.name, reason=reason, tool_call_id=call.id, rule=decision.by)
            )
        return decision

    async def close(self) -> None:
        """End all checks that wait, because the turn has ended."""
        for checking in self._checks.values():
            checking.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)
        self._checks.clear()

"""The service of tool calls: the program of an agent asks whether it may use a tool."""

from __future__ import annotations

from midwatch.base.errors import Conflict, Forbidden
from midwatch.domain.identity import AnyActor, agent_task
from midwatch.domain.tool_call import ToolCall, ToolDecision, ToolGate
from midwatch.services.authorization import authorize


class ToolCalls:
    """Service: decides about the tools that programs of running agents want to use."""

    def __init__(self, gate: ToolGate) -> None:
        self._gate = gate

    async def check(self, call: ToolCall, *, wait: float = 0.0, actor: AnyActor = None) -> ToolDecision | None:
        """Return the decision of rules, hooks and people about a tool call of the actor's own task.

        Return None if there is no decision after `wait` seconds; then ask again with the same id of the call. Only the
        agent of a running task may ask.
        """
        authorize(actor, "submit")
        task = agent_task(actor)
        if task is None:
            raise Forbidden(
                "only the agent of a running task may ask whether it may use a tool; use `midwatch rules test`."
            )
        try:
            return await self._gate.check_tool(task.id, call, wait)
        except KeyError:
            raise Conflict(f"task {task.id} does not run in this process; ask at the address MIDWATCH_URL.") from None

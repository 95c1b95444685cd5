"""The service of tool calls: the program of an agent asks whether it may use a tool."""

from __future__ import annotations

import asyncio

from midwatch.base.errors import Conflict, InvalidInput
from midwatch.domain.agent import Question
from midwatch.domain.identity import AnyActor, agent_task
from midwatch.domain.tool_call import ToolCall, ToolDecision, ToolGate
from midwatch.services.authorization import authorize
from midwatch.services.rule_decision import decide
from midwatch.services.rules import Policies


class ToolCalls:
    """Service: decides about the tools that programs of agents want to use."""

    def __init__(self, gate: ToolGate, policies: Policies) -> None:
        self._gate = gate
        self._policies = policies

    async def check(
        self,
        call: ToolCall,
        *,
        agent: str | None = None,
        root: str | None = None,
        wait: float = 0.0,
        actor: AnyActor = None,
    ) -> ToolDecision | None:
        """Return the decision of rules, hooks and people about a tool call of the actor's own task.

        Return None if there is no decision after `wait` seconds; then ask again with the same id of the call. Outside
        of a task, the rules for `agent` decide, and the program itself must ask a person; `root` is the directory of
        the work.
        """
        authorize(actor, "submit")
        task = agent_task(actor)
        if task is None:
            return await self._judge(call.seen_from(root), agent)
        try:
            return await self._gate.check_tool(task.id, call, wait)
        except KeyError:
            raise Conflict(f"task {task.id} does not run in this process; ask at the address MIDWATCH_URL.") from None

    async def _judge(self, call: ToolCall, agent: str | None) -> ToolDecision:
        if not agent:
            raise InvalidInput("`agent` is missing; name the agent that wants to use the tool.", field="agent")
        levels = await self._policies.list_levels(agent, None, None)
        decision = await asyncio.to_thread(decide, Question.about(call), call.root, levels, agent)
        if decision.effect in (None, "allow"):
            return ToolDecision(by=decision.rule)
        return ToolDecision("ask" if decision.effect == "ask" else "deny", reason=decision.rule, by=decision.rule)

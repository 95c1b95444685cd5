"""The seams of a turn: where rules decide before an agent acts."""

from __future__ import annotations

from midwatch.domain.agent import Question
from midwatch.domain.rule import Judge
from midwatch.domain.task import Task
from midwatch.domain.tool_call import GO_ON, ToolCall, ToolDecision

DENIED = "It was not run: a rule forbids it ({}). Do not try another way; report it instead."


async def check_tool(judge: Judge, task: Task, call: ToolCall) -> ToolDecision:
    """Return the decision of the rules about a tool call."""
    question = Question(text=f"Use {call.tool}?", kind="other", tool=call.tool, command=call.command, paths=call.paths)
    decision = (await judge(task, question)).decision
    if decision.verdict == "deny":
        return ToolDecision("deny", reason=DENIED.format(decision.rule), by=decision.rule)
    return GO_ON

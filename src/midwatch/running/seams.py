"""The seams of a turn: where rules decide before an agent acts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from midwatch.domain.agent import Answer, Question
from midwatch.domain.rule import Judge
from midwatch.domain.task import Task
from midwatch.domain.tool_call import GO_ON, ToolCall, ToolDecision

DENIED = "It was not run: a rule forbids it ({}). Do not try another way; report it instead."
REFUSED = "It was not run: this was not allowed ({}){}. Do not try another way; report it instead."


async def check_tool(
    judge: Judge, ask: Callable[[Question], Awaitable[Answer]], task: Task, call: ToolCall
) -> ToolDecision:
    """Return the decision of the rules about a tool call. If a rule asks, ask a person, unless the tool itself asks."""
    question = Question.about(call)
    decision = (await judge(task, question)).decision
    if decision.verdict == "deny":
        return ToolDecision("deny", reason=DENIED.format(decision.rule), by=decision.rule)
    if decision.verdict != "ask" or call.asks:
        return ToolDecision(by=decision.rule) if decision.verdict == "allow" else GO_ON
    answer = await ask(question)
    if answer.granted:
        return ToolDecision(by="a person allowed it")
    why = f": {answer.why}" if answer.why else ""
    return ToolDecision("deny", reason=REFUSED.format(answer.status, why), by=decision.rule)

"""The seams of a turn: where hooks and rules decide before and after an agent acts.

A tool passes them in this order: hooks before the tool, rules on the call as the hooks left it, hooks that approve, the
tool itself, hooks after the tool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from midwatch.domain.agent import Question
from midwatch.domain.event import HookDecided
from midwatch.domain.hook import NO_HOOK, HookMeta, HookOutcome, Seam
from midwatch.domain.hook_subject import describe_approval, describe_call, describe_result, read_question
from midwatch.domain.rule import Judge
from midwatch.domain.task import Task
from midwatch.domain.tool_call import GO_ON, Describe, ToolCall, ToolDecision, ToolResult
from midwatch.running.hook_chain import HookChain

DENIED = "It was not run: a rule forbids it ({}). Do not try another way; report it instead."
DENIED_BY_HOOK = "It was not run: {}. Do not try another way; report it instead."
WITHHELD = "The tool has run, but its result is withheld: {}."
UNREADABLE = "it changed the arguments, but this agent cannot describe the changed call."


async def check_tool(judge: Judge, task: Task, call: ToolCall) -> ToolDecision:
    """Return the decision of the rules about a tool call."""
    question = Question(text=f"Use {call.tool}?", kind="other", tool=call.tool, command=call.command, paths=call.paths)
    decision = (await judge(task, question)).decision
    if decision.verdict == "deny":
        return ToolDecision("deny", reason=DENIED.format(decision.rule), by=decision.rule)
    return GO_ON


class Seams:
    """The seams of one turn."""

    def __init__(
        self,
        chain: HookChain,
        meta: Callable[[], HookMeta],
        report: Callable[[HookDecided], None],
        check: Callable[[ToolCall], Any],
    ) -> None:
        """Build the seams. `meta` describes the turn, `report` writes an event, `check` asks the rules about a call."""
        self._chain = chain
        self._meta = meta
        self._report = report
        self._check = check
        self._approved: str | None = None
        """The tool that hooks have approved and that may run now. It is not approved again if it asks a person."""

    async def before_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Return the decision of the hooks about a model call. `describe` returns the request."""
        return await self._decide("before_model", describe, request_id=request_id)

    async def after_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Return the decision of the hooks about a model's answer. `describe` returns the answer."""
        return await self._decide("after_model", describe, request_id=request_id)

    async def before_tool(self, call: ToolCall, describe: Describe | None) -> ToolDecision:
        """Return the decision of hooks and rules about a tool call. `describe` describes a call with new arguments."""
        self._approved = None
        outcome = await self._decide("before_tool", lambda: describe_call(call), **_name(call))
        if outcome.action != "go_on":
            return _convert(outcome)
        changed = None
        if outcome.subject is not None:
            if describe is None:
                return ToolDecision("deny", reason=DENIED_BY_HOOK.format(UNREADABLE))
            changed = call = describe(outcome.subject["arguments"])
        decision: ToolDecision = await self._check(call)
        if decision.action != "go_on":
            return decision
        outcome = await self.approve(call)
        return ToolDecision(call=changed) if outcome.action == "go_on" else _convert(outcome)

    async def approve(self, call: ToolCall, question: str | None = None) -> HookOutcome:
        """Return the decision of the approving hooks about a tool call. All of them must approve."""
        if self._approved == call.tool:
            return NO_HOOK
        outcome = await self._decide("approve_tool", lambda: describe_approval(call, question), **_name(call))
        if outcome.action == "go_on" and question is None:
            self._approved = call.tool
        return outcome

    async def approve_question(self, question: Question) -> HookOutcome:
        """Return the decision of the approving hooks about a question of an agent, if it is about a tool."""
        return NO_HOOK if question.kind == "choice" else await self.approve(read_question(question), question.text)

    async def after_tool(self, call: ToolCall, result: ToolResult) -> ToolDecision:
        """Return the result of a tool as the hooks leave it. If a hook denies, the result is withheld."""
        self._approved = None
        outcome = await self._decide("after_tool", lambda: describe_result(call, result), **_name(call))
        if outcome.action == "stop":
            return _convert(outcome)
        if outcome.action == "deny":
            return ToolDecision(result=ToolResult(WITHHELD.format(outcome.words), is_error=True), by=outcome.hook)
        if (changed := outcome.subject) is not None:
            result = ToolResult(changed["text"], changed["is_error"])
        return ToolDecision(result=result)

    async def _decide(self, seam: Seam, describe: Callable[[], dict[str, Any]], **about: Any) -> HookOutcome:
        if not self._chain.has(seam):
            return NO_HOOK
        return await self._chain.decide(seam, describe(), self._meta(), self._report, **about)


def _name(call: ToolCall) -> dict[str, str | None]:
    return {"tool": call.tool, "tool_call_id": call.id}


def _convert(outcome: HookOutcome) -> ToolDecision:
    """Return the decision about a tool call that an outcome means."""
    if outcome.action == "answer":
        return ToolDecision("answer", result=ToolResult(outcome.text, outcome.is_error), by=outcome.hook)
    if outcome.action == "stop":
        return ToolDecision("stop", reason=outcome.words, by=outcome.hook)
    return ToolDecision("deny", reason=DENIED_BY_HOOK.format(outcome.words), by=outcome.hook)

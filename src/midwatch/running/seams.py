"""The seams of a turn: where hooks and rules decide before and after an agent acts.

A tool passes them in this order: hooks before the tool, rules on the call as the hooks left it, hooks that approve, a
person if a rule asks, the tool itself, hooks after the tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from midwatch.domain.agent import Answer, Question
from midwatch.domain.event import HookDecided
from midwatch.domain.hook import NO_HOOK, HookMeta, HookOutcome, Seam
from midwatch.domain.hook_subject import describe_approval, describe_call, describe_result, read_question
from midwatch.domain.rule import Decision
from midwatch.domain.tool_call import Describe, ToolCall, ToolDecision, ToolResult
from midwatch.running.hook_chain import HookChain

DENIED = "It was not run: a rule forbids it ({}). Do not try another way; report it instead."
REFUSED = "It was not run: this was not allowed ({}){}. Do not try another way; report it instead."
DENIED_BY_HOOK = "It was not run: {}. Do not try another way; report it instead."
WITHHELD = "The tool has run, but its result is withheld: {}."
UNREADABLE = "it changed the arguments, but this agent cannot describe the changed call."
BY_PERSON = "a person allowed it"


class Seams:
    """The seams of one turn."""

    def __init__(
        self,
        chain: HookChain,
        meta: Callable[[], HookMeta],
        report: Callable[[HookDecided], None],
        judge: Callable[[Question], Awaitable[Decision]],
        ask: Callable[[Question], Awaitable[Answer]],
    ) -> None:
        """Build the seams.

        `meta` describes the turn, and `report` writes an event. `judge` returns the decision of the rules on a
        question, and `ask` asks a person.
        """
        self._chain = chain
        self._meta = meta
        self._report = report
        self._judge = judge
        self._ask = ask

    async def before_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Return the decision of the hooks about a model call. `describe` returns the request."""
        return await self._decide("before_model", describe, request_id=request_id)

    async def after_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Return the decision of the hooks about a model's answer. `describe` returns the answer."""
        return await self._decide("after_model", describe, request_id=request_id)

    async def before_tool(self, call: ToolCall, describe: Describe | None) -> ToolDecision:
        """Return the decision about a tool call: of hooks, rules, approving hooks, and a person if a rule asks.

        `describe` describes a call with new arguments; without it, an answer of a hook is a denial with its text. A
        tool that asks a person itself is not asked about here.
        """
        outcome = await self._decide("before_tool", lambda: describe_call(call), **_name(call))
        if outcome.action == "answer" and describe is None:
            return ToolDecision("deny", reason=outcome.text or outcome.words, by=f"hook:{outcome.hook}")
        if outcome.action != "go_on":
            return _convert(outcome)
        changed = None
        if outcome.subject is not None:
            if describe is None:
                return ToolDecision("deny", reason=DENIED_BY_HOOK.format(UNREADABLE), by=f"hook:{outcome.hook}")
            new = describe(outcome.subject["arguments"])
            changed = call = new._replace(root=new.root or call.root)
        question = Question.about(call)
        decision = await self._judge(question)
        if decision.effect == "deny":
            return ToolDecision("deny", reason=DENIED.format(decision.rule), by=decision.rule)
        if call.granted:
            return ToolDecision(call=changed)
        outcome = await self._approve(call, None)
        if outcome.action != "go_on":
            return _convert(outcome)
        if decision.effect != "ask" or call.asks:
            return ToolDecision(call=changed, by=decision.rule if decision.effect == "allow" else None)
        answer = await self._ask(question)
        if answer.granted:
            return ToolDecision(call=changed, by=BY_PERSON)
        why = f": {answer.why}" if answer.why else ""
        return ToolDecision("deny", reason=REFUSED.format(answer.status, why), by=decision.rule)

    async def approve_question(self, question: Question) -> HookOutcome:
        """Return the decision of the approving hooks about a question of an agent, if it is about a tool."""
        return NO_HOOK if question.kind == "choice" else await self._approve(read_question(question), question.text)

    async def _approve(self, call: ToolCall, question: str | None) -> HookOutcome:
        """Return the decision of the approving hooks about a tool call. All of them must approve."""
        return await self._decide("approve_tool", lambda: describe_approval(call, question), **_name(call))

    async def after_tool(self, call: ToolCall, result: ToolResult) -> ToolDecision:
        """Return the result of a tool as the hooks leave it. If a hook denies or stops, the result is withheld."""
        outcome = await self._decide("after_tool", lambda: describe_result(call, result), **_name(call))
        if outcome.action in ("deny", "stop"):
            withheld = ToolResult(WITHHELD.format(outcome.words), is_error=True)
            if outcome.action == "stop":
                return _convert(outcome)._replace(result=withheld)
            return ToolDecision(result=withheld, by=f"hook:{outcome.hook}")
        if (changed := outcome.subject) is not None:
            result = ToolResult(changed["text"], changed["is_error"])
        return ToolDecision(result=result)

    async def _decide(self, seam: Seam, describe: Callable[[], dict[str, Any]], **about: Any) -> HookOutcome:
        if not self._chain.has(seam):
            return NO_HOOK
        return await self._chain.decide(seam, describe(), self._meta(), self._report, **about)


def _name(call: ToolCall) -> dict[str, str | None]:
    return {"tool": call.name, "tool_call_id": call.id}


def _convert(outcome: HookOutcome) -> ToolDecision:
    """Return the decision about a tool call that an outcome means."""
    if outcome.action == "answer":
        return ToolDecision("answer", result=ToolResult(outcome.text, outcome.is_error), by=f"hook:{outcome.hook}")
    if outcome.action == "stop":
        return ToolDecision("stop", reason=outcome.words, by=f"hook:{outcome.hook}")
    return ToolDecision("deny", reason=DENIED_BY_HOOK.format(outcome.words), by=f"hook:{outcome.hook}")

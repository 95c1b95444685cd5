"""Calls about approvals, and about the rules that answers have created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from midwatch.client.transport import Transport, path_of

if TYPE_CHECKING:
    from midwatch.domain.rule import RuleTest
    from midwatch.wire.approvals import ApprovalInfo, RuleInfo, RulePage, RuleTrialInfo
    from midwatch.wire.tool_calls import ToolDecisionInfo


class ApprovalCalls(Transport):
    """The client's calls about approvals and rules."""

    async def approvals(self, status: str = "pending", limit: int = 50) -> Sequence[ApprovalInfo]:
        """Return questions with this status, newest first and without their diffs; `all` returns every question."""
        return await self._get("/approvals", "approvals", status=status, limit=limit)

    async def approval(self, approval_id: str) -> ApprovalInfo:
        """Return one question, with its diff."""
        return await self._get(path_of("approval", approval_id))

    async def approve(
        self, approval_id: str, choice: str | None = None, why: str | None = None, *, always: bool = False
    ) -> ApprovalInfo:
        """Answer a question with yes, or with a `choice`. With `always` the answer also creates a rule."""
        path = path_of("approval", approval_id, "approve")
        return await self._post(path, choice=choice, why=why, always=always or None)

    async def deny(self, approval_id: str, why: str | None = None, *, always: bool = False) -> ApprovalInfo:
        """Answer a question with no. With `always` the answer also creates a rule."""
        return await self._post(path_of("approval", approval_id, "deny"), why=why, always=always or None)

    async def check_tool_call(self, call: Mapping[str, Any], wait: float = 0.0) -> ToolDecisionInfo:
        """Return the decision about a tool call of one's own running task, for the agent of this task."""
        return await self._post("/tool_calls/check", call, wait=wait)

    async def rules(self, *, all: bool = False, limit: int = 500) -> RulePage:
        """Return the rules that answers have created, newest first, and the `written` rules of the settings.

        `all` includes revoked rules.
        """
        return await self._get("/rules", all=all, limit=limit)

    async def test_rules(self, **use: Unpack[RuleTest]) -> RuleTrialInfo:
        """Return what the rules would decide on the use of a tool, and which rule decides."""
        return await self._post("/rules/test", **use)

    async def revoke_rule(self, rule_id: str) -> RuleInfo:
        """Revoke a rule."""
        return await self._delete(path_of("rule", rule_id))

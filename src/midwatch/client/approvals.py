"""Calls about questions, their answers, and the rules that answers have made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from midwatch.client.transport import Transport, named, without_none

if TYPE_CHECKING:
    from midwatch.wire.approvals import ApprovalInfo, RuleInfo


class ApprovalCalls(Transport):
    """The inbox."""

    async def approvals(self, status: str = "pending", limit: int = 50) -> Sequence[ApprovalInfo]:
        """Questions with this status, or `all`; newest first, without their diffs."""
        found = await self._get("/approvals", {"status": status, "limit": limit})
        return cast("Sequence[ApprovalInfo]", found["approvals"])

    async def approval(self, approval_id: str) -> ApprovalInfo:
        """One question, with its diff."""
        return cast("ApprovalInfo", await self._get(f"/approvals/{named('approval', approval_id)}"))

    async def approve(
        self, approval_id: str, choice: str | None = None, why: str | None = None, *, always: bool = False
    ) -> ApprovalInfo:
        """Say yes, or answer with a choice; `always` makes a rule of it."""
        said = without_none({"choice": choice, "why": why, "always": always or None})
        return cast("ApprovalInfo", await self._post(f"/approvals/{named('approval', approval_id)}/approve", said))

    async def deny(self, approval_id: str, why: str | None = None, *, always: bool = False) -> ApprovalInfo:
        """Say no; `always` makes a rule of it."""
        said = without_none({"why": why, "always": always or None})
        return cast("ApprovalInfo", await self._post(f"/approvals/{named('approval', approval_id)}/deny", said))

    async def rules(self, *, all: bool = False, limit: int = 500) -> Sequence[RuleInfo]:
        """Rules that answers have made, newest first; with `all` also those that were revoked."""
        return cast("Sequence[RuleInfo]", (await self._get("/rules", {"all": all, "limit": limit}))["rules"])

    async def revoke_rule(self, rule_id: str) -> RuleInfo:
        """Have a rule hold no more."""
        return cast("RuleInfo", await self._call("DELETE", f"/rules/{named('rule', rule_id)}"))

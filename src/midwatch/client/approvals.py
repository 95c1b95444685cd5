"""Calls about questions and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from midwatch.client.transport import Transport, named, without_none
from midwatch.wire import ApprovalInfo


class ApprovalCalls(Transport):
    """The inbox."""

    async def approvals(self, status: str = "pending", limit: int = 50) -> Sequence[ApprovalInfo]:
        """Questions with this status, or `all`; newest first."""
        found = await self._get("/approvals", {"status": status, "limit": limit})
        return cast(Sequence[ApprovalInfo], found["approvals"])

    async def approve(self, approval_id: str, choice: str | None = None, why: str | None = None) -> ApprovalInfo:
        """Say yes, or answer with a choice."""
        said = without_none({"choice": choice, "why": why})
        return cast(ApprovalInfo, await self._post(f"/approvals/{named('approval', approval_id)}/approve", said))

    async def deny(self, approval_id: str, why: str | None = None) -> ApprovalInfo:
        """Say no."""
        said = without_none({"why": why})
        return cast(ApprovalInfo, await self._post(f"/approvals/{named('approval', approval_id)}/deny", said))

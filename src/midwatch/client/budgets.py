"""Calls about budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from midwatch.client.transport import Transport, path_of

if TYPE_CHECKING:
    from midwatch.wire.budgets import BudgetInfo, BudgetLine


class BudgetCalls(Transport):
    """The client's calls about budgets."""

    async def budgets(self, *, limit: int = 20) -> Sequence[BudgetLine]:
        """Return the budgets of work and of days: those with a question first, then those of open work."""
        return await self._get("/budgets", "budgets", limit=limit)

    async def budget(self, account_id: str) -> BudgetInfo:
        """Return one account, with its tasks. The id is that of a goal, of a first task, or of a day."""
        return await self._get(path_of("budget", account_id))

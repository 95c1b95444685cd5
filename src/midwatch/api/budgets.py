"""Routes of budgets: list accounts, read an account."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import HistoryQuery
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.budgets import BudgetInfo, BudgetPage

router = make_router("budgets")


@router.get("/budgets", responses={200: {"model": BudgetPage}})
@needs("oversee")
async def list_budgets(desk: DeskDep, actor: Caller, query: Annotated[HistoryQuery, Query()]) -> Json:
    """List the budgets of work and of days: those with a question first, then those of open work."""
    return Json({"budgets": await desk.accounts.list(query.limit, actor=actor)})


@router.get("/budgets/{account_id}", responses={200: {"model": BudgetInfo}})
@needs("read")
async def show(desk: DeskDep, actor: Caller, account_id: str) -> Json:
    """Return the limits of an account, what it has spent, and its tasks."""
    return Json(await desk.accounts.get(account_id, actor=actor))

"""Routes of rules: what answers for always have made."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from midwatch.api.bodies import RuleQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.base.errors import Forbidden
from midwatch.wire.approvals import RuleInfo, RulePage

router = APIRouter(prefix=PREFIX, tags=["rules"])


@router.get("/rules", responses={200: {"model": RulePage}})
async def list_rules(desk: DeskDep, who: Who, asked: Annotated[RuleQuery, Query()]) -> Json:
    """Rules, newest first; with `all` also those that were revoked. Not for agents that work."""
    if who.task is not None:
        raise Forbidden("an agent is not told by which rules its questions are answered.")
    found = await desk.rules.list(revoked=asked.all, limit=asked.limit)
    return Json({"rules": [rule.snapshot() for rule in found]})


@router.delete("/rules/{rule_id}", responses={200: {"model": RuleInfo}})
async def revoke(desk: DeskDep, who: Who, rule_id: str) -> Json:
    """Have a rule hold no more; what it answered stays answered."""
    return Json((await desk.rules.revoke(rule_id, actor=who.name)).snapshot())

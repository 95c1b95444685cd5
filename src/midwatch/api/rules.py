"""Routes of rules: list and revoke the rules that come from "always" answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import RuleQuery
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.approvals import RuleInfo, RulePage

router = make_router("rules")


@router.get("/rules", responses={200: {"model": RulePage}})
@needs("oversee")
async def list_rules(desk: DeskDep, actor: Caller, query: Annotated[RuleQuery, Query()]) -> Json:
    """List rules, newest first. With `all`, list revoked rules, too. Agents of running tasks may not do this."""
    rules = await desk.rules.list(revoked=query.all, limit=query.limit, actor=actor)
    return Json({"rules": [rule.snapshot() for rule in rules]})


@router.delete("/rules/{rule_id}", responses={200: {"model": RuleInfo}})
@needs("operate")
async def revoke(desk: DeskDep, actor: Caller, rule_id: str) -> Json:
    """Revoke a rule. Answers that the rule gave before stay valid."""
    return Json((await desk.rules.revoke(rule_id, actor=actor)).snapshot())

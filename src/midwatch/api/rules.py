"""Routes of rules: list the rules of the settings and of "always" answers, test them, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import RuleQuery, RuleTestBody
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.approvals import RuleInfo, RulePage, RuleTrialInfo

router = make_router("rules")


@router.get("/rules", responses={200: {"model": RulePage}})
@needs("oversee")
async def list_rules(desk: DeskDep, actor: Caller, query: Annotated[RuleQuery, Query()]) -> Json:
    """List rules: those of answers, newest first, and those of the settings as `written`.

    With `all`, list revoked rules, too. Agents of running tasks may not do this.
    """
    rules = await desk.rules.list(revoked=query.all, limit=query.limit, actor=actor)
    written = desk.rules.list_written(actor=actor)
    return Json({"rules": [rule.snapshot() for rule in rules], "written": [rule.snapshot() for rule in written]})


@router.post("/rules/test", responses={200: {"model": RuleTrialInfo}})
@needs("oversee")
async def test(desk: DeskDep, actor: Caller, body: RuleTestBody) -> Json:
    """Return what the rules would decide on the use of a tool, and which rule decides. Nothing is used or asked."""
    return Json((await desk.rules.test(actor=actor, **body.model_dump(exclude_unset=True))).snapshot())


@router.delete("/rules/{rule_id}", responses={200: {"model": RuleInfo}})
@needs("operate")
async def revoke(desk: DeskDep, actor: Caller, rule_id: str) -> Json:
    """Revoke a rule. Answers that the rule gave before stay valid."""
    return Json((await desk.rules.revoke(rule_id, actor=actor)).snapshot())

"""Routes of declarations: apply the content of a file, and export records as the content of a file."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import ApplyBody, DeclarationQuery
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.domain.declaration import Terms
from midwatch.services.declarations import Declared, read_rules
from midwatch.wire.declarations import DeclarationInfo, PlanInfo

router = make_router("declarations")


@router.post("/apply", responses={200: {"model": PlanInfo}})
@needs("operate")
async def apply(desk: DeskDep, actor: Caller, body: ApplyBody) -> Json:
    """Make automations, goals and rules match a file, and return the plan. An error changes nothing."""
    content = body.model_dump(exclude_unset=True)
    declared = Declared(content.get("automations", {}), content.get("goals", {}), read_rules(content.get("rules", {})))
    terms = Terms(set=body.set, prune=body.prune, adopt=body.adopt)
    steps = await desk.declarations.apply(declared, terms, dry_run=body.dry_run, actor=actor)
    return Json({"set": body.set, "dry_run": body.dry_run, "steps": [step.snapshot() for step in steps]})


@router.get("/declarations", responses={200: {"model": DeclarationInfo}})
@needs("oversee")
async def export(desk: DeskDep, actor: Caller, query: Annotated[DeclarationQuery, Query()]) -> Json:
    """Return automations, open goals and declared rules as the content of a file, without secrets."""
    return Json(await desk.declarations.export(query.name, query.tag, actor=actor))

"""Routes of the overview: the state of the desk, and the cost of its work."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import SinceQuery, UsageQuery
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.system import Now
from midwatch.wire.usage import UsageInfo

router = make_router("now")


@router.get("/now", responses={200: {"model": Now}})
@needs("oversee")
async def now(desk: DeskDep, actor: Caller, query: Annotated[SinceQuery, Query()]) -> Json:
    """Return an overview of the desk. Usage is counted from `since`; failed tasks are listed for the last 24 hours."""
    return Json(await desk.system.overview(query.since, actor=actor))


@router.get("/usage", responses={200: {"model": UsageInfo}})
@needs("read")
async def usage(desk: DeskDep, actor: Caller, query: Annotated[UsageQuery, Query()]) -> Json:
    """Return the usage and cost of the tasks that ended in a period: the total, and a row for each group of `by`."""
    return Json(await desk.system.usage(**query.model_dump(), actor=actor))

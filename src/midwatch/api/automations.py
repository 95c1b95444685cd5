"""Routes of automations: create, read, change, pause, resume, run now, delete, export, import, preview."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from midwatch.api import bodies
from midwatch.api.dependencies import Caller, DeskDep, IdempotencyKey, add_key
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, reply_created
from midwatch.desk.desk import Desk
from midwatch.domain.automation import Automation
from midwatch.domain.identity import Actor
from midwatch.domain.trigger import list_new_webhooks
from midwatch.wire.automations import (
    AutomationInfo,
    AutomationPage,
    ChainPage,
    ChangedAutomation,
    DayPage,
    ImportPage,
    PreviewInfo,
    RunPage,
)
from midwatch.wire.tasks import TaskInfo

ONE: dict[int | str, dict[str, Any]] = {200: {"model": AutomationInfo}}

router = make_router("automations")


@router.get("/automations", responses={200: {"model": AutomationPage}})
@needs("oversee")
async def list_automations(desk: DeskDep, actor: Caller, query: Annotated[bodies.AutomationQuery, Query()]) -> Json:
    """List automations, newest first. Without `status`, list all that are not deleted."""
    scope = (query.scope_kind, query.scope_id) if query.scope_id else None
    automations = await desk.automations.list(query.status, scope=scope, limit=query.limit, tags=query.tag, actor=actor)
    return Json(
        {"automations": [await desk.automations.describe(automation, actor=actor) for automation in automations]}
    )


@router.post("/automations", status_code=201, responses={201: {"model": ChangedAutomation}})
@needs("submit")
async def create(
    desk: DeskDep, actor: Caller, body: bodies.AutomationBody, idempotency_key: IdempotencyKey = None
) -> Json:
    """Create an automation. Give exactly one of `at`, `every` and `cron`, or `triggers`. Shows secrets of webhooks."""
    fields = add_key(body.model_dump(exclude_unset=True), idempotency_key)
    automation = await desk.automations.create(actor=actor, **fields)
    return reply_created("automations", await describe_change(desk, None, automation, actor))


@router.get("/automations/export", responses={200: {"model": AutomationPage}})
@needs("oversee")
async def export(desk: DeskDep, actor: Caller, query: Annotated[bodies.ExportQuery, Query()]) -> Json:
    """Return automations in the format of an import. Without ids, return all that are not deleted."""
    exported = await desk.automation_transfer.export(query.id, actor=actor)
    return Json({"automations": [await desk.automations.describe(automation, actor=actor) for automation in exported]})


@router.post("/automations/import", responses={200: {"model": ImportPage}})
@needs("operate")
async def import_automations(desk: DeskDep, actor: Caller, body: bodies.ImportBody) -> Json:
    """Import automations: create those that do not exist, change those that differ. An error changes nothing."""
    results = await desk.automation_transfer.import_all([item.model_dump() for item in body.automations], actor=actor)
    return Json({"automations": [result._asdict() for result in results]})


@router.get("/automations/{automation_id}", responses=ONE)
@needs("read")
async def show(desk: DeskDep, actor: Caller, automation_id: str) -> Json:
    """Return one automation."""
    return Json(await desk.automations.describe(await desk.automations.get(automation_id, actor=actor), actor=actor))


@router.patch("/automations/{automation_id}", responses={200: {"model": ChangedAutomation}})
@needs("manage")
async def patch(desk: DeskDep, actor: Caller, automation_id: str, body: bodies.AutomationPatch) -> Json:
    """Change some fields of an automation. With `revision`, the change fails if the automation has another revision."""
    values = body.model_dump(exclude_unset=True, exclude={"revision"})
    before = await desk.automations.get(automation_id, actor=actor)
    automation = await desk.automations.patch(automation_id, values, revision=body.revision, actor=actor)
    return Json(await describe_change(desk, before, automation, actor))


async def describe_change(desk: Desk, before: Automation | None, after: Automation, actor: Actor) -> dict[str, Any]:
    """Return an automation that was just created or changed as JSON, with the secrets of its new webhooks."""
    webhooks = await desk.triggers.list_webhooks(list_new_webhooks(before, after))
    return {**await desk.automations.describe(after, actor=actor), **({"webhooks": webhooks} if webhooks else {})}


@router.post("/automations/{automation_id}/pause", responses=ONE)
@needs("manage")
async def pause(desk: DeskDep, actor: Caller, automation_id: str, body: bodies.PauseBody | None = None) -> Json:
    """Pause an automation. A running task continues, unless `stop` is true."""
    stop = body is not None and body.stop
    paused = await desk.automations.pause(automation_id, stop=stop, actor=actor)
    return Json(await desk.automations.describe(paused))


@router.post("/automations/{automation_id}/resume", responses=ONE)
@needs("manage")
async def resume(desk: DeskDep, actor: Caller, automation_id: str) -> Json:
    """Resume a paused or deleted automation."""
    return Json(await desk.automations.describe(await desk.automations.resume(automation_id, actor=actor)))


@router.post("/automations/{automation_id}/run", status_code=201, responses={201: {"model": TaskInfo}})
@needs("manage")
async def run(desk: DeskDep, actor: Caller, automation_id: str) -> Json:
    """Run an automation now, in addition to its schedule."""
    return reply_created("tasks", (await desk.automations.run(automation_id, actor=actor)).snapshot())


@router.get("/automations/{automation_id}/history", responses={200: {"model": RunPage}})
@needs("read")
async def history(
    desk: DeskDep, actor: Caller, automation_id: str, query: Annotated[bodies.HistoryQuery, Query()]
) -> Json:
    """List the runs of an automation, newest first."""
    runs = await desk.automations.history(automation_id, query.limit, actor=actor)
    return Json({"runs": [task.run_snapshot() for task in runs]})


@router.get("/automations/{automation_id}/chain", responses={200: {"model": ChainPage}})
@needs("oversee")
async def chain(desk: DeskDep, actor: Caller, automation_id: str) -> Json:
    """Return the automations that are linked with an automation, earlier ones first, with their last outcomes."""
    return Json({"nodes": await desk.chains.view(automation_id, actor=actor)})


@router.delete("/automations/{automation_id}", responses=ONE)
@needs("manage")
async def delete(desk: DeskDep, actor: Caller, automation_id: str) -> Json:
    """Delete an automation. It can be restored for 30 days."""
    return Json(await desk.automations.describe(await desk.automations.delete(automation_id, actor=actor)))


@router.get("/schedules/preview", responses={200: {"model": PreviewInfo}})
@needs("know")
async def preview(desk: DeskDep, query: Annotated[bodies.PreviewQuery, Query()]) -> Json:
    """Return the times of the next runs of a schedule, without creating an automation. An interval starts now."""
    return Json(desk.automations.preview(**query.model_dump()))


@router.get("/schedules/day", responses={200: {"model": DayPage}})
@needs("oversee")
async def day(desk: DeskDep, actor: Caller, query: Annotated[bodies.DayQuery, Query()]) -> Json:
    """Return the runs of automations that are due in the next 24 hours, and the newest past runs."""
    return Json({"days": await desk.automations.day(query.id, query.status, query.limit, actor=actor)})

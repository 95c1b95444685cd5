"""Routes of automations: make, look, change, pause, resume, run now, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from midwatch.api.agent_rights import OF_AUTOMATIONS, handed_in
from midwatch.api.bodies import (
    AutomationBody,
    AutomationPatch,
    AutomationQuery,
    DayQuery,
    ExportQuery,
    HistoryQuery,
    ImportBody,
    PreviewQuery,
)
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import InvalidInput
from midwatch.base.schedule import Schedule, find_zone, host_zone, local_iso, parse_moment, upcoming
from midwatch.base.text import cut
from midwatch.desk.desk import Desk
from midwatch.domain.automation import Automation
from midwatch.domain.fields import name_as_record
from midwatch.domain.task import Task
from midwatch.wire.automations import AutomationInfo, AutomationPage, DayPage, PreviewInfo, RunPage, TakenPage
from midwatch.wire.tasks import TaskInfo

SHOWN_RUNS = 5
RUN_TEXT = 500
DAY = 86400 * SECOND
DAY_RUNS, DAY_RUNS_OF_ONE = 3000, 300
"""How many runs of a day are worked out at once: for all automations, and for one."""
LAST_RUNS = 10
ONE: dict[int | str, dict[str, Any]] = {200: {"model": AutomationInfo}}

router = APIRouter(prefix=PREFIX, tags=["automations"])


async def shown(desk: Desk, found: Automation) -> dict[str, Any]:
    """One automation as JSON, with whether it runs and when it will."""
    after = found.next_run_at
    times = [] if after is None else upcoming(found.times, after - 1, SHOWN_RUNS)
    return {
        **found.snapshot(),
        "running": await desk.automations.running(found.id) is not None,
        "next_runs": [local_iso(at, found.times.zone) for at in times],
    }


def run_of(task: Task) -> dict[str, Any]:
    """One run, or step, as JSON."""
    _, _, due = (task.internal_key or "").partition("@")
    return {
        "task_id": task.id,
        "scheduled_for": iso(int(due)) if due.isdigit() else None,
        "status": task.status,
        "outcome": task.outcome,
        "started_at": iso(task.started_at),
        "completed_at": iso(task.completed_at),
        "result": None if task.result is None else cut(task.result, RUN_TEXT),
        "error": task.error,
        "usage": task.usage,
    }


def wishes(desk: Desk, said: dict[str, Any], zone: str | None = None) -> dict[str, Any]:
    """What was said, with moments as numbers and durations under the record's names. `zone` is that of moments which
    name none, the host's otherwise."""
    made = name_as_record(Automation, said)
    for name in ("at", "next_run_at"):
        if isinstance(made.get(name), str):
            made[name] = parse_moment(made[name], desk.clock.now(), made.get("zone") or zone or host_zone())
    return made


@router.get("/automations", responses={200: {"model": AutomationPage}})
async def list_automations(desk: DeskDep, asked: Annotated[AutomationQuery, Query()]) -> Json:
    """Newest first: all but deleted ones, unless `status` says otherwise."""
    scope = (asked.scope_kind, asked.scope_id) if asked.scope_id else None
    found = await desk.automations.list(asked.status, scope=scope, limit=asked.limit)
    return Json({"automations": [await shown(desk, one) for one in found]})


@router.post("/automations", status_code=201, responses={201: {"model": AutomationInfo}})
async def create(desk: DeskDep, who: Who, body: AutomationBody) -> Json:
    """Make one. Exactly one of `at`, `every` and `cron` says when it runs."""
    wished = await handed_in(desk, who, body.model_dump(exclude_unset=True, exclude={"prompt"}), OF_AUTOMATIONS)
    said = wishes(desk, wished)
    made = await desk.automations.create(body.prompt, actor=who.name, **said)
    return Json(await shown(desk, made), 201, headers={"location": f"/api/v1/automations/{made.id}"})


@router.get("/automations/export", responses={200: {"model": AutomationPage}})
async def export(desk: DeskDep, asked: Annotated[ExportQuery, Query()]) -> Json:
    """All that are not deleted, or those that are named, for an import."""
    return Json({"automations": [await shown(desk, one) for one in await desk.snapshots.export(asked.id)]})


@router.post("/automations/import", responses={200: {"model": TakenPage}})
async def take(desk: DeskDep, who: Who, body: ImportBody) -> Json:
    """Make those that are not here, change those that differ; all of it or nothing."""
    taken = await desk.snapshots.take([shot.model_dump() for shot in body.automations], actor=who)
    return Json({"automations": [one._asdict() for one in taken]})


@router.get("/automations/{automation_id}", responses=ONE)
async def show(desk: DeskDep, automation_id: str) -> Json:
    """One automation."""
    return Json(await shown(desk, await desk.automations.get(automation_id)))


@router.patch("/automations/{automation_id}", responses=ONE)
async def patch(desk: DeskDep, who: Who, automation_id: str, body: AutomationPatch) -> Json:
    """Change some fields. With `revision` only if nobody changed it meanwhile."""
    zone = (await desk.automations.get(automation_id)).snapshot()["zone"]
    said = wishes(desk, body.model_dump(exclude_unset=True, exclude={"revision"}), zone)
    found = await desk.automations.patch(automation_id, said, revision=body.revision, actor=who.name, may=who)
    return Json(await shown(desk, found))


@router.post("/automations/{automation_id}/pause", responses=ONE)
async def pause(desk: DeskDep, who: Who, automation_id: str) -> Json:
    """Fire no more; what runs goes on."""
    return Json(await shown(desk, await desk.automations.pause(automation_id, actor=who.name, may=who)))


@router.post("/automations/{automation_id}/resume", responses=ONE)
async def resume(desk: DeskDep, who: Who, automation_id: str) -> Json:
    """Fire again, also after it was deleted."""
    return Json(await shown(desk, await desk.automations.resume(automation_id, actor=who.name, may=who)))


@router.post("/automations/{automation_id}/run", status_code=201, responses={201: {"model": TaskInfo}})
async def run(desk: DeskDep, who: Who, automation_id: str) -> Json:
    """Run it now, beside its times."""
    task = await desk.automations.run(automation_id, actor=who.name, may=who)
    return Json(task.snapshot(), 201, headers={"location": f"/api/v1/tasks/{task.id}"})


@router.get("/automations/{automation_id}/history", responses={200: {"model": RunPage}})
async def history(desk: DeskDep, automation_id: str, asked: Annotated[HistoryQuery, Query()]) -> Json:
    """Its runs, newest first."""
    return Json({"runs": [run_of(task) for task in await desk.automations.history(automation_id, asked.limit)]})


@router.delete("/automations/{automation_id}", responses=ONE)
async def delete(desk: DeskDep, who: Who, automation_id: str) -> Json:
    """Delete it; it can be brought back for 30 days."""
    return Json(await shown(desk, await desk.automations.delete(automation_id, actor=who.name, may=who)))


@router.get("/schedules/preview", responses={200: {"model": PreviewInfo}})
async def preview(desk: DeskDep, asked: Annotated[PreviewQuery, Query()]) -> Json:
    """When a schedule would run; nothing is made. An interval counts from now."""
    now = desk.clock.now() // SECOND * SECOND
    zone = find_zone(asked.zone or host_zone()).key
    once = None if asked.at is None else parse_moment(asked.at, now, zone)
    times = Schedule.make(zone=zone, at=once, every=asked.every, cron=asked.cron, anchor=now)
    runs = [local_iso(at, zone) for at in upcoming(times, now, asked.count)]
    return Json({"when": times.describe(), "next_runs": runs})


@router.get("/schedules/day", responses={200: {"model": DayPage}})
async def day(desk: DeskDep, asked: Annotated[DayQuery, Query()]) -> Json:
    """What automations do in the next 24 hours, and their newest runs."""
    if asked.id:
        found = [await desk.automations.get(one) for one in asked.id]
    else:
        found = await desk.automations.list(asked.status, limit=asked.limit)
    most = min(DAY_RUNS_OF_ONE, max(SHOWN_RUNS, DAY_RUNS // max(1, len(found))))
    return Json({"days": [await day_of(desk, one, most) for one in found]})


async def day_of(desk: Desk, found: Automation, most: int) -> dict[str, Any]:
    """The day of one automation: its times in words, its runs within 24 hours, `most` of them, and its newest runs."""
    runs = await desk.automations.history(found.id, LAST_RUNS)
    shown: dict[str, Any] = {"id": found.id, "when": "", "next_runs": [], "runs": [run_of(task) for task in runs]}
    try:
        times = found.times
    except InvalidInput as problem:  # what is stored cannot be read here, and that is what to say
        return {**shown, "when": str(problem)}
    shown["when"] = times.describe()
    if found.next_run_at is not None:
        until = desk.clock.now() + DAY
        ahead = [at for at in upcoming(times, found.next_run_at, most - 1) if at <= until]
        shown["next_runs"] = [iso(at) for at in (found.next_run_at, *ahead) if at <= until]
    return shown

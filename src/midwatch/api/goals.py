"""Routes of goals: set, look, edit, step, pause, resume, complete, delay, clear."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from midwatch.api.automations import run_of
from midwatch.api.bodies import CompleteBody, DelayBody, GoalBody, GoalPatch, GoalQuery, HistoryQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.base.clock import SECOND
from midwatch.base.errors import Forbidden
from midwatch.base.schedule import host_zone, parse_moment
from midwatch.desk.desk import Desk
from midwatch.domain.goal import Goal
from midwatch.domain.identity import Actor
from midwatch.services.goals import goal_of
from midwatch.wire.automations import RunPage
from midwatch.wire.goals import GoalInfo, GoalPage

ONE: dict[int | str, dict[str, Any]] = {200: {"model": GoalInfo}}

router = APIRouter(prefix=PREFIX, tags=["goals"])


async def shown(desk: Desk, found: Goal) -> dict[str, Any]:
    """One goal as JSON, with whether a step runs."""
    return {**found.snapshot(), "running": await desk.store.open_step(found.id) is not None}


def wishes(desk: Desk, said: dict[str, Any]) -> dict[str, Any]:
    """What was said, under the record's names; a deadline is a moment or a length of time."""
    made = dict(said)
    deadline = made.pop("deadline", None)
    if isinstance(deadline, str):
        made["deadline_at"] = parse_moment(deadline, desk.clock.now(), host_zone())
    elif deadline is not None:
        made["deadline_at"] = desk.clock.now() + int(deadline * SECOND)
    return made


async def own(desk: Desk, who: Actor, goal_id: str) -> str | None:
    """The step an agent speaks in, or None for a person; Forbidden when it works on something else."""
    if who.task is None:
        return None
    at = await desk.store.get_goal(goal_id)  # first: should it go on meanwhile, the signal is refused
    if at is None or await goal_of(desk.store, who.task) != goal_id:
        raise Forbidden("an agent may signal only the goal it works on.")
    return at.task_id if who.task.cause == "handoff" and at.task_id else who.task.id


@router.get("/goals", responses={200: {"model": GoalPage}})
async def list_goals(desk: DeskDep, asked: Annotated[GoalQuery, Query()]) -> Json:
    """Newest first."""
    return Json({"goals": [await shown(desk, one) for one in await desk.goals.list(asked.status, limit=asked.limit)]})


@router.post("/goals", status_code=201, responses={201: {"model": GoalInfo}})
async def create(desk: DeskDep, who: Who, body: GoalBody) -> Json:
    """Set a goal; its first step begins at once, or when its session has a thread."""
    said = wishes(desk, body.model_dump(exclude_unset=True, exclude={"objective"}))
    made = await desk.goals.create(body.objective, actor=who.name, **said)
    return Json(await shown(desk, made), 201, headers={"location": f"/api/v1/goals/{made.id}"})


@router.get("/goals/{goal_id}", responses=ONE)
async def show(desk: DeskDep, goal_id: str) -> Json:
    """One goal."""
    return Json(await shown(desk, await desk.goals.get(goal_id)))


@router.get("/goals/{goal_id}/steps", responses={200: {"model": RunPage}})
async def steps(desk: DeskDep, goal_id: str, asked: Annotated[HistoryQuery, Query()]) -> Json:
    """Its tasks, newest first."""
    return Json({"runs": [run_of(task) for task in await desk.goals.steps(goal_id, asked.limit)]})


@router.patch("/goals/{goal_id}", responses=ONE)
async def edit(desk: DeskDep, who: Who, goal_id: str, body: GoalPatch) -> Json:
    """Change its objective, deadline or budget."""
    said = wishes(desk, body.model_dump(exclude_unset=True, exclude={"revision"}))
    found = await desk.goals.edit(goal_id, said, revision=body.revision, actor=who.name, may=who)
    return Json(await shown(desk, found))


@router.post("/goals/{goal_id}/step", responses=ONE)
async def step(desk: DeskDep, who: Who, goal_id: str) -> Json:
    """Begin the next step now."""
    return Json(await shown(desk, await desk.goals.step(goal_id, actor=who.name, may=who)))


@router.post("/goals/{goal_id}/pause", responses=ONE)
async def pause(desk: DeskDep, who: Who, goal_id: str) -> Json:
    """Rest until it is resumed; a running step is stopped."""
    return Json(await shown(desk, await desk.goals.pause(goal_id, actor=who.name, may=who)))


@router.post("/goals/{goal_id}/resume", responses=ONE)
async def resume(desk: DeskDep, who: Who, goal_id: str) -> Json:
    """Go on."""
    return Json(await shown(desk, await desk.goals.resume(goal_id, actor=who.name, may=who)))


@router.post("/goals/{goal_id}/complete", responses=ONE)
async def complete(desk: DeskDep, who: Who, goal_id: str, body: CompleteBody) -> Json:
    """It is reached. From its agent it counts when the step has ended and its verifier, if any, agrees."""
    in_step = await own(desk, who, goal_id)
    may = None if in_step else who
    found = await desk.goals.complete(goal_id, evidence=body.evidence, actor=who.name, may=may, in_step=in_step)
    return Json(await shown(desk, found))


@router.post("/goals/{goal_id}/delay", responses=ONE)
async def delay(desk: DeskDep, who: Who, goal_id: str, body: DelayBody) -> Json:
    """Begin the next step later: 0, or 1 minute to 12 hours."""
    in_step = await own(desk, who, goal_id)
    may = None if in_step else who
    found = await desk.goals.delay(goal_id, body.duration, body.reason, actor=who.name, may=may, in_step=in_step)
    return Json(await shown(desk, found))


@router.delete("/goals/{goal_id}", responses=ONE)
async def clear(desk: DeskDep, who: Who, goal_id: str) -> Json:
    """Give it up and remove it; a running step is stopped."""
    return Json({**(await desk.goals.clear(goal_id, actor=who.name, may=who)).snapshot(), "running": False})

"""Routes of goals: set, read, edit, step, pause, resume, complete, delay, clear."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from midwatch.api.bodies import (
    CompleteBody,
    DelayBody,
    GoalBody,
    GoalPatch,
    GoalQuery,
    HistoryQuery,
    PauseBody,
)
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, reply_created
from midwatch.wire.automations import RunPage
from midwatch.wire.goals import GoalInfo, GoalPage, SavedGoal

ONE: dict[int | str, dict[str, Any]] = {200: {"model": GoalInfo}}

router = make_router("goals")


@router.get("/goals", responses={200: {"model": GoalPage}})
@needs("oversee")
async def list_goals(desk: DeskDep, actor: Caller, query: Annotated[GoalQuery, Query()]) -> Json:
    """List goals, newest first."""
    goals = await desk.goals.list(query.status, scope=query.scope, limit=query.limit, actor=actor)
    return Json({"goals": [await desk.goals.describe(goal) for goal in goals]})


@router.post("/goals", status_code=201, responses={201: {"model": SavedGoal}})
@needs("operate")
async def create(desk: DeskDep, actor: Caller, body: GoalBody) -> Json:
    """Set a goal. Its first step starts at once, or as soon as the agent has stored a thread for its session."""
    goal = await desk.goals.create(actor=actor, **body.model_dump(exclude_unset=True))
    return reply_created("goals", {**await desk.goals.describe(goal), "warnings": await desk.goals.warn(goal)})


@router.get("/goals/{goal_id}", responses=ONE)
@needs("read")
async def show(desk: DeskDep, actor: Caller, goal_id: str) -> Json:
    """Return one goal, by its id or its name."""
    return Json(await desk.goals.describe(await desk.goals.get(goal_id, actor=actor)))


@router.get("/goals/{goal_id}/steps", responses={200: {"model": RunPage}})
@needs("read")
async def steps(desk: DeskDep, actor: Caller, goal_id: str, query: Annotated[HistoryQuery, Query()]) -> Json:
    """List the tasks of a goal, newest first."""
    steps = await desk.goals.steps(goal_id, query.limit, actor=actor)
    return Json({"runs": [task.run_snapshot() for task in steps]})


@router.patch("/goals/{goal_id}", responses={200: {"model": SavedGoal}})
@needs("manage")
async def edit(desk: DeskDep, actor: Caller, goal_id: str, body: GoalPatch) -> Json:
    """Change the objective, deadline or budget of a goal."""
    values = body.model_dump(exclude_unset=True, exclude={"revision"})
    goal = await desk.goals.edit(goal_id, values, revision=body.revision, actor=actor)
    return Json({**await desk.goals.describe(goal), "warnings": await desk.goals.warn(goal)})


@router.post("/goals/{goal_id}/step", responses=ONE)
@needs("manage")
async def step(desk: DeskDep, actor: Caller, goal_id: str) -> Json:
    """Start the next step of a goal now."""
    return Json(await desk.goals.describe(await desk.goals.step(goal_id, actor=actor)))


@router.post("/goals/{goal_id}/pause", responses=ONE)
@needs("manage")
async def pause(desk: DeskDep, actor: Caller, goal_id: str, body: PauseBody | None = None) -> Json:
    """Pause a goal until it is resumed. Its running step goes on to its end, unless `stop` is true."""
    stop = body is not None and body.stop
    return Json(await desk.goals.describe(await desk.goals.pause(goal_id, stop=stop, actor=actor)))


@router.post("/goals/{goal_id}/resume", responses=ONE)
@needs("manage")
async def resume(desk: DeskDep, actor: Caller, goal_id: str) -> Json:
    """Resume a paused goal."""
    return Json(await desk.goals.describe(await desk.goals.resume(goal_id, actor=actor)))


@router.post("/goals/{goal_id}/complete", responses=ONE)
@needs("signal")
async def complete(desk: DeskDep, actor: Caller, goal_id: str, body: CompleteBody) -> Json:
    """Mark a goal as complete. If its agent does this, the step must also end, and the verifier, if any, must agree."""
    return Json(await desk.goals.describe(await desk.goals.complete(goal_id, evidence=body.evidence, actor=actor)))


@router.post("/goals/{goal_id}/delay", responses=ONE)
@needs("signal")
async def delay(desk: DeskDep, actor: Caller, goal_id: str, body: DelayBody) -> Json:
    """Delay the next step of a goal by 1 minute to 12 hours, or by 0: no delay."""
    return Json(await desk.goals.describe(await desk.goals.delay(goal_id, body.duration, body.reason, actor=actor)))


@router.delete("/goals/{goal_id}", responses=ONE)
@needs("manage")
async def clear(desk: DeskDep, actor: Caller, goal_id: str) -> Json:
    """Remove a goal. A running step is stopped, and the work that its steps have submitted is cancelled."""
    return Json({**(await desk.goals.clear(goal_id, actor=actor)).snapshot(), "running": False})

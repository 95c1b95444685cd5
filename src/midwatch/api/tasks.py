"""Routes of tasks: hand in, look, stop, have again."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query

from midwatch.api.agent_rights import OF_TASKS, handed_in, origin
from midwatch.api.bodies import RetryBody, SubmitBody, TaskQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.markdown import page_of
from midwatch.api.reply import Json
from midwatch.base.clock import iso
from midwatch.base.errors import InvalidInput, NotFound
from midwatch.base.text import cut
from midwatch.desk.desk import Desk
from midwatch.domain.automation import Automation
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import HandoffFilter
from midwatch.domain.identity import Actor
from midwatch.domain.requests import Submission
from midwatch.domain.task import Task, TaskFilter
from midwatch.wire.tasks import Counts, ResultInfo, TaskInfo, TaskPage, TaskView

LISTED_TEXT = 2000
KIN_TEXT = 200
MOST_HANDOFFS = 100

router = APIRouter(prefix=PREFIX, tags=["tasks"])


@router.post("/tasks", status_code=201, responses={201: {"model": TaskInfo}})
async def submit(
    desk: DeskDep, who: Who, body: SubmitBody, idempotency_key: Annotated[str | None, Header()] = None
) -> Json:
    """Accept a prompt. It is durable when the reply arrives."""
    said = body.model_dump(exclude_defaults=True, exclude={"prompt"})  # so that equal wishes make equal bodies
    if idempotency_key is not None and said.get("idempotency_key") not in (None, idempotency_key):
        raise InvalidInput(
            "the header and the body name different idempotency keys; send one.", field="idempotency_key"
        )
    if idempotency_key is not None:
        said["idempotency_key"] = idempotency_key
    said = {**await handed_in(desk, who, said, OF_TASKS), **origin(who)}
    task = await desk.tasks.submit(body.prompt, actor=who.name, **cast(Submission, said))
    return Json(task.snapshot(), 201, headers={"location": f"/api/v1/tasks/{task.id}"})


@router.get("/tasks", responses={200: {"model": TaskPage}})
async def list_tasks(desk: DeskDep, asked: Annotated[TaskQuery, Query()]) -> Json:
    """Tasks, newest first. `next` is the `before` of the following page, or null."""
    which = TaskFilter(
        statuses=tuple(asked.status), agent=asked.agent, session_key=asked.session_key, creator=asked.creator,
        before=asked.before, limit=asked.limit,
    )  # fmt: skip
    found = await desk.tasks.list(which)
    following = found[-1].id if len(found) == asked.limit else None
    return Json({"tasks": [listed(task) for task in found], "next": following})


def listed(task: Task) -> dict[str, Any]:
    """A task as a list shows it: long texts are cut, the task itself has them whole."""
    shown = task.snapshot()
    for name in ("prompt", "result", "error"):
        if shown[name]:
            shown[name] = cut(shown[name], LISTED_TEXT)
    return shown


@router.get("/tasks/{task_id}", responses={200: {"model": TaskInfo}})
async def show(desk: DeskDep, task_id: str) -> Json:
    """One task."""
    return Json((await desk.tasks.get(task_id)).snapshot())


@router.get("/tasks/{task_id}/page", responses={200: {"model": TaskView}})
async def page(desk: DeskDep, task_id: str) -> Json:
    """Everything a page about a task shows: prompt and result as HTML, its kin, its notices and questions."""
    task = await desk.tasks.get(task_id)
    state = await desk.store.state_of_task(task_id)
    if state is None:
        raise NotFound("task", task_id)
    kin = await desk.store.kin(task.root_id or task.id)
    handoffs = await desk.handoffs.list(HandoffFilter(root_id=task.root_id or task.id, limit=MOST_HANDOFFS))
    deliveries = await desk.notifications.list(task_id=task_id)
    approvals = await desk.approvals.list(None, task_id=task_id)
    return Json(
        {
            "task": task.snapshot(),
            "prompt_html": await page_of(task.prompt),
            "result_html": None if task.result is None else await page_of(task.result),
            "lineage": [related(one, task) for one in kin],
            "handoffs": [one.brief() for one in handoffs],
            "deliveries": [delivery.snapshot() for delivery in deliveries],
            "approvals": [approval.snapshot() for approval in approvals],
            "last_event_at": iso(state.last.time) if state.last else None,
        }
    )


def related(one: Task, task: Task) -> dict[str, Any]:
    """A task of the same root, and what it is to `task`."""
    relation = "child" if one.parent_id == task.id else "other"
    if one.id == task.id:
        relation = "self"
    elif one.id == task.retry_of:
        relation = "retry_of"
    elif one.id == task.parent_id:
        relation = "parent"
    elif one.id == task.root_id:
        relation = "root"
    elif one.retry_of is not None and one.retry_of in (task.id, task.retry_of):
        relation = "retry"
    return {
        "id": one.id,
        "relation": relation,
        "status": one.status,
        "outcome": one.outcome,
        "prompt": cut(one.prompt, KIN_TEXT),
        "agent": one.agent,
        "created_at": iso(one.created_at),
    }


@router.get("/tasks/{task_id}/result", responses={200: {"model": ResultInfo}})
async def result(desk: DeskDep, task_id: str) -> Json:
    """The whole text of a task that is done."""
    return Json({"id": task_id, "result": await desk.tasks.result(task_id)})


@router.post("/tasks/{task_id}/cancel", responses={200: {"model": TaskInfo}})
async def cancel(desk: DeskDep, who: Who, task_id: str) -> Json:
    """Stop a task. A running one ends when its agent has been stopped."""
    await check_may(desk, who, task_id)
    return Json((await desk.tasks.cancel(task_id, actor=who.name)).snapshot())


async def check_may(desk: Desk, who: Actor, task_id: str) -> None:
    """Forbidden when the task, or the automation or goal it belongs to, is somebody else's to manage."""
    task = await desk.tasks.get(task_id)
    owner: Automation | Goal | None = None
    if task.cause == "automation" and task.cause_id:
        owner = await desk.store.get_automation(task.cause_id)
    elif task.cause == "goal" and task.cause_id:
        owner = await desk.store.get_goal(task.cause_id)
    if owner is not None:
        who.must_manage(owner.creator, owner.manage_mode)
    else:
        who.must_manage(task.creator, desk.settings.manage_tasks)


@router.post("/tasks/{task_id}/retry", status_code=201, responses={201: {"model": TaskInfo}})
async def retry(
    desk: DeskDep, who: Who, task_id: str, body: RetryBody | None = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Json:  # fmt: skip
    """Submit a failed or cancelled task again, as a new task."""
    await check_may(desk, who, task_id)
    budget = body.budget if body else None
    task = await desk.tasks.retry(task_id, actor=who.name, idempotency_key=idempotency_key, budget=budget)
    return Json(task.snapshot(), 201, headers={"location": f"/api/v1/tasks/{task.id}"})


@router.get("/summary", responses={200: {"model": Counts}})
async def summary(desk: DeskDep) -> Json:
    """How many tasks there are, by status."""
    return Json((await desk.tasks.summary())._asdict())

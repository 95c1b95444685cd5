"""Routes of tasks: submit, read, cancel, retry."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import RetryBody, SubmitBody, TaskQuery
from midwatch.api.dependencies import Caller, DeskDep, IdempotencyKey, add_key
from midwatch.api.describe import make_router
from midwatch.api.markdown import to_html
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, list_page, reply_created
from midwatch.base.clock import iso
from midwatch.domain.handoff import HandoffFilter
from midwatch.domain.task_store import TaskFilter
from midwatch.wire.tasks import Counts, ResultInfo, TaskInfo, TaskPage, TaskView

MOST_HANDOFFS = 100

router = make_router("tasks")


@router.post("/tasks", status_code=201, responses={201: {"model": TaskInfo}})
@needs("submit")
async def submit(desk: DeskDep, actor: Caller, body: SubmitBody, idempotency_key: IdempotencyKey = None) -> Json:
    """Submit a task. The task is durable when the reply arrives."""
    fields = body.model_dump(exclude_defaults=True)  # so that equal requests have equal records
    fields = add_key(fields, idempotency_key)
    return reply_created("tasks", (await desk.tasks.submit(actor=actor, **fields)).snapshot())


@router.get("/tasks", responses={200: {"model": TaskPage}})
@needs("read")
async def list_tasks(desk: DeskDep, actor: Caller, query: Annotated[TaskQuery, Query()]) -> Json:
    """List tasks, newest first. `next` is the `before` of the following page, or null."""
    others = query.model_dump(exclude={"status", "tag"})
    which = TaskFilter(statuses=tuple(query.status), tags=tuple(query.tag), **others)
    tasks = await desk.tasks.list(which, actor=actor)
    return list_page("tasks", [task.brief() for task in tasks], tasks.next)


@router.get("/tasks/{task_id}", responses={200: {"model": TaskInfo}})
@needs("read")
async def show(desk: DeskDep, actor: Caller, task_id: str) -> Json:
    """Return one task."""
    return Json((await desk.tasks.get(task_id, actor=actor)).snapshot())


@router.get("/tasks/{task_id}/page", responses={200: {"model": TaskView}})
@needs("read")
async def page(desk: DeskDep, actor: Caller, task_id: str) -> Json:
    """Return the data of the page about a task: prompt and result as HTML, related tasks, notices, questions."""
    task = await desk.tasks.get(task_id, actor=actor)  # the rest belongs to the same work
    last = (await desk.events.read_task_state(task_id)).last
    handoffs = await desk.handoffs.list(HandoffFilter(root_id=task.root_id or task.id, limit=MOST_HANDOFFS))
    deliveries = await desk.notifications.list(task_id=task_id)
    approvals = await desk.approvals.list(None, task_id=task_id)
    return Json(
        {
            "task": task.snapshot(),
            "prompt_html": await to_html(task.prompt),
            "result_html": None if task.result is None else await to_html(task.result),
            "lineage": await desk.tasks.relatives(task),
            "handoffs": [handoff.brief() for handoff in handoffs],
            "deliveries": [delivery.snapshot() for delivery in deliveries],
            "approvals": [approval.snapshot() for approval in approvals],
            "account": await desk.accounts.get(task.account, actor=actor),
            "last_event_at": iso(last.time) if last else None,
        }
    )


@router.get("/tasks/{task_id}/result", responses={200: {"model": ResultInfo}})
@needs("read")
async def result(desk: DeskDep, actor: Caller, task_id: str) -> Json:
    """Return the whole result of a task that is done."""
    return Json({"id": task_id, "result": await desk.tasks.result(task_id, actor=actor)})


@router.post("/tasks/{task_id}/cancel", responses={200: {"model": TaskInfo}})
@needs("manage")
async def cancel(desk: DeskDep, actor: Caller, task_id: str) -> Json:
    """Cancel a task. A running task ends when its agent has stopped."""
    return Json((await desk.tasks.cancel(task_id, actor=actor)).snapshot())


@router.post("/tasks/{task_id}/retry", status_code=201, responses={201: {"model": TaskInfo}})
@needs("manage")
async def retry(
    desk: DeskDep, actor: Caller, task_id: str, body: RetryBody | None = None, idempotency_key: IdempotencyKey = None
) -> Json:
    """Submit a failed or cancelled task again, as a new task."""
    budget = body.budget if body else None
    task = await desk.tasks.retry(task_id, actor=actor, idempotency_key=idempotency_key, budget=budget)
    return reply_created("tasks", task.snapshot())


@router.get("/summary", responses={200: {"model": Counts}})
@needs("oversee")
async def summary(desk: DeskDep, actor: Caller) -> Json:
    """Count the tasks by status."""
    return Json((await desk.tasks.summary(actor=actor))._asdict())

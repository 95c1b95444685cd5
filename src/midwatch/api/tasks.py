"""Routes of tasks: hand in, look, stop, have again."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query

from midwatch.api.bodies import SubmitBody, TaskQuery
from midwatch.api.desk import Desk, Who
from midwatch.api.reply import Json
from midwatch.channel import cut
from midwatch.errors import InvalidInput
from midwatch.submission import Submission
from midwatch.task import Task, TaskFilter

LISTED_TEXT = 2000

router = APIRouter()


@router.post("/tasks", status_code=201)
async def submit(
    desk: Desk, who: Who, body: SubmitBody, idempotency_key: Annotated[str | None, Header()] = None
) -> Json:
    """Accept a prompt. It is durable when the reply arrives."""
    if idempotency_key and body.idempotency_key not in (None, idempotency_key):
        raise InvalidInput(
            "the header and the body name different idempotency keys; send one.", field="idempotency_key"
        )
    said = body.model_dump(exclude_defaults=True, exclude={"prompt"})  # so that equal wishes make equal bodies
    if idempotency_key:
        said["idempotency_key"] = idempotency_key
    task = await desk.tasks.submit(body.prompt, actor=who.name, **cast(Submission, said))
    return Json(task.snapshot(), 201, headers={"location": f"/api/v1/tasks/{task.id}"})


@router.get("/tasks")
async def list_tasks(desk: Desk, asked: Annotated[TaskQuery, Query()]) -> Json:
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


@router.get("/tasks/{task_id}")
async def show(desk: Desk, task_id: str) -> Json:
    """One task."""
    return Json((await desk.tasks.get(task_id)).snapshot())


@router.get("/tasks/{task_id}/result")
async def result(desk: Desk, task_id: str) -> Json:
    """The whole text of a task that is done."""
    return Json({"id": task_id, "result": await desk.tasks.result(task_id)})


@router.post("/tasks/{task_id}/cancel")
async def cancel(desk: Desk, who: Who, task_id: str) -> Json:
    """Stop a task. A running one ends when its agent has been stopped."""
    return Json((await desk.tasks.cancel(task_id, actor=who.name)).snapshot())


@router.post("/tasks/{task_id}/retry", status_code=201)
async def retry(desk: Desk, who: Who, task_id: str) -> Json:
    """Submit a failed or cancelled task again, as a new task."""
    task = await desk.tasks.retry(task_id, actor=who.name)
    return Json(task.snapshot(), 201, headers={"location": f"/api/v1/tasks/{task.id}"})


@router.get("/summary")
async def summary(desk: Desk) -> Json:
    """How many tasks there are, by status."""
    return Json((await desk.tasks.summary())._asdict())

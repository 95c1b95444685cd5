"""Stops: end a pending task, or request that the worker of a running task ends it."""

from __future__ import annotations

from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import InterruptReceived, event
from midwatch.domain.handoff import settle
from midwatch.domain.store import Store
from midwatch.domain.task import Task, end, guard_ownership, meta


async def goal_of(store: Store, task: Task) -> str | None:
    """Return the id of the goal that a task works on, or None.

    The task is a step of the goal, or a step has handed its work over to the task.
    """
    if task.cause != "handoff" or task.root_id is None:
        return task.cause_id if task.cause == "goal" else None
    root = await store.get_task(task.root_id)
    if root is None or root.cause != "goal" or root.cause_id is None:
        return None
    step = await store.find_open_step(root.cause_id)
    return root.cause_id if step is not None and step.id == task.id else None


def stop_task(task: Task, now: int, actor: str | None = None) -> tuple[Task, Changes]:
    """Return the task after a stop, and its changes.

    A pending task ends at once. For a running task a stop is requested, and its worker ends the task.
    """
    if task.status == "pending":
        return end(task, now, outcome="cancelled", actor=actor)
    if task.stop_requested == "cancel":
        return task, Changes()
    interrupt = event(InterruptReceived(reason="cancel"), now, **meta(task, actor))
    stop = Update("task", task.id, {"stop_requested": "cancel"}, guard_ownership(task))
    return task._replace(stop_requested="cancel"), Changes(updates=(stop,), events=(interrupt,))


async def stop_work(store: Store, work: Task | None, now: int, actor: str | None) -> tuple[Task | None, Changes]:
    """Stop `work`, a run of an automation or a step of a goal. Return the task after the stop, and its changes.

    If the work was handed over, the changes also end the handoff.
    """
    if work is None:
        return None, Changes()
    stopped, changes = stop_task(work, now, actor)
    if work.cause != "handoff" or stopped.open:
        return stopped, changes
    handoff = await store.get_handoff(work.cause_id or "")
    if handoff is not None:
        changes = changes.plus(settle(handoff, stopped, now))
    return stopped._replace(attempt=max(1, stopped.attempt)), changes  # the work began before it was handed over

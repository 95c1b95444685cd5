"""Child tasks: what a task takes over from the work that it grows out of."""

from __future__ import annotations

from midwatch.domain.budget import Budget
from midwatch.domain.changes import Changes
from midwatch.domain.lineage import derive
from midwatch.domain.notice import pass_on, plan_of
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.services.retry_limits import raise_limits
from midwatch.services.rule_levels import inherit_rules


async def attach_task(store: Store, task: Task, parent: Task | None) -> Task:
    """Return the task; if an agent submits it during its task `parent`, as a child of that task, with its rules."""
    if parent is None:
        return task
    rules = await inherit_rules(store, parent)
    root = parent.root_id or parent.id
    # an agent works for the creator of its task, but must not take the idempotency keys of this person
    key = f"agent:{task.idempotency_key}" if task.idempotency_key else None
    notices = plan_of(pass_on(parent)) if task.route == parent.route else None
    task = task._replace(
        notices=notices or task.notices,
        parent_id=parent.id,
        root_id=root,
        on_budget=parent.on_budget,
        approvals=rules,
        idempotency_key=key,
    )
    return derive(task, parent, "background")


async def attach_retry(store: Store, task: Task, old: Task, raised: Budget, now: int) -> tuple[Task, Changes]:
    """Return `task` as a retry of the task `old`, and the changes of its accounts. `raised` are its new limits.

    Raise Conflict if these limits are spent already.
    """
    limits, changes = await raise_limits(store, old, raised, now)
    return derive(task._replace(budget=limits), old, "retry"), changes

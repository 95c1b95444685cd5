"""Waiting again: how a running task goes back to pending, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from midwatch.change import Changes, Update
from midwatch.channel import cut
from midwatch.clock import SECOND, iso
from midwatch.errors import UsageLimit
from midwatch.event import TaskInterrupted, TaskWaiting, event
from midwatch.spending import Rest
from midwatch.task import Task, changed_status, meta, notices, owned, trouble

LIMIT_PAUSES = (300.0, 900.0, 1800.0, 3600.0)
"""Before a task goes on whose provider's limit was used up, when nobody said until when."""
LIMIT_GRACE_SECONDS = 1.0
"""After the limit's end; a provider's clock may differ a little from ours."""
LONGEST_LIMIT_SECONDS = 32 * 86400.0
"""A reset further away than this is taken for a mistake of whoever told it."""
SHOWN = 500

RELEASED: Mapping[str, Any] = {
    "status": "pending", "wait": None, "stop_requested": None, "lease_owner": None, "pgid": None, "pgid_mark": None,
    "token_hash": None,
}  # fmt: skip
"""What a task loses when it goes back to wait."""


def back(task: Task, told: TaskInterrupted | TaskWaiting, now: int, **fields: object) -> Changes:
    """The task waits again, for another attempt."""
    failed = trouble(task, told.reason or "it failed", "warning", now) if isinstance(told, TaskWaiting) else ()
    return Changes(
        updates=(Update("task", task.id, {**RELEASED, **fields}, owned(task)),),
        events=(event(told, now, **meta(task)), *failed, *changed_status(task, "idle", now)),
    )


def park(task: Task, limit: UsageLimit, now: int, usage: Mapping[str, Any] | None = None) -> Changes:
    """The task waits for the provider's limit to be reset and then goes on; its route is told once."""
    due = limit_over(task, limit, now)
    told = TaskWaiting(wait="limit", until=iso(due), reason=str(limit))
    step = back(task, told, now, wait="limit", due_at=due, interruptions=task.interruptions + 1, usage=usage)
    text = f"{task.agent} has used up its limit: {cut(str(limit), SHOWN)}\n{task.id} goes on at {iso(due)}."
    return replace(step, deliveries=notices(task, "limit", text, now))


def put_off(task: Task, rest: Rest, now: int) -> Changes:
    """The task was not begun, because nothing is left of the day; it waits for the next. Its route is told once."""
    told = TaskWaiting(wait="limit", until=iso(rest.until), reason=rest.over.words)
    step = back(task, told, now, wait="limit", due_at=rest.until)
    words = rest.over.words[0].upper() + rest.over.words[1:]
    return replace(step, deliveries=notices(task, "limit", f"{words}.\n{task.id} begins at {iso(rest.until)}.", now))


def limit_over(task: Task, limit: UsageLimit, now: int) -> int:
    """When a task may go on after a limit."""
    longest = now + int(LONGEST_LIMIT_SECONDS * SECOND)
    if limit.resets_at is not None and limit.resets_at <= longest:
        return max(limit.resets_at, now) + int(LIMIT_GRACE_SECONDS * SECOND)
    return now + int(LIMIT_PAUSES[min(task.interruptions, len(LIMIT_PAUSES) - 1)] * SECOND)


def together(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What all attempts of a task consumed. Figures add up; of names the latest counts."""
    if not before or not now:
        return dict(before or now or {}) or None
    figures = {k: before.get(k, 0) + v for k, v in now.items() if isinstance(v, int | float)}
    return {**before, **now, **figures}

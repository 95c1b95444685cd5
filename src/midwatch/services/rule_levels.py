"""The rules of work: those of a session, and those that work inherits from the work that it grew out of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.domain.rule import inherit, work_source
from midwatch.domain.session import PRIVATE, visibility_key
from midwatch.domain.store import Store
from midwatch.domain.task import Task


async def read_sessions(store: Store, key: str | None) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rules of a session, and of the session that it is a part of, each with the key of its session."""
    if key is None or key.startswith(PRIVATE):
        return []
    sessions = [await store.get_session(name) for name in dict.fromkeys((visibility_key(key), key))]
    return [(session.key, session.approvals) for session in sessions if session is not None and session.approvals]


async def inherit_rules(store: Store, task: Task) -> dict[str, Any] | None:
    """Return the rules of work that grows out of a task: those of the task and of its session."""
    above = [(f"session {key}", approvals) for key, approvals in await read_sessions(store, task.session_key)]
    source = work_source(task)
    name = task.id if source == "task" else task.cause_id
    return inherit([*above, (f"{source} {name}", task.approvals)])

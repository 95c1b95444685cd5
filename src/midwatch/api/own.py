"""What the agent of a running task may hand in: nothing that gives others more than it has itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midwatch.errors import Forbidden
from midwatch.identity import Actor
from midwatch.runtime import Runtime
from midwatch.task import conversation

OF_TASKS = frozenset({"agent", "workdir", "worktree", "timeout", "delay", "idempotency_key"})
OF_AUTOMATIONS = frozenset({
    "title", "agent", "at", "every", "cron", "zone", "fresh", "max_runs", "workdir", "worktree", "timeout", "jitter",
    "missed", "missed_window", "quiet", "tags",
})  # fmt: skip


async def handed_in(desk: Runtime, who: Actor, said: Mapping[str, Any], may: frozenset[str]) -> dict[str, Any]:
    """The wishes of whoever speaks. An agent's are checked, and its work stays in its directory and goes where its own
    task's notices go; Forbidden when it may hand in nothing, or not that."""
    task = who.task
    if task is None:
        return dict(said)
    if not (await desk.roster.terms_of(task.agent)).submits:
        raise Forbidden(f"agent {task.agent} may not hand in work; to let it, set agents.{task.agent}.submits.")
    if extra := sorted(set(said) - may):
        raise Forbidden(f"an agent cannot set {extra[0]} of what it hands in; leave it out.")
    workdir = said.get("workdir")
    if workdir is not None and not _inside(workdir, task.workdir):
        raise Forbidden(f"an agent hands in work for its own directory only, which is {task.workdir or 'none'}.")
    return {**said, "workdir": workdir or task.workdir, "route": task.route}


def origin(who: Actor) -> dict[str, Any]:
    """The conversation an agent's task is part of: the result of what it hands in is added to it."""
    task = who.task
    return {} if task is None or not conversation(task) else {"origin_session": task.session_key}


def _inside(workdir: str, own: str | None) -> bool:
    return own is not None and Path(workdir).resolve().is_relative_to(Path(own).resolve())

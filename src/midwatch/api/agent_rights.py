"""What the agent of a running task may hand in: nothing that gives others more than it has itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midwatch.base.errors import Forbidden
from midwatch.desk.desk import Desk
from midwatch.domain.automation import Automation, Times
from midwatch.domain.fields import open_to_agents
from midwatch.domain.identity import Actor
from midwatch.domain.requests import Submission
from midwatch.domain.task import Task, conversation

OF_TASKS = open_to_agents(Submission)
OF_AUTOMATIONS = open_to_agents(Automation, Times)


async def handed_in(desk: Desk, who: Actor, said: Mapping[str, Any], may: frozenset[str]) -> dict[str, Any]:
    """The wishes of whoever speaks. An agent's are checked, and its work stays in its directory and goes where its own
    task's notices go; Forbidden when it may hand in nothing, or not that."""
    task = who.task
    if task is None:
        return dict(said)
    await must_submit(desk, task)
    if extra := sorted(set(said) - may):
        raise Forbidden(f"an agent cannot set {extra[0]} of what it hands in; leave it out.")
    workdir = said.get("workdir") or task.workdir
    if workdir is not None and not _inside(workdir, task.workdir):
        workdir = await place_for(desk, task, workdir)
    return {**said, "workdir": workdir, "route": task.route}


async def must_submit(desk: Desk, task: Task) -> None:
    """Forbidden unless the agent of a task may hand in work, which others do who may be allowed more than it is."""
    if not (await desk.roster.terms_of(task.agent)).submits:
        raise Forbidden(f"agent {task.agent} may not hand in work; to let it, set agents.{task.agent}.submits.")


async def place_for(desk: Desk, task: Task, wanted: str | None) -> str | None:
    """Where somebody works to whom the agent of a task gives work: where it works itself, or below that."""
    session = await desk.store.get_session(task.session_key)
    tree_id = task.worktree["id"] if task.worktree else session.worktree if session else None
    tree = await desk.store.get_worktree(str(tree_id)) if tree_id else None
    own = tree.workdir if tree else task.workdir or (session.workdir if session else None)
    own = own or (await desk.roster.terms_of(task.agent)).workdir
    if wanted is not None and not _inside(wanted, own):
        raise Forbidden(f"an agent gives others work in its own directory only, which is {own or 'none'}.")
    return wanted or own


def origin(who: Actor) -> dict[str, Any]:
    """The conversation an agent's task is part of: the result of what it hands in is added to it."""
    task = who.task
    return {} if task is None or not conversation(task) else {"origin_session": task.session_key}


def _inside(workdir: str, own: str | None) -> bool:
    return own is not None and Path(workdir).resolve().is_relative_to(Path(own).resolve())

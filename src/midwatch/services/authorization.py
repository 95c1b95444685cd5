"""Authorization: checks who may manage a record, and which work the agent of a running task may submit.

By submitting work, an agent cannot give another agent more rights than it has itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from midwatch.base.directories import real_directory
from midwatch.base.errors import Forbidden, NotFound
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation, Times
from midwatch.domain.fields import open_to_agents
from midwatch.domain.goal import Goal
from midwatch.domain.identity import Actor, AnyActor, agent_task
from midwatch.domain.requests import Submission
from midwatch.domain.store import Store
from midwatch.domain.task import Task, has_conversation

TASK_FIELDS = open_to_agents(Submission)
AUTOMATION_FIELDS = open_to_agents(Automation, Times)
"""The fields that an agent may set when it submits an automation."""


def check_manager(actor: AnyActor, creator: str | None, manage_mode: str) -> None:
    """Raise Forbidden unless the actor may manage a record with this creator and this manage mode.

    Owners and the creator may always manage a record. With the manage mode `scope_all`, everybody may.
    """
    if not isinstance(actor, Actor) or actor.role == "owner" or manage_mode == "scope_all":
        return
    if creator not in (None, actor.name):
        raise Forbidden(f"only {creator} may manage this record; ask {creator} to set `manage_mode` to `scope_all`.")


def refuse_agent(actor: AnyActor, why: str) -> None:
    """Raise Forbidden with the text `why` if the actor is the agent of a running task."""
    if agent_task(actor) is not None:
        raise Forbidden(why)


class Authorization:
    """The checks of rights for which the store must be read."""

    def __init__(
        self, store: Store, terms: Callable[[str], Awaitable[AgentTerms]], manage_tasks: str = "scope_all"
    ) -> None:
        """Build the checks.

        `manage_tasks` is the manage mode of handoffs, and of tasks that belong to no automation or goal.
        """
        self._store = store
        self._terms = terms
        self._manage_tasks = manage_tasks

    def check_work(self, actor: AnyActor, creator: str | None) -> None:
        """Raise Forbidden unless the actor may manage a task or handoff of this creator."""
        check_manager(actor, creator, self._manage_tasks)

    async def check_task(self, actor: AnyActor, task_id: str) -> None:
        """Raise Forbidden unless the actor may manage the task.

        For a task of an automation or a goal, the actor must be allowed to manage that automation or goal.
        """
        if not isinstance(actor, Actor):
            return
        task = await self._store.get_task(task_id)
        if task is None:
            raise NotFound("task", task_id)
        owner: Automation | Goal | None = None
        if task.cause == "automation" and task.cause_id:
            owner = await self._store.get_automation(task.cause_id)
        elif task.cause == "goal" and task.cause_id:
            owner = await self._store.get_goal(task.cause_id)
        if owner is None:
            self.check_work(actor, task.creator)
        else:
            check_manager(actor, owner.creator, owner.manage_mode)

    # -- agents of running tasks ---------------------------------------------------------------------------------

    async def restrict_task(self, actor: AnyActor, wish: Submission) -> Submission:
        """Return the request for a task, limited to the rights of the actor.

        If an agent submits the task in a conversation, the conversation later gets the result as a message.
        """
        task = agent_task(actor)
        if task is None:
            return wish
        limited = await self.restrict(actor, wish, TASK_FIELDS)
        origin = {"origin_session": task.session_key} if has_conversation(task) else {}
        return cast(Submission, {**limited, **origin})

    async def restrict(self, actor: AnyActor, wish: Mapping[str, Any], allowed: frozenset[str]) -> dict[str, Any]:
        """Return the fields of a request for work. Raise Forbidden if the actor may not submit the request.

        An agent may set only the fields `allowed`. The work that it submits stays in the agent's own directory, and its
        notices go where those of the agent's task go.
        """
        task = agent_task(actor)
        if task is None:
            return dict(wish)
        await self.check_submits(task)
        if extra := sorted(set(wish) - allowed):
            raise Forbidden(f"an agent cannot set `{extra[0]}` when it submits work; leave out this field.")
        workdir = wish.get("workdir") or task.workdir
        if workdir is not None and not _is_inside(workdir, task.workdir):
            workdir = await self.choose_workdir(task, workdir)
        return {**wish, "workdir": workdir, "route": task.route}

    async def check_submits(self, task: Task) -> None:
        """Raise Forbidden unless the agent of a task may submit work.

        Only an agent with the setting `submits` may, because an agent with more rights could execute the work.
        """
        if not (await self._terms(task.agent)).submits:
            raise Forbidden(f"agent {task.agent} may not submit work; to allow it, set `agents.{task.agent}.submits`.")

    async def choose_workdir(self, task: Task, requested: str | None) -> str | None:
        """Return the working directory for work that the agent of a task submits.

        This is `requested`, which must be inside of the agent's own directory. If it is None, this is the agent's own
        directory.
        """
        session = await self._store.get_session(task.session_key)
        tree_id = task.worktree["id"] if task.worktree else session.worktree if session else None
        tree = await self._store.get_worktree(str(tree_id)) if tree_id else None
        if tree is not None:
            own: str | None = str(Path(real_directory(tree.path), tree.subdir))
        else:
            own = task.workdir or (session.workdir if session else None)
        if own is None and (configured := (await self._terms(task.agent)).workdir):
            own = real_directory(configured)
        if requested is not None and not _is_inside(requested, own):
            raise Forbidden(f"`workdir` must be inside of the agent's own directory ({own or 'the agent has none'}).")
        return requested or own


def _is_inside(workdir: str, parent: str | None) -> bool:
    """Return whether a path leads to `parent` or below it. Both paths were stored or given without symbolic links."""
    path = Path(workdir)
    return parent is not None and path.resolve() == path and path.is_relative_to(parent)

"""Authorization: the one place that decides who may do what.

`RIGHTS` is the table of all actions and roles. `authorize` answers yes or no for an actor, an action and the owner of
an object. Every method of a service that shows or changes something asks it. The guard of the HTTP interface asks the
same table, by role only, before it reads the body of a request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from midwatch.base.directories import real_directory
from midwatch.base.errors import Forbidden, NotFound
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation, Times
from midwatch.domain.channel import name_again
from midwatch.domain.fields import open_to_agents
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import Handoff
from midwatch.domain.identity import OWNER, Actor, AnyActor, agent_task, list_work
from midwatch.domain.requests import Submission
from midwatch.domain.session import visibility_key
from midwatch.domain.store import Store
from midwatch.domain.task import Task, has_conversation
from midwatch.services.rule_levels import inherit_rules

TASK_FIELDS = open_to_agents(Submission)
AUTOMATION_FIELDS = open_to_agents(Automation, Times)
"""The fields that an agent may set when it submits an automation."""

Action = Literal[
    "open", "know", "read", "oversee", "submit", "signal", "manage", "operate", "sign_in", "administer"
]  # fmt: skip
Reach = Literal["all", "own"]
"""Whether an action is allowed for all objects, or only for own objects.

For a person, an object is own if the person created it, or if its manage mode is `scope_all`. For the agent of a
running task, an object is own if it belongs to the work of this task; see `Actor.work`.
"""


class Right(NamedTuple):
    """Who may do an action: for each role its reach, or None if the role may not do the action at all."""

    meaning: str
    viewer: Reach | None
    operator: Reach | None
    owner: Reach | None
    attempt: Reach | None


RIGHTS: Mapping[Action, Right] = {
    "open": Right(
        "use what needs no token: health, signing in, signed deliveries, files of the console",
        "all",
        "all",
        "all",
        "all",
    ),
    "know": Right("see who one is, which agents there are, or how the interface works", "all", "all", "all", "all"),
    "read": Right(
        "read tasks, sessions, events, questions, automations, goals or handoffs", "all", "all", "all", "own"
    ),
    "oversee": Right(
        "see the desk as a whole: overview, lists, settings, rules, notices or diffs", "all", "all", "all", None
    ),
    "submit": Right("submit tasks and automations, or hand work over", None, "all", "all", "all"),
    "signal": Right("complete or delay a goal, or cancel a handoff", None, "own", "all", "own"),
    "manage": Right("change, stop, answer or talk to work that exists", None, "own", "all", None),
    "operate": Right("open sessions, set goals, import automations or revoke rules", None, "all", "all", None),
    "sign_in": Right("sign a browser in or out, or create links for it", "all", "all", "all", None),
    "administer": Right("list, create or revoke tokens", None, None, "all", None),
}
"""The table of rights. docs/rights.md shows it."""
ACTIONS: tuple[Action, ...] = get_args(Action)


class Owner(NamedTuple):
    """Whom an object belongs to."""

    creator: str | None
    manage_mode: str = "creator_only"
    """With `scope_all` every operator may manage the object."""
    work: frozenset[str] = frozenset()
    """The ids of the session, tasks, automation and goal that the object belongs to; see `Actor.work`."""
    setting: str = "manage_mode"
    """The name of the setting or field that decides about the manage mode. An error names it."""


def authorize(actor: AnyActor, action: Action, owner: Owner | None = None) -> None:
    """Raise Forbidden unless the actor may do the action with an object of this owner.

    Without an owner only the role is checked: the action concerns no single object, or the object is not known yet. A
    name or None is a program of the owner, which may do everything.
    """
    if not isinstance(actor, Actor):
        return
    if not allows(actor, action):
        raise Forbidden(_explain_role(actor, action))
    work = actor.work
    if work is not None and (action in DESK_WIDE if owner is None else not work & owner.work):
        raise Forbidden(_explain_work(actor))
    if owner is None or actor.role == "attempt" or getattr(RIGHTS[action], actor.role) == "all":
        return
    if owner.manage_mode != "scope_all" and owner.creator not in (None, actor.name):
        who = "owners" if owner.creator == OWNER.name else f"{owner.creator} and owners"
        raise Forbidden(
            f"this belongs to {owner.creator}, so only {who} may do it; ask {owner.creator}, or ask to set "
            f"`{owner.setting}` to `scope_all`, so that every operator may do it."
        )


def allows(actor: AnyActor, action: Action) -> bool:
    """Return whether the role of the actor allows the action."""
    return not isinstance(actor, Actor) or getattr(RIGHTS[action], actor.role) is not None


DESK_WIDE: frozenset[Action] = frozenset({"oversee", "operate", "administer"})
"""Actions that concern the whole desk. An actor that may use only some work may not do them."""


def _explain_role(actor: Actor, action: Action) -> str:
    right = RIGHTS[action]
    if actor.role == "attempt":
        return f"an agent may use only its own work, and it may not {right.meaning}; ask a person to do this."
    if right.operator is None:
        return f"{actor.name} has the role {actor.role}; only an owner may do this."
    return f"{actor.name} has the role {actor.role} and may only read; ask the owner for the role operator."


def _explain_work(actor: Actor) -> str:
    if actor.role == "attempt":
        return (
            "the agent of a running task may use only its own work: its task, its session, its automation or goal, and "
            "the tasks that come from the same first task; name one of these."
        )
    return f"this server is only for the session {actor.session}; use a midwatch server for other sessions."


class Authorization:
    """The checks of rights for which the store must be read."""

    def __init__(
        self, store: Store, terms: Callable[[str], Awaitable[AgentTerms]] | None = None,
        manage_tasks: str = "creator_only",
    ) -> None:  # fmt: skip
        """Build the checks.

        `manage_tasks` is the manage mode of sessions, and of tasks and handoffs that come from no automation or goal.
        """
        self._store = store
        self._terms = terms
        self._manage_tasks = manage_tasks

    async def check_task(self, actor: AnyActor, action: Action, task_id: str, creator: str | None = None) -> None:
        """Raise Forbidden unless the actor may do the action with the task.

        If the task was pruned, `creator` decides, or everybody may if it is empty; if it is None, raise NotFound.
        """
        if _is_free(actor, action):
            return
        task = await self._store.get_task(task_id)
        if task is not None:
            await self.check_tasks(actor, action, [task])
        elif creator is None:
            raise NotFound("task", task_id)
        else:
            authorize(actor, action, Owner(creator or None, self._manage_tasks, frozenset({task_id}), "manage_tasks"))

    async def check_tasks(self, actor: AnyActor, action: Action, tasks: list[Task]) -> None:
        """Raise Forbidden unless the actor may do the action with each of the tasks."""
        if _is_free(actor, action):
            return
        for task in tasks:
            work = list_work(task)
            authorize(actor, action, Owner(None, work=work) if action == "read" else await self._find_owner(task, work))

    async def check_handoff(self, actor: AnyActor, action: Action, handoff: Handoff) -> None:
        """Raise Forbidden unless the actor may do the action with the handoff.

        An agent may cancel only a handoff that its own task has made.
        """
        if _is_free(actor, action):
            return
        agent = agent_task(actor)
        if agent is not None and action != "read" and handoff.source_task != agent.id:
            raise Forbidden("an agent may cancel only handoffs that it has created itself.")
        names = (handoff.id, handoff.source_task, handoff.root_id, handoff.task_id)
        own = Owner(handoff.creator, self._manage_tasks, frozenset(name for name in names if name), "manage_tasks")
        root = await self._store.get_task(handoff.root_id) if handoff.root_id else None
        record = await self._find_record(root) if root else None
        authorize(actor, action, own if record is None else own_record(record, own.work))

    async def check_session(self, actor: AnyActor, action: Action, key: str) -> None:
        """Raise Forbidden unless the actor may do the action with the session, which need not exist yet.

        The session of an automation or a goal belongs to the creator of that automation or goal.
        """
        if _is_free(actor, action):
            return
        work = frozenset({key})
        if action == "read":
            authorize(actor, action, Owner(None, work=work))
            return
        if record := await self._find_record_of_session(key):
            authorize(actor, action, own_record(record, work))
            return
        session = await self._store.get_session(key)
        creator = session.creator if session else None
        authorize(actor, action, Owner(creator, self._manage_tasks, work, "manage_tasks"))
        if session is not None and creator != getattr(actor, "name", None):
            for other, mode in await self._store.list_session_managers(key):
                authorize(actor, action, Owner(other, mode, work))

    async def check_account(self, actor: AnyActor, account_id: str) -> None:
        """Raise Forbidden unless the actor may read the account because it belongs to the actor's task or goal."""
        own = agent_task(actor)
        if _is_free(actor, "read") or (own is not None and own.account == account_id):
            return
        goal = await self._store.get_goal(account_id)
        authorize(actor, "read", Owner(None, work=frozenset({account_id})) if goal is None else own_record(goal))

    async def may_read(self, actor: AnyActor, record: Task | Goal) -> bool:
        """Return whether the actor may read a task or a goal. An agent may read only its own work."""
        with suppress(Forbidden):
            if isinstance(record, Goal):
                authorize(actor, "read", own_record(record))
            else:
                await self.check_tasks(actor, "read", [record])
            return True
        return False

    async def _find_owner(self, task: Task, work: frozenset[str]) -> Owner:
        """Return the owner of a task.

        A task that comes from an automation or a goal, also by a handoff, belongs to that automation or goal. Another
        task of a conversation belongs to the creator of the conversation.
        """
        record = await self._find_record(task)
        if record is None and task.root_id not in (None, task.id):
            root = await self._store.get_task(task.root_id or "")
            record = await self._find_record(root) if root else None
        if record is not None:
            return own_record(record, work)
        session = await self._store.get_session(task.session_key) if has_conversation(task) else None
        creator = (session.creator if session else None) or task.creator
        return Owner(creator, self._manage_tasks, work, "manage_tasks")

    async def _find_record(self, task: Task) -> Automation | Goal | None:
        """Return the automation or goal that has started the task, or None."""
        if task.cause == "automation" and task.cause_id:
            return await self._store.get_automation(task.cause_id)
        return await self._store.get_goal(task.cause_id) if task.cause == "goal" and task.cause_id else None

    async def _find_record_of_session(self, key: str) -> Automation | Goal | None:
        """Return the automation or goal for which midwatch made the session, or None."""
        kind, _, name = visibility_key(key).partition(":")
        if kind == "auto":
            return await self._store.get_automation(name)
        return await self._store.get_goal(name) if kind == "goal" else None

    # -- agents of running tasks ---------------------------------------------------------------------------------

    async def restrict_task(self, actor: AnyActor, wish: Submission) -> Submission:
        """Return the request for a task, limited to the rights of the actor.

        If an agent submits the task in a conversation, the conversation later gets the result as a message.
        """
        limited = await self.restrict(actor, wish, TASK_FIELDS)
        task = agent_task(actor)
        if task is None:
            return cast(Submission, limited)
        origin = {"origin_session": task.session_key} if has_conversation(task) else {}
        return cast(Submission, {**limited, **origin})

    async def inherit_rules(self, parent: Task) -> dict[str, Any] | None:
        """Return the rules on the use of tools that hold for work that the agent of a task submits."""
        return await inherit_rules(self._store, parent)

    async def restrict(self, actor: AnyActor, wish: Mapping[str, Any], allowed: frozenset[str]) -> dict[str, Any]:
        """Return the fields of a request for work. Raise Forbidden if the actor may not submit the request.

        An agent may set only the fields `allowed`. The work that it submits stays in the agent's own directory, and its
        notices go where those of the agent's task go. A person may name only sessions that this person may manage.
        """
        authorize(actor, "submit")
        task = agent_task(actor)
        if task is None:
            keys = {str(wish[name]).strip() for name in ("session_key", "origin_session") if wish.get(name)}
            for key in keys:
                await self.check_session(actor, "manage", key)
            return dict(wish)
        await self.check_submits(task)
        if extra := sorted(set(wish) - allowed):
            raise Forbidden(f"an agent cannot set `{extra[0]}` when it submits work; leave out this field.")
        workdir = wish.get("workdir")
        if workdir is not None or task.workdir is not None or task.worktree is not None:
            workdir = await self.choose_workdir(task, workdir)
        return {**wish, "workdir": workdir, "route": name_again(task.route) if task.route else None}

    async def check_submits(self, task: Task) -> None:
        """Raise Forbidden unless the agent of a task may submit work.

        Only an agent with the setting `submits` may, because an agent with more rights could execute the work.
        """
        if self._terms is None or not (await self._terms(task.agent)).submits:
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
        terms = await self._terms(task.agent) if own is None and self._terms else AgentTerms()
        if terms.workdir:
            own = real_directory(terms.workdir)
        if requested is not None and not _is_inside(requested, own):
            raise Forbidden(f"`workdir` must be inside of the agent's own directory ({own or 'the agent has none'}).")
        return requested or own


def own_record(record: Automation | Goal, work: frozenset[str] = frozenset()) -> Owner:
    """Return the owner of an automation or a goal, or of `work` that belongs to it."""
    step = getattr(record, "task_id", None)
    names = (record.id, record.session_key, *((step,) if step else ()))
    return Owner(record.creator, record.manage_mode, work or frozenset(names))


def _is_free(actor: AnyActor, action: Action) -> bool:
    """Return whether the actor may do the action with every object, so that the store need not be read."""
    return not isinstance(actor, Actor) or (actor.work is None and getattr(RIGHTS[action], actor.role) == "all")


def _is_inside(workdir: str, parent: str | None) -> bool:
    """Return whether a path leads to `parent` or below it. Both paths were stored or given without symbolic links."""
    path = Path(workdir)
    return parent is not None and path.resolve() == path and path.is_relative_to(parent)

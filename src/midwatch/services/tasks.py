"""The task service: submit, read, cancel and retry tasks. The record is `midwatch.domain.task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import AlreadyFinished, Conflict, InvalidInput, KeyReused, NotFinished, UnknownAgent
from midwatch.base.ids import new_id
from midwatch.base.text import cut
from midwatch.domain.agent import AgentTerms
from midwatch.domain.budget import Budget
from midwatch.domain.changes import Changes
from midwatch.domain.identity import Actor, AnyActor, actor_name, agent_task
from midwatch.domain.listing import Listing
from midwatch.domain.requests import MAX_PROMPT, Submission, body_hash, clean_tags
from midwatch.domain.rule import check_policy
from midwatch.domain.session import PRIVATE, check_key
from midwatch.domain.steering import Mode, SendResult, Steer
from midwatch.domain.store import Store
from midwatch.domain.task import OUTSIDE, TRIES, Task, new_task
from midwatch.domain.task_step import TaskStep
from midwatch.domain.task_store import Summary, TaskFilter
from midwatch.services.agent_registry import AgentRegistry
from midwatch.services.authorization import Authorization, authorize
from midwatch.services.child_tasks import attach_retry, attach_task
from midwatch.services.records import apply_with_retry, require
from midwatch.services.request_checks import Routes, check, check_repository, resolve_workdir
from midwatch.services.task_endings import TaskEndings
from midwatch.services.task_stops import stop_task
from midwatch.services.waiter import Waiter

RELATIVE_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest numbers of open tasks, in total and for one actor, and the most characters of a prompt."""

    max_open: int = 1000
    max_open_per_actor: int | None = None
    max_prompt: int = MAX_PROMPT


class Tasks:
    """Service: submit, read, cancel and retry tasks."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        agents: AgentRegistry,
        check_route: Callable[[str | Sequence[str]], str],
        limits: Limits | None = None,
        submitter: str | None = None,
        waiter: Waiter | None = None,
        default_route: str | None = None,
        endings: TaskEndings | None = None,
        authorization: Authorization | None = None,
        plan: Callable[[str | None, str | None], str | None] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._agents = agents
        self._routes = Routes(check_route, default_route, plan)
        self._limits = limits or Limits()
        self._submitter = submitter
        self._waiter = waiter or Waiter()
        self._endings = endings
        self.authorization = authorization or Authorization(store, self._terms)

    async def submit(self, prompt: str, *, actor: AnyActor = None, **wish: Unpack[Submission]) -> Task:
        """Submit a prompt for an agent and return its task. `Submission` lists the other fields.

        After the return, the task is stored and will run. A second call with the same `idempotency_key` and the same
        fields returns the first task.
        """
        wish = await self.authorization.restrict_task(actor, await self._resolve(wish))
        parent = agent_task(actor)
        if parent is None and wish.get("wake"):
            raise InvalidInput("only the agent of a running task can be woken; leave out `wake`.", field="wake")
        task = await attach_task(self._store, await self._build(prompt, actor_name(actor), wish), parent)
        if parent is not None:
            task = task._replace(returns_to=parent.id, returns="wake" if wish.get("wake") else "context")
        task = await self._insert(task, self._limits)
        await self.authorization.check_tasks(actor, "read", [task])  # an idempotency key may find an earlier task
        return task

    async def steer(self, prompt: str, mode: Mode, *, actor: AnyActor = None, **wish: Unpack[Submission]) -> SendResult:
        """Send a prompt as a message into the running turn of the session `session_key`.

        The prompt becomes a task if no turn runs, or if the agent takes no messages during a turn.
        """
        wish = await self.authorization.restrict_task(actor, wish)
        task = await self._build(prompt, actor_name(actor), wish)
        task = await attach_task(self._store, task, agent_task(actor))
        if not await self.steerable(task.agent):
            return SendResult(await self._insert(task, self._limits))
        steer = Steer(
            id=task.id, task_id="", number=0, session_key=task.session_key, mode=mode, text=prompt,
            created_at=task.created_at, actor=task.creator, idempotency_key=task.idempotency_key,
        )  # fmt: skip
        sent = await self._store.send_steer(steer, task, *_most_open(task, self._limits))
        assert sent is not None
        return sent

    async def stop(self, key: str, hint: str = "", *, actor: AnyActor = None) -> SendResult | None:
        """Ask the running turn of a session for one final answer without tools; return None if no turn runs."""
        if hint:
            check(hint, {}, self._limits.max_prompt)
        now = self._clock.now()
        steer = Steer(
            id=new_id("t", now), task_id="", number=0, session_key=key, mode="stop", text=hint, created_at=now,
            actor=actor_name(actor),
        )  # fmt: skip
        return await self._store.send_steer(steer, None)

    async def _resolve(self, wish: Submission) -> Submission:
        """Return the request with a working directory that has no symbolic links."""
        workdir, key = wish.get("workdir"), wish.get("session_key")
        if workdir is None:
            return wish
        session = await self._store.get_session(check_key(key)) if key else None
        return {**wish, "workdir": resolve_workdir(workdir, session.workdir if session else None)}

    async def _build(self, prompt: str, actor: str | None, wish: Submission) -> Task:
        check(prompt, wish, self._limits.max_prompt)
        name = wish.get("agent") or self._agents.default
        terms = await self._terms(name)
        route, notices = self._routes.choose(wish)
        delay = wish.get("delay") or 0
        key = wish.get("idempotency_key")
        now = self._clock.now()
        origin = wish.get("origin_session")
        origin = check_key(origin, "origin_session") if origin else None
        session = wish.get("session_key")
        session = check_key(session) if session else None
        worktree = await self._worktree(wish, session, terms, now)
        return new_task(
            now, prompt, name, session, delay=int(delay * SECOND), cause=wish.get("cause") or "submit",
            priority=wish.get("priority") or 0, creator=actor,
            origin_channel=wish.get("origin_channel"), origin_session=origin,
            route=route, notices=notices, workdir=wish.get("workdir"),
            dir_key=None if worktree or wish.get("share_workdir") else terms.dir_key(wish.get("workdir")),
            timeout_seconds=wish.get("timeout") or terms.timeout_seconds,
            on_crash=wish.get("on_crash") or terms.on_crash,
            max_attempts=wish.get("max_attempts") or terms.max_attempts, submitter=self._submitter,
            idempotency_key=key, body_hash=body_hash(prompt, wish) if key else None,
            budget=terms.budget_of(Budget.from_data(wish.get("budget"))), worktree=worktree,
            approvals=check_policy(wish.get("approvals")), tags=clean_tags(wish.get("tags") or ()) or None,
            on_budget=terms.mode_of(wish.get("on_budget"), askable=bool(route or actor)),
        )  # fmt: skip

    async def _worktree(
        self, wish: Submission, session: str | None, terms: AgentTerms, now: int
    ) -> dict[str, Any] | None:
        """Return the worktree of a new task: that of its session, a new worktree if one is requested, or None."""
        requested = bool(wish.get("worktree"))
        existing = await self._store.get_session(session) if session else None
        if existing is not None and existing.worktree is None and requested:
            raise InvalidInput(f"session {session} has no worktree; open a session that has one.", field="worktree")
        if existing is not None and existing.worktree is not None:
            return {"id": existing.worktree}
        if requested:
            check_repository(wish.get("workdir") or terms.workdir)
        return {"id": new_id("w", now)} if requested else None

    async def get(self, task_id: str, *, actor: AnyActor = None) -> Task:
        """Return the task, or raise NotFound. If the task waits, its field `wait` is the reason."""
        task = await self._get(task_id)
        await self.authorization.check_tasks(actor, "read", [task])
        if task.status != "pending" or task.waits_until(self._clock.now()):
            return task
        if task.agent not in await self._agents.live():
            return task._replace(wait="agent")
        if await self._store.find_gate_holder(task.gate_key):
            return task._replace(wait="session")
        if task.dir_key is not None and await self._store.find_dir_holder(task.dir_key):
            return task._replace(wait="directory")
        return task._replace(wait="slot")

    status = get
    """Another name for `get`."""

    async def list(self, which: TaskFilter | None = None, *, actor: AnyActor = None) -> Listing[Task]:
        """Return the tasks that match a filter, newest first, at most 500 at a time.

        An actor that may use only some work gets only the tasks of this work.
        """
        authorize(actor, "read")
        which = which or TaskFilter()
        if not 1 <= which.limit <= 500:
            raise InvalidInput("`limit` must be from 1 to 500.", field="limit")
        if isinstance(actor, Actor) and actor.work is not None:
            tasks = await self._list_work(which, actor)
        else:
            tasks = await self._store.list_tasks(which)
        waiting = {task.agent for task in tasks if task.status == "pending"}
        missing = waiting - await self._agents.live() if waiting else set()
        now = self._clock.now()
        shown = Listing(
            t._replace(wait="agent") if t.status == "pending" and t.agent in missing and not t.waits_until(now) else t
            for t in tasks
        )
        shown.next = tasks.next
        return shown

    async def _list_work(self, which: TaskFilter, actor: Actor) -> Listing[Task]:
        """Return the tasks that match a filter and belong to the only work that the actor may use, newest first."""
        found = [task for name in sorted(actor.work or ()) for task in await self._store.list_related_tasks(name)]
        key = actor.task.session_key if actor.task else actor.session
        looked_until: str | None = None
        if key is not None and not key.startswith(PRIVATE) and which.session_key in (None, key):
            page = await self._store.list_tasks(replace(which, session_key=key))
            found += page
            looked_until = page.next
        chosen = {task.id: task for task in found if _matches(task, which) and task.id >= (looked_until or "")}
        listed = Listing(sorted(chosen.values(), key=lambda task: task.id, reverse=True)[: which.limit])
        listed.next = listed[-1].id if len(listed) == which.limit else looked_until
        return listed

    async def result(self, task_id: str, *, actor: AnyActor = None) -> str:
        """Return the full result text of a task that is done, or raise NotFinished for another task."""
        await self.authorization.check_task(actor, "read", task_id)
        task = await self._follow_transfers(task_id)
        if task.status == "done":
            return task.result or ""
        if task.open:
            raise NotFinished(task.id, task.status, f"look at it with `midwatch show {task.id}` and try again later.")
        raise NotFinished(task.id, task.status, f"{task.error or task.outcome}. Try again with `{task.again}`.")

    async def wait(self, task_id: str) -> Task:
        """Wait until a task has ended, and return it.

        If the work of the task was transferred to another agent, wait for that agent's task and return that task.
        """
        while True:
            task = await self._waiter.wait(task_id, partial(self._get, task_id), lambda task: not task.open)
            if task.transferred_to is None:
                return task
            task_id = task.transferred_to

    async def cancel(self, task_id: str, *, actor: AnyActor = None) -> Task:
        """Cancel a task. A pending task ends at once. A running task ends when its agent has stopped."""
        await self.authorization.check_task(actor, "manage", task_id)

        async def compute() -> tuple[Task, Changes]:
            task = await self._follow_transfers(task_id)
            if not task.open:
                raise AlreadyFinished(task.id, task.status)
            after, changes = stop_task(task, self._clock.now(), actor_name(actor))
            if self._endings is not None and task.stop_requested != "cancel":
                name = actor_name(actor)
                changes = await self._endings.end_attempt(task, TaskStep(after, changes), actor=name)
                if after.open:
                    changes = changes.plus(await self._endings.pause_goal(task, "stopped its step", name))
            return after, changes

        return await apply_with_retry(self._store, f"task {task_id}", compute)

    async def pause_goal(self, task_id: str, *, actor: AnyActor = None) -> None:
        """Pause the goal that a running task works on, if it does, because a person asked for its final answer."""
        endings, name = self._endings, actor_name(actor)
        if endings is None:
            return

        async def compute() -> tuple[None, Changes]:
            task = await self._follow_transfers(task_id)
            return None, await endings.pause_goal(task, "asked for the final answer of its step", name, keeps_step=True)

        await apply_with_retry(self._store, f"the goal of task {task_id}", compute)

    async def retry(
        self, task_id: str, *, actor: AnyActor = None, idempotency_key: str | None = None,
        budget: Mapping[str, Any] | None = None,
    ) -> Task:  # fmt: skip
        """Submit a failed or cancelled task again, as a new task that continues from the old task's progress.

        Both tasks have the same account. `budget` replaces limits of this account.
        """
        await self.authorization.check_task(actor, "manage", task_id)
        check("-", {"idempotency_key": idempotency_key, "budget": budget}, 1)
        for _ in range(TRIES):
            again, raised = await self._renew(task_id, actor_name(actor), idempotency_key, budget)
            try:
                return (await self._store.submit(again, also=raised)).task
            except KeyReused:
                raise
            except Conflict:  # it was retried already, or another retry opened or raised the same account meanwhile
                continue
        raise Conflict(f"task {task_id} was retried already, or its automation runs now; see `midwatch tasks`.")

    async def _renew(
        self, task_id: str, actor: str | None, idempotency_key: str | None, budget: Mapping[str, Any] | None
    ) -> tuple[Task, Changes]:
        """Return a new task that retries an ended one, and the changes of its accounts."""
        old = await self._get(task_id)
        if old.open:
            raise Conflict(f"task {old.id} is still {old.status}; first cancel it with `midwatch cancel {old.id}`.")
        if old.status == "done":
            raise Conflict(f"task {old.id} is done and cannot be retried; submit its prompt as a new task.")
        if old.cause == "goal":
            raise Conflict(f"task {old.id} was a step of a goal; use `midwatch goal resume {old.cause_id}` instead.")
        await self._terms(old.agent)
        now = self._clock.now()
        fresh = new_task(
            now, old.prompt, old.agent, old.session_key, submitter=self._submitter, retry_of=old.retry_of or old.id,
            creator=actor or old.creator, internal_key=f"retry:{old.id}", idempotency_key=idempotency_key,
            body_hash=body_hash(f"retry:{old.id}", {"budget": budget}) if idempotency_key else None,
            **{name: getattr(old, name) for name in KEPT_BY_RETRY},
        )  # fmt: skip
        return await attach_retry(self._store, fresh, old, Budget.from_data(budget), now)

    async def relatives(self, task: Task) -> Sequence[dict[str, Any]]:
        """Return the tasks that have the same root as `task`, as JSON, each with its relation to `task`."""
        return [
            {
                "id": relative.id,
                "relation": _relation(relative, task),
                "status": relative.status,
                "outcome": relative.outcome,
                "prompt": cut(relative.prompt, RELATIVE_TEXT),
                "agent": relative.agent,
                "created_at": iso(relative.created_at),
                "trace_path": relative.trace_path,
            }
            for relative in await self._store.list_related_tasks(task.root_id or task.id)
        ]

    async def summary(self, *, actor: AnyActor = None) -> Summary:
        """Return the number of tasks by status."""
        authorize(actor, "oversee")
        return await self._store.count_tasks()

    async def active_count(self) -> int:
        """Return the number of tasks that are pending or running."""
        return (await self._store.count_tasks()).active

    async def _insert(self, task: Task, limits: Limits | None) -> Task:
        return (await self._store.submit(task, *_most_open(task, limits))).task

    async def check_agent(self, agent: str | None) -> str:
        """Return `agent`, or the name of the default agent if `agent` is None.

        Raise UnknownAgent if no process has this agent.
        """
        name = agent or self._agents.default
        await self._terms(name)
        return name

    async def steerable(self, agent: str) -> bool:
        """Return whether the agent takes messages during a turn."""
        return (await self._terms(agent)).steerable

    async def _get(self, task_id: str) -> Task:
        return require(await self._store.get_task(task_id), "task", task_id)

    async def _follow_transfers(self, task_id: str) -> Task:
        """Return the task, or if its work was transferred, the task that has the work now."""
        task = await self._get(task_id)
        while task.transferred_to is not None:
            task = await self._get(task.transferred_to)
        return task

    async def _terms(self, agent: str) -> AgentTerms:
        terms = self._agents.terms(agent)
        if terms is not None:
            return terms
        terms = await self._agents.find_advertised(agent)
        if terms is None:
            raise UnknownAgent(
                agent, sorted(await self._agents.live() | self._agents.local_names()), self._agents.advice(agent)
            )
        return terms


def _matches(task: Task, which: TaskFilter) -> bool:
    pairs = (
        (which.agent, task.agent),
        (which.session_key, task.session_key),
        (which.creator, task.creator),
    )
    fits = all(wanted in (None, value) for wanted, value in pairs) and set(which.tags) <= set(task.tags or ())
    return fits and task.status in (which.statuses or (task.status,)) and (not which.before or task.id < which.before)


def _most_open(task: Task, limits: Limits | None) -> tuple[int | None, int | None]:
    """Return how many tasks may be open when `task` is submitted, in total and for its creator; None for no limit."""
    if limits is None or task.cause not in OUTSIDE:
        return None, None
    return limits.max_open, limits.max_open_per_actor


def _relation(relative: Task, task: Task) -> str:
    """Return what `relative` is for `task`, such as "parent"; both tasks have the same root."""
    named = {task.parent_id: "parent", task.retry_of: "retry_of", task.id: "self"}
    if relative.id in named:
        return named[relative.id]
    if relative.id == task.root_id:
        return "root"
    if relative.retry_of is not None and relative.retry_of in (task.id, task.retry_of):
        return "retry"
    return "child" if relative.parent_id == task.id else "other"


KEPT_BY_RETRY = (
    "cause", "cause_id", "priority", "quiet", "origin_channel", "origin_session", "route", "notices", "workdir",
    "dir_key", "timeout_seconds", "on_crash", "max_attempts", "root_id", "parent_id", "progress", "trace", "worktree",
    "returns_to", "returns", "on_budget", "approvals", "probe", "tags",
)  # fmt: skip

"""The task service: submit, read, cancel and retry tasks. The record is `midwatch.domain.task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import AlreadyFinished, Conflict, InvalidInput, NotFinished, UnknownAgent
from midwatch.base.ids import new_id
from midwatch.base.text import cut
from midwatch.domain.agent import AgentTerms
from midwatch.domain.budget import BEFORE, Budget, retry_command, spending_of
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import InterruptReceived, event
from midwatch.domain.handoff import settle
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.requests import MAX_PROMPT, Submission, body_hash
from midwatch.domain.session import check_key
from midwatch.domain.steering import Mode, SendResult, Steer
from midwatch.domain.store import Store
from midwatch.domain.task import OUTSIDE, Summary, Task, TaskFilter, TaskStep, end, guard_ownership, meta, new_task
from midwatch.services.agent_registry import AgentRegistry
from midwatch.services.authorization import Authorization
from midwatch.services.records import apply_with_retry, require
from midwatch.services.request_checks import check, check_repository
from midwatch.services.task_endings import TaskEndings
from midwatch.services.waiter import Waiter

RELATIVE_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the task service."""

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
        check_route: Callable[[str], str],
        limits: Limits | None = None,
        submitter: str | None = None,
        waiter: Waiter | None = None,
        default_route: str | None = None,
        endings: TaskEndings | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._agents = agents
        self._check_route = check_route
        self._limits = limits or Limits()
        self._submitter = submitter
        self._waiter = waiter or Waiter()
        self._default_route = default_route
        self._endings = endings
        self.authorization = authorization or Authorization(store, self._terms)

    async def submit(self, prompt: str, *, actor: AnyActor = None, **wish: Unpack[Submission]) -> Task:
        """Submit a prompt for an agent and return its task. `Submission` lists the other fields.

        When this returns, the task is durable and will run. A second call with the same `idempotency_key` and the same
        fields returns the first task.
        """
        wish = await self.authorization.restrict_task(actor, wish)
        return await self._insert(await self._build(prompt, actor_name(actor), wish), self._limits)

    async def steer(self, prompt: str, mode: Mode, *, actor: AnyActor = None, **wish: Unpack[Submission]) -> SendResult:
        """Send a prompt into the turn that runs in `session_key`.

        The prompt becomes a task if no turn runs, or if the agent takes no messages during a turn.
        """
        task = await self._build(prompt, actor_name(actor), wish)
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

    async def _build(self, prompt: str, actor: str | None, wish: Submission) -> Task:
        check(prompt, wish, self._limits.max_prompt)
        name = wish.get("agent") or self._agents.default
        terms = await self._terms(name)
        route = wish.get("route") or self._default_route
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
            route=self._check_route(route) if route else None, workdir=wish.get("workdir"),
            dir_key=None if worktree or wish.get("share_workdir") else terms.dir_key(wish.get("workdir")),
            timeout_seconds=wish.get("timeout") or terms.timeout_seconds,
            on_crash=wish.get("on_crash") or terms.on_crash,
            max_attempts=wish.get("max_attempts") or terms.max_attempts, submitter=self._submitter,
            idempotency_key=key, body_hash=body_hash(prompt, wish) if key else None,
            budget=terms.budget_of(Budget.from_data(wish.get("budget"))), worktree=worktree,
        )  # fmt: skip

    async def _worktree(
        self, wish: Submission, session: str | None, terms: AgentTerms, now: int
    ) -> dict[str, Any] | None:
        """Return the worktree of the task: that of its session, a new one if it asks for one, or None."""
        wanted = bool(wish.get("worktree"))
        known = await self._store.get_session(session) if session else None
        if known is not None and known.worktree is None and wanted:
            raise InvalidInput(f"session {session} has no worktree; open a new session with one.", field="worktree")
        if known is not None and known.worktree is not None:
            return {"id": known.worktree}
        if wanted:
            check_repository(wish.get("workdir") or terms.workdir)
        return {"id": new_id("w", now)} if wanted else None

    async def get(self, task_id: str) -> Task:
        """Return the task with the reason why it waits, or raise NotFound."""
        task = await self._get(task_id)
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

    async def list(self, which: TaskFilter | None = None) -> list[Task]:
        """Return tasks that match, newest first, at most 500 at a time."""
        which = which or TaskFilter()
        if not 1 <= which.limit <= 500:
            raise InvalidInput("limit must be from 1 to 500.", field="limit")
        tasks = await self._store.list_tasks(which)
        waiting = {task.agent for task in tasks if task.status == "pending"}
        missing = waiting - await self._agents.live() if waiting else set()
        now = self._clock.now()
        return [
            t._replace(wait="agent") if t.status == "pending" and t.agent in missing and not t.waits_until(now) else t
            for t in tasks
        ]

    async def result(self, task_id: str) -> str:
        """Return the full result text of a task that is done; otherwise raise NotFinished."""
        task = await self._follow_transfers(task_id)
        if task.status == "done":
            return task.result or ""
        if task.open:
            raise NotFinished(task.id, task.status, f"look at it with `midwatch show {task.id}` and try again later.")
        raise NotFinished(task.id, task.status, f"{task.error or task.outcome}. Try again with `{task.again}`.")

    async def wait(self, task_id: str) -> Task:
        """Return the task when it has ended; if another agent took over its work, return that agent's task."""
        while True:
            task = await self._waiter.wait(task_id, partial(self._get, task_id), lambda task: not task.open)
            if task.transferred_to is None:
                return task
            task_id = task.transferred_to

    async def cancel(self, task_id: str, *, actor: AnyActor = None) -> Task:
        """Cancel a task. A pending task ends at once, a running task when its agent has stopped."""
        await self.authorization.check_task(actor, task_id)

        async def compute() -> tuple[Task, Changes]:
            task = await self._follow_transfers(task_id)
            if not task.open:
                raise AlreadyFinished(task.id, task.status)
            after, changes = stop_task(task, self._clock.now(), actor_name(actor))
            if self._endings is not None and task.stop_requested != "cancel":
                changes = await self._endings.end_attempt(task, TaskStep(after, changes))
            return after, changes

        return await apply_with_retry(self._store, f"task {task_id}", compute)

    async def retry(
        self, task_id: str, *, actor: AnyActor = None, idempotency_key: str | None = None,
        budget: Mapping[str, Any] | None = None,
    ) -> Task:  # fmt: skip
        """Submit a failed or cancelled task again, as a new task that continues from the old one's progress.

        The spending of the old task counts for the new one. `budget` raises or sets limits.
        """
        await self.authorization.check_task(actor, task_id)
        check("-", {"idempotency_key": idempotency_key, "budget": budget}, 1)
        old = await self._get(task_id)
        if old.open:
            raise Conflict(f"task {old.id} is still {old.status}; cancel it first with `midwatch cancel {old.id}`.")
        if old.status == "done":
            raise Conflict(f"task {old.id} is done; submit the prompt again instead.")
        if old.cause == "goal":
            raise Conflict(f"task {old.id} was a step of a goal; continue with `midwatch goal resume {old.cause_id}`.")
        await self._terms(old.agent)
        now = self._clock.now()
        fresh = new_task(
            now, old.prompt, old.agent, old.session_key, submitter=self._submitter, retry_of=old.retry_of or old.id,
            creator=actor_name(actor) or old.creator, internal_key=f"retry:{old.id}", idempotency_key=idempotency_key,
            body_hash=body_hash(f"retry:{old.id}", {"budget": budget}) if idempotency_key else None,
            budget=raise_budget(old, budget), **{name: getattr(old, name) for name in KEPT_BY_RETRY},
        )  # fmt: skip
        try:
            return await self._insert(fresh, None)
        except Conflict:
            raise Conflict(
                f"task {old.id} was retried already, or its automation runs now; see `midwatch tasks`."
            ) from None

    async def relatives(self, task: Task) -> Sequence[dict[str, Any]]:
        """Return the tasks with the same root as JSON, each with its relation to `task`."""
        return [
            {
                "id": relative.id,
                "relation": _relation(relative, task),
                "status": relative.status,
                "outcome": relative.outcome,
                "prompt": cut(relative.prompt, RELATIVE_TEXT),
                "agent": relative.agent,
                "created_at": iso(relative.created_at),
            }
            for relative in await self._store.list_related_tasks(task.root_id or task.id)
        ]

    async def summary(self) -> Summary:
        """Return the number of tasks by status."""
        return await self._store.count_tasks()

    async def active_count(self) -> int:
        """Return the number of tasks that are pending or running."""
        return (await self._store.count_tasks()).active

    async def _insert(self, task: Task, limits: Limits | None) -> Task:
        return (await self._store.submit(task, *_most_open(task, limits))).task

    async def check_agent(self, agent: str | None) -> str:
        """Return the name of the agent, or of the default agent; raise UnknownAgent if no process has that agent."""
        name = agent or self._agents.default
        await self._terms(name)
        return name

    async def steerable(self, agent: str) -> bool:
        """Return whether the agent takes messages during a turn."""
        return (await self._terms(agent)).steerable

    async def _get(self, task_id: str) -> Task:
        return require(await self._store.get_task(task_id), "task", task_id)

    async def _follow_transfers(self, task_id: str) -> Task:
        """Return the task, or the task to which its work was transferred."""
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


def stop_task(task: Task, now: int, actor: str | None = None) -> tuple[Task, Changes]:
    """Return the stopped task and its changes. A pending task ends at once, a running task is ended by its worker."""
    if task.status == "pending":
        return end(task, now, outcome="cancelled", actor=actor)
    if task.stop_requested == "cancel":
        return task, Changes()
    interrupt = event(InterruptReceived(reason="cancel"), now, **meta(task, actor))
    stop = Update("task", task.id, {"stop_requested": "cancel"}, guard_ownership(task))
    return task._replace(stop_requested="cancel"), Changes(updates=(stop,), events=(interrupt,))


async def stop_work(store: Store, work: Task | None, now: int, actor: str | None) -> tuple[Task | None, Changes]:
    """Return the stopped run of an automation or step of a goal, and the changes; they also end its handoff."""
    if work is None:
        return None, Changes()
    stopped, changes = stop_task(work, now, actor)
    if work.cause != "handoff" or stopped.open:
        return stopped, changes
    handoff = await store.get_handoff(work.cause_id or "")
    if handoff is not None:
        changes = changes.plus(settle(handoff, stopped, now))
    return stopped._replace(attempt=max(1, stopped.attempt)), changes  # the work began before it was handed over


def _most_open(task: Task, limits: Limits | None) -> tuple[int | None, int | None]:
    """Return the limits of open tasks, in total and for the creator of `task`; None for no limit."""
    if limits is None or task.cause not in OUTSIDE:
        return None, None
    return limits.max_open, limits.max_open_per_actor


def _relation(relative: Task, task: Task) -> str:
    """Return the relation of another task with the same root to `task`."""
    named = {task.parent_id: "parent", task.retry_of: "retry_of", task.id: "self"}
    if relative.id in named:
        return named[relative.id]
    if relative.id == task.root_id:
        return "root"
    if relative.retry_of is not None and relative.retry_of in (task.id, task.retry_of):
        return "retry"
    return "child" if relative.parent_id == task.id else "other"


def raise_budget(old: Task, raised: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the budget of a task that continues `old`; raise Conflict if that budget is spent already."""
    limits = Budget.from_record(old.budget).override_with(Budget.from_data(raised))
    spent = spending_of(old.budget, old.usage)
    most = limits.data()
    if most is None:
        return None
    before = {name: figure for name, figure in spent._asdict().items() if figure}
    budget = {**most, **({BEFORE: before} if before else {})}
    if over := limits.over(spent, "task"):
        raise Conflict(
            f"task {old.id} cannot continue: {over.words}. Raise the limit: `{retry_command(old.id, budget, None)}`."
        )
    return budget


KEPT_BY_RETRY = (
    "cause", "cause_id", "priority", "quiet", "origin_channel", "origin_session", "route", "workdir", "dir_key",
    "timeout_seconds", "on_crash", "max_attempts", "root_id", "parent_id", "progress", "trace", "worktree",
)  # fmt: skip

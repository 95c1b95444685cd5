"""Tasks: the only thing that runs.

A task is one prompt for one agent in one session. It is pending, then running, then done, failed or cancelled; a
running task may go back to pending (back-off, rescue, interruption). Terminal states absorb. Workers own a task by
attempt number: a write that names another attempt than the current one is refused.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Unpack

from midwatch.change import Changes, Fence, Update
from midwatch.channel import Delivery, Route, end_text, start_text
from midwatch.clock import SECOND, Clock, iso, new_id
from midwatch.errors import AlreadyFinished, Conflict, InvalidInput, NotFinished, NotFound, UnknownAgent
from midwatch.event import Event, InterruptReceived, TaskFinished, TaskSubmitted, event
from midwatch.session import Message, checked_key, gate_key
from midwatch.submission import MAX_PROMPT, PRIORITY, Cause, OnCrash, Submission, body_hash, check

Status = Literal["pending", "running", "done", "failed", "cancelled"]
Outcome = Literal["ok", "silent", "error", "timeout", "cancelled", "lost", "budget", "transferred"]
Stop = Literal["cancel", "yield", "budget", "shutdown"]

STATUSES: tuple[Status, ...] = ("pending", "running", "done", "failed", "cancelled")
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"running", "cancelled"}),
    "running": frozenset({"pending", "done", "failed", "cancelled"}),
    "done": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
OPEN: frozenset[Status] = frozenset({"pending", "running"})
STATUS_OF: Mapping[Outcome, Status] = {
    "ok": "done",
    "silent": "done",
    "transferred": "done",
    "error": "failed",
    "timeout": "failed",
    "lost": "failed",
    "budget": "failed",
    "cancelled": "cancelled",
}
OUTSIDE: frozenset[Cause] = frozenset({"submit", "message"})
"""Causes that count against `max_open`; midwatch's own work is never refused."""

MAX_RESCUES = 5
TRIES = 5
"""How often a service recomputes a change whose guard failed before it gives up."""


class Task(NamedTuple):
    """The record. Times are microseconds, `None` where nothing has happened yet."""

    id: str
    status: Status
    prompt: str
    agent: str
    session_key: str
    gate_key: str
    created_at: int
    due_at: int
    cause: Cause = "submit"
    cause_id: str | None = None
    priority: int = 0
    creator: str | None = None
    origin_channel: str | None = None
    origin_session: str | None = None
    route: str | None = None
    workdir: str | None = None
    timeout_seconds: float | None = None
    on_crash: OnCrash = "fail"
    max_attempts: int = 3
    attempt: int = 0
    failures: int = 0
    rescues: int = 0
    interruptions: int = 0
    stop_requested: Stop | None = None
    wait: str | None = None
    lease_owner: str | None = None
    host: str | None = None
    pgid: int | None = None
    pgid_mark: str | None = None
    token_hash: str | None = None
    submitter: str | None = None
    started_at: int | None = None
    completed_at: int | None = None
    outcome: Outcome | None = None
    result: str | None = None
    error: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    retry_of: str | None = None
    idempotency_key: str | None = None
    body_hash: str | None = None
    internal_key: str | None = None
    progress: Any = None
    budget: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    trace: Mapping[str, Any] | None = None

    @property
    def noun(self) -> str:
        """Its table."""
        return "task"

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN

    @property
    def tokens_used(self) -> int | None:
        """Tokens in and out, or None when the agent did not tell."""
        known = [v for v in ((self.usage or {}).get(k) for k in ("input_tokens", "output_tokens")) if v is not None]
        return sum(known) if known else None

    @property
    def rank(self) -> int:
        """Claim order, lower first: a person's messages, then priority."""
        return (-10 * PRIORITY if self.cause == "message" else 0) - self.priority

    def waits_until(self, now: int) -> bool:
        """Whether it waits for its time to come."""
        return self.wait is not None and self.due_at > now

    @property
    def status_text(self) -> str:
        """The status and, while the task is open, what it waits for."""
        if self.status == "running" and self.stop_requested:
            return f"running: stopping ({self.stop_requested})"
        if self.open and self.wait:
            until = f" until {iso(self.due_at)}" if self.status == "pending" and self.wait in TIMED_WAITS else ""
            return f"{self.status}: {WAITS.get(self.wait, self.wait).format(agent=self.agent)}{until}"
        return self.status

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it. The lease and the hashes stay inside."""
        shown = {name: getattr(self, name) for name in SHOWN}
        shown["status_text"] = self.status_text
        shown["tokens_used"] = self.tokens_used
        for name in ("created_at", "due_at", "started_at", "completed_at"):
            shown[name] = iso(getattr(self, name))
        return shown


SHOWN = (
    "id", "status", "outcome", "prompt", "result", "error", "agent", "session_key", "origin_channel", "origin_session",
    "route", "workdir", "cause", "cause_id", "priority", "creator", "timeout_seconds", "on_crash", "attempt",
    "failures", "rescues", "interruptions", "max_attempts", "stop_requested", "wait", "root_id", "parent_id",
    "retry_of", "usage",
)  # fmt: skip
WAITS = {
    "delay": "waits for its time",
    "backoff": "waits before the next try",
    "limit": "waits for the provider's usage limit",
    "session": "waits for its session's running task",
    "slot": "waits for a free slot",
    "agent": "no live process has agent {agent!r}",
    "approval": "waits for an answer",
}
TIMED_WAITS = frozenset({"delay", "backoff", "limit"})


class AgentTerms(NamedTuple):
    """What a task inherits from its agent's configuration when the submitter does not say."""

    timeout_seconds: float | None = 1800.0
    on_crash: OnCrash = "fail"
    max_attempts: int = 3
    slots: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks to list; empty means all. `before` is the id the last page ended with."""

    statuses: tuple[Status, ...] = ()
    agent: str | None = None
    session_key: str | None = None
    creator: str | None = None
    before: str | None = None
    limit: int = 50


class Summary(NamedTuple):
    """How many tasks there are, by status."""

    total: int
    pending: int
    running: int
    done: int
    failed: int
    cancelled: int

    @property
    def active(self) -> int:
        """Pending and running together."""
        return self.pending + self.running


class ClaimRequest(NamedTuple):
    """What a process can take now: `free` slots in all, and per agent."""

    owner: str
    host: str
    free: int
    agents: Mapping[str, int]
    own_only: bool = False
    leave: frozenset[str] = frozenset()
    """Agents another live process serves: of these only what `owner` itself submitted is taken."""


class Claim(NamedTuple):
    """A task that now belongs to the claimer, and the secret its agent may speak with during this attempt."""

    task: Task
    token: str


class Claims(NamedTuple):
    """What was taken, and when the next task that is not due yet will be."""

    taken: list[Claim]
    next_due: int | None


class Submitted(NamedTuple):
    """The stored task, and whether this call created it (False: an earlier call with the same key did)."""

    task: Task
    created: bool


class TaskStore(Protocol):
    """Port: tasks. Every verb is one business step in one transaction; it is durable when the call returns."""

    async def submit(self, task: Task, changes: Changes, max_open: int | None) -> Submitted:
        """Insert `task` with `changes`. With a key that its creator used before, return the first record instead, or
        raise KeyReused if the body differs. LimitReached when `max_open` outside tasks are open (a replay succeeds
        all the same). A person's message asks the holder of its gate to yield, where the holder may."""
        ...

    async def claim(self, request: ClaimRequest, now: int) -> Claims:
        """Take due tasks in claim order, one per gate, within the request's slots: each becomes running with a new
        attempt, owner and token, a `task_started` event and its start notice."""
        ...

    async def apply(self, changes: Changes) -> None:
        """Write a step as a whole. LeaseLost or Conflict when its fence or a guard no longer holds."""
        ...

    async def record_late(self, late: Event) -> bool:
        """Append a `task_late` event unless this attempt has one. True if it was appended."""
        ...

    async def get_task(self, task_id: str) -> Task | None:
        """The task, or None."""
        ...

    async def list_tasks(self, which: TaskFilter) -> list[Task]:
        """Newest first."""
        ...

    async def count_tasks(self) -> Summary:
        """Counts by status, from an index."""
        ...

    async def running_tasks(self, owner: str | None = None) -> list[Task]:
        """Running tasks, of one owner or of all."""
        ...

    async def gate_holder(self, gate: str) -> str | None:
        """Id of the task that runs in this gate, or None."""
        ...

    async def open_events(self, fence: Fence) -> list[Event]:
        """The attempt's stored turn_start and tool_exec_start events that have no end yet."""
        ...

    async def prune_tasks(self, before: int, keep: int) -> int:
        """Remove ended tasks completed before `before`, and the oldest beyond `keep`, with their deliveries and
        approvals. Returns how many went."""
        ...


# -- pure steps --------------------------------------------------------------------------------------------------


def notices(task: Task, notice: str, text: str, now: int) -> tuple[Delivery, ...]:
    """The delivery of one notice about `task` to its route, if it has one."""
    if not task.route:
        return ()
    route = Route.parse(task.route)
    made = Delivery(
        id=new_id("d", now), task_id=task.id, channel=route.channel, target=route.target, notice=notice, text=text,
        due_at=now, created_at=now,
    )  # fmt: skip
    return (made,)


def start_notice(task: Task, now: int) -> tuple[Delivery, ...]:
    """Tell the route that work has begun."""
    return notices(task, "started", start_text(task.id, task.prompt, task.agent), now) if task.route else ()


def end_notice(task: Task, now: int) -> tuple[Delivery, ...]:
    """Tell the route how it ended, and where the rest can be read."""
    if not task.route or task.outcome == "silent":
        return ()
    word = "timed_out" if task.outcome == "timeout" else task.status
    return notices(task, word, end_text(word, task.id, task.prompt, task.result or task.error or ""), now)


def conversation(task: Task) -> bool:
    """Whether the task's session is kept as a conversation; a task's private session is its own record."""
    return task.session_key != f"bg:{task.retry_of or task.id}"


def end_messages(task: Task, now: int) -> tuple[Message, ...]:
    """The answer for the task's conversation, and the result for the session it was asked from."""
    text = task.result if task.status == "done" else f"[{task.status}: {task.outcome}] {task.error or ''}".rstrip()
    if text is None or task.outcome == "silent":
        return ()
    made = []
    if conversation(task):
        made.append(Message(session_key=task.session_key, role="agent", text=text, time=now, task_id=task.id))
    if task.origin_session and task.origin_session != task.session_key:
        made.append(Message(session_key=task.origin_session, role="result", text=text, time=now, task_id=task.id))
    return tuple(made)


def end(
    task: Task,
    now: int,
    *,
    outcome: Outcome,
    result: str | None = None,
    error: str | None = None,
    usage: Mapping[str, Any] | None = None,
    actor: str | None = None,
) -> tuple[Task, Changes]:
    """The task as it ends, and everything that is written with it. Guarded by what was known of a stop."""
    ended = task._replace(
        status=STATUS_OF[outcome], outcome=outcome, result=result, error=error, usage=usage or task.usage,
        completed_at=now, wait=None, lease_owner=None, pgid=None, pgid_mark=None, token_hash=None,
    )  # fmt: skip
    fields = {name: getattr(ended, name) for name in ENDED_FIELDS}
    told = TaskFinished(status=ended.status, outcome=outcome, result=result, error=error, usage=ended.usage)
    return ended, Changes(
        updates=(Update("task", task.id, fields, owned(task)),),
        messages=end_messages(ended, now),
        deliveries=end_notice(ended, now),
        events=(event(told, now, **meta(task, actor)),),
    )


ENDED_FIELDS = (
    "status", "outcome", "result", "error", "usage", "completed_at", "wait", "lease_owner", "pgid",
    "pgid_mark", "token_hash",
)  # fmt: skip


def owned(task: Task) -> dict[str, Any]:
    """The guard of a step that assumes the task is just as it was read."""
    return {"status": task.status, "attempt": task.attempt, "stop_requested": task.stop_requested}


def meta(task: Task, actor: str | None = None) -> dict[str, Any]:
    """Envelope fields of an event about `task`."""
    return {
        "task_id": task.id,
        "session_key": task.session_key,
        "agent_id": task.agent,
        "attempt": task.attempt,
        "actor": actor or task.creator,
    }


def retry_delay(failures: int, base_seconds: float = 2.0, cap_seconds: float = 300.0) -> float:
    """Seconds to wait before the next try: doubling, jittered by half either way so that many do not come at once."""
    plain: float = min(cap_seconds, base_seconds * 2.0 ** (failures - 1))
    return plain * random.uniform(0.5, 1.5)  # noqa: S311 - spreading load, not a secret


# -- service -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the task service."""

    max_open: int = 1000
    max_prompt: int = MAX_PROMPT


class Agents(Protocol):
    """What the task service asks about agents."""

    default: str

    def terms(self, agent: str) -> AgentTerms | None:
        """The configured terms of `agent`, or None when this process does not know it."""
        ...

    def known(self) -> frozenset[str]:
        """Names of the agents configured in this process."""
        ...

    async def advertised(self, agent: str) -> AgentTerms | None:
        """The terms of an agent that only another live process has, or None."""
        ...

    async def live(self) -> frozenset[str]:
        """Names of the agents that some live process can run now."""
        ...


class Tasks:
    """Service: hand in work, look at it, stop it, have it again."""

    def __init__(
        self,
        store: TaskStore,
        clock: Clock,
        agents: Agents,
        check_route: Callable[[str], str],
        limits: Limits | None = None,
        submitter: str | None = None,
        wait_finished: Callable[[str], Awaitable[None]] | None = None,
        default_route: str | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._agents = agents
        self._check_route = check_route
        self._limits = limits or Limits()
        self._submitter = submitter
        self._wait_finished = wait_finished
        self._default_route = default_route

    async def submit(self, prompt: str, *, actor: str | None = None, **wish: Unpack[Submission]) -> Task:
        """Accept a prompt for an agent; `Submission` lists what else can be said. When this returns the task is
        durable and will run. The same `idempotency_key` with the same wishes returns the first task."""
        check(prompt, wish, self._limits.max_prompt)
        name = wish.get("agent") or self._agents.default
        terms = await self._terms(name)
        route = wish.get("route") or self._default_route
        delay = wish.get("delay") or 0
        key = wish.get("idempotency_key")
        now = self._clock.now()
        task_id = new_id("t", now)
        origin = wish.get("origin_session")
        origin = checked_key(origin, "origin_session") if origin else None
        session = wish.get("session_key")
        session = checked_key(session) if session else f"bg:{task_id}"
        task = Task(
            id=task_id, status="pending", prompt=prompt, agent=name, session_key=session, gate_key=gate_key(session),
            created_at=now, due_at=now + int(delay * SECOND), wait="delay" if delay else None,
            cause=wish.get("cause") or "submit", priority=wish.get("priority") or 0, creator=actor,
            origin_channel=wish.get("origin_channel"), origin_session=origin,
            route=self._check_route(route) if route else None, workdir=wish.get("workdir"),
            timeout_seconds=wish.get("timeout") or terms.timeout_seconds,
            on_crash=wish.get("on_crash") or terms.on_crash,
            max_attempts=wish.get("max_attempts") or terms.max_attempts, submitter=self._submitter,
            root_id=task_id, idempotency_key=key,
            body_hash=body_hash(prompt, wish) if key else None, budget=wish.get("budget"),
        )  # fmt: skip
        return await self._insert(task, self._limits.max_open)

    async def get(self, task_id: str) -> Task:
        """The task, with what it waits for worked out, or NotFound."""
        task = await self._get(task_id)
        if task.status != "pending" or task.waits_until(self._clock.now()):
            return task
        if task.agent not in await self._agents.live():
            return task._replace(wait="agent")
        held = await self._store.gate_holder(task.gate_key)
        return task._replace(wait="session" if held else "slot")

    status = get
    """Another name for `get`."""

    async def list(self, which: TaskFilter | None = None) -> list[Task]:
        """Tasks that match, newest first, at most 500 at a time."""
        which = which or TaskFilter()
        if not 1 <= which.limit <= 500:
            raise InvalidInput("limit is 1 to 500.", field="limit")
        found = await self._store.list_tasks(which)
        waiting = {task.agent for task in found if task.status == "pending"}
        missing = waiting - await self._agents.live() if waiting else set()
        now = self._clock.now()
        return [
            t._replace(wait="agent") if t.status == "pending" and t.agent in missing and not t.waits_until(now) else t
            for t in found
        ]

    async def result(self, task_id: str) -> str:
        """The whole text of a task that is done."""
        task = await self._get(task_id)
        if task.status == "done":
            return task.result or ""
        if task.open:
            raise NotFinished(task.id, task.status, f"look at it with `midwatch show {task.id}` and try again later.")
        raise NotFinished(
            task.id, task.status, f"{task.error or task.outcome}. Try again with `midwatch retry {task.id}`."
        )

    async def wait(self, task_id: str) -> Task:
        """Return the task once it has ended."""
        if self._wait_finished is None:
            raise InvalidInput("this process does not follow the log, so it cannot wait.")
        await self._wait_finished(task_id)
        return await self._get(task_id)

    async def cancel(self, task_id: str, *, actor: str | None = None) -> Task:
        """Stop it. A pending task ends now; a running one when its agent has been stopped."""
        for _ in range(TRIES):
            task = await self._get(task_id)
            if not task.open:
                raise AlreadyFinished(task.id, task.status)
            if task.stop_requested == "cancel":
                return task
            if task.status == "pending":
                after, changes = end(task, self._clock.now(), outcome="cancelled", actor=actor)
            else:
                after = task._replace(stop_requested="cancel")
                told = event(InterruptReceived(reason="cancel"), self._clock.now(), **meta(task, actor))
                stop = Update("task", task.id, {"stop_requested": "cancel"}, owned(task))
                changes = Changes(updates=(stop,), events=(told,))
            try:
                await self._store.apply(changes)
            except Conflict:
                continue
            return after
        raise Conflict(f"task {task_id} keeps changing; try again.")

    async def retry(self, task_id: str, *, actor: str | None = None) -> Task:
        """Submit a failed or cancelled task again, as a new task that continues from the old one's progress."""
        old = await self._get(task_id)
        if old.open:
            raise Conflict(f"task {old.id} is still {old.status}; cancel it first with `midwatch cancel {old.id}`.")
        if old.status == "done":
            raise Conflict(f"task {old.id} is done; submit the prompt again instead.")
        await self._terms(old.agent)
        now = self._clock.now()
        fresh = Task(
            id=new_id("t", now), status="pending", prompt=old.prompt, agent=old.agent, session_key=old.session_key,
            gate_key=old.gate_key, created_at=now, due_at=now, submitter=self._submitter,
            retry_of=old.retry_of or old.id, creator=actor or old.creator, internal_key=f"retry:{old.id}",
            **{name: getattr(old, name) for name in KEPT_BY_RETRY},
        )  # fmt: skip
        try:
            return await self._insert(fresh, None)
        except Conflict:
            raise Conflict(f"task {old.id} was retried already; retry its newest try, see `midwatch tasks`.") from None

    async def summary(self) -> Summary:
        """Counts by status."""
        return await self._store.count_tasks()

    async def active_count(self) -> int:
        """How many are pending or running."""
        return (await self._store.count_tasks()).active

    async def _insert(self, task: Task, max_open: int | None) -> Task:
        told = TaskSubmitted(
            prompt=task.prompt, agent=task.agent, cause=task.cause, priority=task.priority,
            due_at=iso(task.due_at) if task.wait else None, retry_of=task.retry_of,
        )  # fmt: skip
        changes = Changes(events=(event(told, task.created_at, **meta(task)),))
        return (await self._store.submit(task, changes, max_open if task.cause in OUTSIDE else None)).task

    async def _get(self, task_id: str) -> Task:
        found = await self._store.get_task(task_id)
        if found is None:
            raise NotFound("task", task_id)
        return found

    async def _terms(self, agent: str) -> AgentTerms:
        terms = self._agents.terms(agent)
        if terms is not None:
            return terms
        terms = await self._agents.advertised(agent)
        if terms is None:
            raise UnknownAgent(agent, sorted(await self._agents.live() | self._agents.known()))
        return terms


KEPT_BY_RETRY = (
    "cause", "cause_id", "priority", "origin_channel", "origin_session", "route", "workdir", "timeout_seconds",
    "on_crash", "max_attempts", "root_id", "parent_id", "progress", "budget", "trace",
)  # fmt: skip

"""Tasks: all work of agents. A task is one prompt for one agent in one session.

A task is pending, then running, then done, failed or cancelled. A running task may become pending again (backoff,
rescue, interruption); an ended task never changes its status. A worker owns one attempt of a task: the store refuses
what an earlier attempt writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from midwatch.base.clock import iso
from midwatch.base.directories import pin_directory
from midwatch.base.ids import new_id
from midwatch.base.text import cut
from midwatch.base.trace import incoming
from midwatch.domain.budget import Over, suggest_retry
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import hide_target
from midwatch.domain.context_item import ContextItem, Returns, make_item
from midwatch.domain.event import AgentFault, Event, StatusChange, TaskFinished, TaskSubmitted, event
from midwatch.domain.fields import AT, Example, Hidden, Show, to_json
from midwatch.domain.notice import end_notice, show_plan
from midwatch.domain.requests import PRIORITY, Cause, OnBudget, OnCrash
from midwatch.domain.session import PRIVATE, Message, Session, announce_message, gate_key
from midwatch.domain.worktree_note import show_worktree

Status = Literal["pending", "running", "done", "failed", "cancelled"]
Outcome = Literal["ok", "silent", "error", "timeout", "cancelled", "lost", "budget", "transferred", "skipped"]
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
    "skipped": "done",
    "error": "failed",
    "timeout": "failed",
    "lost": "failed",
    "budget": "failed",
    "cancelled": "cancelled",
}
OUTSIDE: frozenset[Cause] = frozenset({"submit", "message"})
"""Only tasks with these causes count for the limit `max_open`; tasks with other causes are never refused."""

AUTOMATION_PAUSES = (30.0, 60.0, 300.0, 900.0, 3600.0)
"""The pauses in seconds before each retry of an automation's run; after the last retry the run has failed."""
MAX_RESCUES = 5
TRIES = 5
"""How often a service tries to write a change if there is a conflict."""


class Task(NamedTuple):
    """The record of a task. Times are in microseconds; a time is None if its moment has not come yet.

    If the agent handed the work over, `transferred_to` is the task that continues the work. `worktree` has only `id`
    until the worktree exists; see `midwatch.domain.worktree`.
    """

    id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    status: Annotated[Status, Example("done")]
    prompt: Annotated[str, Example("Say hello")]
    agent: Annotated[str, Example("demo")]
    session_key: Annotated[str, Example("bg:t_06f2m8yq3kq5r0v9x1w2")]
    gate_key: Hidden[str]
    created_at: int
    due_at: int
    cause: Cause = "submit"
    cause_id: str | None = None
    priority: int = 0
    creator: Annotated[str | None, Example("owner")] = None
    origin_channel: str | None = None
    origin_session: str | None = None
    route: Annotated[str | None, Show(hide_target)] = None
    notices: Annotated[str | None, Show(show_plan)] = None
    """The plan of its notices and, on a second line, the title that they name; see `midwatch.domain.notice`."""
    workdir: str | None = None
    pin: Hidden[str | None] = None
    """The directory that was at the path `workdir` when the task was created; see `midwatch.base.directories`."""
    dir_key: Hidden[str | None] = None
    """The directory that only this task uses while it runs."""
    quiet: Hidden[str | None] = None
    """An answer with exactly this text is not delivered."""
    timeout_seconds: float | None = None
    on_crash: Annotated[OnCrash, Example("rerun")] = "fail"
    max_attempts: int = 3
    attempt: Annotated[int, Example(1)] = 0
    failures: int = 0
    rescues: int = 0
    interruptions: int = 0
    stop_requested: Stop | None = None
    wait: str | None = None
    lease_owner: Hidden[str | None] = None
    host: Hidden[str | None] = None
    pgid: Hidden[int | None] = None
    pgid_mark: Hidden[str | None] = None
    token_hash: Hidden[str | None] = None
    submitter: Hidden[str | None] = None
    started_at: Annotated[int | None, Example(AT)] = None
    completed_at: Annotated[int | None, Example(AT)] = None
    outcome: Annotated[Outcome | None, Example("ok")] = None
    result: Annotated[str | None, Example("Hello.")] = None
    error: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    retry_of: str | None = None
    account_id: Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")] = None
    """The account of the task, if it is not the account that has the id of the task."""
    on_budget: OnBudget = "stop"
    idempotency_key: Hidden[str | None] = None
    body_hash: Hidden[str | None] = None
    internal_key: Hidden[str | None] = None
    transferred_to: str | None = None
    steers: Hidden[int] = 0
    """How many messages people sent to turns of this task. A step that ends the task fails if this has changed."""
    parent_turn_id: str | None = None
    trace_path: str | None = None
    source: str | None = None  # these three: see `midwatch.domain.lineage`
    returns_to: Hidden[str | None] = None
    """The task whose agent started this task without waiting for it, or None."""
    returns: Hidden[Returns | None] = None
    progress: Hidden[Any] = None
    budget: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    trace: Hidden[Mapping[str, Any] | None] = None
    worktree: Annotated[Mapping[str, Any] | None, Show(show_worktree)] = None
    approvals: Mapping[str, Any] | None = None
    """The rules of the task and of the work that it grew out of, a `midwatch.domain.rule.Policy` as JSON."""
    probe: Hidden[Mapping[str, Any] | None] = None
    """A command that midwatch runs for the task, a `midwatch.domain.probe.Probe` as JSON."""

    @property
    def noun(self) -> str:
        """Return the name of the table of tasks."""
        return "task"

    @property
    def open(self) -> bool:
        """Return whether the task has not ended."""
        return self.status in OPEN

    @property
    def tokens_used(self) -> int | None:
        """Return the sum of the model's input and output tokens, or None if neither is known."""
        counts = [v for v in ((self.usage or {}).get(k) for k in ("input_tokens", "output_tokens")) if v is not None]
        return sum(counts) if counts else None

    @property
    def account(self) -> str:
        """Return the id of the account that the task shares with all work of its tree."""
        return self.account_id or self.id

    @property
    def again(self) -> str:
        """Return the command that retries the task."""
        return suggest_retry(self.id, self.outcome, self.error)

    @property
    def resume_command(self) -> str | None:
        """Return the command that resumes the automation or goal of the task; None if it belongs to neither."""
        owned_by = self.cause in ("automation", "goal") and self.cause_id
        return f"midwatch {self.cause} resume {self.cause_id}" if owned_by else None

    @property
    def actor(self) -> str:
        """Return the actor that the slot of the task is counted for."""
        return self.creator or ""

    @property
    def rank(self) -> int:
        """Return the rank of the task for claims; a lower rank is claimed first.

        Messages of people have the lowest ranks. Otherwise a higher priority gives a lower rank.
        """
        return (-10 * PRIORITY if self.cause == "message" else 0) - self.priority

    def waits_until(self, now: int) -> bool:
        """Return whether the task waits for its time `due_at`, and this time is after `now`."""
        return self.wait is not None and self.due_at > now

    @property
    def status_text(self) -> str:
        """Return the status as text for people and, while the task is open, what the task waits for."""
        if self.status == "running" and self.stop_requested:
            return f"running: stopping ({self.stop_requested})"
        if self.open and self.wait:
            until = f" until {iso(self.due_at)}" if self.status == "pending" and self.wait in TIMED_WAITS else ""
            return f"{self.status}: {WAITS.get(self.wait, self.wait).format(agent=self.agent)}{until}"
        return self.status

    def snapshot(self) -> dict[str, Any]:
        """Return the task as JSON shows it, without the lease, the hashes and the target of the route."""
        more = {"status_text": self.status_text, "tokens_used": self.tokens_used, "account_id": self.account}
        return {**to_json(self), **more}

    def brief(self) -> dict[str, Any]:
        """Return the task as lists show it, with long texts cut."""
        shown = self.snapshot()
        for name in ("prompt", "result", "error"):
            if shown[name]:
                shown[name] = cut(shown[name], LISTED_TEXT)
        return shown

    def run_snapshot(self) -> dict[str, Any]:
        """Return the task as JSON, as the list of an automation's runs or a goal's steps shows it."""
        _, _, due = (self.internal_key or "").partition("@")
        return {
            "task_id": self.id,
            "scheduled_for": iso(int(due)) if due.isdigit() else None,
            "status": self.status,
            "outcome": self.outcome,
            "started_at": iso(self.started_at),
            "completed_at": iso(self.completed_at),
            "result": None if self.result is None else cut(self.result, RUN_TEXT),
            "error": self.error,
            "usage": self.usage,
        }


PLACES: Mapping[str, int] = {name: place for place, name in enumerate(Task._fields)}


def change(task: Task, fields: Mapping[str, Any]) -> Task:
    """Return the task with new values of some fields. For a record with so many fields `_replace` is slower."""
    values = list(task)
    for name, value in fields.items():
        values[PLACES[name]] = value
    return Task._make(values)


LISTED_TEXT, RUN_TEXT = 2000, 500
"""The greatest length of a text in lists of tasks, and in lists of runs or steps, in characters."""
WAITS = {
    "delay": "waits for its time",
    "backoff": "waits before the next try",
    "limit": "waits for the end of a usage limit",
    "session": "waits for its session's running task",
    "directory": "waits for the task that works in its directory",
    "slot": "waits for a free slot",
    "agent": "no live process has agent {agent!r}",
    "approval": "waits for an answer",
    "handoff": "waits for work it handed over",
}
TIMED_WAITS = frozenset({"delay", "backoff", "limit"})


# -- pure steps --------------------------------------------------------------------------------------------------


def new_task(
    now: int,
    prompt: str,
    agent: str,
    session_key: str | None = None,
    *,
    task_id: str | None = None,
    delay: int = 0,
    root_id: str | None = None,
    trace: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Task:
    """Return a new pending task; `delay` is in microseconds, `fields` are other fields of the record.

    Without a session key the task gets a private session. Without `trace` it gets the trace of the current request, if
    there is one. Without `pin`, the directory that is at the path `workdir` now is pinned.
    """
    task_id = task_id or new_id("t", now)
    session = session_key or f"{PRIVATE}{task_id}"
    fields["root_id"] = root_id or task_id
    fields["trace"] = trace or incoming.get()
    if "pin" not in fields:
        fields["pin"] = pin_directory(fields.get("workdir"))
    if delay:
        fields["wait"] = "delay"
    return Task(task_id, "pending", prompt, agent, session, gate_key(session), now, now + delay, **fields)


def submit_task(task: Task, now: int, actor: str | None = None) -> Changes:
    """Return the step that writes the record of a new task, and the event about it.

    If `actor` is None, the event names the creator of the task as its actor.
    """
    submitted = TaskSubmitted(
        prompt=task.prompt, agent=task.agent, cause=task.cause, priority=task.priority,
        due_at=iso(task.due_at) if task.wait else None, retry_of=task.retry_of,
    )  # fmt: skip
    return Changes(records=(task,), events=(event(submitted, now, **meta(task, actor)),))


def has_conversation(task: Task) -> bool:
    """Return whether the session of the task is a conversation, and not a private session for this task alone."""
    return task.session_key != f"{PRIVATE}{task.retry_of or task.id}"


def has_past(task: Task) -> bool:
    """Return whether there may have been an earlier turn in the session of the task, or an earlier attempt."""
    return has_conversation(task) or task.attempt > 1 or task.retry_of is not None


def prompt_message(task: Task, now: int) -> Message:
    """Return the prompt of the task as a message of the conversation; the prompt of a result is a notice."""
    by = {"role": "notice"} if task.cause == "result" else {"role": "user", "author": task.creator}
    return Message(session_key=task.session_key, text=task.prompt, time=now, task_id=task.id, id=task.id, **by)


def end_messages(task: Task, now: int) -> tuple[Message, ...]:
    """Return the messages about the end of a task.

    These are the answer for the task's conversation, and the result for the session that the task was submitted from.
    """
    talks = has_conversation(task) and task.attempt
    if not (talks or task.origin_session):
        return ()
    if (text := tell_end(task)) is None:
        return ()
    messages = []
    about: dict[str, Any] = {"text": text, "time": now, "task_id": task.id, "author": task.agent}
    if talks:
        answer = f"{task.id}.{task.attempt}"
        messages.append(Message(session_key=task.session_key, role="agent", id=answer, **about))
    if task.origin_session and task.origin_session != task.session_key:
        messages.append(Message(session_key=task.origin_session, role="result", id=f"{task.id}.result", **about))
    return tuple(messages)


def tell_end(task: Task) -> str | None:
    """Return the result of an ended task, or the reason why it has none; None if the task has nothing to tell."""
    if task.outcome in ("silent", "skipped") or task.transferred_to:
        return None
    how = task.status if task.status == task.outcome else f"{task.status}: {task.outcome}"
    return task.result if task.status == "done" else f"[{how}] {task.error or ''}".rstrip()


def return_result(task: Task, now: int) -> tuple[ContextItem, ...]:
    """Return the result of an ended task for the agent that started it; none if nobody did, or somebody waits.

    A silent end sends no notice to people, but the agent gets it, except that of a turn that only took results.
    """
    silent = task.outcome == "silent" and task.cause != "result"
    text = (task.result or "") if silent else tell_end(task)
    if task.returns_to is None or text is None:
        return ()
    about = task.returns_to, task.id, task.agent, task.outcome or "", text
    return (make_item(*about, now, wake=task.returns == "wake"),)


def touch_session(task: Task, now: int, thread_id: str | None = None) -> Session:
    """Return the session of the task, with the fields that change each time the session is used."""
    return Session(
        key=task.session_key, agent=task.agent, gate_key=task.gate_key, creator=task.creator, thread_id=thread_id,
        workdir=task.workdir, worktree=str(task.worktree["id"]) if task.worktree else None, created_at=now,
        updated_at=now,
    )  # fmt: skip


def announce_status(task: Task, status: str, now: int) -> tuple[Event, ...]:
    """Return the event that the status of the task's conversation changed; none for a private session."""
    if not has_conversation(task):
        return ()
    return (event(StatusChange(status=status, agent_type=task.agent), now, **meta(task)),)


def report_fault(task: Task, message: str, level: str, now: int) -> tuple[Event, ...]:
    """Return the event that a turn of the task's conversation failed; none for a private session."""
    return (event(AgentFault(message=message, level=level), now, **meta(task)),) if has_conversation(task) else ()


def end(
    task: Task,
    now: int,
    *,
    outcome: Outcome,
    result: str | None = None,
    error: str | None = None,
    usage: Mapping[str, Any] | None = None,
    actor: str | None = None,
    transferred_to: str | None = None,
    over: Over | None = None,
) -> tuple[Task, Changes]:
    """Return the ended task and the step that ends it; `over` is the limit that ended it, if any.

    The step fails if somebody meanwhile stopped the task or sent a message to its turn.
    """
    fields = {
        "status": STATUS_OF[outcome], "outcome": outcome, "result": result, "error": error,
        "usage": usage or task.usage, "completed_at": now, "wait": None, "lease_owner": None, "pgid": None,
        "pgid_mark": None, "token_hash": None, "worktree": task.worktree, "transferred_to": transferred_to,
    }  # fmt: skip
    ended = change(task, fields)
    finished = TaskFinished(
        status=ended.status, outcome=outcome, result=result, error=error, usage=ended.usage,
        worktree=show_worktree(ended.worktree), transferred_to=transferred_to,
    )  # fmt: skip
    was_busy = task.status == "running" and outcome != "skipped"
    messages = end_messages(ended, now)
    failed = report_fault(task, error or outcome, "error", now) if ended.status == "failed" else ()
    return ended, Changes(
        updates=(Update("task", task.id, fields, {**guard_ownership(task), "steers": task.steers}),),
        records=return_result(ended, now),
        messages=messages,
        deliveries=end_notice(ended, now, over),
        events=(
            *(announce_message(message, **meta(task, actor)) for message in messages),
            *failed,
            event(finished, now, **meta(task, actor)),
            *(announce_status(task, "idle", now) if was_busy and not transferred_to else ()),
        ),
    )


def guard_ownership(task: Task) -> dict[str, Any]:
    """Return a guard for a step that changes the task.

    The guard fails if the status, the attempt or the request to stop has changed since the task was read.
    """
    return {"status": task.status, "attempt": task.attempt, "stop_requested": task.stop_requested}


def meta(task: Task, actor: str | None = None) -> dict[str, Any]:
    """Return the envelope fields of an event about `task`."""
    about = {
        "task_id": task.id,
        "session_key": task.session_key,
        "agent_id": task.agent,
        "attempt": task.attempt,
        "actor": actor or task.creator,
    }
    return about if task.source is None else {**about, **correlate(task)}


def correlate(task: Task) -> dict[str, Any]:
    """Return the envelope fields that say what work the task grew out of."""
    return {"parent_turn_id": task.parent_turn_id, "trace_path": task.trace_path, "source": task.source}


def turn_of(task_id: str, attempt: int) -> str:
    """Return the id that events use for the turn of this attempt."""
    return f"{task_id}.{attempt}"


def in_turn(task: Task, actor: str | None = None) -> dict[str, Any]:
    """Return the envelope fields of an event of the task's running turn."""
    return {**meta(task, actor), "turn_id": turn_of(task.id, task.attempt)}

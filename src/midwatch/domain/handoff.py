"""Handoffs: work that one agent hands over to another, with history, a deadline, retries and an answer.

A handoff is a record; the work itself is a task of its target. With `delegate` the target works in its own session and
the source gets the answer; `transfer` moves the conversation itself to the target. Ended handoffs never change their
status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import HandoffError, HandoffLimit, HandoffOverdue, HandoffRefused, InvalidInput
from midwatch.base.text import cut
from midwatch.domain.changes import Changes, Update
from midwatch.domain.context_item import Returns
from midwatch.domain.event import Event, Payload, event, records
from midwatch.domain.fields import Example, Hidden, JsonRecord, Show, to_json
from midwatch.domain.handoff_history import HandoffContext
from midwatch.domain.listing import Listing
from midwatch.domain.notice import add_title
from midwatch.domain.probe import keep_check
from midwatch.domain.requests import PRIORITY, YEAR, is_plain
from midwatch.domain.task import Task, has_conversation, submit_task

Status = Literal[
    "pending", "accepted", "in_progress", "completed", "failed", "rejected", "cancelled", "expired"
]  # fmt: skip
Form = Literal["delegate", "transfer"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"pending", "accepted", "rejected", "failed", "cancelled", "expired"}),
    "accepted": frozenset({"in_progress", "failed", "cancelled", "expired"}),
    "in_progress": frozenset({"in_progress", "completed", "failed", "cancelled", "expired"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "rejected": frozenset(),
    "cancelled": frozenset(),
    "expired": frozenset(),
}
"""A handoff stays pending while another agent is tried, and stays in progress while its task is retried."""
OPEN: frozenset[Status] = frozenset({"pending", "accepted", "in_progress"})
TIMEOUT_SECONDS = 300.0
MAX_INPUT = 1_000_000
"""The work and its context together may have this many characters, as JSON."""
MAX_RETRIES = 20
NUL = r"\u0000"
LISTED_TEXT = 2000
LENT = "\n"
"""In a `dir_key`, this separates the directory from the id of the task that lends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffTask:
    """The work that is handed over."""

    type: Annotated[str, Example("code")] = ""
    description: Annotated[str, Example("Fix the failing test")] = ""
    input: Any = None
    priority: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """Return the work as JSON stores it."""
        return to_json(self)

    def words(self) -> str:
        """Return the work as the text of a prompt; an `input` that is not text is written as JSON."""
        text = self.input or ""
        if not isinstance(self.input, str | None):
            text = json.dumps(self.input, ensure_ascii=False, indent=2)
        parts = (self.description.strip(), "" if text.strip() == self.description.strip() else text)
        return "\n\n".join(part for part in parts if part.strip())


class Link(NamedTuple):
    """One agent in a chain of handoffs, and the handoff that brought the work to this agent.

    The first agent has no handoff: None.
    """

    agent: Annotated[str, Example("lead")]
    handoff: str | None = None


class Limits(NamedTuple):
    """The limits of handing work over.

    `depth` is the greatest number of handoffs in a row, where each target hands the work on. `revisits` is how often an
    agent may get the same work again; giving the work back to the agent that handed it over does not count. `total` is
    the greatest number of handoffs that come from one task. An agent that waits for the answer by HTTP requests must
    ask again within `linger` seconds.
    """

    depth: int = 8
    revisits: int = 0
    total: int = 64
    linger: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff(JsonRecord):
    """The record of a handoff.

    `request`, `context` and `answer` are stored as JSON; replies call them task, context and result. `tries` are the
    ended attempts of the handoff's task, in order. `late` is the result of this task if the task ended after the
    handoff.
    """

    noun: ClassVar[str] = "handoff"

    id: Annotated[str, Example("h_06f2m8yq3kq5r0v9x1w2")]
    status: Annotated[Status, Example("in_progress")] = "pending"
    form: Form = "delegate"
    from_agent: Annotated[str, Show(name="from_agent_id"), Example("lead")] = ""
    to_agent: Annotated[str, Show(name="to_agent_id"), Example("coder")] = ""
    tool_name: Annotated[str, Example("transfer_to_coder")] = ""
    tool_description: Annotated[str, Example("Handoff to the coder agent to handle the request.")] = ""
    transfer_message: Annotated[str, Example('{"assistant":"coder"}')] = ""
    request: Annotated[Mapping[str, Any], Show(dict, "task")] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    answer: Annotated[Mapping[str, Any] | None, Show(name="result")] = None
    chain: Annotated[tuple[tuple[str, str | None], ...], Show(show_chain)] = ()
    refusals: tuple[Mapping[str, Any], ...] = ()
    tries: Annotated[tuple[Mapping[str, Any], ...], Show(list, "attempts")] = ()
    late: Mapping[str, Any] | None = None
    reason: str | None = None
    source_task: str | None = None
    root_id: str | None = None
    once: Hidden[str | None] = None
    """The name that the source gave to the handoff; a second request with this name returns the same handoff."""
    task_id: str | None = None
    session_key: str | None = None
    creator: str | None = None
    owner: Hidden[str | None] = None
    """The process that prepares the handoff. If it dies before the task exists, the handoff fails."""
    retry_of: str | None = None
    parent_turn_id: Hidden[str | None] = None
    """The turn that handed the work over; None if a person did."""
    trace_path: Hidden[str | None] = None
    """The path from the first work to the task that handed the work over; see `midwatch.domain.lineage`."""
    awaited: Hidden[bool] = False
    """Whether the source waits for the answer; the handoff is cancelled if the source ends first."""
    returns: Hidden[Returns | None] = None
    """How the result returns to the agent of the source, if it does not wait; None if it does not return."""
    timeout: float = TIMEOUT_SECONDS
    deadline_at: int = 0
    retry_count: int = 0
    max_retries: int = 0
    created_at: int = 0
    accepted_at: int | None = None
    completed_at: int | None = None
    revision: int = 0

    @property
    def open(self) -> bool:
        """Return whether the handoff has not ended."""
        return self.status in OPEN

    @property
    def output(self) -> Any:
        """Return the answer of the target, or None."""
        return (self.answer or {}).get("output")

    @property
    def work(self) -> HandoffTask:
        """Return the work that is handed over."""
        return HandoffTask(**self.request)

    @property
    def surroundings(self) -> HandoffContext:
        """Return the context of the work."""
        return HandoffContext.from_data(self.context)

    def brief(self) -> dict[str, Any]:
        """Return the handoff as lists show it: without messages, and with long texts cut."""
        shown = self.snapshot()
        shown["context"] = {**shown["context"], "messages": []}
        for name in ("task", "result", "late"):
            if shown[name]:
                shown[name] = {part: _short(value) for part, value in shown[name].items()}
        return shown


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= LISTED_TEXT:
        return value
    return {} if isinstance(value, Mapping) else cut(text, LISTED_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """An accepted handoff, and the task of its target.

    The task is submitted in the same step that ends the source task.
    """

    handoff: Handoff
    task: Task


def show_chain(chain: Sequence[tuple[str, str | None]]) -> list[dict[str, str | None]]:
    """Return the links of a chain as JSON shows them."""
    return [Link(*link)._asdict() for link in chain]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffFilter:
    """A filter of handoffs; an empty filter matches all handoffs.

    `before` is the id of the last handoff on the page before.
    """

    statuses: tuple[Status, ...] = ()
    agent: str | None = None
    root_id: str | None = None
    before: str | None = None
    limit: int = 50


class RunningTasks(Protocol):
    """Port: the running tasks of this process that wait for handoffs."""

    def pause(self, task_id: str) -> AbstractAsyncContextManager[None]:
        """Release the slot of a task while it waits for its handoff."""

    async def attend(self, task_id: str, handoff: Handoff) -> None:
        """Wait for a handoff on behalf of a task whose agent asks for the answer by HTTP requests."""


class HandoffStore(Protocol):
    """Port: handoffs. They are written as part of a step, with `Changes`."""

    async def get_handoff(self, handoff_id: str) -> Handoff | None:
        """Return the handoff, or None."""

    async def find_handoff(self, source_task: str | None, once: str) -> Handoff | None:
        """Return the earlier handoff with the name `once`, or None.

        Without `source_task`, look only at handoffs that did not come from a task.
        """

    async def list_handoffs(self, which: HandoffFilter) -> Listing[Handoff]:
        """Return handoffs, newest first."""

    async def count_open_handoffs(self) -> dict[str, int]:
        """Count the open handoffs of each target agent."""

    async def count_handoffs(self, root_id: str) -> int:
        """Count the handoffs that come from one task."""

    async def list_due_handoffs(self, now: int, limit: int = 64) -> list[Handoff]:
        """Return open handoffs past their deadline, earliest first.

        The deadline of a handoff stands still while people are asked about a budget of its work.
        """

    async def find_due_handoff(self, handoff_id: str, now: int) -> Handoff | None:
        """Return the handoff if it is open, past its deadline, and its deadline does not stand still."""

    async def find_next_handoff_at(self) -> int | None:
        """Return the earliest deadline of an open handoff, or None. Deadlines that stand still are left out."""

    async def list_abandoned_handoffs(self, living: Sequence[str]) -> list[Handoff]:
        """Return handoffs that have no task yet, and whose process is not in `living`."""

    async def list_orphaned_handoffs(self) -> list[Handoff]:
        """Return open handoffs for whose answer a source task waited, if this source task has ended."""

    async def prune_handoffs(self, before: int) -> int:
        """Remove handoffs that ended before the time `before`, and return how many."""


# -- names and texts ---------------------------------------------------------------------------------------------


def tool_name(agent: str, override: str | None = None) -> str:
    """Return the name of the tool that hands over to `agent`."""
    if override and override.strip():
        return override.strip()
    plain = re.sub(r"[^A-Za-z0-9_]", "_", agent.strip().lower())
    return f"transfer_to_{plain or 'agent'}"


def tool_description(agent: str, override: str | None = None, about: str = "") -> str:
    """Return the description of the tool that hands over to `agent`."""
    if override and override.strip():
        return override.strip()
    whom = f"the {agent.strip()} agent" if agent.strip() else "another agent"
    return f"Handoff to {whom} to handle the request. {about}".strip()


def transfer_message(agent: str) -> str:
    """Return the text that the model gets as the result of a call of the handoff tool."""
    return json.dumps({"assistant": agent}, separators=(",", ":"), ensure_ascii=False)


# -- choice and limits -------------------------------------------------------------------------------------------


def check_chain(chain: Sequence[Link], to: str, total: int, limits: Limits) -> None:
    """Raise HandoffLimit if the work was handed over too often; raise InvalidInput if `to` is the source itself."""
    source = chain[-1].agent if chain else None
    if to == source:
        raise InvalidInput(f"agent {to!r} cannot hand over to itself; choose another agent.", field="to")
    way = " → ".join(link.agent for link in (*chain, Link(to)))
    if len(chain) > limits.depth:
        raise HandoffLimit(f"the work was handed over {limits.depth} times in a row ({way}); finish the work yourself.")
    if total >= limits.total:
        raise HandoffLimit(f"{limits.total} handoffs came from one task, which is the limit; finish the work yourself.")
    caller = chain[-2].agent if len(chain) > 1 else None
    visits = sum(link.agent == to for link in chain)
    if to != caller and visits > limits.revisits:
        raise HandoffLimit(f"agent {to!r} already had this work ({way}); choose another agent, or finish it yourself.")


def latest_handoff(chain: Sequence[Link]) -> str | None:
    """Return the id of the latest handoff in a chain, or None."""
    return next((link.handoff for link in reversed(chain) if link.handoff), None)


def agents_to_avoid(chain: Sequence[Link], limits: Limits) -> frozenset[str]:
    """Return the agents that are never chosen automatically: the source, and agents that had the work too often."""
    source = {chain[-1].agent} if chain else set()
    names = [link.agent for link in chain]
    return frozenset(source | {name for name in names if names.count(name) > limits.revisits})


# -- pure steps --------------------------------------------------------------------------------------------------


def take_over(task: Task, source: Task, title: str = "") -> Task:
    """Return the target's task of a transfer.

    It continues in the conversation of the source, and its notices and its result go where those of the source went.
    The notices name the title of the source's work or, if it has none, `title` or the prompt.
    """
    same = {name: getattr(source, name) for name in TAKEN_OVER}
    same["notices"] = add_title(source.notices, title or task.prompt) if source.route else None
    if has_conversation(source):
        same |= {"session_key": source.session_key, "gate_key": source.gate_key}
    probe = keep_check(source.probe)
    return task._replace(parent_id=source.id, root_id=source.root_id or source.id, probe=probe, **same)


TAKEN_OVER = (
    "origin_channel", "origin_session", "route", "creator", "priority", "quiet", "workdir", "pin", "worktree",
    "timeout_seconds", "returns_to", "returns",
)  # fmt: skip


def lend_directory(wanted: str | None, source: Task | None) -> str | None:
    """Return the `dir_key` of the target: the directory that only the target may use while it runs.

    If this is the directory of the source, the source lends it to one target at a time and waits meanwhile.
    """
    source_dir = source.dir_key if source is not None else None
    if source is None or wanted is None or source_dir is None or source_dir.partition(LENT)[0] != wanted:
        return wanted
    return f"{wanted}{LENT}{source.id}"


def check(request: HandoffTask, context: HandoffContext, timeout: float, max_retries: int) -> None:
    """Raise InvalidInput if a value of the request is not valid."""
    if not isinstance(timeout, int | float) or not 0 < timeout <= YEAR:
        raise InvalidInput("the timeout of a handoff must be above 0 seconds and at most a year.", field="timeout")
    if not isinstance(max_retries, int) or not 0 <= max_retries <= MAX_RETRIES:
        raise InvalidInput(f"`max_retries` must be from 0 to {MAX_RETRIES}.", field="max_retries")
    if not isinstance(request, HandoffTask) or not isinstance(context, HandoffContext):
        raise InvalidInput("the work must be a HandoffTask, and its context a HandoffContext.", field="task")
    if not isinstance(request.type, str) or not isinstance(request.description, str):
        raise InvalidInput("`type` and `description` of the work must be text.", field="task")
    if not isinstance(request.priority, int) or not -PRIORITY <= request.priority <= PRIORITY:
        raise InvalidInput(f"the priority must be from -{PRIORITY} to {PRIORITY}.", field="task")
    try:
        text = json.dumps([request.data(), context.data()], ensure_ascii=False, allow_nan=False)
        empty = not request.words().strip()
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidInput(f"the work and its context must be JSON data: {problem}.", field="task") from None
    if empty:
        raise InvalidInput("the handoff is empty; give it a description or an input.", field="task")
    if len(text) > MAX_INPUT:
        raise InvalidInput(
            f"a handoff may have {MAX_INPUT} characters, this one has {len(text)}; put the rest in a file.",
            field="task",
        )
    if not is_plain(text) or NUL in text.replace(r"\\", ""):
        raise InvalidInput("the work or its context has a NUL or a broken character; send plain text.", field="task")
    if any(not isinstance(message.get("role"), str) for message in context.messages):
        raise InvalidInput("each message of the context needs a `role`.", field="context")


def check_texts(texts: Mapping[str, Any]) -> None:
    """Raise InvalidInput if a text is set but is not plain text, so that it cannot be stored."""
    for name, text in texts.items():
        if text is not None and not (isinstance(text, str) and is_plain(text)):
            raise InvalidInput(f"{name} is not plain text; remove NUL and incomplete characters.", field=name)


def request_handoff(handoff: Handoff, now: int) -> Changes:
    """Return the step that creates a pending handoff."""
    payload = records.HandoffRequested(
        handoff_id=handoff.id, from_agent=handoff.from_agent, to_agent=handoff.to_agent, form=handoff.form,
        task_type=handoff.work.type, description=handoff.work.description,
        parent_handoff=handoff.surroundings.parent_handoff, depth=len(handoff.chain),
    )  # fmt: skip
    return Changes(records=(handoff,), events=(handoff_event(handoff, payload, now),))


def move_handoff(
    handoff: Handoff, status: Status, payload: Payload, now: int, **fields: Any
) -> tuple[Handoff, Changes]:
    """Return the handoff with the new status, and the step that writes it.

    The step fails if the record was changed meanwhile.
    """
    fields |= {"status": status, "revision": handoff.revision + 1}
    if status not in OPEN:
        fields |= {"completed_at": now, "owner": None}
    guard = {"status": handoff.status, "revision": handoff.revision}
    after = replace(handoff, **fields)
    return after, Changes(
        updates=(Update("handoff", handoff.id, fields, guard),), events=(handoff_event(after, payload, now),)
    )


def accept_handoff(handoff: Handoff, now: int) -> tuple[Handoff, Changes]:
    """Return the handoff as accepted by its target, and the step that writes it."""
    payload = records.HandoffAccepted(handoff_id=handoff.id, to_agent=handoff.to_agent)
    return move_handoff(handoff, "accepted", payload, now, accepted_at=now)


def refuse_handoff(handoff: Handoff, why: str, now: int, following: str | None = None) -> tuple[Handoff, Changes]:
    """Return the rejected handoff, and the step that writes it; `following` is the next agent to try, if any."""
    payload = records.HandoffRejected(handoff_id=handoff.id, to_agent=handoff.to_agent, reason=why, following=following)
    refusals = (*handoff.refusals, {"agent": handoff.to_agent, "reason": why})
    if following is None:
        return move_handoff(handoff, "rejected", payload, now, refusals=refusals, reason=why)
    target = {"to_agent": following, "tool_name": tool_name(following), "transfer_message": transfer_message(following)}
    return move_handoff(handoff, "pending", payload, now, refusals=refusals, **target)


def start_handoff(handoff: Handoff, task: Task, now: int) -> tuple[Handoff, Changes]:
    """Return the handoff in progress, and the step that submits its task."""
    payload = records.HandoffStarted(handoff_id=handoff.id, to_agent=handoff.to_agent, task_id=task.id)
    fields = {"task_id": task.id, "session_key": task.session_key, "context": handoff.context, "owner": None}
    after, step = move_handoff(handoff, "in_progress", payload, now, **fields)
    return after, step.plus(submit_task(task, now))


def finish_transfer(transfer: Transfer, source: Task, now: int) -> Changes:
    """Return the step that starts a transfer when its source task ends.

    If the source task ended in another way than by this transfer, the step cancels the handoff.
    """
    if source.transferred_to == transfer.task.id:
        return start_handoff(transfer.handoff, transfer.task, now)[1]
    return cancel_handoff(transfer.handoff, "its source task was stopped first.", now)[1]


def fail_handoff(
    handoff: Handoff, why: str, now: int, stage: str = "execute", **fields: Any
) -> tuple[Handoff, Changes]:
    """Return the failed handoff, and the step that writes it.

    `stage` is where it failed: choose, enable, accept, hook, filter or execute.
    """
    payload = records.HandoffFailed(handoff_id=handoff.id, to_agent=handoff.to_agent, error=why, stage=stage)
    answer = {"output": None, "error": why, "duration_ms": (now - handoff.created_at) // 1000}
    return move_handoff(handoff, "failed", payload, now, answer=answer, reason=why, **fields)


def cancel_handoff(handoff: Handoff, why: str, now: int, **fields: Any) -> tuple[Handoff, Changes]:
    """Return the cancelled handoff, and the step that writes it."""
    payload = records.HandoffCancelled(handoff_id=handoff.id, to_agent=handoff.to_agent, reason=why)
    return move_handoff(handoff, "cancelled", payload, now, reason=why, **fields)


def expire_handoff(handoff: Handoff, now: int) -> tuple[Handoff, Changes]:
    """Return the handoff as expired because its deadline has passed, and the step that writes it."""
    why = f"it was not completed within {handoff.timeout:g} s."
    payload = records.HandoffExpired(handoff_id=handoff.id, to_agent=handoff.to_agent, timeout=handoff.timeout)
    answer = {"output": None, "error": why, "duration_ms": (now - handoff.created_at) // 1000}
    return move_handoff(handoff, "expired", payload, now, answer=answer, reason=why)


def merge_steps(parts: Sequence[Changes]) -> Changes:
    """Merge several steps of one handoff into one step.

    If the first step creates the record, the record is written with the values that it has after the last step.
    """
    first, *others = parts
    record = first.records[0] if first.records else None
    if not isinstance(record, Handoff):
        return first
    for step in others:
        record = replace(record, **step.updates[0].fields)
        first = first.plus(step._replace(updates=step.updates[1:]))
    return first._replace(records=(record, *first.records[1:]))


def forget_name(handoff: Handoff) -> Changes:
    """Return the step that removes the name `once` of a handoff, so that another handoff can use this name."""
    fields = {"once": None, "revision": handoff.revision + 1}
    return Changes(updates=(Update("handoff", handoff.id, fields, {"revision": handoff.revision}),))


def settle(handoff: Handoff, task: Task, now: int, why: str | None = None) -> Changes:
    """Return the step that updates a handoff after its task has ended or is retried.

    `why` is the reason why the attempt failed.
    """
    if task.id != handoff.task_id:
        return Changes()
    times = {"started_at": iso(task.started_at), "ended_at": iso(now)}
    attempt = {"attempt": task.attempt, **times, "outcome": task.outcome or "error", "error": why or task.error}
    tries = (*handoff.tries, attempt)
    if not handoff.open:
        late = {"outcome": task.outcome, "output": task.result, "error": task.error, "time": iso(now)}
        fields = {"late": late, "tries": tries, "revision": handoff.revision + 1}
        return Changes(updates=(Update("handoff", handoff.id, fields, {"revision": handoff.revision}),))
    if task.open:
        payload = records.HandoffRetried(
            handoff_id=handoff.id, to_agent=handoff.to_agent, attempt=task.failures + 1, until=iso(task.due_at)
        )
        return move_handoff(handoff, "in_progress", payload, now, retry_count=task.failures, tries=tries)[1]
    duration_ms = (now - (handoff.accepted_at or handoff.created_at)) // 1000
    if task.status == "done":
        done = records.HandoffCompleted(handoff_id=handoff.id, to_agent=handoff.to_agent, duration_ms=duration_ms)
        answer = {"output": task.result, "error": None, "duration_ms": duration_ms}
        return move_handoff(handoff, "completed", done, now, answer=answer, retry_count=task.failures, tries=tries)[1]
    if task.status == "cancelled":
        return cancel_handoff(handoff, "its task was cancelled.", now, tries=tries)[1]
    error = task.error or task.outcome or "it failed"
    return fail_handoff(handoff, error, now, retry_count=task.failures, tries=tries)[1]


def handoff_event(handoff: Handoff, payload: Payload, now: int) -> Event:
    """Return an event about the handoff; the event names the task that requested the handoff."""
    return event(
        payload, now, task_id=handoff.source_task, agent_id=handoff.from_agent or None, actor=handoff.creator,
        parent_turn_id=handoff.parent_turn_id, trace_path=handoff.trace_path, source=handoff.form,
    )  # fmt: skip


def require_answer(handoff: Handoff) -> Handoff:
    """Return the handoff if it is completed; otherwise raise the error that explains its end."""
    if handoff.status == "completed":
        return handoff
    why = f"handoff {handoff.id} to {handoff.to_agent!r} {handoff.status}: {handoff.reason or 'no reason was given'}"
    if handoff.status == "expired":
        raise HandoffOverdue(why, handoff.id)
    raise (HandoffRefused if handoff.status == "rejected" else HandoffError)(why, handoff.id)


def remaining(handoff: Handoff, now: int) -> float:
    """Return the seconds until the deadline of the handoff."""
    return max(0.0, (handoff.deadline_at - now) / SECOND)

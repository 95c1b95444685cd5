"""Handoffs: work passed from one agent to another, with history, a deadline, retries and an answer that comes back.

A handoff is a record; what runs is a task of its target. `delegate` lets the target work in a session of its own and
brings the answer back to the source; `transfer` moves the conversation itself to the target. Terminal states absorb.
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
from midwatch.domain.event import (
    Event,
    HandoffAccepted,
    HandoffCancelled,
    HandoffCompleted,
    HandoffExpired,
    HandoffFailed,
    HandoffRejected,
    HandoffRequested,
    HandoffRetried,
    HandoffStarted,
    Payload,
    event,
)
from midwatch.domain.fields import Example, Hidden, JsonRecord, Show, to_json
from midwatch.domain.handoff_history import HandoffContext
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
"""A pending one stays so when another candidate is tried, one in progress when its task is tried again."""
OPEN: frozenset[Status] = frozenset({"pending", "accepted", "in_progress"})
TIMEOUT_SECONDS = 300.0
MAX_INPUT = 1_000_000
"""Characters of the work and its context together, as JSON."""
MAX_RETRIES = 20
NUL = r"\u0000"
"""As JSON writes it."""
LISTED_TEXT = 2000
LENT = "\n"
"""Between a directory and the task that lends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffTask:
    """The work that is handed over."""

    type: Annotated[str, Example("code")] = ""
    description: Annotated[str, Example("Fix the failing test")] = ""
    input: Any = None
    priority: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return to_json(self)

    def words(self) -> str:
        """Return the work as a prompt; what is no text as JSON."""
        text = self.input if isinstance(self.input, str) else ""
        if self.input is not None and not isinstance(self.input, str):
            text = json.dumps(self.input, ensure_ascii=False, indent=2)
        if text.strip() == self.description.strip():
            text = ""
        return "\n\n".join(part for part in (self.description.strip(), text) if part.strip())


class Link(NamedTuple):
    """One agent in a chain, and the handoff that brought the work to it; None for the first."""

    agent: Annotated[str, Example("lead")]
    handoff: str | None = None


class Limits(NamedTuple):
    """How far work may be passed on."""

    depth: int = 8
    """Handoffs in a row, one out of the other."""
    revisits: int = 0
    """How often an agent may be chosen that is in the chain already. To hand back to the one it came from is free."""
    total: int = 64
    """Handoffs that come from one task in all."""
    linger: float = 2.0
    """Seconds within which an agent that waits by requests has to ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff(JsonRecord):
    """The record. `request`, `context` and `answer` are kept as JSON; in JSON they are called task, context, result."""

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
    """Agents that did not take it, and why."""
    tries: Annotated[tuple[Mapping[str, Any], ...], Show(list, "attempts")] = ()
    """The attempts of its task that have ended, in order."""
    late: Mapping[str, Any] | None = None
    """What its task brought after it had ended."""
    reason: str | None = None
    """Why it was rejected, cancelled or has failed."""
    source_task: str | None = None
    root_id: str | None = None
    once: Hidden[str | None] = None
    """What the source calls it by: the same handoff asked for again is this one."""
    task_id: str | None = None
    session_key: str | None = None
    creator: str | None = None
    owner: Hidden[str | None] = None
    """The process that prepares it; when that dies before the task is made, the handoff fails."""
    retry_of: str | None = None
    awaited: Hidden[bool] = False
    """Whether its source waits for the answer: it is called off when that has ended first."""
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
        """Return whether it has not ended."""
        return self.status in OPEN

    @property
    def output(self) -> Any:
        """Return the answer of the target, or None."""
        return (self.answer or {}).get("output")

    @property
    def work(self) -> HandoffTask:
        """Return the work."""
        return HandoffTask(**self.request)

    @property
    def surroundings(self) -> HandoffContext:
        """Return the context."""
        return HandoffContext.from_data(self.context)

    def brief(self) -> dict[str, Any]:
        """Return it as lists show it: without messages, and long texts are cut."""
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
    """A handoff whose target has taken it, and the task that begins in the step that ends the source's."""

    handoff: Handoff
    task: Task


def show_chain(chain: Sequence[tuple[str, str | None]]) -> list[dict[str, str | None]]:
    """Return the links of a chain as JSON shows them."""
    return [Link(*link)._asdict() for link in chain]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffFilter:
    """Which handoffs to list; empty means all. `before` is the id the last page ended with."""

    statuses: tuple[Status, ...] = ()
    agent: str | None = None
    root_id: str | None = None
    before: str | None = None
    limit: int = 50


class RunningTasks(Protocol):
    """Port: the tasks that run in this process, one of which may wait for its handoff."""

    def pause(self, task_id: str) -> AbstractAsyncContextManager[None]:
        """Give back the slot of a task while it waits for its handoff."""

    async def attend(self, task_id: str, handoff: Handoff) -> None:
        """Wait for a handoff on behalf of a task's agent, which asks for it by requests."""


class HandoffStore(Protocol):
    """Port: handoffs. They are written through `Changes`."""

    async def get_handoff(self, handoff_id: str) -> Handoff | None:
        """Return the handoff, or None."""

    async def find_handoff(self, source_task: str | None, once: str) -> Handoff | None:
        """Return the handoff that a task, or a request without one, made under this name before, or None."""

    async def list_handoffs(self, which: HandoffFilter) -> list[Handoff]:
        """Return handoffs, newest first."""

    async def count_open_handoffs(self) -> dict[str, int]:
        """Count the open handoffs that each agent has been given."""

    async def count_handoffs(self, root_id: str) -> int:
        """Count the handoffs that come from one task."""

    async def list_due_handoffs(self, now: int, limit: int = 64) -> list[Handoff]:
        """Return open handoffs past their deadline, earliest first."""

    async def find_next_handoff_at(self) -> int | None:
        """Return the earliest deadline of an open handoff, or None."""

    async def list_abandoned_handoffs(self, living: Sequence[str]) -> list[Handoff]:
        """Return handoffs without a task whose process is none of `living`."""

    async def list_orphaned_handoffs(self) -> list[Handoff]:
        """Return open handoffs whose answer a task waited for that has ended."""

    async def prune_handoffs(self, before: int) -> int:
        """Remove handoffs completed before `before`, and return how many."""


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
    """Return the result of the tool call that hands over."""
    return json.dumps({"assistant": agent}, separators=(",", ":"), ensure_ascii=False)


# -- choice and limits -------------------------------------------------------------------------------------------


def check_chain(chain: Sequence[Link], to: str, total: int, limits: Limits) -> None:
    """Raise HandoffLimit when the work has been passed on too often; InvalidInput when it would go to its own
    source."""
    source = chain[-1].agent if chain else None
    if to == source:
        raise InvalidInput(f"agent {to!r} cannot hand over to itself; choose another agent.", field="to")
    way = " → ".join(link.agent for link in (*chain, Link(to)))
    if len(chain) > limits.depth:
        raise HandoffLimit(f"the work was passed on {limits.depth} times in a row already ({way}); finish it here.")
    if total >= limits.total:
        raise HandoffLimit(f"{limits.total} handoffs came from one task already; finish the work here.")
    caller = chain[-2].agent if len(chain) > 1 else None
    seen = sum(link.agent == to for link in chain)
    if to != caller and seen > limits.revisits:
        raise HandoffLimit(f"agent {to!r} had this work already ({way}); choose another agent or finish it here.")


def latest_handoff(chain: Sequence[Link]) -> str | None:
    """Return the handoff that brought the work to where it is now, if one did."""
    return next((link.handoff for link in reversed(chain) if link.handoff), None)


def agents_to_avoid(chain: Sequence[Link], limits: Limits) -> frozenset[str]:
    """Return the agents that are chosen only by name: the source, and those that had the work too often."""
    source = {chain[-1].agent} if chain else set()
    names = [link.agent for link in chain]
    return frozenset(source | {name for name in names if names.count(name) > limits.revisits})


# -- pure steps --------------------------------------------------------------------------------------------------


def take_over(task: Task, source: Task) -> Task:
    """Return the target's task of a transfer: it continues in the source's conversation, for the same people."""
    same = {name: getattr(source, name) for name in TAKEN_OVER}
    if has_conversation(source):
        same |= {"session_key": source.session_key, "gate_key": source.gate_key}
    return task._replace(parent_id=source.id, root_id=source.root_id or source.id, **same)


TAKEN_OVER = (
    "origin_channel", "origin_session", "route", "creator", "priority", "quiet", "workdir", "worktree", "budget",
    "timeout_seconds",
)  # fmt: skip


def lend_directory(wanted: str | None, source: Task | None) -> str | None:
    """Return the directory a target has for itself. That of its source is lent, to one target at a time: the
    source waits for it."""
    held = source.dir_key if source is not None else None
    if source is None or wanted is None or held is None or held.partition(LENT)[0] != wanted:
        return wanted
    return f"{wanted}{LENT}{source.id}"


def check(request: HandoffTask, context: HandoffContext, timeout: float, max_retries: int) -> None:
    """Raise InvalidInput when it makes no sense."""
    if not isinstance(timeout, int | float) or not 0 < timeout <= YEAR:
        raise InvalidInput("the timeout of a handoff is a number of seconds above 0, a year at most.", field="timeout")
    if not isinstance(max_retries, int) or not 0 <= max_retries <= MAX_RETRIES:
        raise InvalidInput(f"a handoff is tried again 0 to {MAX_RETRIES} times.", field="max_retries")
    if not isinstance(request, HandoffTask) or not isinstance(context, HandoffContext):
        raise InvalidInput("the work is a HandoffTask, and what goes along a HandoffContext.", field="task")
    if not isinstance(request.type, str) or not isinstance(request.description, str):
        raise InvalidInput("type and description of the work are texts.", field="task")
    if not isinstance(request.priority, int) or not -PRIORITY <= request.priority <= PRIORITY:
        raise InvalidInput(f"the priority must be from -{PRIORITY} to {PRIORITY}.", field="task")
    try:
        text = json.dumps([request.data(), context.data()], ensure_ascii=False, allow_nan=False)
        empty = not request.words().strip()
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidInput(f"the work and its context must be JSON: {problem}.", field="task") from None
    if empty:
        raise InvalidInput("a handoff needs a description or an input.", field="task")
    if len(text) > MAX_INPUT:
        raise InvalidInput(
            f"a handoff carries up to {MAX_INPUT} characters, this one has {len(text)}; put the rest in a file.",
            field="task",
        )
    if not is_plain(text) or NUL in text.replace(r"\\", ""):
        raise InvalidInput("the work or its context holds a NUL or half a character; send plain text.", field="task")
    if any(not isinstance(message.get("role"), str) for message in context.messages):
        raise InvalidInput("each message that goes along has a role.", field="context")


def check_texts(texts: Mapping[str, Any]) -> None:
    """Raise InvalidInput when one of them is there and cannot be kept as text."""
    for name, text in texts.items():
        if text is not None and not (isinstance(text, str) and is_plain(text)):
            raise InvalidInput(
                f"{name} is not plain text; leave out what is no text, a NUL, half a character.", field=name
            )


def request_handoff(handoff: Handoff, now: int) -> Changes:
    """Create the record, pending."""
    payload = HandoffRequested(
        handoff_id=handoff.id, from_agent=handoff.from_agent, to_agent=handoff.to_agent, form=handoff.form,
        task_type=handoff.work.type, description=handoff.work.description,
        parent_handoff=handoff.surroundings.parent_handoff, depth=len(handoff.chain),
    )  # fmt: skip
    return Changes(records=(handoff,), events=(handoff_event(handoff, payload, now),))


def move_handoff(
    handoff: Handoff, status: Status, payload: Payload, now: int, **fields: Any
) -> tuple[Handoff, Changes]:
    """Return the handoff with another status, and the step. It is refused when it changed meanwhile."""
    fields |= {"status": status, "revision": handoff.revision + 1}
    if status not in OPEN:
        fields |= {"completed_at": now, "owner": None}
    guard = {"status": handoff.status, "revision": handoff.revision}
    after = replace(handoff, **fields)
    return after, Changes(
        updates=(Update("handoff", handoff.id, fields, guard),), events=(handoff_event(after, payload, now),)
    )


def accept_handoff(handoff: Handoff, now: int) -> tuple[Handoff, Changes]:
    """Note that the target has taken it."""
    payload = HandoffAccepted(handoff_id=handoff.id, to_agent=handoff.to_agent)
    return move_handoff(handoff, "accepted", payload, now, accepted_at=now)


def refuse_handoff(handoff: Handoff, why: str, now: int, following: str | None = None) -> tuple[Handoff, Changes]:
    """Note that the target did not take it; `following` is asked next, if there is one."""
    payload = HandoffRejected(handoff_id=handoff.id, to_agent=handoff.to_agent, reason=why, following=following)
    refusals = (*handoff.refusals, {"agent": handoff.to_agent, "reason": why})
    if following is None:
        return move_handoff(handoff, "rejected", payload, now, refusals=refusals, reason=why)
    named = {"to_agent": following, "tool_name": tool_name(following), "transfer_message": transfer_message(following)}
    return move_handoff(handoff, "pending", payload, now, refusals=refusals, **named)


def start_handoff(handoff: Handoff, task: Task, now: int) -> tuple[Handoff, Changes]:
    """Submit the task of a handoff."""
    payload = HandoffStarted(handoff_id=handoff.id, to_agent=handoff.to_agent, task_id=task.id)
    fields = {"task_id": task.id, "session_key": task.session_key, "context": handoff.context, "owner": None}
    after, step = move_handoff(handoff, "in_progress", payload, now, **fields)
    return after, step.plus(submit_task(task, now))


def finish_transfer(transfer: Transfer, source: Task, now: int) -> Changes:
    """Start a transfer with the end of its source task, or cancel it when that task ended otherwise."""
    if source.transferred_to == transfer.task.id:
        return start_handoff(transfer.handoff, transfer.task, now)[1]
    return cancel_handoff(transfer.handoff, "its source was stopped before.", now)[1]


def fail_handoff(
    handoff: Handoff, why: str, now: int, stage: str = "execute", **fields: Any
) -> tuple[Handoff, Changes]:
    """End a handoff that failed; `stage` says where: choose, enable, accept, hook, filter, execute."""
    payload = HandoffFailed(handoff_id=handoff.id, to_agent=handoff.to_agent, error=why, stage=stage)
    answer = {"output": None, "error": why, "duration_ms": (now - handoff.created_at) // 1000}
    return move_handoff(handoff, "failed", payload, now, answer=answer, reason=why, **fields)


def cancel_handoff(handoff: Handoff, why: str, now: int, **fields: Any) -> tuple[Handoff, Changes]:
    """End a handoff that is not wanted any more."""
    payload = HandoffCancelled(handoff_id=handoff.id, to_agent=handoff.to_agent, reason=why)
    return move_handoff(handoff, "cancelled", payload, now, reason=why, **fields)


def expire_handoff(handoff: Handoff, now: int) -> tuple[Handoff, Changes]:
    """End a handoff whose deadline has passed."""
    why = f"it was not done within its {handoff.timeout:g} s."
    payload = HandoffExpired(handoff_id=handoff.id, to_agent=handoff.to_agent, timeout=handoff.timeout)
    answer = {"output": None, "error": why, "duration_ms": (now - handoff.created_at) // 1000}
    return move_handoff(handoff, "expired", payload, now, answer=answer, reason=why)


def merge_steps(parts: Sequence[Changes]) -> Changes:
    """Merge the steps of one handoff; a record that the first creates is written with its last values."""
    first, *others = parts
    record = first.records[0] if first.records else None
    if not isinstance(record, Handoff):
        return first
    for step in others:
        record = replace(record, **step.updates[0].fields)
        first = first.plus(replace(step, updates=step.updates[1:]))
    return replace(first, records=(record, *first.records[1:]))


def forget_name(handoff: Handoff) -> Changes:
    """Free the name that the source gave it."""
    fields = {"once": None, "revision": handoff.revision + 1}
    return Changes(updates=(Update("handoff", handoff.id, fields, {"revision": handoff.revision}),))


def settle(handoff: Handoff, task: Task, now: int, why: str | None = None) -> Changes:
    """Update a handoff after the end or another try of its task; `why` says why the try failed."""
    if task.id != handoff.task_id:
        return Changes()
    times = {"started_at": iso(task.started_at), "ended_at": iso(now)}
    tried = {"attempt": task.attempt, **times, "outcome": task.outcome or "error", "error": why or task.error}
    tries = (*handoff.tries, tried)
    if not handoff.open:
        late = {"outcome": task.outcome, "output": task.result, "error": task.error, "time": iso(now)}
        fields = {"late": late, "tries": tries, "revision": handoff.revision + 1}
        return Changes(updates=(Update("handoff", handoff.id, fields, {"revision": handoff.revision}),))
    if task.open:
        payload = HandoffRetried(
            handoff_id=handoff.id, to_agent=handoff.to_agent, attempt=task.failures + 1, until=iso(task.due_at)
        )
        return move_handoff(handoff, "in_progress", payload, now, retry_count=task.failures, tries=tries)[1]
    spent = (now - (handoff.accepted_at or handoff.created_at)) // 1000
    if task.status == "done":
        done = HandoffCompleted(handoff_id=handoff.id, to_agent=handoff.to_agent, duration_ms=spent)
        answer = {"output": task.result, "error": None, "duration_ms": spent}
        return move_handoff(handoff, "completed", done, now, answer=answer, retry_count=task.failures, tries=tries)[1]
    if task.status == "cancelled":
        return cancel_handoff(handoff, "its task was cancelled.", now, tries=tries)[1]
    error = task.error or task.outcome or "it failed"
    return fail_handoff(handoff, error, now, retry_count=task.failures, tries=tries)[1]


def handoff_event(handoff: Handoff, payload: Payload, now: int) -> Event:
    """Return an event of the handoff, as part of the task that requested it."""
    return event(payload, now, task_id=handoff.source_task, agent_id=handoff.from_agent or None, actor=handoff.creator)


def require_answer(handoff: Handoff) -> Handoff:
    """Return the handoff if it has an answer; raise the error that says why it has none otherwise."""
    if handoff.status == "completed":
        return handoff
    why = f"handoff {handoff.id} to {handoff.to_agent!r} {handoff.status}: {handoff.reason or 'no reason was given'}"
    if handoff.status == "expired":
        raise HandoffOverdue(why, handoff.id)
    raise (HandoffRefused if handoff.status == "rejected" else HandoffError)(why, handoff.id)


def remaining(handoff: Handoff, now: int) -> float:
    """Return the seconds until its deadline."""
    return max(0.0, (handoff.deadline_at - now) / SECOND)

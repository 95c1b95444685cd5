"""The outcomes of turns, and the changes that make a task pending again after a turn."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import AgentError, MidwatchError, TransientError, UsageLimit
from midwatch.base.foreign import CONTAIN_AGENT
from midwatch.base.text import cut
from midwatch.domain.agent import Agent, Conversation, ProgramUsage, Turn, TurnResult, Usage
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import TaskInterrupted, TaskWaiting, event
from midwatch.domain.handoff import Handoff
from midwatch.domain.notice import make_notices
from midwatch.domain.quiet import is_quiet
from midwatch.domain.session import Session
from midwatch.domain.task import (
    STATUS_OF,
    Outcome,
    Task,
    announce_status,
    guard_ownership,
    meta,
    report_fault,
)
from midwatch.domain.task_step import TaskStep
from midwatch.services.budgets import DaySpent

log = logging.getLogger("midwatch.worker")

Reason = Literal["cancel", "yield", "budget", "hook", "shutdown", "timeout", "lost"]
"""Why a turn is being stopped."""
ERROR_SHOWN = 4000
STUCK = TurnResult(outcome="error", stuck=True)
LIMIT_PAUSES = (300.0, 900.0, 1800.0, 3600.0)
"""Seconds to wait if a provider's usage limit has no known end: after the first interruption, the second, and so on."""
LIMIT_GRACE_SECONDS = 1.0
"""Seconds that are added to the end of a usage limit, because the provider's clock may differ from ours."""
LONGEST_LIMIT_SECONDS = 32 * 86400.0
"""If the provider says that its usage limit lasts longer than this, the end that it names is ignored as a mistake."""
SHOWN = 500
RELEASED: Mapping[str, Any] = {
    "status": "pending", "wait": None, "stop_requested": None, "lease_owner": None, "pgid": None, "pgid_mark": None,
    "token_hash": None,
}  # fmt: skip
"""The values that a task gets when it becomes pending again."""


class TurnOutcome(NamedTuple):
    """The outcome of a turn. From this outcome `Run.end_attempt` computes the changes of the task."""

    outcome: Outcome
    text: str | None = None
    error: str | None = None
    result: TurnResult | None = None
    transient: bool = False
    limit: UsageLimit | None = None
    """The usage limit of the provider that ended the turn, or None."""
    day_spent: DaySpent | None = None
    """The day budget that was spent before the turn, so that the turn did not begin; or None."""
    cannot_ask: bool = False
    """Whether the budget ended the turn and people should have been asked, but the agent cannot resume its work."""
    may_go_on: bool = False
    """Whether people raised the budget that ended the turn, so that the work goes on in a new attempt."""

    @property
    def successor(self) -> str | None:
        """The id of the task that continues the work, if the agent transferred the work; otherwise None."""
        transfer = self.result.transfer if self.result else None
        return transfer.task.id if transfer is not None and self.outcome == "transferred" else None


async def run_turn(conversation: Conversation, turn: Turn) -> TurnResult:
    """Run a turn of the agent. If the agent raises SystemExit or a similar exception, only the turn ends."""
    with CONTAIN_AGENT:
        result = await conversation.turn(turn)
    if not isinstance(result, TurnResult):
        raise AgentError(f"the agent returned a {type(result).__name__}; `turn` must return a `TurnResult`.")
    if result.outcome not in STATUS_OF or result.outcome == "skipped" or not isinstance(result.text, str):
        raise AgentError(f"the agent returned an unknown outcome ({result.outcome!r}), or its text is not a string.")
    return result


async def open_conversation(agent: Agent, session: Session) -> Conversation:
    """Open a conversation. If the agent raises SystemExit or a similar exception, only the task fails."""
    with CONTAIN_AGENT:
        return await agent.open(session)


def read_result(result: TurnResult, task: Task) -> TurnOutcome:
    """Return the outcome of a turn that returned a result."""
    if result.thread_id is not None:
        result = replace(result, thread_id=sanitize(result.thread_id))
    if result.outcome == "ok" and is_quiet(task.quiet, result.text):
        result = replace(result, outcome="silent")
    if result.outcome in ("ok", "silent", "transferred"):
        return TurnOutcome(result.outcome, text=sanitize(result.text), result=result)
    kept = sanitize(result.text) if result.error and result.text else None
    return TurnOutcome(
        result.outcome, text=kept, error=sanitize(result.error or result.text or result.outcome), result=result
    )


def read_error(problem: Exception, task: Task) -> TurnOutcome:
    """Return the outcome of a turn that raised an error."""
    transient = isinstance(problem, TransientError | ConnectionError | TimeoutError)
    if isinstance(problem, MidwatchError):
        limit = problem if isinstance(problem, UsageLimit) else None
        usage = problem.usage if isinstance(problem, AgentError) else None
        result = TurnResult(outcome="error", usage=usage) if isinstance(usage, Usage) else None
        error = cut(sanitize(str(problem)), ERROR_SHOWN)
        return TurnOutcome("error", error=error, result=result, transient=transient, limit=limit)
    if not transient:
        log.warning("agent %s raised an error in task %s", task.agent, task.id, exc_info=problem)
    text = sanitize(f"{type(problem).__name__}: {problem}")
    return TurnOutcome("error", error=cut(text, ERROR_SHOWN), transient=transient)


def explain_kill(outcome: TurnOutcome, usage: ProgramUsage | None) -> TurnOutcome:
    """Return the outcome. If it is an error and programs had no memory left, the text of the error says so."""
    if outcome.outcome != "error" or usage is None or not usage.killed:
        return outcome
    why = "its programs reached the memory limit of the agent, so the kernel killed some; increase the limit `memory`."
    return outcome._replace(error=f"{outcome.error}\n{why}")


def sanitize(text: str) -> str:
    """Return the text with NUL characters and invalid surrogates replaced, so that the text can be stored."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


async def check_transfer(outcome: TurnOutcome, get: Callable[[str], Awaitable[Handoff]]) -> TurnOutcome:
    """Return `outcome`, or an error outcome if the agent transferred the work and the handoff has changed since then.

    `get` reads a handoff by its id.
    """
    transfer = outcome.result.transfer if outcome.result else None
    if outcome.result is None or transfer is None:
        return outcome
    handoff = await get(transfer.handoff.id)
    if handoff.revision == transfer.handoff.revision:
        return outcome
    why = f"the work was not transferred: handoff {handoff.id} is {handoff.status}: {handoff.reason or 'it changed'}"
    return TurnOutcome("error", error=why, result=replace(outcome.result, transfer=None))


def turn_status(reason: Reason | None, outcome: TurnOutcome) -> str:
    """Return the `status` for the event `turn_end`, from the reason of a stop and the outcome."""
    if reason == "timeout":
        return "timeout"
    if reason == "hook":
        return "error"
    if outcome.outcome in ("ok", "silent", "transferred", "skipped") and reason != "cancel":
        return "completed"
    if reason not in (None, "budget"):
        return "aborted"
    return "budget" if reason == "budget" or outcome.outcome == "budget" else "error"


def requeue(task: Task, event_payload: TaskInterrupted | TaskWaiting, now: int, **fields: Any) -> TaskStep:
    """Return the step that makes the task pending again, for another attempt. `fields` are further fields to change."""
    reason = event_payload.reason
    waits = isinstance(event_payload, TaskWaiting)
    fault = report_fault(task, reason or "it failed", "warning", now) if waits else ()
    fields = {**RELEASED, **fields}
    changes = Changes(
        updates=(Update("task", task.id, fields, guard_ownership(task)),),
        events=(event(event_payload, now, **meta(task)), *fault, *announce_status(task, "idle", now)),
    )
    return TaskStep(task._replace(**fields), changes, reason)


def park(task: Task, limit: UsageLimit, now: int, usage: Mapping[str, Any] | None = None) -> TaskStep:
    """Return the step that lets the task wait until the usage limit of its provider ends, with a notice."""
    due = find_limit_end(task, limit, now)
    waiting = TaskWaiting(wait="limit", until=iso(due), reason=str(limit))
    text = f"{task.agent} has reached a usage limit: {cut(str(limit), SHOWN)}\n{task.id} continues at {iso(due)}."
    fields = {"wait": "limit", "due_at": due, "interruptions": task.interruptions + 1, "usage": usage}
    return _notify(requeue(task, waiting, now, **fields), text, now)


def postpone(task: Task, day: DaySpent, now: int) -> TaskStep:
    """Return the step that lets the task wait for the next day, because the day budget is spent, with a notice."""
    waiting = TaskWaiting(wait="limit", until=iso(day.until), reason=day.over.words)
    words = day.over.words[0].upper() + day.over.words[1:]
    text = f"{words}.\n{task.id} begins at {iso(day.until)}."
    return _notify(requeue(task, waiting, now, wait="limit", due_at=day.until), text, now)


def _notify(step: TaskStep, text: str, now: int) -> TaskStep:
    return step._replace(changes=step.changes._replace(deliveries=make_notices(step.task, "limit", text, now)))


def find_limit_end(task: Task, limit: UsageLimit, now: int) -> int:
    """Return the time when a task may continue after it reached a usage limit of its provider."""
    longest = now + int(LONGEST_LIMIT_SECONDS * SECOND)
    if limit.resets_at is not None and limit.resets_at <= longest:
        return max(limit.resets_at, now) + int(LIMIT_GRACE_SECONDS * SECOND)
    return now + int(LIMIT_PAUSES[min(task.interruptions, len(LIMIT_PAUSES) - 1)] * SECOND)


def add_usage(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the usage of all attempts of a task: the usage `before` this attempt and that of this attempt, `now`.

    Numbers are added. Of all other values, those of this attempt are used.
    """
    if not before or not now:
        return dict(before or now or {}) or None
    figures = {k: before.get(k, 0) + v for k, v in now.items() if isinstance(v, int | float)}
    return {**before, **now, **figures}

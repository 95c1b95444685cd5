"""Outcomes: how a turn ended, whatever the agent did, before its meaning for the task is worked out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import AgentError, MidwatchError, TransientError, UsageLimit
from midwatch.base.text import cut
from midwatch.domain.agent import Agent, Conversation, TurnResult
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import TaskInterrupted, TaskWaiting, event
from midwatch.domain.handoff import Handoff
from midwatch.domain.session import Session
from midwatch.domain.task import STATUS_OF, Outcome, Task, changed_status, meta, notices, owned, trouble
from midwatch.running.turn import LiveTurn
from midwatch.services.day_budget import Rest

log = logging.getLogger("midwatch.worker")

Reason = Literal["cancel", "yield", "budget", "shutdown", "timeout", "lost"]
"""Why a turn is being stopped."""
ERROR_SHOWN = 4000
STUCK = TurnResult(outcome="error", stuck=True)
LIMIT_PAUSES = (300.0, 900.0, 1800.0, 3600.0)
"""Before a task goes on whose provider's limit was used up, when nobody said until when."""
LIMIT_GRACE_SECONDS = 1.0
"""After the limit's end; a provider's clock may differ a little from ours."""
LONGEST_LIMIT_SECONDS = 32 * 86400.0
"""A reset further away than this is taken for a mistake of whoever told it."""
SHOWN = 500
RELEASED: Mapping[str, Any] = {
    "status": "pending", "wait": None, "stop_requested": None, "lease_owner": None, "pgid": None, "pgid_mark": None,
    "token_hash": None,
}  # fmt: skip
"""What a task loses when it goes back to wait."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a turn ended, before what it means for the task is worked out."""

    outcome: Outcome
    text: str | None = None
    error: str | None = None
    result: TurnResult | None = None
    transient: bool = False
    limit: UsageLimit | None = None
    """The provider's limit that ended the turn."""
    rest: Rest | None = None
    """Nothing is left of the day; it was not begun."""

    @property
    def successor(self) -> str | None:
        """The task that goes on with the work, if the agent gave it to another."""
        ready = self.result.transfer if self.result else None
        return ready.task.id if ready is not None and self.outcome == "transferred" else None


async def contained(talk: Conversation, turn: LiveTurn) -> TurnResult:
    """The agent's turn; what would end the process (SystemExit and the like) ends only the turn."""
    try:
        result = await talk.turn(turn)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as problem:
        raise AgentError(f"the agent raised {type(problem).__name__}: {problem}") from problem
    if not isinstance(result, TurnResult):
        raise AgentError(f"the agent returned {type(result).__name__} instead of a TurnResult.")
    if result.outcome not in STATUS_OF or not isinstance(result.text, str):
        raise AgentError(
            f"the agent returned an outcome {result.outcome!r} that does not exist, or a text that is none."
        )
    return result


async def opened(agent: Agent, session: Session) -> Conversation:
    try:
        return await agent.open(session)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as problem:
        raise AgentError(f"the agent raised {type(problem).__name__}: {problem}") from problem


def returned(result: TurnResult, task: Task) -> Verdict:
    """The verdict on a turn that came to its end."""
    if result.thread_id is not None:
        result = replace(result, thread_id=storable(result.thread_id))
    if result.outcome == "ok" and task.quiet and result.text.strip() == task.quiet.strip():
        result = replace(result, outcome="silent")
    if result.outcome in ("ok", "silent", "transferred"):
        return Verdict(result.outcome, text=storable(result.text), result=result)
    return Verdict(result.outcome, error=storable(result.error or result.text or result.outcome), result=result)


def failed(problem: Exception, task: Task) -> Verdict:
    """The verdict on a turn that raised."""
    transient = isinstance(problem, TransientError | ConnectionError | TimeoutError)
    if isinstance(problem, MidwatchError):
        limit = problem if isinstance(problem, UsageLimit) else None
        return Verdict("error", error=cut(storable(str(problem)), ERROR_SHOWN), transient=transient, limit=limit)
    if not transient:
        log.warning("agent %s raised in task %s", task.agent, task.id, exc_info=problem)
    said = storable(f"{type(problem).__name__}: {problem}")
    return Verdict("error", error=cut(said, ERROR_SHOWN), transient=transient)


def storable(text: str) -> str:
    """What an agent said, as text that can be written: half characters and NULs are replaced."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


async def still(verdict: Verdict, current: Callable[[str], Awaitable[Handoff]]) -> Verdict:
    """The verdict as it is now: who was to go on with the work may have been told not to."""
    ready = verdict.result.transfer if verdict.result else None
    if verdict.result is None or ready is None:
        return verdict
    found = await current(ready.handoff.id)
    if found.revision == ready.handoff.revision:
        return verdict
    why = f"the work was not passed on, since handoff {found.id} is {found.status}: {found.reason or 'it changed'}"
    return Verdict("error", error=why, result=replace(verdict.result, transfer=None))


def turn_status(reason: Reason | None, verdict: Verdict) -> str:
    """The `status` of the turn's end event."""
    if reason == "timeout":
        return "timeout"
    if verdict.outcome in ("ok", "silent", "transferred") and reason != "cancel":
        return "completed"
    if reason not in (None, "budget"):
        return "aborted"
    return "budget" if reason == "budget" or verdict.outcome == "budget" else "error"


def back(task: Task, told: TaskInterrupted | TaskWaiting, now: int, **fields: object) -> Changes:
    """The task waits again, for another attempt."""
    failed = trouble(task, told.reason or "it failed", "warning", now) if isinstance(told, TaskWaiting) else ()
    return Changes(
        updates=(Update("task", task.id, {**RELEASED, **fields}, owned(task)),),
        events=(event(told, now, **meta(task)), *failed, *changed_status(task, "idle", now)),
    )


def park(task: Task, limit: UsageLimit, now: int, usage: Mapping[str, Any] | None = None) -> Changes:
    """The task waits for the provider's limit to be reset and then goes on; its route is told once."""
    due = limit_over(task, limit, now)
    told = TaskWaiting(wait="limit", until=iso(due), reason=str(limit))
    step = back(task, told, now, wait="limit", due_at=due, interruptions=task.interruptions + 1, usage=usage)
    text = f"{task.agent} has used up its limit: {cut(str(limit), SHOWN)}\n{task.id} goes on at {iso(due)}."
    return replace(step, deliveries=notices(task, "limit", text, now))


def put_off(task: Task, rest: Rest, now: int) -> Changes:
    """The task was not begun, because nothing is left of the day; it waits for the next. Its route is told once."""
    told = TaskWaiting(wait="limit", until=iso(rest.until), reason=rest.over.words)
    step = back(task, told, now, wait="limit", due_at=rest.until)
    words = rest.over.words[0].upper() + rest.over.words[1:]
    return replace(step, deliveries=notices(task, "limit", f"{words}.\n{task.id} begins at {iso(rest.until)}.", now))


def limit_over(task: Task, limit: UsageLimit, now: int) -> int:
    """When a task may go on after a limit."""
    longest = now + int(LONGEST_LIMIT_SECONDS * SECOND)
    if limit.resets_at is not None and limit.resets_at <= longest:
        return max(limit.resets_at, now) + int(LIMIT_GRACE_SECONDS * SECOND)
    return now + int(LIMIT_PAUSES[min(task.interruptions, len(LIMIT_PAUSES) - 1)] * SECOND)


def together(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What all attempts of a task consumed. Figures add up; of names the latest counts."""
    if not before or not now:
        return dict(before or now or {}) or None
    figures = {k: before.get(k, 0) + v for k, v in now.items() if isinstance(v, int | float)}
    return {**before, **now, **figures}

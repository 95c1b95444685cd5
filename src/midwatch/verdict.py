"""Verdicts: how a turn ended, whatever the agent did, before what it means for its task is worked out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from midwatch.agent import Agent, Conversation, TurnResult
from midwatch.channel import cut
from midwatch.errors import AgentError, MidwatchError, TransientError, UsageLimit
from midwatch.handoff import Handoff
from midwatch.session import Session
from midwatch.spending import Rest
from midwatch.task import STATUS_OF, Outcome, Task
from midwatch.turn import LiveTurn

log = logging.getLogger("midwatch.worker")

Reason = Literal["cancel", "yield", "budget", "shutdown", "timeout", "lost"]
"""Why a turn is being stopped."""
ERROR_SHOWN = 4000
STUCK = TurnResult(outcome="error", stuck=True)


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
        result = replace(result, thread_id=plain(result.thread_id))
    if result.outcome == "ok" and task.quiet and result.text.strip() == task.quiet.strip():
        result = replace(result, outcome="silent")
    if result.outcome in ("ok", "silent", "transferred"):
        return Verdict(result.outcome, text=plain(result.text), result=result)
    return Verdict(result.outcome, error=plain(result.error or result.text or result.outcome), result=result)


def failed(problem: Exception, task: Task) -> Verdict:
    """The verdict on a turn that raised."""
    transient = isinstance(problem, TransientError | ConnectionError | TimeoutError)
    if isinstance(problem, MidwatchError):
        limit = problem if isinstance(problem, UsageLimit) else None
        return Verdict("error", error=cut(plain(str(problem)), ERROR_SHOWN), transient=transient, limit=limit)
    if not transient:
        log.warning("agent %s raised in task %s", task.agent, task.id, exc_info=problem)
    said = plain(f"{type(problem).__name__}: {problem}")
    return Verdict("error", error=cut(said, ERROR_SHOWN), transient=transient)


def plain(text: str) -> str:
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

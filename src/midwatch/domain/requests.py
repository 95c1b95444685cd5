"""Requests: what a client may ask for with a prompt, an automation or a goal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

from midwatch.base.errors import InvalidInput

OnCrash = Literal["resume", "rerun", "fail"]
Cause = Literal["submit", "message", "automation", "goal", "handoff"]

CAUSES = get_args(Cause)
PRIORITY = 100
MAX_PROMPT = 1_000_000
YEAR = 366 * 86400.0


class Submission(TypedDict, total=False):
    """Wishes beside the prompt; all optional."""

    agent: str | None
    """Who does it; the configured default otherwise."""
    origin_channel: str | None
    origin_session: str | None
    """The conversation it was asked from; the result is added to its messages."""
    session_key: str | None
    """The conversation it runs in; its own (`bg:<id>`) otherwise. Tasks of one session run one at a time."""
    route: str | None
    """Where notices go: `channel` or `channel:target`."""
    workdir: str | None
    share_workdir: bool
    """Work beside others in the directory, also where its agent would have it for itself."""
    worktree: bool
    """Work in a git worktree of its own, made from the repository that holds the directory."""
    timeout: float | None
    """Seconds of work, from its start."""
    priority: int
    """-100 to 100, higher first."""
    delay: float
    """Seconds to wait before it may start."""
    idempotency_key: str | None
    on_crash: OnCrash | None
    """What happens when the process running it dies: resume, rerun or fail."""
    max_attempts: int | None
    """How often it is tried when it fails in a way that may pass."""
    cause: Cause
    budget: Mapping[str, Any] | None
    """What it may spend: tokens, usd, steps, seconds."""


class AutomationWish(TypedDict, total=False):
    """What can be said of an automation beside its prompt. Durations are seconds, or text such as 90m."""

    title: str
    agent: str | None
    at: str | None
    """A moment as people write it: ISO 8601, `in 20m`, `tomorrow 09:00`, `09:00`."""
    every: float | str | None
    cron: str | None
    zone: str | None
    """IANA name; the host's otherwise."""
    next_run_at: str | None
    fresh: bool
    """Each run in a conversation of its own."""
    route: str | None
    manage_mode: str
    max_runs: int
    """0 for no limit."""
    workdir: str | None
    worktree: bool
    """Each run in a git worktree of its own; its runs are `fresh`."""
    timeout: float | str | None
    on_crash: OnCrash | None
    jitter: float | str
    missed: str
    """skip, once or once_within."""
    missed_window: float | str
    quiet: str | None
    """An answer that is just this is not delivered."""
    budget: Mapping[str, Any] | None
    """What each run may spend: tokens, usd, steps, seconds."""
    approvals: Mapping[str, Any] | None
    """What its runs may do without asking: default, allow, deny, expires."""
    tags: Sequence[str]


class NewAutomation(AutomationWish, total=False):
    """What can be said only when it is made."""

    session_key: str | None
    scope_kind: str
    scope_id: str | None
    resume_thread_id: str | None
    source_message_id: str | None
    enabled: bool


class GoalWish(TypedDict, total=False):
    """What can be said of a goal beside its objective. Durations are seconds, or text such as 90m."""

    deadline: float | str | None
    """A moment as people write it, or seconds from now."""
    max_steps: int
    max_tokens: int
    max_seconds: float | str
    max_usd: float
    route: str | None
    manage_mode: str


class NewGoal(GoalWish, total=False):
    """What can be said only when it is set."""

    agent: str | None
    verifier: str | None
    workdir: str | None
    session_key: str | None
    scope_kind: str
    scope_id: str | None


def refuse_unknown(wish: Mapping[str, Any], known: frozenset[str]) -> None:
    """InvalidInput for a wish that does not exist, so that a misspelt one is not lost."""
    if unknown := sorted(set(wish) - known):
        raise InvalidInput(
            f"{unknown[0]} cannot be set here; what can be: {', '.join(sorted(known))}.", field=unknown[0]
        )


def is_plain(said: str) -> bool:
    """Whether it can be written as UTF-8, and kept anywhere."""
    try:
        return b"\0" not in said.encode()
    except UnicodeEncodeError:
        return False


def body_hash(prompt: str, wish: Submission) -> str:
    """What two submissions with the same key must share to count as one."""
    said = {
        name: float(value) if isinstance(value, int) else value
        for name, value in wish.items()
        if value not in (None, 0, "") and name != "idempotency_key"
    }
    return hashlib.sha256(json.dumps([prompt, said], sort_keys=True, default=str).encode()).hexdigest()

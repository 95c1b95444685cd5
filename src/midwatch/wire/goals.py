"""Goals as the HTTP interface shows them."""

from __future__ import annotations

from typing_extensions import TypedDict


class GoalInfo(TypedDict):
    """A goal as JSON. `status` is waiting_for_session, active, paused, complete or timeout."""

    id: str
    objective: str
    agent: str
    status: str
    deadline_at: str
    next_run_at: str | None
    delay_reason: str | None
    thread_id: str | None
    scope_kind: str
    scope_id: str
    route: str | None
    creator: str | None
    manage_mode: str
    session_key: str
    workdir: str | None
    verifier: str | None
    step: int
    work: str
    running: bool
    evidence: str | None
    missing: str | None
    errors: int
    max_steps: int
    max_tokens: int
    max_seconds: float
    max_usd: float
    tokens: int
    seconds: float
    usd: float
    paused_why: str | None
    summary: str | None
    created_at: str
    updated_at: str
    completed_at: str | None
    revision: int


class GoalPage(TypedDict):
    """Goals, newest first."""

    goals: list[GoalInfo]

"""Handoffs as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class HandoffWork(TypedDict):
    """The work that is handed over."""

    type: str
    description: str
    input: Any
    priority: int
    metadata: dict[str, Any]


class HandoffSurroundings(TypedDict):
    """What goes along; in lists without its messages."""

    conversation_id: str | None
    messages: list[dict[str, Any]]
    variables: dict[str, Any]
    parent_handoff: str | None


class HandoffAnswer(TypedDict):
    """What came of it."""

    output: Any
    error: str | None
    duration_ms: int


class ChainLink(TypedDict):
    """An agent that had the work, and the handoff that brought it; null for the first."""

    agent: str
    handoff: str | None


class Refusal(TypedDict):
    """An agent that did not take it, and why."""

    agent: str
    reason: str


class HandoffAttempt(TypedDict):
    """A try of its task that has ended."""

    attempt: int
    started_at: str | None
    ended_at: str | None
    outcome: str
    error: str | None


class LateAnswer(TypedDict):
    """What its task brought after it had ended."""

    outcome: str | None
    output: Any
    error: str | None
    time: str | None


class HandoffInfo(TypedDict):
    """A handoff as JSON. `status` is pending, accepted, in_progress, completed, failed, rejected, cancelled or expired;
    `timeout` is in seconds."""

    id: str
    status: str
    form: str
    from_agent_id: str
    to_agent_id: str
    tool_name: str
    tool_description: str
    transfer_message: str
    task: HandoffWork
    context: HandoffSurroundings
    result: HandoffAnswer | None
    chain: list[ChainLink]
    refusals: list[Refusal]
    attempts: list[HandoffAttempt]
    late: LateAnswer | None
    reason: str | None
    source_task: str | None
    root_id: str | None
    task_id: str | None
    session_key: str | None
    creator: str | None
    retry_of: str | None
    timeout: float
    retry_count: int
    max_retries: int
    created_at: str
    accepted_at: str | None
    completed_at: str | None
    deadline_at: str
    revision: int


class HandoffPage(TypedDict):
    """Some handoffs, newest first; `next` is the `before` of the following page."""

    handoffs: list[HandoffInfo]
    next: str | None

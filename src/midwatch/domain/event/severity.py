"""The severity of events: debug, info, warning or error. It follows from the kind of an event and from its payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from midwatch.domain.event import Event

Severity = Literal["debug", "info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("debug", "info", "warning", "error")
"""All severities, the lowest first."""

OF_KIND: Mapping[str, Severity] = {
    **dict.fromkeys(
        (
            "llm_request", "llm_delta", "llm_response", "thought_update", "thought_delta", "plan_update",
            "tool_exec_start", "tool_exec_end", "message_delta", "status_change", "screen_update", "task_progress",
        ),
        "debug",
    ),
    **dict.fromkeys(
        (
            "llm_retry", "tool_exec_skipped", "context_trimmed", "task_rescued", "budget_warned", "budget_reached",
            "hook_decided", "task_late", "automation_missed", "automation_paused", "goal_paused", "goal_timed_out",
            "handoff_rejected", "handoff_retried", "handoff_expired", "watchdog_alert", "gap",
        ),
        "warning",
    ),
    **dict.fromkeys(("error", "agent_error", "handoff_failed", "delivery_failed"), "error"),
}  # fmt: skip
"""The severity of a kind. All other kinds are info."""

EXCEPTIONS: Mapping[str, Callable[[Mapping[str, Any]], Severity | None]] = {
    "turn_end": lambda payload: "warning" if payload.get("status") in ("error", "timeout", "budget") else None,
    "llm_response": lambda payload: "warning" if payload.get("finish_reason") == "error" else None,
    "tool_exec_end": lambda payload: "warning" if payload.get("is_error") else None,
    "probe_end": lambda payload: "warning" if payload.get("error") else None,
    "agent_error": lambda payload: "warning" if payload.get("level") == "warning" else None,
    "agent_exited": lambda payload: "warning" if payload.get("code") else None,
    "task_finished": lambda payload: "error" if payload.get("status") == "failed" else None,
    "approval_resolved": lambda payload: "warning" if payload.get("status") == "expired" else None,
}
"""For some kinds, the severity that follows from the payload; None if it is that of the kind."""


def severity_of(event: Event) -> Severity:
    """Return the severity of an event."""
    decide = EXCEPTIONS.get(event.kind)
    return (decide(event.payload) if decide is not None else None) or OF_KIND.get(event.kind, "info")


def list_from(lowest: Severity) -> frozenset[Severity]:
    """Return the severities that are at least `lowest`."""
    return frozenset(SEVERITIES[SEVERITIES.index(lowest) :])

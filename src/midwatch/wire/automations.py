"""Automations and their runs as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class AutomationInfo(TypedDict):
    """An automation as JSON. `schedule` has exactly one of at, every (seconds) and cron."""

    id: str
    title: str
    prompt: str
    agent: str
    schedule: dict[str, Any]
    zone: str
    fresh: bool
    worktree: bool
    scope_kind: str
    scope_id: str
    route: str | None
    creator: str | None
    manage_mode: str
    session_key: str
    resume_thread_id: str | None
    source_message_id: str | None
    status: str
    paused_why: str | None
    running: bool
    max_runs: int
    run_count: int
    workdir: str | None
    timeout_seconds: float | None
    on_crash: str | None
    jitter_seconds: float
    missed: str
    missed_window: float
    quiet: str | None
    budget: dict[str, Any] | None
    approvals: dict[str, Any] | None
    tags: list[str]
    created_at: str
    updated_at: str
    next_run_at: str | None
    last_run_at: str | None
    deleted_at: str | None
    last_result: str | None
    consecutive_failures: int
    revision: int
    next_runs: list[str]


class AutomationPage(TypedDict):
    """Automations, newest first."""

    automations: list[AutomationInfo]


class TakenInfo(TypedDict):
    """What an import did about one automation: made, changed, same or deleted."""

    id: str
    what: str


class TakenPage(TypedDict):
    """What an import did, in its order."""

    automations: list[TakenInfo]


class RunInfo(TypedDict):
    """One run of an automation, or one step of a goal."""

    task_id: str
    scheduled_for: str | None
    status: str
    outcome: str | None
    started_at: str | None
    completed_at: str | None
    result: str | None
    error: str | None
    usage: dict[str, Any] | None


class RunPage(TypedDict):
    """Runs or steps, newest first."""

    runs: list[RunInfo]


class PreviewInfo(TypedDict):
    """When a schedule would run: in words, and its next times with the offset of its zone."""

    when: str
    next_runs: list[str]


class DayInfo(TypedDict):
    """The day of an automation: its schedule in words, its runs within 24 hours, its newest runs first."""

    id: str
    when: str
    next_runs: list[str]
    runs: list[RunInfo]


class DayPage(TypedDict):
    """The days of automations, in the order of their list."""

    days: list[DayInfo]

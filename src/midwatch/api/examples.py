"""Examples of automations, goals, rules and what stands around them, for the description of the interface."""

from __future__ import annotations

from typing import Any

AT = "2026-01-02T09:00:00.000000Z"
NEXT = ["2026-01-05T09:00:00+01:00", "2026-01-06T09:00:00+01:00"]
AUTOMATION: dict[str, Any] = {
    "id": "am_06f2m8yq3kq5r0v9x1w2", "title": "Morning brief", "prompt": "Brief me for {{date}}", "agent": "demo",
    "schedule": {"cron": "0 9 * * 1-5", "zone": "Europe/Berlin"}, "zone": "Europe/Berlin", "fresh": False,
    "worktree": False,
    "scope_kind": "user", "scope_id": "owner", "route": None, "creator": "owner", "manage_mode": "creator_only",
    "session_key": "auto:am_06f2m8yq3kq5r0v9x1w2", "resume_thread_id": None, "source_message_id": None,
    "status": "active", "paused_why": None, "running": False, "max_runs": 0, "run_count": 3, "workdir": None,
    "timeout_seconds": None, "on_crash": None, "jitter_seconds": 0.0, "missed": "once_within",
    "missed_window": 43200.0, "quiet": None, "budget": None, "approvals": None, "tags": ["daily"],
    "created_at": AT, "updated_at": AT, "next_run_at": "2026-01-05T08:00:00.000000Z", "last_run_at": AT,
    "deleted_at": None, "last_result": f"ok: {AT}", "consecutive_failures": 0, "revision": 6, "next_runs": NEXT,
}  # fmt: skip
RUN: dict[str, Any] = {
    "task_id": "t_06f2m8yq3kq5r0v9x1w2", "scheduled_for": AT, "status": "done", "outcome": "ok", "started_at": AT,
    "completed_at": AT, "result": "Nothing is on fire.", "error": None, "usage": None,
}  # fmt: skip
GOAL: dict[str, Any] = {
    "id": "g_06f2m8yq3kq5r0v9x1w2", "objective": "All tests pass on main", "agent": "demo", "status": "active",
    "deadline_at": "2026-01-04T09:00:00.000000Z", "next_run_at": None, "delay_reason": None, "thread_id": None,
    "scope_kind": "user", "scope_id": "owner", "route": None, "creator": "owner", "manage_mode": "creator_only",
    "session_key": "goal:g_06f2m8yq3kq5r0v9x1w2", "workdir": None, "verifier": None, "step": 2, "work": "step",
    "running": True, "evidence": None, "missing": None, "errors": 0, "max_steps": 20, "max_tokens": 0,
    "max_seconds": 0.0, "max_usd": 0.0, "tokens": 1200, "seconds": 95.5, "usd": 0.02, "paused_why": None,
    "summary": None, "created_at": AT, "updated_at": AT, "completed_at": None, "revision": 4,
}  # fmt: skip
HANDOFF: dict[str, Any] = {
    "id": "h_06f2m8yq3kq5r0v9x1w2", "status": "completed", "form": "delegate", "from_agent_id": "lead",
    "to_agent_id": "coder", "tool_name": "transfer_to_coder",
    "tool_description": "Handoff to the coder agent to handle the request.",
    "transfer_message": '{"assistant":"coder"}',
    "task": {"type": "code", "description": "Fix the failing test", "input": None, "priority": 0, "metadata": {}},
    "context": {
        "conversation_id": None, "messages": [{"role": "user", "content": "The tests fail"}], "variables": {},
        "parent_handoff": None,
    },
    "result": {"output": "It was a missing import.", "error": None, "duration_ms": 5200},
    "chain": [{"agent": "lead", "handoff": None}], "refusals": [{"agent": "senior", "reason": "busy"}], "late": None,
    "attempts": [{"attempt": 1, "started_at": AT, "ended_at": AT, "outcome": "ok", "error": None}],
    "reason": None, "source_task": "t_06f2m8yq3kq5r0v9x1w2", "root_id": "t_06f2m8yq3kq5r0v9x1w2",
    "task_id": "t_06f2m8yq3kq5r0v9x1w3", "session_key": "bg:t_06f2m8yq3kq5r0v9x1w3", "creator": "owner",
    "retry_of": None, "timeout": 600.0, "retry_count": 0, "max_retries": 0, "created_at": AT, "accepted_at": AT,
    "completed_at": AT, "deadline_at": AT, "revision": 4,
}  # fmt: skip
SHOT = {"id": "am_1", "prompt": "Look around", "agent": "demo", "schedule": {"cron": "@daily", "zone": "UTC"}}
STANDING: dict[str, Any] = {
    "ChoiceInfo": {"name": "Allow", "kind": "allow_once"},
    "PatternInfo": {"kind": "edit", "command": None, "path": "src/a.py", "root": "/srv/project"},
    "AutomationInfo": AUTOMATION,
    "AutomationBody": {
        "prompt": "Brief me for {{date}}", "cron": "0 9 * * 1-5", "zone": "Europe/Berlin", "agent": "demo",
        "title": "Morning brief",
    },
    "AutomationPatch": {"title": "Brief", "revision": 6},
    "ImportBody": {"automations": [SHOT]},
    "TakenInfo": {"id": AUTOMATION["id"], "what": "created"},
    "DayInfo": {"id": AUTOMATION["id"], "when": "at 09:00 on Monday through Friday", "next_runs": NEXT, "runs": [RUN]},
    "PreviewInfo": {"when": "at 09:00 on Monday through Friday", "next_runs": NEXT},
    "RunInfo": RUN,
    "GoalInfo": GOAL,
    "GoalBody": {"objective": "All tests pass on main", "agent": "demo", "deadline": "in 2d", "max_steps": 20},
    "GoalPatch": {"objective": "All tests pass on main and on the release branch"},
    "CompleteBody": {"evidence": "the last run of the tests is green"},
    "DelayBody": {"duration": 1800.0, "reason": "waiting for the nightly build"},
    "HandoffInfo": HANDOFF,
    "HandoffBody": {
        "to": "demo", "task": {"type": "code", "description": "Fix the failing test"}, "timeout": "10m", "wait": 10.0,
    },
    "AlertInfo": {"subject": RUN["task_id"], "alert": "silent", "text": "Silent: Rebuild the index", "since": AT},
    "RoutineInfo": {
        "name": "watchdog", "seconds": 60.0, "runs": 12, "failures": 0, "skipped": 0, "last_at": AT, "last_error": None,
    },
}  # fmt: skip

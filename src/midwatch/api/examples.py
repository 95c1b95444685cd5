"""Examples of automations, goals, rules and what stands around them, for the description of the interface."""

from __future__ import annotations

from typing import Any

AT = "2026-01-02T09:00:00.000000Z"
NEXT = ["2026-01-05T09:00:00+01:00", "2026-01-06T09:00:00+01:00"]
RUN: dict[str, Any] = {
    "task_id": "t_06f2m8yq3kq5r0v9x1w2", "scheduled_for": AT, "status": "done", "outcome": "ok", "started_at": AT,
    "completed_at": AT, "result": "Nothing is on fire.", "error": None, "usage": None,
}  # fmt: skip
SHOT = {"id": "am_1", "prompt": "Look around", "agent": "demo", "schedule": {"cron": "@daily", "zone": "UTC"}}
STANDING: dict[str, Any] = {
    "ImportBody": {"automations": [SHOT]},
    "TakenInfo": {"id": SHOT["id"], "what": "created"},
    "DayInfo": {"id": SHOT["id"], "when": "at 09:00 on Monday through Friday", "next_runs": NEXT, "runs": [RUN]},
    "PreviewInfo": {"when": "at 09:00 on Monday through Friday", "next_runs": NEXT},
    "RunInfo": RUN,
    "CompleteBody": {"evidence": "the last run of the tests is green"},
    "DelayBody": {"duration": 1800.0, "reason": "waiting for the nightly build"},
    "HandoffBody": {
        "to": "demo", "task": {"type": "code", "description": "Fix the failing test"}, "timeout": "10m", "wait": 10.0,
    },
    "AlertInfo": {"subject": RUN["task_id"], "alert": "silent", "text": "Silent: Rebuild the index", "since": AT},
    "RoutineInfo": {
        "name": "watchdog", "seconds": 60.0, "runs": 12, "failures": 0, "skipped": 0, "last_at": AT, "last_error": None,
    },
}  # fmt: skip

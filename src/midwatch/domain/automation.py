"""Automations: prompts that run at scheduled times.

An automation is running if it has an open task. `fire` starts a run, and `settle` updates the automation after a run.
Both functions are pure: each computes one step. The step is written together with the start or the end of the task.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypedDict, get_args
from zoneinfo import ZoneInfo

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.schedule import Schedule, count_missed, next_run_at
from midwatch.base.text import cut
from midwatch.domain.agent import AgentTerms
from midwatch.domain.budget import Budget
from midwatch.domain.changes import Changes, change_record, event_about, update_record
from midwatch.domain.channel import Delivery, hide_target, notify
from midwatch.domain.event import AutomationChanged, AutomationFired, AutomationMissed, AutomationPaused, Event
from midwatch.domain.fields import AT, Example, Hidden, Input, Show, to_json
from midwatch.domain.lineage import extend_path
from midwatch.domain.requests import OnBudget, OnCrash, refuse_first
from midwatch.domain.rule import Policy
from midwatch.domain.task import AUTOMATION_PAUSES, Task, correlate, new_task, submit_task

Status = Literal["active", "paused", "deleted"]
Hold = Literal["closed", "runs"]
"""What may hold up a due automation: its session is closed; its last run is open or was transferred."""
ManageMode = Literal["creator_only", "scope_all"]
ScopeKind = Literal["user", "chat"]
Missed = Literal["skip", "once", "once_within"]

Scope = Annotated[ScopeKind, Input("Whether it belongs to a user or a chat.", once=True)]
ScopeId = Annotated[str, Input("The user or chat. Default: its creator's.", takes=str | None, once=True, longest=500)]
ManagedBy = Annotated[ManageMode, Input("Who may change it, besides owners.")]
NoticeRoute = Annotated[
    str | None, Input("Where to send notices: channel or channel:target.", longest=2000), Show(hide_target)
]
"""This type and the three types above are types of fields that automations and goals share."""

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "active": frozenset({"paused", "deleted"}),
    "paused": frozenset({"active", "deleted"}),
    "deleted": frozenset({"active", "paused"}),
}
SPENT, OVER, CLOSED = "it has had all its runs", "its time has passed", "its conversation is closed"
MOST_FAILURES = 3
"""After this many failed runs in a row the automation is paused."""
LATE_SECONDS = 90.0
"""A run counts as on time if it starts at most this many seconds late."""
WINDOW_SECONDS = 12 * 3600.0
MAX_TITLE = 200
MAX_TAGS = 20
RESULT_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Automation:
    """The record of an automation.

    If `next_run_at` is None, no next run is planned. `approvals` is a `midwatch.domain.rule.Policy` as JSON.
    """

    noun: ClassVar[str] = "automation"

    id: Annotated[str, Example("am_06f2m8yq3kq5r0v9x1w2")]
    prompt: Annotated[str, Input("What the agent should do.", agents=True, example="Brief me for {{date}}")]
    agent: Annotated[
        str,
        Input(
            "Agent to use. Default: the setting default_agent.",
            takes=str | None,
            longest=200,
            agents=True,
            example="demo",
        ),
    ]
    schedule: Annotated[Mapping[str, Any], Example({"cron": "0 9 * * 1-5", "zone": "Europe/Berlin"})]
    title: Annotated[str, Input("Title. Default: the prompt.", longest=1000, agents=True, example="Morning brief")] = ""
    fresh: Annotated[bool, Input("Start each run in a new session.", agents=True)] = False
    scope_kind: Scope = "user"
    scope_id: ScopeId = "owner"
    route: NoticeRoute = None
    creator: Annotated[str | None, Example("owner")] = None
    manage_mode: ManagedBy = "creator_only"
    session_key: Annotated[
        str,
        Input("Session to run in. Default: a new one.", takes=str | None, once=True, longest=1000),
        Example("auto:am_06f2m8yq3kq5r0v9x1w2"),
    ] = ""
    resume_thread_id: Annotated[
        str | None, Input("The agent's thread that its conversation continues.", once=True, longest=500)
    ] = None
    source_message_id: Annotated[
        str | None, Input("The message that requested it; its results answer this message.", once=True, longest=500)
    ] = None
    status: Status = "active"
    paused_why: str | None = None
    max_runs: Annotated[int, Input("Pause after this many runs; 0 for no limit.", least=0, most=2**31, agents=True)] = 0
    run_count: Annotated[int, Example(3)] = 0
    workdir: Annotated[str | None, Input("Directory to work in.", longest=4096, agents=True)] = None
    worktree: Annotated[bool, Input("Start each run in a new git worktree and session.", agents=True)] = False
    timeout_seconds: Annotated[
        float | None, Input("Time limit: 90s, 10m, 1h30m.", name="timeout", seconds=True, agents=True)
    ] = None
    on_crash: Annotated[OnCrash | None, Input("After a crash: resume, rerun or fail. Default: the agent's.")] = None
    jitter_seconds: Annotated[
        float, Input("Spread the starts over this much time.", name="jitter", seconds=True, agents=True)
    ] = 0.0
    missed: Annotated[Missed, Input("Missed runs: skip them, or run once for all.", agents=True)] = "once_within"
    missed_window: Annotated[float, Input("For once_within: how late it may start.", seconds=True, agents=True)] = (
        WINDOW_SECONDS
    )
    quiet: Annotated[str | None, Input("Do not deliver an answer that is only this.", longest=200, agents=True)] = None
    budget: Annotated[Mapping[str, Any] | None, Input("What each run may spend: tokens, usd, steps, seconds.")] = None
    on_budget: Annotated[
        OnBudget | None, Input("When the budget is spent: stop, or ask. Default: ask if it has a route.")
    ] = None
    approvals: Annotated[
        Mapping[str, Any] | None, Input("Rules on the use of tools: default, allow, ask, deny, expires.")
    ] = None
    tags: Annotated[tuple[str, ...], Input("Words to find it by.", longest=100, agents=True, example=["daily"])] = ()
    created_at: int = 0
    updated_at: int = 0
    next_run_at: Annotated[
        int | None,
        Input("When it runs next, if not by its schedule.", takes=str | None, longest=100),
        Example("2026-01-05T08:00:00.000000Z"),
    ] = None
    last_run_at: int | None = None
    deleted_at: int | None = None
    last_result: Annotated[str | None, Example(f"ok: {AT}")] = None
    consecutive_failures: int = 0
    revision: Annotated[int, Example(6)] = 0
    account_id: Hidden[str | None] = None
    """The account of all its runs, if an agent created it: that of the agent's task."""
    trace_path: Hidden[str | None] = None
    """The path of the task whose agent created it."""

    @property
    def times(self) -> Schedule:
        """Return the schedule; raise InvalidInput if it cannot be used, for example because its zone is unknown."""
        if not isinstance(self.schedule, Mapping):
            raise InvalidInput("the schedule of the automation cannot be read; set a new schedule.", field="schedule")
        return Schedule.from_data(self.schedule)

    @property
    def name(self) -> str:
        """Return the title of the automation, or the beginning of its prompt."""
        return self.title or cut(self.prompt, 50)

    @property
    def exhausted(self) -> bool:
        """Return whether the automation has had all the runs that `max_runs` allows."""
        return 0 < self.max_runs <= self.run_count

    def snapshot(self) -> dict[str, Any]:
        """Return the automation as JSON shows it.

        The target of the route is left out, because it may contain a secret.
        """
        schedule = dict(self.schedule) if isinstance(self.schedule, Mapping) else {}
        return {**to_json(self), "schedule": schedule, "zone": schedule.get("zone", "UTC")}


class Times(TypedDict, total=False):
    """The times of an automation in a request: exactly one of `at`, `every` and `cron`."""

    at: Annotated[str | None, Input("Run once: 2026-03-29T09:00, in 20m, 09:00, fri 09:00.", longest=100, agents=True)]
    every: Annotated[float | None, Input("Interval: 90m, 24h, 7d.", seconds=True, agents=True)]
    cron: Annotated[
        str | None,
        Input("Cron expression, such as '0 9 * * 1-5' or @daily.", longest=200, agents=True, example="0 9 * * 1-5"),
    ]
    zone: Annotated[
        str | None,
        Input("IANA time zone. Default: this machine's.", longest=100, agents=True, example="Europe/Berlin"),
    ]


class AutomationStore(Protocol):
    """Port: automations. They are written as part of a step, with `Changes`."""

    async def get_automation(self, automation_id: str) -> Automation | None:
        """Return the automation, even if it is deleted, or None."""

    async def list_automations(
        self, scope: tuple[str, str] | None = None, statuses: tuple[Status, ...] = (), limit: int = 20
    ) -> list[Automation]:
        """Return automations with one of the `statuses`, newest first.

        Without `statuses`, return all automations that are not deleted.
        """

    async def list_due_automations(self, now: int, limit: int = 64) -> list[Automation]:
        """Return active automations whose time has come, earliest first."""

    async def find_held_automations(self, ids: Sequence[str]) -> dict[str, frozenset[Hold]]:
        """Return what may hold up these automations; automations that nothing holds up are left out."""

    async def find_next_automation_at(self) -> int | None:
        """Return when the next automation is due, or None."""

    async def find_open_run(self, automation_id: str) -> Task | None:
        """Return the open task of an automation, or None.

        If the work of its last task was transferred, return the open task that continues this work.
        """

    async def list_runs(self, automation_id: str, limit: int = 20) -> list[Task]:
        """Return the tasks of an automation, newest first."""

    async def prune_automations(self, before: int) -> int:
        """Remove automations that were deleted before the time `before`, and return how many."""


# -- pure rules ----------------------------------------------------------------------------------------------------


def normalise(automation: Automation) -> Automation:
    """Return the automation in the form in which it is stored.

    Texts have no surrounding blanks. Only a deleted automation has `deleted_at`, and only an active one has
    `next_run_at`.
    """
    return replace(
        automation,
        title=automation.title.strip(),
        prompt=automation.prompt.strip(),
        scope_id=automation.scope_id.strip(),
        session_key=automation.session_key.strip() or f"auto:{automation.id}",
        tags=tuple(dict.fromkeys(tag.strip() for tag in automation.tags if tag.strip())),
        budget=Budget.from_data(automation.budget).data(),
        approvals=Policy.from_data(automation.approvals).data() or None if automation.approvals else None,
        deleted_at=automation.deleted_at if automation.status == "deleted" else None,
        next_run_at=automation.next_run_at if automation.status == "active" else None,
    )


def check_scope(record: Any) -> None:
    """Raise InvalidInput if the scope or the `manage_mode` of an automation or a goal is not valid."""
    refuse_first(
        ("scope_kind", record.scope_kind not in get_args(ScopeKind), "`scope_kind` must be user or chat."),
        ("scope_id", not record.scope_id, "`scope_id` is empty; name the user or chat."),
        ("manage_mode", record.manage_mode not in get_args(ManageMode), "it must be creator_only or scope_all."),
    )


def validate(automation: Automation) -> None:
    """Raise InvalidInput if a field of the automation is not valid."""
    check_scope(automation)
    long_tag = any(not tag.isprintable() or len(tag) > 50 for tag in automation.tags)
    refuse_first(
        ("prompt", not automation.prompt, "the prompt is empty; describe what the agent should do."),
        ("title", len(automation.title) > MAX_TITLE, f"the title must have at most {MAX_TITLE} characters."),
        ("title", not (automation.title or "x").isprintable(), "the title must be one line of text."),
        ("status", automation.status not in TRANSITIONS, "`status` must be active, paused or deleted."),
        ("max_runs", automation.max_runs < 0, "`max_runs` must be above 0, or 0 for no limit."),
        ("run_count", automation.run_count < 0, "`run_count` must be 0 or more."),
        ("max_runs", 0 < automation.max_runs < automation.run_count, "`max_runs` is below `run_count`; raise it."),
        ("missed", automation.missed not in get_args(Missed), "`missed` must be skip, once or once_within."),
        ("missed_window", not 0 < automation.missed_window < math.inf, "`missed_window` must be above 0 seconds."),
        ("jitter", not 0 <= automation.jitter_seconds <= 86400, "`jitter` must be from 0 seconds to a day."),
        ("worktree", automation.worktree and not automation.fresh, "`worktree` needs `fresh`; set both."),
        ("quiet", automation.quiet is not None and not automation.quiet.strip(), "`quiet` is empty; write some text."),
        ("tags", len(automation.tags) > MAX_TAGS, f"there are too many tags; use at most {MAX_TAGS}."),
        ("tags", long_tag, "a tag must have 1 to 50 printable characters."),
    )


def render(prompt: str, now: int, zone: str) -> str:
    """Return the prompt with `{{now}}`, `{{date}}`, `{{time}}` and `{{unix}}` replaced by their values."""
    if "{{" not in prompt:
        return prompt
    at = datetime.fromtimestamp(now // SECOND, ZoneInfo(zone))
    values = {
        "{{now}}": at.isoformat(timespec="seconds"),
        "{{date}}": at.strftime("%Y-%m-%d"),
        "{{time}}": at.strftime("%H:%M:%S"),
        "{{unix}}": str(now // SECOND),
    }
    for name, value in values.items():
        prompt = prompt.replace(name, value)
    return prompt


def fire(automation: Automation, now: int, terms: AgentTerms, *, runs: bool) -> Changes:
    """Return the step that starts or skips the due run of an automation, and that sets the time of the next run.

    If the automation cannot run any more, the step pauses it. `runs` is whether the last run is still open.
    """
    due = automation.next_run_at
    assert due is not None
    if automation.exhausted:
        return pause_automation(automation, now, SPENT, None)
    try:
        times = automation.times
    except InvalidInput as problem:
        remedy = f"Set a new one: midwatch automation edit {automation.id}"
        return pause_and_notify(automation, now, f"its schedule cannot be read: {problem}", remedy)
    following = next_run_at(times, max(now, due))
    late = now - due > LATE_SECONDS * SECOND
    reason = "overlap" if runs else _lateness(automation, now - due) if late else None
    events: tuple[Event, ...] = ()
    if reason is not None:
        count = max(1, count_missed(times, due - 1, now)) if late else 1
        at = iso(due) or ""
        missed = AutomationMissed(automation_id=automation.id, reason=reason, scheduled_for=at, count=count)
        if reason != "caught_up":
            return _skip_run(automation, now, following, missed)
        events = (event_about(automation, missed, now),)
    task = build_run(automation, now, due, terms, key=f"{automation.id}@{due}")
    return _start_run(automation, task, now, due, following, events)


def pause_and_notify(automation: Automation, now: int, why: str, remedy: str) -> Changes:
    """Pause an automation that cannot run, and send a notice to its route."""
    notice = _notice(automation, f"{why}\n{remedy}", automation.id, now)
    return pause_automation(automation, now, why, None)._replace(deliveries=notice)


def pause_for_closed_session(automation: Automation, now: int) -> Changes:
    """Pause an automation whose session is closed."""
    remedy = f"Open {automation.session_key} again, then resume it: midwatch automation resume {automation.id}"
    return pause_and_notify(automation, now, CLOSED, remedy)


def _lateness(automation: Automation, late: int) -> str:
    """Return "caught_up" if a run that is late by `late` microseconds still starts, or "late" if it is skipped."""
    within = automation.missed == "once_within" and late <= automation.missed_window * SECOND
    return "caught_up" if automation.missed == "once" or within else "late"


def run_now(
    automation: Automation, now: int, terms: AgentTerms, *, actor: str | None = None, submitter: str | None = None
) -> tuple[Task, Changes]:
    """Start a run outside the schedule. Like every run, it counts towards `max_runs`."""
    task = build_run(
        automation, now, now, terms, key=f"{automation.id}@now:{automation.revision}", submitter=submitter, jitter=False
    )
    return task, _start_run(automation, task, now, now, automation.next_run_at, (), actor)


def _skip_run(automation: Automation, now: int, following: int | None, missed: AutomationMissed) -> Changes:
    fields: dict[str, Any] = {"next_run_at": following}
    events, notice = [event_about(automation, missed, now)], tuple[Delivery, ...]()
    if following is None:
        fields |= {"status": "paused", "paused_why": OVER}
        events.append(event_about(automation, AutomationPaused(automation_id=automation.id, why=OVER), now))
        text = f"{OVER}, and it did not run.\nRun it now: midwatch automation run {automation.id}"
        notice = _notice(automation, text, automation.id, now) if missed.reason == "late" else ()
    return Changes(updates=(update_record(automation, now, **fields),), events=tuple(events), deliveries=notice)


def build_run(
    automation: Automation,
    now: int,
    due: int,
    terms: AgentTerms,
    *,
    key: str,
    submitter: str | None = None,
    jitter: bool = True,
) -> Task:
    """Build the task of one run."""
    task_id = new_id("t", now)
    later = _jitter(automation, due) if jitter else 0
    session = automation.session_key
    if automation.fresh:  # a session of its own, behind the same gate
        session = f"{session}|message:{task_id}"
    return new_task(
        now, render(automation.prompt, now + later, automation.times.zone), automation.agent, session,
        task_id=task_id, delay=later, cause="automation", cause_id=automation.id, creator=automation.creator,
        route=automation.route, workdir=automation.workdir,
        dir_key=None if automation.worktree else terms.dir_key(automation.workdir), quiet=automation.quiet,
        worktree={"id": new_id("w", now)} if automation.worktree else None,
        timeout_seconds=automation.timeout_seconds or terms.timeout_seconds,
        on_crash=automation.on_crash or terms.on_crash, max_attempts=len(AUTOMATION_PAUSES) + 1, submitter=submitter,
        internal_key=key, budget=terms.budget_of(Budget.from_record(automation.budget)), source="automation",
        on_budget=terms.mode_of(automation.on_budget, askable=automation.route is not None),
        approvals=automation.approvals, account_id=automation.account_id,
        trace_path=extend_path(automation.trace_path, task_id) if automation.trace_path else None,
    )  # fmt: skip


def _jitter(automation: Automation, due: int) -> int:
    """Return by how many microseconds this run is delayed; the value is always the same for one run."""
    if not automation.jitter_seconds:
        return 0
    part = int.from_bytes(hashlib.sha256(f"{automation.id}@{due}".encode()).digest()[:4]) / 2**32
    return int(part * automation.jitter_seconds * SECOND)


def _start_run(
    automation: Automation,
    task: Task,
    now: int,
    due: int,
    following: int | None,
    events: tuple[Event, ...],
    actor: str | None = None,
) -> Changes:
    count = automation.run_count + 1
    last = 0 < automation.max_runs <= count
    fields = {"run_count": count, "last_run_at": now, "next_run_at": None if last else following}
    fired = AutomationFired(automation_id=automation.id, task_id=task.id, scheduled_for=iso(due) or "", run=count)
    fired_event = event_about(automation, fired, now, actor, task_id=task.id)._replace(**correlate(task))
    step = Changes(updates=(update_record(automation, now, **fields),), events=(*events, fired_event))
    return step.plus(submit_task(task, now, actor))


# -- the end of a run ------------------------------------------------------------------------------------------------


def settle(automation: Automation, ended: Task, now: int, thread_id: str | None = None) -> Changes:
    """Return the step that updates an automation after a run; it is written together with the end of the run."""
    fields: dict[str, Any] = _result(automation, ended)
    if thread_id and not automation.fresh and thread_id != automation.resume_thread_id:
        fields["resume_thread_id"] = thread_id
    why = _pause_why(automation, ended, fields)
    if why is None or automation.status != "active":
        return Changes(updates=(update_record(automation, now, **fields),)) if fields else Changes()
    fields |= {"status": "paused", "paused_why": why, "next_run_at": None}
    paused = event_about(automation, AutomationPaused(automation_id=automation.id, why=why), now, task_id=ended.id)
    return Changes(
        updates=(update_record(automation, now, **fields),),
        events=(paused,),
        deliveries=_pause_notice(automation, ended, why, now) if why not in (SPENT, OVER) else (),
    )


def _result(automation: Automation, ended: Task) -> dict[str, Any]:
    at = iso(ended.completed_at)
    error = cut(ended.error or ended.outcome or "", RESULT_SHOWN)
    match ended.outcome:
        case "ok" | "silent" | "transferred":
            return {"consecutive_failures": 0, "last_result": f"ok: {at}"}
        case "cancelled" if ended.attempt == 0 and ended.retry_of is None:  # it never began, so it does not count
            return {"run_count": max(0, automation.run_count - 1), **_next_again(automation, ended)}
        case "cancelled":
            return {"last_result": f"cancelled: {at}"}
        case "lost":
            return {"last_result": f"lost: {error}"}
    return {"consecutive_failures": automation.consecutive_failures + 1, "last_result": f"error: {error}"}


def _next_again(automation: Automation, ended: Task) -> dict[str, Any]:
    """Return the fields that set a next run again after a run that does not count, if no next run is planned."""
    if automation.next_run_at is not None or automation.status != "active":
        return {}
    try:
        return {"next_run_at": next_run_at(automation.times, ended.completed_at or ended.created_at)}
    except InvalidInput:
        return {}


def _pause_why(automation: Automation, ended: Task, fields: Mapping[str, Any]) -> str | None:
    if fields.get("consecutive_failures", 0) >= MOST_FAILURES:
        return f"{MOST_FAILURES} runs failed in a row"
    if fields.get("next_run_at", automation.next_run_at) is not None:
        return None
    if ended.outcome == "lost":
        return "its last run was lost when the process that ran it ended"
    return SPENT if 0 < automation.max_runs <= fields.get("run_count", automation.run_count) else OVER


def _pause_notice(automation: Automation, ended: Task, why: str, now: int) -> tuple[Delivery, ...]:
    remedy = f"Resume it: midwatch automation resume {automation.id}"
    if ended.outcome == "lost":  # it has no next run that could be resumed
        remedy = f"Run it again: midwatch retry {ended.id}"
    return _notice(automation, f"{why}. {cut(ended.error or '', RESULT_SHOWN)}".rstrip() + f"\n{remedy}", ended.id, now)


def _notice(automation: Automation, text: str, about: str, now: int) -> tuple[Delivery, ...]:
    """Return the notice that the automation is paused; each run sends at most one such notice."""
    notice = "automation_paused" if about != automation.id else f"automation_paused:{now}"
    return notify(automation.route, about, notice, f"Paused: {automation.name}\n{text}", now)


# -- changes by people ----------------------------------------------------------------------------------------------


def pause_automation(automation: Automation, now: int, why: str, actor: str | None) -> Changes:
    """Pause an automation; it does not run until it is resumed."""
    fields = {"status": "paused", "paused_why": why, "next_run_at": None}
    return change_record(automation, AutomationPaused(automation_id=automation.id, why=why), now, actor, **fields)


def delete_automation(automation: Automation, now: int, run: Task | None, actor: str | None) -> Changes:
    """Delete an automation; its record is removed later.

    `run` is the last run of the automation, if it was stopped just now. A run that never began does not count.
    """
    fields = _result(automation, run) if run is not None and not run.open else {}
    fields |= {"status": "deleted", "deleted_at": now, "next_run_at": None}
    payload = AutomationChanged(automation_id=automation.id, fields=("status",), status="deleted")
    return change_record(automation, payload, now, actor, **fields)


def resume_automation(automation: Automation, now: int, actor: str | None) -> Changes:
    """Resume an automation.

    Missed runs are not started, and failures are counted from 0 again. If no run can follow, a deleted automation
    becomes paused, and any other automation raises InvalidInput.
    """
    following = next_run_at(automation.times, now)
    over = OVER if following is None else SPENT if automation.exhausted else None
    if over and automation.status != "deleted":
        what, field = ("set a new schedule", "schedule") if over is OVER else ("raise max_runs", "max_runs")
        raise InvalidInput(f"automation not resumed: {over}; {what} with `midwatch automation edit`.", field=field)
    fields: dict[str, Any] = {"status": "paused" if over else "active", "paused_why": over, "deleted_at": None}
    if not over:
        fields |= {"consecutive_failures": 0, "next_run_at": following}
    payload = AutomationChanged(automation_id=automation.id, fields=("status",), status=fields["status"])
    return change_record(automation, payload, now, actor, **fields)

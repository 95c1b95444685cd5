"""Steps of automations: start or skip a due run, update the automation after a run, and changes by people.

All functions are pure: each computes one step, which is written together with the start or the end of a task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.schedule import COUNTED, count_missed, next_run_at
from midwatch.base.text import cut, fence
from midwatch.base.timetable import NO_CALENDARS, Block, Calendars, Timetable
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import CLOSED, OVER, SPENT, Automation
from midwatch.domain.budget import Budget
from midwatch.domain.changes import Changes, Update, change_record, event_about, update_record
from midwatch.domain.channel import Delivery
from midwatch.domain.event import (
    AutomationChanged,
    AutomationFired,
    AutomationMissed,
    AutomationPaused,
    AutomationQueued,
    Event,
)
from midwatch.domain.lineage import extend_path
from midwatch.domain.notice import add_title, notify
from midwatch.domain.task import AUTOMATION_PAUSES, Task, correlate, new_task, submit_task
from midwatch.domain.task_step import TaskStep
from midwatch.domain.trigger import PAYLOAD_SHOWN, Firing, end_firing, restart_triggers

MOST_FAILURES = 3
"""After this many failed runs in a row the automation is paused."""
LATE_SECONDS = 90.0
"""A run counts as on time if it starts at most this many seconds late."""
RESULT_SHOWN = 300
REPLACED = "replaced by the run that was due at {}."
REPLACED_BY_TRIGGER = "replaced by the run of a trigger."
"""The error of a run that was cancelled because the next run was due."""


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


Decision = Literal["start", "skip", "queue", "replace"]
"""What becomes of a due run: it starts, it is skipped, it waits, or it waits and the open run is cancelled."""


def on_overlap(automation: Automation, *, open_run: bool) -> Decision:
    """Return what becomes of a run that is due by its time; `open_run` is whether the last run is still open.

    At most one run waits: with `queue`, further runs are skipped; with `replace`, the newest one waits.
    """
    if not open_run:
        return "start"
    if automation.overlap == "queue" and automation.waiting_run_at is not None:
        return "skip"
    return automation.overlap or "skip"


def fire(
    automation: Automation,
    now: int,
    terms: AgentTerms,
    *,
    runs: bool,
    open_task: str | None = None,
    calendars: Calendars = NO_CALENDARS,
    taken: bool = False,
) -> Changes:
    """Return the step that starts, skips, moves or queues the due run of an automation, and sets its next time.

    If the automation cannot run any more, the step pauses it. `runs` is whether the last run is still open, as the task
    `open_task`. `taken` is whether the due run exists already; then it is skipped.
    """
    due = automation.next_run_at
    assert due is not None
    if automation.exhausted:
        return pause_automation(automation, now, SPENT, None)
    try:
        timetable = automation.timetable(calendars)
    except InvalidInput as problem:
        remedy = f"Set a new one: midwatch automation edit {automation.id}"
        return pause_and_notify(automation, now, f"its schedule cannot be read: {problem}", remedy)
    if automation.waiting_run_at is not None and not runs:
        return _start_waiting(automation, now, terms, timetable, taken)
    late = now - due > LATE_SECONDS * SECOND
    lateness = _lateness(automation, now - due) if late else None
    block = timetable.find_block(due)
    if block is not None:
        count = count_missed(timetable.schedule, due - 1, block.until - 1)
        return _leave_out(automation, now, timetable, block, count)
    if lateness == "caught_up" and (block := timetable.find_block(now)) is not None:
        return _leave_out(automation, now, timetable, block, min(COUNTED, 1 + timetable.count(due, now)))
    following = next_run_at(timetable.schedule, now if late else due)
    decision: Decision = "skip" if taken else on_overlap(automation, open_run=runs)
    reason = "overlap" if decision == "skip" else lateness
    events: tuple[Event, ...] = ()
    if reason is not None:
        count = min(COUNTED, 1 + timetable.count(due, now)) if late else 1
        missed = _missed(automation, reason, due, count)
        if reason != "caught_up":
            return _skip_run(automation, now, following, missed)
        events = (event_about(automation, missed, now),)
    if decision != "start":
        return _queue_run(automation, now, due, following, events, open_task if decision == "replace" else None)
    later = _jitter(automation, due, now, following, timetable)
    task = build_run(automation, now, due, terms, key=f"{automation.id}@{due}", later=later)
    return _start_run(automation, task, now, due, following, events)


def _missed(
    automation: Automation, reason: str, due: int, count: int = 1, firing_id: str | None = None
) -> AutomationMissed:
    return AutomationMissed(
        automation_id=automation.id, reason=reason, scheduled_for=iso(due) or "", count=count, firing_id=firing_id
    )


def _leave_out(automation: Automation, now: int, timetable: Timetable, block: Block, count: int) -> Changes:
    """Skip the runs that are due on days off, or move those in quiet hours to the end of these hours, as one run.

    `count` is the number of these runs.
    """
    due = automation.next_run_at
    assert due is not None
    event_payload = _missed(automation, block.reason, due, max(1, count))
    if block.reason == "day_off":
        return _skip_run(automation, now, next_run_at(timetable.schedule, block.until - 1), event_payload)
    return Changes(
        updates=(update_record(automation, now, next_run_at=block.until),),
        events=(event_about(automation, event_payload, now),),
    )


def _queue_run(
    automation: Automation,
    now: int,
    due: int,
    following: int | None,
    events: tuple[Event, ...],
    replaces: str | None,
) -> Changes:
    """Let the due run wait for the end of the open run. A run that waits already is skipped."""
    if automation.waiting_run_at is not None:
        skipped = _missed(automation, "overlap", automation.waiting_run_at, 1)
        events = (*events, event_about(automation, skipped, now))
    queued = AutomationQueued(automation_id=automation.id, scheduled_for=iso(due) or "", replaces=replaces)
    update = update_record(automation, now, waiting_run_at=due, next_run_at=following)
    return Changes(updates=(update,), events=(*events, event_about(automation, queued, now)))


def _start_waiting(automation: Automation, now: int, terms: AgentTerms, timetable: Timetable, taken: bool) -> Changes:
    """Start the run that waited for the end of the last run; in quiet hours it waits on until their end."""
    due = automation.waiting_run_at
    assert due is not None
    told = max(due, automation.next_run_at or due)  # later times have not been looked at yet
    following = next_run_at(timetable.schedule, told)
    block = timetable.find_block(now)
    if taken:
        missed = event_about(automation, _missed(automation, "overlap", due, 1), now)
        update = update_record(automation, now, waiting_run_at=None, next_run_at=following)
        return Changes(updates=(update,), events=(missed,))
    if block is not None and block.reason == "quiet_hours":
        count = min(COUNTED, 1 + count_missed(timetable.schedule, told, block.until))
        moved = event_about(automation, _missed(automation, "quiet_hours", due, count), now)
        return Changes(updates=(update_record(automation, now, next_run_at=block.until),), events=(moved,))
    task = build_run(automation, now, due, terms, key=f"{automation.id}@{due}")
    return _start_run(automation, task, now, due, following, (), waiting_run_at=None)


def find_replaced(changes: Changes) -> str | None:
    """Return the id of the task that this step of an automation replaces, or None."""
    queued = (event.payload for event in changes.events if event.kind == "automation_queued")
    return next((payload.get("replaces") for payload in queued), None)


def is_replaced(automation: Automation, ended: Task, fired: bool = False) -> bool:
    """Return whether a run was cancelled because the next run replaces it. `fired` says that a firing waits."""
    waits = automation.overlap == "replace" and (fired or automation.waiting_run_at is not None)
    return waits and automation.status == "active" and ended.outcome == "cancelled"


def explain_replaced(step: TaskStep, automation: Automation) -> TaskStep:
    """Return the step that ends a replaced run, with the reason as its error, and without a notice."""
    due = automation.waiting_run_at
    error = REPLACED_BY_TRIGGER if due is None else REPLACED.format(iso(due))
    updates = tuple(
        update._replace(fields={**update.fields, "error": error}) if update.fields.get("completed_at") else update
        for update in step.changes.updates
    )
    events = tuple(
        event._replace(payload={**event.payload, "error": error}) if event.kind == "task_finished" else event
        for event in step.changes.events
    )
    changes = step.changes._replace(updates=updates, events=events, deliveries=())
    return step._replace(task=step.task._replace(error=error), changes=changes)


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
    task = build_run(automation, now, now, terms, key=f"{automation.id}@now:{automation.revision}", submitter=submitter)
    return task, _start_run(automation, task, now, now, automation.next_run_at, (), actor)


def start_firing(
    automation: Automation,
    firing: Firing,
    now: int,
    terms: AgentTerms,
    *,
    open_run: bool = False,
    calendars: Calendars = NO_CALENDARS,
) -> Changes:
    """Return the step that starts the run of a firing, skips it, or lets it wait for the end of the quiet hours.

    If the firing waits for the end of the open run, nothing changes. If the schedule cannot be read here, the
    automation is paused.
    """
    try:
        block = automation.timetable(calendars).find_block(now)
    except InvalidInput as problem:
        remedy = f"Set a new one: midwatch automation edit {automation.id}"
        return pause_and_notify(automation, now, f"its schedule cannot be read: {problem}", remedy)
    decision: Decision = automation.overlap or "queue" if open_run else "start"
    if decision == "skip" or (block is not None and block.reason == "day_off"):
        return skip_firing(automation, firing, now, block.reason if block and block.reason == "day_off" else "overlap")
    if block is not None:
        missed = _missed(automation, block.reason, firing.due_at, firing_id=firing.id)
        later = Update(firing.noun, firing.id, {"due_at": block.until}, {"status": firing.status})
        return Changes(updates=(later,), events=(event_about(automation, missed, now),))
    if decision != "start":
        return Changes()
    text = f"{firing.summary}\n\n{firing.payload}"  # a stranger may have written both
    label = f"From a trigger of the kind {firing.kind}"
    data = fence(cut(text.replace("\0", ""), PAYLOAD_SHOWN), label) if firing.payload else None
    task = build_run(automation, now, now, terms, key=f"{automation.id}@{firing.id}", data=data)
    step = _start_run(automation, task, now, firing.due_at, automation.next_run_at, (), firing_id=firing.id)
    return step.plus(Changes(updates=(end_firing(firing, now, task_id=task.id),)))


def skip_firing(automation: Automation, firing: Firing, now: int, reason: str) -> Changes:
    """Skip a pending firing for a reason."""
    missed = _missed(automation, reason, firing.due_at, firing_id=firing.id)
    return Changes(updates=(end_firing(firing, now, reason=reason),), events=(event_about(automation, missed, now),))


def _skip_run(automation: Automation, now: int, following: int | None, missed: AutomationMissed) -> Changes:
    fields: dict[str, Any] = {"next_run_at": following}
    if automation.waiting_run_at is not None and following is None:  # the waiting run still wakes the scheduler
        return Changes(
            updates=(update_record(automation, now, **fields),), events=(event_about(automation, missed, now),)
        )
    events, notice = [event_about(automation, missed, now)], tuple[Delivery, ...]()
    if following is None and not automation.triggers:
        fields |= {"status": "paused", "paused_why": OVER}
        events.append(event_about(automation, AutomationPaused(automation_id=automation.id, why=OVER), now))
        text = f"{OVER}, and it did not run.\nRun it now: midwatch automation run {automation.id}"
        notice = _notice(automation, text, automation.id, now) if missed.reason in ("late", "day_off") else ()
    return Changes(updates=(update_record(automation, now, **fields),), events=tuple(events), deliveries=notice)


def build_run(
    automation: Automation,
    now: int,
    due: int,
    terms: AgentTerms,
    *,
    key: str,
    submitter: str | None = None,
    later: int = 0,
    data: str | None = None,
) -> Task:
    """Build the task of one run, which starts `later` microseconds from now.

    `data` is what the agent gets besides the prompt, such as a payload.
    """
    task_id = new_id("t", now)
    session = automation.session_key
    if automation.fresh:  # a session of its own, behind the same gate
        session = f"{session}|message:{task_id}"
    prompt = render(automation.prompt, now + later, automation.times.zone)
    return new_task(
        now, f"{prompt}\n\n{data}" if data else prompt, automation.agent, session,
        task_id=task_id, delay=later, cause="automation", cause_id=automation.id, creator=automation.creator,
        route=automation.route,
        notices=add_title(automation.notices, automation.label) if automation.route else None,
        workdir=automation.workdir,
        dir_key=None if automation.worktree else terms.dir_key(automation.workdir), quiet=automation.quiet,
        worktree={"id": new_id("w", now)} if automation.worktree else None,
        timeout_seconds=automation.timeout_seconds or terms.timeout_seconds,
        on_crash=automation.on_crash or terms.on_crash, max_attempts=len(AUTOMATION_PAUSES) + 1, submitter=submitter,
        internal_key=key, budget=terms.budget_of(Budget.from_record(automation.budget)), source="automation",
        on_budget=terms.mode_of(automation.on_budget, askable=automation.route is not None),
        approvals=automation.approvals, account_id=automation.account_id, tags=automation.tags or None,
        probe=automation.probe.data() if automation.probe else None,
        trace_path=extend_path(automation.trace_path, task_id) if automation.trace_path else None,
    )  # fmt: skip


def _jitter(automation: Automation, due: int, now: int, following: int | None, timetable: Timetable) -> int:
    """Return by how many microseconds this run is delayed; the value is always the same for one run.

    The run still starts before the next one is due. If the delay would end in quiet hours, there is no delay.
    """
    if not automation.jitter_seconds:
        return 0
    longest = int(automation.jitter_seconds * SECOND)
    if following is not None:
        longest = min(longest, max(0, following - max(now, due)))
    part = int.from_bytes(hashlib.sha256(f"{automation.id}@{due}".encode()).digest()[:4]) / 2**32
    later = int(part * longest)
    return later if timetable.find_block(now + later) is None else 0


def _start_run(
    automation: Automation,
    task: Task,
    now: int,
    due: int,
    following: int | None,
    events: tuple[Event, ...],
    actor: str | None = None,
    firing_id: str | None = None,
    **fields: Any,
) -> Changes:
    count = automation.run_count + 1
    last = 0 < automation.max_runs <= count
    fields |= {"run_count": count, "last_run_at": now, "next_run_at": None if last else following}
    fired = AutomationFired(
        automation_id=automation.id, task_id=task.id, scheduled_for=iso(due) or "", run=count, firing_id=firing_id
    )
    fired_event = event_about(automation, fired, now, actor, task_id=task.id)._replace(**correlate(task))
    step = Changes(updates=(update_record(automation, now, **fields),), events=(*events, fired_event))
    return step.plus(submit_task(task, now, actor))


def settle(automation: Automation, ended: Task, now: int, thread_id: str | None = None) -> Changes:
    """Return the step that updates an automation after a run; it is written together with the end of the run."""
    fields: dict[str, Any] = _result(automation, ended)
    if thread_id and not automation.fresh and thread_id != automation.resume_thread_id:
        fields["resume_thread_id"] = thread_id
    if automation.waiting_run_at is not None and automation.status == "active":
        # This wakes the scheduler, which starts the waiting run. All times up to this one have been looked at.
        fields["next_run_at"] = now if automation.next_run_at is None else min(now, automation.next_run_at - 1)
    why = _pause_why(automation, ended, fields)
    if why is None or automation.status != "active":
        return Changes(updates=(update_record(automation, now, **fields),)) if fields else Changes()
    fields |= {"status": "paused", "paused_why": why, "next_run_at": None, "waiting_run_at": None}
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
        case "cancelled" if is_replaced(automation, ended, ended.error == REPLACED_BY_TRIGGER):
            return {"last_result": f"replaced: {at}"}
        case "skipped":  # it does not count
            again = _next_again(automation, ended)
            count = automation.run_count - (ended.retry_of is None)
            return {"run_count": max(0, count), "last_result": f"skipped: {at}", **again}
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
    spent = 0 < automation.max_runs <= fields.get("run_count", automation.run_count)
    if automation.triggers and not spent:
        return None
    if ended.outcome == "lost":
        return "its last run was lost when the process that ran it ended"
    return SPENT if spent else OVER


def _pause_notice(automation: Automation, ended: Task, why: str, now: int) -> tuple[Delivery, ...]:
    remedy = f"Resume it: midwatch automation resume {automation.id}"
    if ended.outcome == "lost":  # it has no next run that could be resumed
        remedy = f"Run it again: midwatch retry {ended.id}"
    return _notice(automation, f"{why}. {cut(ended.error or '', RESULT_SHOWN)}".rstrip() + f"\n{remedy}", ended.id, now)


def _notice(automation: Automation, text: str, about: str, now: int) -> tuple[Delivery, ...]:
    """Return the notice that the automation is paused; each run sends at most one such notice."""
    notice = "automation_paused" if about != automation.id else f"automation_paused:{now}"
    return notify(automation.route, automation.notices, about, notice, f"Paused: {automation.label}\n{text}", now)


def pause_automation(automation: Automation, now: int, why: str, actor: str | None, run: Task | None = None) -> Changes:
    """Pause an automation; it does not run until it is resumed.

    `run` is its last run, if it was stopped just now. A run that never began does not count.
    """
    fields = _result(automation, run) if run is not None and not run.open else {}
    fields |= {"status": "paused", "paused_why": why, "next_run_at": None, "waiting_run_at": None}
    return change_record(automation, AutomationPaused(automation_id=automation.id, why=why), now, actor, **fields)


def count_stopped(automation: Automation, run: Task | None, now: int) -> Changes:
    """Return the step that updates a paused automation after its run was stopped, if the run has ended by this."""
    if run is None or run.open:
        return Changes()
    return Changes(updates=(update_record(automation, now, **_result(automation, run)),))


def delete_automation(automation: Automation, now: int, run: Task | None, actor: str | None) -> Changes:
    """Delete an automation; its record is removed later.

    `run` is the last run of the automation, if it was stopped just now. A run that never began does not count.
    """
    fields = _result(automation, run) if run is not None and not run.open else {}
    fields |= {"status": "deleted", "deleted_at": now, "next_run_at": None, "waiting_run_at": None}
    payload = AutomationChanged(automation_id=automation.id, fields=("status",), status="deleted")
    return change_record(automation, payload, now, actor, **fields)


def resume_automation(automation: Automation, now: int, actor: str | None) -> Changes:
    """Resume an automation.

    Missed runs are not started, and failures are counted from 0 again. If no run can follow, a deleted automation
    becomes paused, and any other automation raises InvalidInput.
    """
    following = next_run_at(automation.times, now)
    waits = following is None and not automation.triggers
    over = OVER if waits else SPENT if automation.exhausted else None
    if over and automation.status != "deleted":
        what, field = ("set a new schedule", "schedule") if over is OVER else ("raise max_runs", "max_runs")
        raise InvalidInput(f"automation not resumed: {over}; {what} with `midwatch automation edit`.", field=field)
    fields: dict[str, Any] = {"status": "paused" if over else "active", "paused_why": over, "deleted_at": None}
    if not over:
        fields |= {"consecutive_failures": 0, "next_run_at": following, "waiting_run_at": None}
    payload = AutomationChanged(automation_id=automation.id, fields=("status",), status=fields["status"])
    return change_record(automation, payload, now, actor, **fields).plus(restart_triggers(automation, now))

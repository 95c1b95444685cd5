"""Alerts: reports of the watchdog about work that is late or does not continue, so that nothing stops unnoticed.

An alert is raised once. If nobody acknowledges it, it is escalated once: there is a second notice. When the reason for
the alert is over, the alert is withdrawn. If the same problem comes back later, it is a new alert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.base.clock import iso
from midwatch.base.durations import duration
from midwatch.base.text import cut
from midwatch.domain.approval import Approval
from midwatch.domain.automation import BY_PERSON, OVER, SPENT, Automation
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import Delivery, read_routes
from midwatch.domain.event import Event, Payload, WatchdogAcknowledged, WatchdogAlert, WatchdogWithdrawn, event
from midwatch.domain.fields import Example, Hidden, Show, to_json
from midwatch.domain.goal import Goal
from midwatch.domain.notice import notify, title_of
from midwatch.domain.probe import Probe
from midwatch.domain.task import Task
from midwatch.domain.trigger import LateFirings, Trigger

Kind = Literal["overdue", "stuck", "silent", "waiting", "paused", "stopped", "undelivered", "unchecked"]
Status = Literal["found", "raised", "escalated", "acknowledged", "withdrawn"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "found": frozenset({"raised"}),
    "raised": frozenset({"escalated", "acknowledged", "withdrawn"}),
    "escalated": frozenset({"acknowledged", "withdrawn"}),
    "acknowledged": frozenset({"withdrawn"}),
    "withdrawn": frozenset(),
}
"""A problem is only `found`, and not stored, until the watchdog raises its alert."""
LOUD: frozenset[Status] = frozenset({"found", "raised", "escalated"})
"""The states in which a person should look at the alert."""

GRACE_SECONDS = 120.0
SILENT_SECONDS = 1800.0
WAITING_SECONDS = 3600.0
ESCALATE_SECONDS = 3600.0
KEPT_SECONDS = 30 * 86400.0
"""How long a withdrawn alert stays in the store."""
DESK = "desk"
"""The subject of alerts about the desk as a whole."""
UNDELIVERED_SECONDS = 86400.0
"""How old a notice may be that could not be sent. An older one stays in the list of deliveries."""
PAUSED_BY_PEOPLE = (BY_PERSON, SPENT, OVER)
"""Reasons of pauses that need nobody's attention."""
INTERRUPTED = re.compile(r" interrupted its run$| its step t_\w+$|^set \S+ declares it as not enabled$")
"""Reasons of pauses by a person who interrupted a run, stopped a step, or declared the automation as not enabled."""


class Graces(NamedTuple):
    """How long, in seconds, something may be late before there is an alert."""

    overdue: float = GRACE_SECONDS
    """How late work may begin."""
    running: float = GRACE_SECONDS
    """How much longer than its timeout a task may work."""
    waiting: float = WAITING_SECONDS
    """How long a task may wait for its session, its directory, a slot or an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One problem of one subject: a task, an automation, a goal, a session, an agent, a channel or the desk."""

    noun: ClassVar[str] = "alert"

    subject: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    kind: Annotated[Kind, Show(name="alert"), Example("silent")]
    text: Annotated[str, Example("Silent: Rebuild the index")]
    since: int
    route: Hidden[str | None] = None
    notices: Hidden[str | None] = None
    """The plan of its notices; see `midwatch.domain.notice`."""
    session_key: str | None = None
    task_id: str | None = None
    agent: str | None = None
    id: Annotated[str, Example("al_06f2m8yq3kq5r0v9")] = ""
    """Empty if the alert is only found."""
    status: Annotated[Status, Example("raised")] = "found"
    raised_at: int | None = None
    escalated_at: int | None = None
    acknowledged_at: int | None = None
    acknowledged_by: str | None = None
    withdrawn_at: int | None = None

    @property
    def key(self) -> tuple[str, Kind]:
        """Return what identifies the problem. At most one open alert has the same key."""
        return self.subject, self.kind

    @property
    def loud(self) -> bool:
        """Return whether a person should look at the alert."""
        return self.status in LOUD

    def snapshot(self) -> dict[str, Any]:
        """Return the alert as JSON shows it."""
        return {**to_json(self), "id": self.id or None}


DEFAULT_GRACES = Graces()


class Group(NamedTuple):
    """Pending tasks that wait for the same thing: how many there are, and the oldest of them."""

    oldest: Task
    size: int
    holder: str | None = None
    """The id of the running task that they wait for, if they wait for one."""


class Undelivered(NamedTuple):
    """Failed deliveries of a channel: how many of the newest ones there are, and the first of them."""

    channel: str
    size: int
    first_at: int


class Plans(NamedTuple):
    """How much work needs a running process: open tasks, automations with a next run, and goals that are not paused."""

    pending: int
    automations: int
    goals: int


class AlertStore(Protocol):
    """Port: alerts, and the queries of the watchdog. Each query reads only open records, and a limited number."""

    async def raise_alert(self, alert: Alert, changes: Changes) -> bool:
        """Store a raised alert and write `changes`.

        Return False, and write nothing, if there is an open alert with the same key.
        """

    async def get_alert(self, alert_id: str) -> Alert | None:
        """Return the alert, or None."""

    async def list_open_alerts(self) -> list[Alert]:
        """Return the alerts that are not withdrawn, oldest first."""

    async def prune_alerts(self, before: int) -> int:
        """Remove alerts that were withdrawn before a time, and return how many."""

    async def list_signs(self) -> list[tuple[Task, Event | None]]:
        """Return the running tasks, each with its newest event that is not about an alert or a notice."""

    async def list_late_agents(self, before: int) -> dict[str, int]:
        """Return how many pending tasks of each agent have been due since a time `before`."""

    async def find_oldest_late(self, agent: str, before: int, *, free: bool) -> Task | None:
        """Return the task of an agent that has been due the longest, since a time `before`, or None.

        With `free`, only tasks count whose session and directory no running task uses.
        """

    async def list_behind_sessions(self, before: int, limit: int) -> list[Group]:
        """Return the tasks that have been due since `before` and wait for the running task of their session."""

    async def list_behind_directories(self, before: int, limit: int) -> list[Group]:
        """Return the tasks that have been due since `before` and wait for the running task of their directory."""

    async def list_unanswered(self, before: int, limit: int) -> list[Approval]:
        """Return open questions that were asked at or before a time, oldest first."""

    async def list_paused_automations(self, expected: tuple[str, ...], limit: int) -> list[Automation]:
        """Return automations that are paused for a reason that is not one of the `expected` ones, oldest first."""

    async def list_paused_goals(self, expected: tuple[str, ...], limit: int) -> list[Goal]:
        """Return goals that are paused for a reason that is not one of the `expected` ones, oldest first."""

    async def list_undelivered(self, since: int) -> list[Undelivered]:
        """Return the failed deliveries of each channel that were created at or after a time."""

    async def count_plans(self) -> Plans:
        """Return how much work needs a running process."""

    async def list_waits(self, task: Task) -> list[tuple[int, int | None]]:
        """Return when the running attempt of a task asked people or handed work over, and when each wait ended."""


# -- pure rules ------------------------------------------------------------------------------------------------------

Age = Callable[[int], float]
"""A function that returns how many seconds have passed since a time, without the time of a suspended machine."""


def count_work(task: Task, waits: Iterable[tuple[int, int | None]], now: int, age: Age) -> float:
    """Return for how many seconds a running task has worked: its age without the times in which it waited."""
    started = task.started_at or task.created_at
    waited, reached = 0.0, started
    for begin, end in sorted(waits, key=lambda wait: wait[0]):
        begin, end = max(begin, reached), now if end is None else min(end, now)
        if end > begin:
            waited += age(begin) - age(end)
            reached = end
    return age(started) - waited


def check_stuck(task: Task, worked: float, grace: float = GRACE_SECONDS) -> list[Alert]:
    """Return an alert if a running task has worked longer than its timeout allows; otherwise return an empty list."""
    probe = Probe.of(task.probe)  # the time of its command comes in addition
    grace += probe.seconds if probe else 0
    if task.wait is not None or not task.timeout_seconds or worked < task.timeout_seconds + grace:
        return []
    limit = duration(task.timeout_seconds)
    text = f"Stuck: {title_of(task)}\n{task.id} has worked for {duration(worked)}, its timeout is {limit}."
    return [_about_task(task, "stuck", text, task.started_at or task.created_at)]


def check_silent(task: Task, last: Event | None, age: Age, silent_seconds: float = SILENT_SECONDS) -> list[Alert]:
    """Return an alert if a running task has emitted no event for a long time; otherwise return an empty list."""
    last_at = last.time if last is not None else task.started_at or task.created_at
    quiet = age(last_at)
    if quiet < silent_seconds:
        return []
    asks = task.wait == "approval"
    waits = "It waits for an answer; see `midwatch approvals`." if asks else "It does not wait for an answer."
    text = f"Silent: {title_of(task)}\n{task.id} has emitted no event for {duration(quiet)}. {waits}"
    return [_about_task(task, "silent", text, last_at)]


def check_late(group: Group, live: bool, age: Age, graces: Graces = DEFAULT_GRACES) -> list[Alert]:
    """Return an alert if the due tasks of an agent wait too long for a live process or for a slot."""
    task, late = group.oldest, age(group.oldest.due_at)
    if late < (graces.waiting if live else graces.overdue):
        return []
    if live:
        kind: Kind = "waiting"
        reason = f"{_count(group)} for agent {task.agent}, {task.id} for {duration(late)} for a free slot."
    else:
        kind = "overdue"
        reason = f"No live process has agent {task.agent}; {_count(group)}, {task.id} for {duration(late)}."
    text = f"{kind.capitalize()}: {title_of(task)}\n{reason}"
    return [replace(_about_task(task, kind, text, task.due_at), subject=task.agent)]


def check_behind(group: Group, what: Literal["session", "directory"], age: Age, grace: float) -> list[Alert]:
    """Return an alert if tasks wait too long for the running task of their session or directory."""
    task, late = group.oldest, age(group.oldest.due_at)
    if late < grace:
        return []
    reason = f"{_count(group)} for {group.holder}, which runs in the same {what}, {task.id} for {duration(late)}."
    text = f"Waiting: {title_of(task)}\n{reason}"
    subject = task.session_key if what == "session" else task.workdir or f"directory of {group.holder}"
    return [replace(_about_task(task, "waiting", text, task.due_at), subject=subject)]


def check_unanswered(approval: Approval, route: str | None, age: Age, grace: float) -> list[Alert]:
    """Return an alert if a question waits too long for an answer."""
    if age(approval.created_at) < grace:
        return []
    asked = f"{approval.task_id} asked {duration(age(approval.created_at))} ago; see `midwatch approval {approval.id}`."
    text = f"Waiting: {_line(approval.question)}\n{asked}"
    about: dict[str, Any] = {"session_key": approval.session_key, "task_id": approval.task_id, "agent": approval.agent}
    return [Alert(subject=approval.id, kind="waiting", text=text, since=approval.created_at, route=route, **about)]


def _line(text: str, length: int = 80) -> str:
    """Return a text on one line, because the first line of an alert is its title."""
    return cut(" ".join(text[: 10 * length].split()), length)


def _count(group: Group) -> str:
    return "1 task waits" if group.size == 1 else f"{group.size} tasks wait"


def _about_task(task: Task, kind: Kind, text: str, since: int) -> Alert:
    return Alert(
        subject=task.id, kind=kind, text=text, since=since, route=task.route, notices=task.notices,
        session_key=task.session_key,
        task_id=task.id, agent=task.agent,
    )  # fmt: skip


def _about(record: Automation | Goal, kind: Kind, text: str, since: int) -> Alert:
    return Alert(
        subject=record.id, kind=kind, text=text, since=since, route=record.route, notices=record.notices,
        session_key=record.session_key,
        agent=record.agent,
    )  # fmt: skip


def check_automation(automation: Automation, age: Age, grace: float = GRACE_SECONDS) -> list[Alert]:
    """Return an alert if an automation is overdue; otherwise return an empty list."""
    due = automation.next_run_at
    if automation.status != "active" or due is None or age(due) < grace:
        return []
    text = f"Overdue: {_line(automation.label)}\n{automation.id} should have run at {iso(due)}; see `midwatch doctor`."
    return [_about(automation, "overdue", text, due)]


def check_firings(late: LateFirings, automation: Automation | None, age: Age, grace: float) -> list[Alert]:
    """Return an alert if firings of an automation wait too long for their run; otherwise return an empty list."""
    if automation is None or age(late.due_at) < grace:
        return []
    waits = "1 firing of its triggers waits" if late.size == 1 else f"{late.size} firings of its triggers wait"
    text = f"Waiting: {_line(automation.label)}\n{waits} for a run of {automation.id}, since {iso(late.due_at)}."
    return [_about(automation, "waiting", text, late.due_at)]


def check_trigger(trigger: Trigger, automation: Automation | None, age: Age, grace: float) -> list[Alert]:
    """Return an alert if a trigger never fires, because for long its files or branch cannot be read."""
    since = trigger.unread_at
    if automation is None or since is None or age(since) < grace:
        return []
    why = _line(str((trigger.state or {}).get("unread_why")), 300).rstrip(".")
    text = f"Silent: {_line(automation.label)}\nThe {trigger.kind} trigger of {automation.id} cannot fire: {why}."
    return [replace(_about(automation, "silent", text, since), subject=trigger.id)]


def check_goal(goal: Goal, age: Age, grace: float = GRACE_SECONDS) -> list[Alert]:
    """Return an alert if the next step of a goal is overdue; otherwise return an empty list."""
    due = goal.next_run_at or goal.updated_at
    if goal.status != "active" or age(due) < grace:
        return []
    text = f"Overdue: {_line(goal.objective)}\nThe next step of {goal.id} was due at {iso(due)}."
    return [_about(goal, "overdue", text, due)]


def check_paused(record: Automation | Goal) -> list[Alert]:
    """Return an alert if midwatch paused an automation or a goal; otherwise return an empty list."""
    why = record.paused_why
    if record.status != "paused" or not why or why in PAUSED_BY_PEOPLE or INTERRUPTED.search(why):
        return []
    name = _line(record.label) if isinstance(record, Automation) else _line(record.objective)
    text = f"Paused: {name}\n{_line(why, 300)}. Continue: midwatch {record.noun} resume {record.id}"
    return [_about(record, "paused", text, record.updated_at)]


def check_plans(plans: Plans, now: int) -> list[Alert]:
    """Return an alert if there is work, although no process runs; call this only if none does."""
    named = [
        (plans.pending, "pending task"), (plans.automations, "active automation"), (plans.goals, "open goal"),
    ]  # fmt: skip
    parts = [f"{count} {name}{'s' if count > 1 else ''}" for count, name in named if count]
    if not parts:
        return []
    text = f"Stopped: no server is running\nThis does not continue: {', '.join(parts)}. Start one with `midwatch up`."
    return [Alert(subject=DESK, kind="stopped", text=text, since=now)]


def check_deliveries(failed: Undelivered) -> list[Alert]:
    """Return an alert about the failed notices of a channel."""
    what = "1 notice" if failed.size == 1 else f"{failed.size} notices"
    remedy = "List: midwatch deliveries --failed. Send again: midwatch redeliver ID"
    text = f"Undelivered: {what} on channel {failed.channel}\n{remedy}"
    return [Alert(subject=failed.channel, kind="undelivered", text=text, since=failed.first_at)]


def report_unchecked(name: str, problem: Exception, now: int) -> Alert:
    """Return the alert that a check of the watchdog failed, so that nobody trusts its silence."""
    text = f"Unchecked: {name}\nThis check of the watchdog failed ({type(problem).__name__}); see the log."
    return Alert(subject=name, kind="unchecked", text=text, since=now)


# -- the life of an alert --------------------------------------------------------------------------------------------


def find_route(alert: Alert, default: str | None) -> str | None:
    """Return where notices about an alert go: to the route of its record, or to the default route.

    A channel that fails gets no notice about its own failure.
    """
    route = alert.route or default
    channels = {channel for channel, _ in read_routes(route)} if route else set()
    fails = alert.kind == "undelivered" and alert.subject in channels
    return None if fails else route


def raise_alert(found: Alert, alert_id: str, now: int, route: str | None, plan: str | None) -> tuple[Alert, Changes]:
    """Return the record of a raised alert, and the step with its event and its notice."""
    alert = replace(found, id=alert_id, status="raised", raised_at=now, route=route, notices=plan)
    return alert, _report(alert, _payload(alert), now, "raised", alert.text)


def escalate(alert: Alert, text: str, now: int) -> Changes:
    """Return the step that escalates an alert: a second notice, with the text that is true now."""
    loud = f"STILL {text}\nNobody has acknowledged this: midwatch watchdog ack {alert.id}"
    after = replace(alert, status="escalated", text=text)
    step = _report(after, _payload(after), now, "escalated", loud)
    return step._replace(updates=(_update(alert, status="escalated", escalated_at=now, text=text),))


def acknowledge(alert: Alert, actor: str | None, now: int) -> Changes:
    """Return the step that acknowledges an alert, after which there are no more notices until it is over."""
    fields = {"status": "acknowledged", "acknowledged_at": now, "acknowledged_by": actor}
    payload = WatchdogAcknowledged(alert_id=alert.id, subject=alert.subject, alert=alert.kind)
    return Changes(updates=(_update(alert, **fields),), events=(_event(alert, payload, now, actor),))


def withdraw(alert: Alert, now: int) -> Changes:
    """Return the step that withdraws an alert because its reason is over, with a short notice."""
    payload = WatchdogWithdrawn(alert_id=alert.id, subject=alert.subject, alert=alert.kind)
    step = _report(alert, payload, now, "over", f"Over: {alert.text.partition(chr(10))[0]}")
    return step._replace(updates=(_update(alert, status="withdrawn", withdrawn_at=now),))


def _update(alert: Alert, **fields: Any) -> Update:
    return Update("alert", alert.id, fields, {"status": alert.status})


def _payload(alert: Alert) -> WatchdogAlert:
    return WatchdogAlert(
        subject=alert.subject, alert=alert.kind, text=alert.text, since=iso(alert.since) or "", alert_id=alert.id,
        state=alert.status,
    )  # fmt: skip


def _event(alert: Alert, payload: Payload, now: int, actor: str | None = None) -> Event:
    about = {"session_key": alert.session_key, "task_id": alert.task_id, "agent_id": alert.agent, "actor": actor}
    return event(payload, now, **about)


def _report(alert: Alert, payload: Payload, now: int, notice: str, text: str) -> Changes:
    about = alert.task_id or alert.subject  # the notices of a task are pruned with it
    deliveries: tuple[Delivery, ...] = notify(
        alert.route, alert.notices, about, f"alert:{notice}:{alert.id}", text, now
    )
    return Changes(events=(_event(alert, payload, now),), deliveries=deliveries)

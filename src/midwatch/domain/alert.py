"""Alerts: reports of the watchdog about work that is late or does not continue, so that nothing stops unnoticed.

Overdue work is due and has not begun. Stuck work runs longer than its timeout. Silent work runs and emits no events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.base.clock import SECOND, iso
from midwatch.base.durations import duration
from midwatch.base.text import cut
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes
from midwatch.domain.channel import Delivery, notify
from midwatch.domain.event import Event, WatchdogAlert, event
from midwatch.domain.fields import Example, Hidden, Show, to_json
from midwatch.domain.goal import Goal
from midwatch.domain.task import Task

Kind = Literal["overdue", "stuck", "silent"]

GRACE_SECONDS = 120.0
"""How late work may begin, and how much longer than its timeout it may run, before there is an alert."""
SILENT_SECONDS = 1800.0
COOL_DOWN_SECONDS = 1800.0
"""The same alert is not sent again within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAlert:
    """A record that an alert about a subject was sent, and when it was last sent."""

    noun: ClassVar[str] = "alert"

    id: str
    """The id of the alert, made of its subject and its kind."""
    told_at: int


class AlertStore(Protocol):
    """Port: the alerts that were sent, with their times."""

    async def list_sent_alerts(self, since: int) -> frozenset[str]:
        """Return the ids of alerts sent at or after `since`."""

    async def record_alerts(self, sent: Collection[SentAlert], changes: Changes) -> None:
        """Store that these alerts were sent, with their events and deliveries."""


class Alert(NamedTuple):
    """One problem of one subject: a task, an automation or a goal."""

    subject: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    kind: Annotated[Kind, Show(name="alert"), Example("silent")]
    text: Annotated[str, Example("Silent: Rebuild the index")]
    since: int
    route: Hidden[str | None] = None
    session_key: Hidden[str | None] = None
    task_id: Hidden[str | None] = None
    agent: Hidden[str | None] = None

    @property
    def id(self) -> str:
        """Return the id of the alert. A repeated alert has the same id."""
        return f"{self.subject}/{self.kind}"

    def snapshot(self) -> dict[str, Any]:
        """Return the alert as JSON shows it."""
        return to_json(self)


# -- pure rules ------------------------------------------------------------------------------------------------------


def check_running(task: Task, last: Event | None, now: int, silent_seconds: float = SILENT_SECONDS) -> list[Alert]:
    """Return the alerts about a running task."""
    alerts = []
    started = task.started_at or task.created_at
    worked, name = (now - started) / SECOND, cut(task.prompt, 80)
    if task.wait is None and task.timeout_seconds and worked >= task.timeout_seconds + GRACE_SECONDS:
        text = (
            f"Stuck: {name}\n{task.id} has run for {duration(worked)}, its timeout is {duration(task.timeout_seconds)}."
        )
        alerts.append(_about_task(task, "stuck", text, started))
    last_at = last.time if last is not None else started
    quiet = (now - last_at) / SECOND
    if quiet >= silent_seconds:
        asks = task.wait == "approval"
        waits = "It waits for an answer; see `midwatch approvals`." if asks else "It does not wait for an answer."
        text = f"Silent: {name}\n{task.id} has emitted no event for {duration(quiet)}. {waits}"
        alerts.append(_about_task(task, "silent", text, last_at))
    return alerts


def check_pending(task: Task, now: int, live: bool) -> list[Alert]:
    """Return an alert if a task is due and no live process can run it; otherwise return an empty list."""
    late = (now - task.due_at) / SECOND
    if live or late < GRACE_SECONDS or task.waits_until(now):
        return []
    reason = f"No live process has agent {task.agent}; {task.id} has waited for {duration(late)}."
    text = f"Overdue: {cut(task.prompt, 80)}\n{reason}"
    return [_about_task(task, "overdue", text, task.due_at)]


def _about_task(task: Task, kind: Kind, text: str, since: int) -> Alert:
    return Alert(task.id, kind, text, since, task.route, task.session_key, task.id, task.agent)


def check_automation(automation: Automation, now: int) -> list[Alert]:
    """Return an alert if an automation is overdue; otherwise return an empty list."""
    due = automation.next_run_at
    if automation.status != "active" or due is None or (now - due) / SECOND < GRACE_SECONDS:
        return []
    text = f"Overdue: {automation.label}\n{automation.id} should have run at {iso(due)}; see `midwatch doctor`."
    about = (automation.route, automation.session_key, None, automation.agent)
    return [Alert(automation.id, "overdue", text, due, *about)]


def check_goal(goal: Goal, now: int) -> list[Alert]:
    """Return an alert if the next step of a goal is overdue; otherwise return an empty list."""
    due = goal.next_run_at or goal.updated_at
    if goal.status != "active" or (now - due) / SECOND < GRACE_SECONDS:
        return []
    text = f"Overdue: {cut(goal.objective, 80)}\nThe next step of {goal.id} was due at {iso(due)}."
    return [Alert(goal.id, "overdue", text, due, goal.route, goal.session_key, None, goal.agent)]


def write_alerts(alerts: Iterable[Alert], now: int) -> tuple[list[SentAlert], Changes]:
    """Return the records of the sent alerts, and the step that reports them.

    The step writes an event for each alert, and a delivery if the alert has a route.
    """
    sent, events, deliveries = [], [], list[Delivery]()
    for alert in alerts:
        sent.append(SentAlert(id=alert.id, told_at=now))
        payload = WatchdogAlert(subject=alert.subject, alert=alert.kind, text=alert.text, since=iso(alert.since) or "")
        about: Mapping[str, str | None] = {
            "session_key": alert.session_key, "task_id": alert.task_id, "agent_id": alert.agent,
        }  # fmt: skip
        events.append(event(payload, now, **about))
        deliveries += notify(alert.route, alert.subject, f"alert:{alert.kind}:{now}", alert.text, now)
    return sent, Changes(events=tuple(events), deliveries=tuple(deliveries))

"""Kinds of events about records other than tasks and sessions.

These are automations, goals, handoffs, approvals, deliveries, tokens and alerts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.domain.event.payload import Payload, kind

# -- automations and goals -----------------------------------------------------------------------------------------


@kind("automation_created")
class AutomationCreated(Payload):
    """An automation was created."""

    automation_id: str
    title: str
    schedule: Any
    next_run_at: str | None = None


@kind("automation_changed")
class AutomationChanged(Payload):
    """Somebody changed an automation; `fields` lists the changed fields."""

    automation_id: str
    fields: tuple[str, ...]
    status: str


@kind("automation_fired")
class AutomationFired(Payload):
    """An automation was due, and the task of its run was created."""

    automation_id: str
    task_id: str
    scheduled_for: str
    run: int
    firing_id: str | None = None


@kind("automation_triggered")
class AutomationTriggered(Payload):
    """A trigger of an automation fired. Its run starts next, unless it is `skipped` for this reason."""

    automation_id: str
    trigger_id: str
    trigger: str
    firing_id: str
    summary: str
    skipped: str | None = None


@kind("automation_missed")
class AutomationMissed(Payload):
    """A run was skipped, moved or started late.

    It was skipped if the `reason` is overlap, late or day_off, moved to the end of the quiet hours if it is
    quiet_hours, and started late if it is caught_up.

    `count` is the number of scheduled times that were missed.
    """

    automation_id: str
    reason: str
    scheduled_for: str
    count: int = 1
    firing_id: str | None = None


@kind("automation_queued")
class AutomationQueued(Payload):
    """A run was due while the last one was open, and waits for its end.

    `replaces` is the task that is cancelled for it.
    The event `automation_fired` with the same `scheduled_for` follows when it starts.
    """

    automation_id: str
    scheduled_for: str
    replaces: str | None = None


@kind("automation_paused")
class AutomationPaused(Payload):
    """An automation was paused; it does not run until it is resumed."""

    automation_id: str
    why: str


@kind("goal_created")
class GoalCreated(Payload):
    """A goal was created."""

    goal_id: str
    objective: str
    deadline_at: str


@kind("goal_changed")
class GoalChanged(Payload):
    """Somebody changed or removed a goal; `fields` lists the changed fields."""

    goal_id: str
    fields: tuple[str, ...]
    status: str


@kind("goal_step")
class GoalStep(Payload):
    """The next task of a goal was created: a step, the verification of a claim, or the wrap-up at the deadline."""

    goal_id: str
    step: int
    work: str
    task_id: str


@kind("goal_delayed")
class GoalDelayed(Payload):
    """The next step of a goal was delayed."""

    goal_id: str
    until: str | None
    reason: str


@kind("goal_paused")
class GoalPaused(Payload):
    """A goal was paused; it does nothing until it is resumed."""

    goal_id: str
    why: str


@kind("goal_completed")
class GoalCompleted(Payload):
    """A goal was reached."""

    goal_id: str
    evidence: str | None
    steps: int


@kind("goal_timed_out")
class GoalTimedOut(Payload):
    """The deadline of a goal has passed."""

    goal_id: str
    steps: int


# -- handoffs ------------------------------------------------------------------------------------------------------


@kind("handoff_requested")
class HandoffRequested(Payload):
    """An agent or a person hands work over; the `task_id` of the event is the task that the work comes from."""

    handoff_id: str
    from_agent: str
    to_agent: str
    form: str
    task_type: str
    description: str
    parent_handoff: str | None = None
    depth: int = 1


@kind("handoff_accepted")
class HandoffAccepted(Payload):
    """The target accepted the handoff."""

    handoff_id: str
    to_agent: str


@kind("handoff_rejected")
class HandoffRejected(Payload):
    """The target rejected the handoff; `following` is the agent that is tried next, if there is one."""

    handoff_id: str
    to_agent: str
    reason: str
    following: str | None = None


@kind("handoff_started")
class HandoffStarted(Payload):
    """The task of the target was created."""

    handoff_id: str
    to_agent: str
    task_id: str


@kind("handoff_retried")
class HandoffRetried(Payload):
    """The target failed for a reason that may go away; the target tries again."""

    handoff_id: str
    to_agent: str
    attempt: int
    until: str | None = None


@kind("handoff_completed")
class HandoffCompleted(Payload):
    """The target completed the work; its answer is in the record of the handoff."""

    handoff_id: str
    to_agent: str
    duration_ms: int


@kind("handoff_failed")
class HandoffFailed(Payload):
    """The handoff failed; `stage` is choose, enable, accept, hook, filter or execute."""

    handoff_id: str
    to_agent: str
    error: str
    stage: str


@kind("handoff_cancelled")
class HandoffCancelled(Payload):
    """Somebody cancelled the handoff; its task is stopped."""

    handoff_id: str
    to_agent: str
    reason: str


@kind("handoff_expired")
class HandoffExpired(Payload):
    """The handoff was not completed before its deadline; its task is stopped."""

    handoff_id: str
    to_agent: str
    timeout: float


# -- approvals and deliveries --------------------------------------------------------------------------------------


@kind("approval_requested")
class ApprovalRequested(Payload):
    """An agent asks for permission. If `rule` is set, this rule answers at once and no person is asked."""

    approval_id: str
    question: str
    choices: tuple[Mapping[str, Any], ...]
    question_kind: str = "choice"
    tool: str | None = None
    command: str | None = None
    paths: tuple[str, ...] = ()
    risk: str | None = None
    diff_bytes: int | None = None
    expires_at: str | None = None
    rule: str | None = None


@kind("approval_resolved")
class ApprovalResolved(Payload):
    """A person or a rule answered the question, or nobody answered in time."""

    approval_id: str
    status: str
    answer: str | None = None
    why: str | None = None
    answered_by: str | None = None
    rule: str | None = None


@kind("rule_added")
class RuleAdded(Payload):
    """Somebody answered a question with "always"; from now on a rule answers such questions."""

    rule_id: str
    effect: str
    for_agent: str
    approval_id: str | None = None


@kind("rule_revoked")
class RuleRevoked(Payload):
    """A rule was revoked."""

    rule_id: str
    effect: str
    for_agent: str


@kind("delivery_sent")
class DeliverySent(Payload):
    """A channel sent a notice."""

    delivery_id: str
    channel: str
    notice: str


@kind("delivery_failed")
class DeliveryFailed(Payload):
    """A notice could not be sent, and it is not tried again."""

    delivery_id: str
    channel: str
    notice: str
    error: str


# -- identity ----------------------------------------------------------------------------------------------------


@kind("token_created")
class TokenCreated(Payload):
    """The `actor` of the event created a token for the actor `for_actor`. `token_kind` is api or link."""

    token_id: str
    token_kind: str
    name: str
    role: str
    for_actor: str


@kind("token_revoked")
class TokenRevoked(Payload):
    """The `actor` of the event revoked a token, or signed a browser out."""

    token_id: str
    token_kind: str
    name: str
    role: str


@kind("signed_in")
class SignedIn(Payload):
    """The `actor` of the event signed in with a browser."""

    token_id: str
    token_kind: str
    name: str
    role: str


@kind("delivery_retried")
class DeliveryRetried(Payload):
    """Somebody asked to send a failed notice again."""

    delivery_id: str
    channel: str
    notice: str


@kind("watchdog_alert")
class WatchdogAlert(Payload):
    """The watchdog raised or escalated an alert; `alert` is the kind of the problem, and `state` raised or escalated.

    `subject` is what the alert is about, such as the id of a task, an automation or a goal.
    """

    subject: str
    alert: str
    text: str
    since: str
    alert_id: str | None = None
    state: str = "raised"


@kind("watchdog_acknowledged")
class WatchdogAcknowledged(Payload):
    """A person acknowledged an alert; there are no more notices about it until it is over."""

    alert_id: str
    subject: str
    alert: str


@kind("watchdog_withdrawn")
class WatchdogWithdrawn(Payload):
    """The reason of an alert is over."""

    alert_id: str
    subject: str
    alert: str


# -- the stream itself -------------------------------------------------------------------------------------------


@kind("gap", live=True)
class Gap(Payload):
    """Some events are missing at this position.

    There are three reasons: stored events before `oldest_seq` were deleted; or the log ends before the position of the
    reader; or at least `dropped` live events were too many, or were lost between processes.
    """

    oldest_seq: int | None = None
    dropped: int = 0

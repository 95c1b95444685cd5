"""Kinds of events about what stands around work: automations, goals, answers, notices, identity, the watchdog, and the
stream itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.domain.event.payload import Payload, kind

# -- automations and goals -----------------------------------------------------------------------------------------


@kind("automation_created")
class AutomationCreated(Payload):
    """An automation was made."""

    automation_id: str
    title: str
    schedule: Any
    next_run_at: str | None = None


@kind("automation_changed")
class AutomationChanged(Payload):
    """Somebody changed an automation; `fields` says what."""

    automation_id: str
    fields: tuple[str, ...]
    status: str


@kind("automation_fired")
class AutomationFired(Payload):
    """An automation's time came, and its task was made."""

    automation_id: str
    task_id: str
    scheduled_for: str
    run: int


@kind("automation_missed")
class AutomationMissed(Payload):
    """A run was left out (`overlap`, `late`) or made up for (`caught_up`); `count` of its times had passed."""

    automation_id: str
    reason: str
    scheduled_for: str
    count: int = 1


@kind("automation_paused")
class AutomationPaused(Payload):
    """An automation fires no more until it is resumed."""

    automation_id: str
    why: str


@kind("goal_created")
class GoalCreated(Payload):
    """A goal was set."""

    goal_id: str
    objective: str
    deadline_at: str


@kind("goal_changed")
class GoalChanged(Payload):
    """Somebody changed a goal, or removed it; `fields` says what."""

    goal_id: str
    fields: tuple[str, ...]
    status: str


@kind("goal_step")
class GoalStep(Payload):
    """A goal's next task was made: a step, the verification of a claim, or the wrap-up at its deadline."""

    goal_id: str
    step: int
    work: str
    task_id: str


@kind("goal_delayed")
class GoalDelayed(Payload):
    """The next step of a goal begins later."""

    goal_id: str
    until: str | None
    reason: str


@kind("goal_paused")
class GoalPaused(Payload):
    """A goal rests until it is resumed."""

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
    """An agent, or a person, wants to pass work on; the envelope's task is the one it comes from."""

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
    """The target took it."""

    handoff_id: str
    to_agent: str


@kind("handoff_rejected")
class HandoffRejected(Payload):
    """The target did not take it; `following` is asked next, if there is one."""

    handoff_id: str
    to_agent: str
    reason: str
    following: str | None = None


@kind("handoff_started")
class HandoffStarted(Payload):
    """The target's task was made."""

    handoff_id: str
    to_agent: str
    task_id: str


@kind("handoff_retried")
class HandoffRetried(Payload):
    """The target failed in a way that may pass and tries again."""

    handoff_id: str
    to_agent: str
    attempt: int
    until: str | None = None


@kind("handoff_completed")
class HandoffCompleted(Payload):
    """The target has done it; its answer is in the record."""

    handoff_id: str
    to_agent: str
    duration_ms: int


@kind("handoff_failed")
class HandoffFailed(Payload):
    """It could not be done; `stage` is choose, enable, accept, hook, filter or execute."""

    handoff_id: str
    to_agent: str
    error: str
    stage: str


@kind("handoff_cancelled")
class HandoffCancelled(Payload):
    """Somebody does not want it any more; its task is stopped."""

    handoff_id: str
    to_agent: str
    reason: str


@kind("handoff_expired")
class HandoffExpired(Payload):
    """It was not done in time; its task is stopped."""

    handoff_id: str
    to_agent: str
    timeout: float


# -- approvals and deliveries --------------------------------------------------------------------------------------


@kind("approval_requested")
class ApprovalRequested(Payload):
    """An agent asks before it acts. Where `rule` says something, that rule answers at once and nobody is asked."""

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
    """The question was answered, by a person or a rule, or nobody answered in time."""

    approval_id: str
    status: str
    answer: str | None = None
    why: str | None = None
    answered_by: str | None = None
    rule: str | None = None


@kind("rule_added")
class RuleAdded(Payload):
    """Somebody answered a question for always; from now on a rule answers it."""

    rule_id: str
    effect: str
    for_agent: str
    approval_id: str | None = None


@kind("rule_revoked")
class RuleRevoked(Payload):
    """A rule holds no more."""

    rule_id: str
    effect: str
    for_agent: str


@kind("delivery_sent")
class DeliverySent(Payload):
    """A notification reached its channel."""

    delivery_id: str
    channel: str
    notice: str


@kind("delivery_failed")
class DeliveryFailed(Payload):
    """A notification could not be sent and will not be tried again."""

    delivery_id: str
    channel: str
    notice: str
    error: str


# -- identity ----------------------------------------------------------------------------------------------------


@kind("token_created")
class TokenCreated(Payload):
    """A token was made: `token_kind` is api or link, `for_actor` is whom it lets in; the envelope's `actor` made it."""

    token_id: str
    token_kind: str
    name: str
    role: str
    for_actor: str


@kind("token_revoked")
class TokenRevoked(Payload):
    """A token was ended, or a browser signed out; the envelope's `actor` did it."""

    token_id: str
    token_kind: str
    name: str
    role: str


@kind("signed_in")
class SignedIn(Payload):
    """A browser was signed in; the envelope's `actor` is who."""

    token_id: str
    token_kind: str
    name: str
    role: str


@kind("delivery_retried")
class DeliveryRetried(Payload):
    """Somebody asked for a notification that could not be sent to be tried again."""

    delivery_id: str
    channel: str
    notice: str


@kind("watchdog_alert")
class WatchdogAlert(Payload):
    """Something does not go as it should: `alert` is overdue, stuck or silent, `subject` the id it is about."""

    subject: str
    alert: str
    text: str
    since: str


# -- the stream itself -------------------------------------------------------------------------------------------


@kind("gap", live=True)
class Gap(Payload):
    """Something is missing here: stored events before `oldest_seq` were pruned, the log ends before where the reader
    was, or live ones, `dropped` at least, were too many or were lost between processes."""

    oldest_seq: int | None = None
    dropped: int = 0

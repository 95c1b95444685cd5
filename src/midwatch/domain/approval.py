"""Approvals: questions that agents ask before they act.

A question waits until somebody answers it or it expires. A question that a rule answers is stored, too, so that people
can look up every answer later.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol

from midwatch.base.clock import SECOND, iso
from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.text import cut
from midwatch.domain.agent import Answer, Choice, ChoiceKind, Question, QuestionKind, Risk
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.event import ApprovalRequested, ApprovalResolved, RuleAdded, TaskWaiting, event
from midwatch.domain.fields import Example, Hidden, Show, to_json
from midwatch.domain.notice import make_notices
from midwatch.domain.risk import hint
from midwatch.domain.rule import STORED, Decision, Pattern, Rule, Ruling, StoredEffect, describe_rule
from midwatch.domain.task import Task, in_turn, turn_of

Status = Literal["pending", "granted", "denied", "expired"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"granted", "denied", "expired"}),
    "granted": frozenset(),
    "denied": frozenset(),
    "expired": frozenset(),
}
QUESTION_SHOWN = 500
COMMAND_SHOWN = 300
MAX_CHOICES = 20
LONGEST = 20_000
"""A question or a command is stored only up to this number of characters."""
MOST_PATHS = 200
MOST_DIFF = 100_000
"""A diff is stored only up to this number of bytes."""
NO_RULING = Ruling()
ALWAYS: Mapping[ChoiceKind, StoredEffect] = {"allow_always": "allow", "reject_always": "deny"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The record of one question.

    `diff_bytes` is the size of the whole diff. If a person answers "always", `always` is the pattern of the rule that
    this answer creates. `rule` describes the rule that answered the question, or the rule that the answer created.
    """

    noun: ClassVar[str] = "approval"

    id: Annotated[str, Example("a_06f2m8yq6d1k3h9s")]
    task_id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    attempt: Hidden[int]
    session_key: Annotated[str, Example("bg:t_06f2m8yq3kq5r0v9x1w2")]
    agent: Annotated[str, Example("demo")]
    creator: Annotated[str | None, Example("owner")] = None
    question: Annotated[str, Example("Run git status?")]
    kind: Annotated[QuestionKind, Example("execute")] = "choice"
    tool: Annotated[str | None, Example("shell")] = None
    command: Annotated[str | None, Example("git status")] = None
    paths: tuple[str, ...] = ()
    diff: str | None = None
    diff_bytes: int | None = None
    risk: Annotated[Risk | None, Example("medium")] = None
    choices: Annotated[tuple[Choice, ...], Show(show_choices), Example([{"name": "Allow", "kind": "allow_once"}])]
    always: Annotated[Mapping[str, str] | None, Show(show_pattern)] = None
    status: Status = "pending"
    answer: str | None = None
    why: str | None = None
    answered_by: str | None = None
    rule: str | None = None
    created_at: int = 0
    expires_at: int = 0
    resolved_at: int | None = None

    def snapshot(self, *, whole: bool = False) -> dict[str, Any]:
        """Return the approval as JSON shows it; with `whole` also its diff."""
        stored_bytes = len((self.diff or "").encode())
        shown = {"diff": self.diff if whole else None, "diff_left_out": (self.diff_bytes or 0) - stored_bytes}
        return {**to_json(self), **shown}


def show_choices(choices: Sequence[Choice]) -> list[dict[str, str]]:
    """Return choices as JSON shows them."""
    return [choice._asdict() for choice in choices]


def show_pattern(pattern: Mapping[str, str] | None) -> dict[str, str | None] | None:
    """Return the pattern of a rule as JSON shows it."""
    return None if pattern is None else {name: pattern.get(name) for name in STORED}


class ApprovalStore(Protocol):
    """Port: approvals. They are written as part of a step, with `Changes`."""

    async def get_approval(self, approval_id: str) -> Approval | None:
        """Return the approval, or None."""

    async def list_approvals(
        self, status: Status | None = None, limit: int = 50, task_id: str | None = None
    ) -> list[Approval]:
        """Return approvals, newest first."""

    async def list_pending_approvals(self, fence: Fence) -> list[Approval]:
        """Return the unanswered questions of an attempt."""

    async def list_overdue_approvals(self, now: int, limit: int = 100) -> list[Approval]:
        """Return pending approvals that have expired, oldest first."""

    async def find_next_expiry(self) -> int | None:
        """Return when the next pending approval expires, or None."""


# -- pure steps --------------------------------------------------------------------------------------------------


def ask(
    task: Task,
    question: Question,
    expires_seconds: float,
    now: int,
    ruling: Ruling = NO_RULING,
    always: Pattern | None = None,
) -> tuple[Approval, Changes]:
    """Return the question and the step that stores it; the task waits, and its route gets a notice.

    `ruling` is what the rules say. `always` is the pattern of the rule that an answer "always" creates.
    """
    expires = now + int(expires_seconds * SECOND)
    approval = replace(
        _build(task, question, now, always, ruling.keeps), rule=ruling.decision.rule,
        expires_at=expires if ruling.until is None else min(expires, ruling.until),
    )  # fmt: skip
    waits = TaskWaiting(wait="approval", until=iso(approval.expires_at), reason=approval.id)
    return approval, Changes(
        fence=Fence(task.id, task.attempt),
        updates=(Update("task", task.id, {"wait": "approval"}),),
        records=(approval,),
        deliveries=make_notices(task, f"asked:{approval.id}", _describe(approval), now),
        events=(event(_request_payload(approval), now, **in_turn(task)), event(waits, now, **in_turn(task))),
    )


def _describe(approval: Approval) -> str:
    """Return the text of the notice about a question, with the commands that answer it.

    The agent's own lines are indented, and the name of its choice is quoted for the shell: people copy the commands.
    """
    lines = [f"{approval.agent} asks: {_indent(cut(approval.question, QUESTION_SHOWN))}"]
    if approval.command and approval.command not in approval.question:
        lines.append(f"Command: {_indent(cut(approval.command, COMMAND_SHOWN))}")
    if approval.risk == "high":
        lines.append("Risk: high")
    lines.append(f"Answer: midwatch approve {approval.id} or midwatch deny {approval.id}")
    once = [choice.name for choice in approval.choices if choice.kind == "allow_once"]
    if len(once) > 1 and once[1].isprintable():
        lines.append(f"Another answer: midwatch approve {approval.id} --choice {shlex.quote(once[1])}")
    return "\n".join(lines)


def _indent(text: str) -> str:
    return "\n    ".join(text.splitlines())


def answer_by_rule(
    task: Task, question: Question, decision: Decision, now: int, always: Pattern | None = None
) -> tuple[Approval, Changes] | None:
    """Answer a question by a rule, and return the approval and the step that stores it.

    Return None if a person must answer, or if the rule allows the action but the agent offers no choice that means yes.
    """
    if decision.effect in (None, "ask"):
        return None
    choice = choose(question.choices, decision.effect == "allow")
    if choice is None and decision.effect == "allow":
        return None
    status: Status = "granted" if decision.effect == "allow" else "denied"
    return _at_once(task, question, now, status, choice, decision.rule, decision.by, always)


def expire_at_once(
    task: Task, question: Question, now: int, why: str, always: Pattern | None = None
) -> tuple[Approval, Changes]:
    """Return the question, already expired, and the step that stores it.

    This is for a question that nobody has time to answer; `why` is the reason.
    """
    return _at_once(task, question, now, "expired", None, why, None, always)


def _at_once(
    task: Task,
    question: Question,
    now: int,
    status: Status,
    choice: Choice | None,
    why: str | None,
    by: str | None,
    always: Pattern | None,
) -> tuple[Approval, Changes]:
    approval = replace(
        _build(task, question, now, always), status=status, answer=choice.name if choice else None, answered_by=by,
        rule=why if by else None, why=None if status == "granted" else why, expires_at=now, resolved_at=now,
    )  # fmt: skip
    about = in_turn(task)
    events = (
        event(_request_payload(approval), now, **about),
        event(_answer_payload(approval), now, **{**about, "actor": None}),
    )
    return approval, Changes(fence=Fence(task.id, task.attempt), records=(approval,), events=events)


def choose(choices: Sequence[Choice], yes: bool, always: bool = False) -> Choice | None:
    """Return a choice that means yes, or one that means no, or None if there is no such choice.

    With `always`, only a choice of an "always" kind is returned. Without it, a choice for this one time is preferred.
    """
    fitting = [choice for choice in choices if choice.allows == yes]
    wanted = [choice for choice in fitting if choice.kind.endswith("always") == always]
    return next(iter(wanted if wanted or always else fitting), None)


def answer_of(approval: Approval, question: Question) -> Answer:
    """Return the answer as one of the agent's own choices, even if a person chose a choice that midwatch added."""
    assert approval.status != "pending"
    own = {choice.name for choice in question.choices}
    if approval.answer is None or approval.answer in own or approval.status == "expired":
        return Answer(approval.status, approval.answer, approval.why)
    alike = choose(question.choices, approval.status == "granted")
    return Answer(approval.status, alike.name if alike else approval.answer, approval.why)


def _build(task: Task, question: Question, now: int, always: Pattern | None, keeps: bool = True) -> Approval:
    """Return the record of a question, with long texts cut. With `keeps`, a new rule may allow the same in future."""
    pattern = None if question.command and len(question.command) > LONGEST else always
    choices = _offer_choices(question, pattern, task.agent, keeps)
    if not question.text.strip() or not 1 <= len(question.choices) <= MAX_CHOICES:
        raise InvalidInput(
            f"a question must have a text and from 1 to {MAX_CHOICES} choices; ask again with both.", field="question"
        )
    diff = None if question.diff is None else question.diff.encode("utf-8", "replace")
    return Approval(
        id=new_id("a", now), task_id=task.id, attempt=task.attempt, session_key=task.session_key, agent=task.agent,
        creator=task.creator, question=cut(question.text, LONGEST), kind=question.kind, tool=question.tool,
        command=None if question.command is None else cut(question.command, LONGEST), paths=question.paths[:MOST_PATHS],
        diff=None if diff is None else diff[:MOST_DIFF].decode("utf-8", "ignore"),
        diff_bytes=None if diff is None else len(diff), risk=hint(question, question.root or task.workdir),
        choices=choices, always=pattern.data() if pattern else None, created_at=now,
    )  # fmt: skip


def _offer_choices(question: Question, pattern: Pattern | None, agent: str, keeps: bool) -> tuple[Choice, ...]:
    """Return the choices of a question, without a second choice of the same name.

    For the use of a tool, midwatch adds choices that create a rule, which people can see and revoke. A rule that allows
    is offered only with `keeps`: it would have no effect against a stricter rule of another level. The agent's own
    "always" choices are removed if the agent also offers the same answer for one time.
    """
    first: dict[str, Choice] = {}
    for choice in question.choices:
        first.setdefault(choice.name, choice)
    choices = tuple(first.values())
    if question.kind in ("choice", "switch_mode"):
        return choices
    once = {choice.allows for choice in choices if choice.kind not in ALWAYS}
    offered = tuple(choice for choice in choices if choice.kind not in ALWAYS or choice.allows not in once)
    if pattern is None or not any(choice.allows for choice in offered):
        return offered
    kinds = [kind for kind, effect in ALWAYS.items() if keeps or effect == "deny"]
    return offered + tuple(Choice(describe_rule(ALWAYS[kind], pattern, agent), kind) for kind in kinds)


def _request_payload(approval: Approval) -> ApprovalRequested:
    return ApprovalRequested(
        approval_id=approval.id, question=approval.question, question_kind=approval.kind, tool=approval.tool,
        choices=tuple(choice._asdict() for choice in approval.choices), command=approval.command,
        paths=approval.paths, risk=approval.risk, diff_bytes=approval.diff_bytes, expires_at=iso(approval.expires_at),
        rule=None if approval.status == "pending" else approval.rule or approval.why,
    )  # fmt: skip


def _answer_payload(approval: Approval) -> ApprovalResolved:
    return ApprovalResolved(
        approval_id=approval.id, status=approval.status, answer=approval.answer, why=approval.why,
        answered_by=approval.answered_by, rule=approval.rule,
    )  # fmt: skip


def resolve(
    approval: Approval,
    status: Status,
    now: int,
    *,
    answer: str | None = None,
    why: str | None = None,
    actor: str | None = None,
    rule: Rule | None = None,
) -> Changes:
    """Answer or expire a pending question, and store the rule that the answer creates.

    The step fails if the question was answered before.
    """
    text = rule.text if rule else approval.rule
    fields: dict[str, Any] = {
        "status": status,
        "answer": answer,
        "why": why,
        "answered_by": actor,
        "rule": text,
        "resolved_at": now,
    }
    about = {
        "task_id": approval.task_id, "session_key": approval.session_key, "agent_id": approval.agent,
        "attempt": approval.attempt, "actor": actor, "turn_id": turn_of(approval.task_id, approval.attempt),
    }  # fmt: skip
    events = [event(_answer_payload(replace(approval, **fields)), now, **about)]
    if rule is not None:
        added = RuleAdded(rule_id=rule.id, effect=rule.effect, for_agent=rule.agent, approval_id=approval.id)
        events.append(event(added, now, **about))
    return Changes(
        updates=(Update("approval", approval.id, fields, {"status": "pending"}),),
        records=(rule,) if rule else (),
        events=tuple(events),
    )


def make_rule(approval: Approval, choice: Choice, now: int, actor: str | None) -> Rule | None:
    """Return the rule that the answer `choice` creates, or None if it creates no rule."""
    if choice.kind not in ALWAYS or approval.always is None:
        return None
    pattern = Pattern(**approval.always)
    return Rule(
        id=new_id("r", now), agent=approval.agent, effect=ALWAYS[choice.kind], approval_id=approval.id,
        created_at=now, created_by=actor, kind=pattern.kind, command=pattern.command, path=pattern.path,
        root=pattern.root, tool=pattern.tool,
    )  # fmt: skip

"""Approvals: questions an agent asks before it acts. They wait in one inbox until somebody answers or time is up.

What a rule answers is an approval, too: stored with its answer, so that every yes and no can be found.
"""

from __future__ import annotations

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
from midwatch.domain.risk import hint
from midwatch.domain.rule import Decision, Effect, Pattern, Rule, describe_rule
from midwatch.domain.task import Task, in_turn, make_notices, turn_of

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
"""Characters of a question or a command that are kept."""
MOST_PATHS = 200
MOST_DIFF = 100_000
"""Bytes of a diff that are kept."""
ALWAYS: Mapping[ChoiceKind, Effect] = {"allow_always": "allow", "reject_always": "deny"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One question. It is granted iff the choice that was made allows."""

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
    """The size of the whole diff; at most `MOST_DIFF` of it are kept."""
    risk: Annotated[Risk | None, Example("medium")] = None
    choices: Annotated[tuple[Choice, ...], Show(show_choices), Example([{"name": "Allow", "kind": "allow_once"}])]
    always: Annotated[Mapping[str, str] | None, Show(show_pattern)] = None
    """What an answer for always makes a rule of."""
    status: Status = "pending"
    answer: str | None = None
    why: str | None = None
    answered_by: str | None = None
    rule: str | None = None
    """The rule that answered, or that the answer made, in words."""
    created_at: int = 0
    expires_at: int = 0
    resolved_at: int | None = None

    def snapshot(self, *, whole: bool = False) -> dict[str, Any]:
        """Return it as JSON shows it; the diff only when it is the `whole`."""
        kept = len((self.diff or "").encode())
        shown = {"diff": self.diff if whole else None, "diff_left_out": (self.diff_bytes or 0) - kept}
        return {**to_json(self), **shown}


def show_choices(choices: Sequence[Choice]) -> list[dict[str, str]]:
    """Return choices as JSON shows them."""
    return [choice._asdict() for choice in choices]


def show_pattern(pattern: Mapping[str, str] | None) -> dict[str, str | None] | None:
    """Return what a rule would be about as JSON shows it."""
    return None if pattern is None else Pattern(**pattern)._asdict()


class ApprovalStore(Protocol):
    """Port: approvals. They are written through `Changes`."""

    async def get_approval(self, approval_id: str) -> Approval | None:
        """Return the approval, or None."""

    async def list_approvals(
        self, status: Status | None = None, limit: int = 50, task_id: str | None = None
    ) -> list[Approval]:
        """Return approvals, newest first."""

    async def pending_approvals(self, fence: Fence) -> list[Approval]:
        """Return the questions of an attempt that nobody has answered."""

    async def overdue_approvals(self, now: int, limit: int = 100) -> list[Approval]:
        """Return pending approvals that have expired, oldest first."""

    async def next_expiry(self) -> int | None:
        """Return when the next pending approval expires, or None."""


# -- pure steps --------------------------------------------------------------------------------------------------


def ask(
    task: Task,
    asked: Question,
    expires_seconds: float,
    now: int,
    until: int | None = None,
    always: Pattern | None = None,
) -> tuple[Approval, Changes]:
    """Return the question and the step that puts it in the inbox: the task waits, its route is told how to answer. It
    never waits beyond `until`. `always` is the rule that an answer for always would make."""
    expires = now + int(expires_seconds * SECOND)
    made = replace(_build(task, asked, now, always), expires_at=expires if until is None else min(expires, until))
    lines = [f"{task.agent} asks: {cut(made.question, QUESTION_SHOWN)}"]
    if made.command and made.command not in made.question:
        lines.append(f"Command: {cut(made.command, COMMAND_SHOWN)}")
    if made.risk == "high":
        lines.append("Risk: high")
    lines.append(f"Answer: midwatch approve {made.id} | midwatch deny {made.id}")
    waits = TaskWaiting(wait="approval", until=iso(made.expires_at), reason=made.id)
    return made, Changes(
        fence=Fence(task.id, task.attempt),
        updates=(Update("task", task.id, {"wait": "approval"}),),
        records=(made,),
        deliveries=make_notices(task, f"asked:{made.id}", "\n".join(lines), now),
        events=(event(_request_payload(made), now, **in_turn(task)), event(waits, now, **in_turn(task))),
    )


def answer_by_rule(
    task: Task, asked: Question, decision: Decision, now: int, always: Pattern | None = None
) -> tuple[Approval, Changes] | None:
    """Answer a question by a rule and return the step that records it; no person is asked. None when
    the rules leave it to a person, or the agent offers no answer that says what they say."""
    if decision.verdict == "ask":
        return None
    choice = choose(asked.choices, decision.verdict == "allow")
    if choice is None and decision.verdict == "allow":
        return None
    status: Status = "granted" if decision.verdict == "allow" else "denied"
    return _at_once(task, asked, now, status, choice, decision.rule, decision.by, always)


def expire_at_once(
    task: Task, asked: Question, now: int, why: str, always: Pattern | None = None
) -> tuple[Approval, Changes]:
    """Expire a question for whose answer there is no time."""
    return _at_once(task, asked, now, "expired", None, why, None, always)


def _at_once(
    task: Task,
    asked: Question,
    now: int,
    status: Status,
    choice: Choice | None,
    why: str | None,
    by: str | None,
    always: Pattern | None,
) -> tuple[Approval, Changes]:
    made = replace(
        _build(task, asked, now, always), status=status, answer=choice.name if choice else None, answered_by=by,
        rule=why if by else None, why=None if status == "granted" else why, expires_at=now, resolved_at=now,
    )  # fmt: skip
    about = in_turn(task)
    events = (
        event(_request_payload(made), now, **about),
        event(_answer_payload(made), now, **{**about, "actor": None}),
    )
    return made, Changes(fence=Fence(task.id, task.attempt), records=(made,), events=events)


def choose(choices: Sequence[Choice], yes: bool, always: bool = False) -> Choice | None:
    """Return the choice that says yes or no, by its kind and not by its place; where only the other duration is offered
    and `always` is not insisted on, that one."""
    told = [choice for choice in choices if choice.allows == yes]
    wanted = [choice for choice in told if choice.kind.endswith("always") == always]
    return next(iter(wanted if wanted or always else told), None)


def answer_of(approval: Approval, asked: Question) -> Answer:
    """Return the answer as one of the agent's own choices, also if a person chose one of midwatch's."""
    assert approval.status != "pending"
    own = {choice.name for choice in asked.choices}
    if approval.answer is None or approval.answer in own or approval.status == "expired":
        return Answer(approval.status, approval.answer, approval.why)
    alike = choose(asked.choices, approval.status == "granted")
    return Answer(approval.status, alike.name if alike else approval.answer, approval.why)


def _build(task: Task, asked: Question, now: int, always: Pattern | None) -> Approval:
    """Return the record, with what is too long cut."""
    pattern = None if asked.command and len(asked.command) > LONGEST else always
    choices = _offer_choices(asked, pattern, task.agent)
    if not asked.text.strip() or not 1 <= len(asked.choices) <= MAX_CHOICES:
        raise InvalidInput(f"ask a question with 1 to {MAX_CHOICES} choices.", field="question")
    diff = None if asked.diff is None else asked.diff.encode("utf-8", "replace")
    return Approval(
        id=new_id("a", now), task_id=task.id, attempt=task.attempt, session_key=task.session_key, agent=task.agent,
        creator=task.creator, question=cut(asked.text, LONGEST), kind=asked.kind, tool=asked.tool,
        command=None if asked.command is None else cut(asked.command, LONGEST), paths=asked.paths[:MOST_PATHS],
        diff=None if diff is None else diff[:MOST_DIFF].decode("utf-8", "ignore"),
        diff_bytes=None if diff is None else len(diff), risk=hint(asked, asked.root or task.workdir), choices=choices,
        always=pattern.data() if pattern else None, created_at=now,
    )  # fmt: skip


def _offer_choices(asked: Question, pattern: Pattern | None, agent: str) -> tuple[Choice, ...]:
    """Return the agent's choices, each name once. For use of a tool midwatch itself remembers what holds always, where
    people see it and can revoke it: the agent's own offers to do so are left out where it can also be asked again."""
    first: dict[str, Choice] = {}
    for choice in asked.choices:
        first.setdefault(choice.name, choice)
    choices = tuple(first.values())
    if asked.kind in ("choice", "switch_mode"):
        return choices
    once = {choice.allows for choice in choices if choice.kind not in ALWAYS}
    kept = tuple(choice for choice in choices if choice.kind not in ALWAYS or choice.allows not in once)
    if pattern is None or not any(choice.allows for choice in kept):
        return kept
    return kept + tuple(Choice(describe_rule(effect, pattern, agent), kind) for kind, effect in ALWAYS.items())


def _request_payload(made: Approval) -> ApprovalRequested:
    return ApprovalRequested(
        approval_id=made.id, question=made.question, choices=tuple(choice._asdict() for choice in made.choices),
        question_kind=made.kind, tool=made.tool, command=made.command, paths=made.paths, risk=made.risk,
        diff_bytes=made.diff_bytes, expires_at=iso(made.expires_at),
        rule=made.rule or (None if made.status == "pending" else made.why),
    )  # fmt: skip


def _answer_payload(made: Approval) -> ApprovalResolved:
    return ApprovalResolved(
        approval_id=made.id, status=made.status, answer=made.answer, why=made.why, answered_by=made.answered_by,
        rule=made.rule,
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
    """Answer or expire a pending question; a second answer fails the guard. A rule the answer makes goes with it."""
    text = rule.text if rule else None
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
    """Return the rule an answer makes, or None."""
    if choice.kind not in ALWAYS or approval.always is None:
        return None
    return Rule(
        id=new_id("r", now), agent=approval.agent, effect=ALWAYS[choice.kind], approval_id=approval.id,
        created_at=now, created_by=actor, **Pattern(**approval.always)._asdict(),
    )  # fmt: skip

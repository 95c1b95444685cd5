"""Questions, answers and rules as the HTTP interface shows them."""

from __future__ import annotations

from typing_extensions import TypedDict


class ChoiceInfo(TypedDict):
    """One way to answer. `kind` is allow_once, allow_always, reject_once or reject_always."""

    name: str
    kind: str


class PatternInfo(TypedDict):
    """What a rule is about."""

    kind: str | None
    command: str | None
    path: str | None
    root: str | None


class ApprovalInfo(TypedDict):
    """A question as JSON. Its diff is told only where one question is asked for."""

    id: str
    task_id: str
    session_key: str
    agent: str
    creator: str | None
    question: str
    kind: str
    tool: str | None
    command: str | None
    paths: list[str]
    diff: str | None
    diff_bytes: int | None
    diff_left_out: int
    risk: str | None
    choices: list[ChoiceInfo]
    always: PatternInfo | None
    status: str
    answer: str | None
    why: str | None
    answered_by: str | None
    rule: str | None
    created_at: str
    expires_at: str
    resolved_at: str | None


class ApprovalPage(TypedDict):
    """Questions, newest first."""

    approvals: list[ApprovalInfo]


class RuleInfo(PatternInfo):
    """A rule that an answer made. `effect` is allow or deny; `text` tells it in words."""

    id: str
    agent: str
    effect: str
    text: str
    approval_id: str | None
    created_at: str
    created_by: str | None
    revoked_at: str | None
    revoked_by: str | None


class RulePage(TypedDict):
    """Rules, newest first."""

    rules: list[RuleInfo]

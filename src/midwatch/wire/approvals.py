"""Questions, answers and rules as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.agent import Choice
from midwatch.domain.approval import Approval
from midwatch.domain.fields import Example
from midwatch.domain.rule import Opinion, Rule, RuleTrial, WrittenRule
from midwatch.wire.shapes import shape_of


@shape_of(Choice)
class ChoiceInfo(dict[str, Any]):
    """One choice of a question. `kind` is allow_once, allow_always, reject_once or reject_always."""


class PatternInfo(TypedDict):
    """The uses of a tool that the rule of an answer applies to."""

    kind: str | None
    command: str | None
    path: str | None
    root: str | None
    tool: str | None


@shape_of(Approval, diff_left_out=Annotated[int, Example(0)], choices=list[ChoiceInfo], always=PatternInfo | None)
class ApprovalInfo(dict[str, Any]):
    """A question as JSON. Lists show a question without its diff."""


class ApprovalPage(TypedDict):
    """Questions, newest first."""

    approvals: list[ApprovalInfo]


@shape_of(Rule, text=Annotated[str, Example("always allow `git status` for demo")])
class RuleInfo(dict[str, Any]):
    """A rule that an answer created. `effect` is allow or deny; `text` is the rule in words."""


@shape_of(WrittenRule)
class WrittenRuleInfo(dict[str, Any]):
    """A rule of the settings. `source` is desk or agent; `of` is the agent in whose settings it is written."""


class RulePage(TypedDict):
    """Rules of answers, newest first, and rules of the settings."""

    rules: list[RuleInfo]
    written: list[WrittenRuleInfo]


@shape_of(Opinion)
class OpinionInfo(dict[str, Any]):
    """What one level of rules says. `name` is the session or task, if the rules come from other work."""


@shape_of(RuleTrial, levels=list[OpinionInfo])
class RuleTrialInfo(dict[str, Any]):
    """What the rules decide. `effect` is allow, ask or deny; null if the tool decides whether it asks."""

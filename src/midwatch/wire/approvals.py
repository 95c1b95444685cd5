"""Questions, answers and rules as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.agent import Choice
from midwatch.domain.approval import Approval
from midwatch.domain.fields import Example
from midwatch.domain.rule import Pattern, Rule
from midwatch.wire.shapes import shape_of


@shape_of(Choice)
class ChoiceInfo(dict[str, Any]):
    """One choice of a question. `kind` is allow_once, allow_always, reject_once or reject_always."""


@shape_of(Pattern)
class PatternInfo(dict[str, Any]):
    """The uses of a tool that a rule applies to."""


@shape_of(Approval, diff_left_out=Annotated[int, Example(0)], choices=list[ChoiceInfo], always=PatternInfo | None)
class ApprovalInfo(dict[str, Any]):
    """A question as JSON. Lists show a question without its diff."""


class ApprovalPage(TypedDict):
    """Questions, newest first."""

    approvals: list[ApprovalInfo]


@shape_of(Rule, text=Annotated[str, Example("always allow `git status` for demo")])
class RuleInfo(dict[str, Any]):
    """A rule that an answer created. `effect` is allow or deny; `text` is the rule in words."""


class RulePage(TypedDict):
    """Rules, newest first."""

    rules: list[RuleInfo]

"""Decisions about tool calls as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import TypedDict

from midwatch.domain.fields import Example


class ToolDecisionInfo(TypedDict):
    """The decision about a tool call: go_on, deny, stop or ask, or pending if there is none yet."""

    action: Annotated[str, Example("deny")]
    reason: Annotated[str | None, Example("a rule forbids it")]
    by: Annotated[str | None, Example("deny `git push`")]

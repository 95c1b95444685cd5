"""Hooks as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.hook import HookReport
from midwatch.wire.shapes import shape_of


@shape_of(HookReport)
class HookInfo(dict[str, Any]):
    """A hook with its state and its counters in the server's process."""


class HookPage(TypedDict):
    """All hooks of the server's process, in the order in which they are called."""

    hooks: list[HookInfo]


class HookTest(TypedDict):
    """The decision of a hook about an example. With `failed` the hook gave no valid decision, so it denies."""

    hook: Annotated[str, Example("policy")]
    seam: Annotated[str, Example("before_tool")]
    decision: Annotated[dict[str, Any], Example({"action": "deny", "reason": "main is protected"})]
    failed: bool
    duration: Annotated[float, Example(0.0004)]

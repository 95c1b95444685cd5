"""Tool calls: a tool that an agent wants to use, the decision about the call, and the result of the tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple


class ToolCall(NamedTuple):
    """A call of a tool before the tool runs, as rules and hooks see it.

    `server` is the MCP server of the tool. `command`, `paths` and `hosts` are what the call would run, use and reach,
    as far as the arguments tell.
    """

    tool: str
    arguments: Mapping[str, Any] = {}
    id: str | None = None
    server: str | None = None
    kind: str = "other"
    command: str | None = None
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class ToolResult(NamedTuple):
    """The result of a tool, as the model gets it."""

    text: str
    is_error: bool = False


class ToolDecision(NamedTuple):
    """The decision about a tool call before the tool runs.

    `go_on`: run the tool, with the arguments of `call` if it is set. `answer`: do not run the tool; the model gets
    `result`. `deny`: do not run the tool; the model gets `reason`. `stop`: end the turn.
    """

    action: Literal["go_on", "answer", "deny", "stop"] = "go_on"
    call: ToolCall | None = None
    result: ToolResult | None = None
    reason: str | None = None
    by: str | None = None
    """What decided: a rule or a hook, as text for people."""


GO_ON = ToolDecision()
Describe = Callable[[Mapping[str, Any]], ToolCall]
"""Returns the same call of a tool with other arguments, and what these would run, use and reach."""

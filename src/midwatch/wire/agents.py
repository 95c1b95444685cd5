"""Agents as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.agent import AgentCapability
from midwatch.domain.fields import Example
from midwatch.wire.shapes import shape_of


@shape_of(AgentCapability)
class Capability(dict[str, Any]):
    """A kind of work that an agent can do; handoffs choose agents by capabilities."""


class AgentInfo(TypedDict, total=False):
    """An agent as JSON. If only another process has the agent, just `name` and `live` are shown."""

    name: Annotated[str, Example("demo")]
    live: Annotated[bool, Example(True)]
    kind: Annotated[str, Example("demo")]
    why: str | None
    version: str
    tested_versions: list[str]
    description: Annotated[str, Example("built in")]
    capabilities: list[Capability]
    handoffs: bool
    slots: Annotated[int, Example(16)]
    timeout: Annotated[float | None, Example(1800.0)]
    on_crash: Annotated[str, Example("rerun")]
    steerable: bool
    problem: str | None
    command: str
    target: Annotated[str, Example("built in")]


class AgentPage(TypedDict):
    """All agents by name, and the default agent."""

    agents: list[AgentInfo]
    default: str

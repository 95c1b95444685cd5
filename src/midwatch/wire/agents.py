"""Agents as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from midwatch.domain.agent import AgentCapability
from midwatch.wire.shapes import shape_of


@shape_of(AgentCapability)
class Capability(dict[str, Any]):
    """What an agent is given handed-over work for."""


class AgentInfo(TypedDict, total=False):
    """An agent as JSON; of one that only another process knows just `name` and `live`."""

    name: str
    live: bool
    kind: str
    why: str | None
    version: str
    description: str
    capabilities: list[Capability]
    handoffs: bool
    slots: int
    timeout: float | None
    on_crash: str
    steerable: bool
    problem: str | None
    command: str
    target: str


class AgentPage(TypedDict):
    """All agents by name, and which one works when nobody says."""

    agents: list[AgentInfo]
    default: str

"""Usage: what ended work has cost, by actor and agent. Figures that no agent told stay unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from midwatch.clock import SECOND


class Spent(NamedTuple):
    """What one ended task has cost."""

    actor: str
    agent: str
    status: str
    seconds: float
    usage: Mapping[str, Any] | None


class UsageStore(Protocol):
    """Port: what ended tasks have cost."""

    async def spent_since(self, since: int) -> list[Spent]:
        """The tasks that ended at or after `since`."""
        ...


FIGURES = ("input_tokens", "output_tokens", "cost_usd")


def summed(rows: Iterable[Spent]) -> dict[str, Any]:
    """The figures of all of them together."""
    total: dict[str, Any] = {"tasks": 0, "done": 0, "failed": 0, "cancelled": 0, "seconds": 0.0}
    total |= dict.fromkeys(FIGURES)
    for row in rows:
        total["tasks"] += 1
        total[row.status] += 1
        total["seconds"] += row.seconds
        for name in FIGURES:
            figure = (row.usage or {}).get(name)
            if isinstance(figure, int | float) and not isinstance(figure, bool):
                total[name] = (total[name] or 0) + figure
    total["seconds"] = round(total["seconds"], 3)
    return total


def by_actor_and_agent(rows: list[Spent]) -> list[dict[str, Any]]:
    """The figures of each actor with each agent, those with most tasks first."""
    parts: dict[tuple[str, str], list[Spent]] = {}
    for row in rows:
        parts.setdefault((row.actor, row.agent), []).append(row)
    made = [{"actor": actor, "agent": agent, **summed(part)} for (actor, agent), part in parts.items()]
    return sorted(made, key=lambda one: (-one["tasks"], one["actor"], one["agent"]))


def spent_seconds(started_at: int | None, completed_at: int) -> float:
    """How long a task worked, by its last attempt."""
    return 0.0 if started_at is None else max(0, completed_at - started_at) / SECOND

"""The routes of all nouns, in the order of the documentation."""

from __future__ import annotations

from starlette.routing import BaseRoute

from midwatch.api import (
    agents,
    approvals,
    automations,
    budgets,
    cluster,
    deliveries,
    events,
    goals,
    handoffs,
    hooks,
    identity,
    now,
    rules,
    sessions,
    system,
    tasks,
    terminals,
    tool_calls,
    triggers,
    worktrees,
)

NOUNS = (
    system, now, tasks, terminals, sessions, worktrees, automations, triggers, goals, budgets, handoffs, events,
    approvals, rules, hooks, tool_calls, agents, deliveries, identity, cluster,
)  # fmt: skip


def list_routes() -> list[BaseRoute]:
    """Return the routes of all nouns. FastAPI's `include_router` would build each route a second time."""
    return [route for noun in NOUNS for route in noun.router.routes]

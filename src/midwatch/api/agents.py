"""Routes of agents: who can do the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from midwatch.agent import Agent
from midwatch.api.desk import Desk
from midwatch.api.reply import Json

router = APIRouter()


@router.get("/agents")
async def list_agents(desk: Desk) -> Json:
    """All agents known here, and those that other live processes offer."""
    live = await desk.roster.live()
    known = {name: shown(agent, name in live) for name, agent in desk.agents.items()}
    elsewhere = {name: {"name": name, "live": True} for name in live if name not in known}
    everyone: Mapping[str, dict[str, Any]] = known | elsewhere
    return Json({"agents": [everyone[name] for name in sorted(everyone)], "default": desk.settings.default_agent})


def shown(agent: Agent, live: bool) -> dict[str, Any]:
    """One agent as JSON."""
    return {
        "name": agent.name,
        "kind": agent.kind,
        "description": agent.capability.description,
        "slots": agent.terms.slots,
        "timeout": agent.terms.timeout_seconds,
        "on_crash": agent.terms.on_crash,
        "live": live,
        "problem": None,
        **agent.describe(),
    }

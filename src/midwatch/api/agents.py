"""Routes of agents: who can do the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header

from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.base.errors import NotFound, UnknownAgent
from midwatch.domain.agent import Agent
from midwatch.wire.agents import AgentPage
from midwatch.wire.tasks import TaskInfo

TEST_PROMPT = "Answer with the single word: ready"
TEST_SECONDS = 120.0

router = APIRouter(prefix=PREFIX, tags=["agents"])


@router.get("/agents", responses={200: {"model": AgentPage}})
async def list_agents(desk: DeskDep) -> Json:
    """All agents known here, and those that other live processes offer."""
    live = await desk.roster.live()
    known = {name: shown(agent, name in live, desk.handoffs.enabled(name)) for name, agent in desk.agents.items()}
    elsewhere = {
        name: {"name": name, "live": True, "steerable": (await desk.roster.terms_of(name)).steerable}
        for name in live
        if name not in known
    }
    everyone: Mapping[str, dict[str, Any]] = known | elsewhere
    return Json({"agents": [everyone[name] for name in sorted(everyone)], "default": desk.settings.default_agent})


@router.post("/agents/{name}/test", status_code=201, responses={201: {"model": TaskInfo}})
async def test(desk: DeskDep, who: Who, name: str, idempotency_key: Annotated[str | None, Header()] = None) -> Json:
    """Give an agent a short task, to see whether it works."""
    try:
        task = await desk.tasks.submit(
            TEST_PROMPT, agent=name, timeout=TEST_SECONDS, priority=100, max_attempts=1, actor=who.name,
            idempotency_key=idempotency_key,
        )  # fmt: skip
    except UnknownAgent:
        raise NotFound("agent", name) from None
    return Json(task.snapshot(), 201, headers={"location": f"/api/v1/tasks/{task.id}"})


def shown(agent: Agent, live: bool, handoffs: bool) -> dict[str, Any]:
    """One agent as JSON."""
    return {
        "name": agent.name,
        "kind": agent.kind,
        "why": getattr(agent, "why", None),
        "description": agent.description,
        "capabilities": [asdict(one) for one in agent.capabilities],
        "handoffs": handoffs,
        "slots": agent.terms.slots,
        "timeout": agent.terms.timeout_seconds,
        "on_crash": agent.terms.on_crash,
        "steerable": agent.terms.steerable,
        "live": live,
        "problem": None,
        **agent.describe(),
    }

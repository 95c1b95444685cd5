"""Routes of agents: list all agents, and test an agent with a short task."""

from __future__ import annotations

from midwatch.api.dependencies import Caller, DeskDep, IdempotencyKey
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, reply_created
from midwatch.base.errors import NotFound, UnknownAgent
from midwatch.wire.agents import AgentPage
from midwatch.wire.tasks import TaskInfo

TEST_PROMPT = "Answer with the single word: ready"
TEST_SECONDS = 120.0

router = make_router("agents")


@router.get("/agents", responses={200: {"model": AgentPage}})
@needs("know")
async def list_agents(desk: DeskDep) -> Json:
    """List the agents of this server and of other live processes."""
    agents = await desk.registry.describe(desk.handoffs.can_receive)
    return Json({"agents": agents, "default": desk.settings.default_agent})


@router.post("/agents/{name}/test", status_code=201, responses={201: {"model": TaskInfo}})
@needs("operate")
async def test(desk: DeskDep, actor: Caller, name: str, idempotency_key: IdempotencyKey = None) -> Json:
    """Submit a short task to an agent, to check that the agent works."""
    try:
        task = await desk.tasks.submit(
            TEST_PROMPT, agent=name, timeout=TEST_SECONDS, priority=100, max_attempts=1, actor=actor,
            idempotency_key=idempotency_key,
        )  # fmt: skip
    except UnknownAgent:
        raise NotFound("agent", name) from None
    return reply_created("tasks", task.snapshot())

"""Routes of tool calls: the program of an agent asks whether it may use a tool."""

from __future__ import annotations

from contextlib import nullcontext

from fastapi import Request

from midwatch.api.bodies import ToolCallBody
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.tool_calls import ToolDecisionInfo

router = make_router("tool_calls")


@router.post("/tool_calls/check", responses={200: {"model": ToolDecisionInfo}})
@needs("submit")
async def check(desk: DeskDep, request: Request, actor: Caller, body: ToolCallBody) -> Json:
    """Decide whether an agent's program may use a tool. The agent of a running task asks with the token of its attempt.

    `action` is go_on, deny or stop, or pending if there is no decision after `wait` seconds: then send the same request
    again. With go_on, `by` names the rule or the person who allowed the tool; it is null if nobody decided. Outside of
    a task, only the rules decide, and the action ask means that the program must ask a person itself.
    """
    from midwatch.agents.streams.reading import describe_call  # it loads all profiles of agents

    call = describe_call(body.tool, body.arguments, body.id, body.workdir)
    with request.app.state.streams.place(actor) if body.wait else nullcontext():
        decision = await desk.tool_calls.check(call, agent=body.agent, root=body.root, wait=body.wait, actor=actor)
    if decision is None:
        return Json({"action": "pending", "reason": None, "by": None})
    return Json({"action": decision.action, "reason": decision.reason, "by": decision.by})

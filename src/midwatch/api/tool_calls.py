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
    """Decide whether the agent of a running task may use a tool. The agent asks with the token of its attempt.

    `action` is go_on, answer, deny or stop, or pending if there is no decision after `wait` seconds: then send the same
    request again. With go_on, `by` names the rule or the person who allowed the tool, or is null if nobody decided.
    """
    with request.app.state.streams.place(actor) if body.wait else nullcontext():
        decision = await desk.tool_calls.check(body.call(), wait=body.wait, actor=actor)
    if decision is None:
        return Json({"action": "pending", "reason": None, "by": None})
    return Json({"action": decision.action, "reason": decision.reason, "by": decision.by})

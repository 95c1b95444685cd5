"""Routes of approvals: the inbox of questions and their answers. Agents that work may not answer: the guard sees to it,
and so do the routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from midwatch.api.bodies import AnswerBody, ApprovalQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.base.errors import Forbidden
from midwatch.desk.desk import Desk
from midwatch.domain.identity import Actor
from midwatch.wire.approvals import ApprovalInfo, ApprovalPage

router = APIRouter(prefix=PREFIX, tags=["approvals"])


@router.get("/approvals", responses={200: {"model": ApprovalPage}})
async def list_approvals(desk: DeskDep, asked: Annotated[ApprovalQuery, Query()]) -> Json:
    """Questions, newest first; open ones unless `status` says otherwise."""
    found = await desk.approvals.list(None if asked.status == "all" else asked.status, asked.limit)
    return Json({"approvals": [approval.snapshot() for approval in found]})


@router.get("/approvals/{approval_id}", responses={200: {"model": ApprovalInfo}})
async def show(desk: DeskDep, approval_id: str) -> Json:
    """One question, with its diff."""
    return Json((await desk.approvals.get(approval_id)).snapshot(whole=True))


@router.post("/approvals/{approval_id}/approve", responses={200: {"model": ApprovalInfo}})
async def approve(desk: DeskDep, who: Who, approval_id: str, body: AnswerBody | None = None) -> Json:
    """Say yes, or answer with a choice."""
    return await _answer(desk, who, approval_id, body or AnswerBody(), grant=True)


@router.post("/approvals/{approval_id}/deny", responses={200: {"model": ApprovalInfo}})
async def deny(desk: DeskDep, who: Who, approval_id: str, body: AnswerBody | None = None) -> Json:
    """Say no."""
    return await _answer(desk, who, approval_id, body or AnswerBody(), grant=False)


async def _answer(desk: Desk, who: Actor, approval_id: str, said: AnswerBody, *, grant: bool) -> Json:
    if who.task is not None:
        raise Forbidden("an agent does not answer questions; a person does.")
    answered = await desk.approvals.answer(
        approval_id, said.choice, grant=grant, always=said.always, why=said.why, actor=who.name
    )
    return Json(answered.snapshot(whole=True))

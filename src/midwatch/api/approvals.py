"""Routes of approvals: the inbox of questions, and their answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import AnswerBody, ApprovalQuery
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.approvals import ApprovalInfo, ApprovalPage

router = make_router("approvals")


@router.get("/approvals", responses={200: {"model": ApprovalPage}})
@needs("read")
async def list_approvals(desk: DeskDep, actor: Caller, query: Annotated[ApprovalQuery, Query()]) -> Json:
    """List questions, newest first. Without `status`, list only open questions."""
    status = None if query.status == "all" else query.status
    listed = await desk.approvals.list(status, query.limit, actor=actor)
    return Json({"approvals": [approval.snapshot() for approval in listed]})


@router.get("/approvals/{approval_id}", responses={200: {"model": ApprovalInfo}})
@needs("read")
async def show(desk: DeskDep, actor: Caller, approval_id: str) -> Json:
    """Return one question, with its diff."""
    return Json((await desk.approvals.get(approval_id, actor=actor)).snapshot(whole=True))


@router.post("/approvals/{approval_id}/approve", responses={200: {"model": ApprovalInfo}})
@needs("manage")
async def approve(desk: DeskDep, actor: Caller, approval_id: str, body: AnswerBody | None = None) -> Json:
    """Answer a question with yes, or with the choice that `choice` names."""
    fields = (body or AnswerBody()).model_dump()
    return Json((await desk.approvals.answer(approval_id, grant=True, actor=actor, **fields)).snapshot(whole=True))


@router.post("/approvals/{approval_id}/deny", responses={200: {"model": ApprovalInfo}})
@needs("manage")
async def deny(desk: DeskDep, actor: Caller, approval_id: str, body: AnswerBody | None = None) -> Json:
    """Answer a question with no, or with the choice that `choice` names."""
    fields = (body or AnswerBody()).model_dump()
    return Json((await desk.approvals.answer(approval_id, grant=False, actor=actor, **fields)).snapshot(whole=True))

"""Routes of handoffs: hand over, read, cancel, retry."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

from fastapi import Query, Request

from midwatch.api.bodies import HandoffBody, HandoffQuery, WaitQuery
from midwatch.api.dependencies import Caller, DeskDep, IdempotencyKey
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, list_page, reply_created
from midwatch.domain.handoff import HandoffFilter, HandoffTask
from midwatch.domain.handoff_history import HandoffContext
from midwatch.services.handoffs import HandoffOptions
from midwatch.wire.handoffs import HandoffInfo, HandoffPage

ONE: dict[int | str, dict[str, Any]] = {200: {"model": HandoffInfo}}
CREATED: dict[int | str, dict[str, Any]] = {201: {"model": HandoffInfo}}

router = make_router("handoffs")


@router.post("/handoffs", status_code=201, responses=CREATED)
@needs("submit")
async def create(
    desk: DeskDep, request: Request, actor: Caller, body: HandoffBody, idempotency_key: IdempotencyKey = None
) -> Json:
    """Hand work to an agent. Without `to`, midwatch chooses the best agent for the type of the work.

    With `wait`, the reply comes when the handoff has ended, but after this number of seconds at the latest.
    """
    fields = body.model_dump(exclude={"task", "context", "wait", "wake"})
    work = HandoffTask(**body.task.model_dump() if body.task else {})
    options = HandoffOptions(task=work, returns="wake" if body.wake else None, **fields)
    context = HandoffContext.from_data(body.context.model_dump(exclude_unset=True)) if body.context else None
    with request.app.state.streams.place(actor) if body.wait else nullcontext():
        handoff = await desk.handoff_requests.create(
            options, context, actor=actor, idempotency_key=idempotency_key, wait=body.wait
        )
    return reply_created("handoffs", handoff.snapshot())


@router.get("/handoffs", responses={200: {"model": HandoffPage}})
@needs("read")
async def list_handoffs(desk: DeskDep, actor: Caller, query: Annotated[HandoffQuery, Query()]) -> Json:
    """List handoffs, newest first, without their messages. `next` is the `before` of the following page, or null."""
    which = HandoffFilter(
        statuses=tuple(query.status), agent=query.agent, root_id=query.root, before=query.before, limit=query.limit
    )
    handoffs = await desk.handoff_requests.list(which, actor=actor)
    return list_page("handoffs", [handoff.brief() for handoff in handoffs], handoffs.next)


@router.get("/handoffs/{handoff_id}", responses=ONE)
@needs("read")
async def show(
    desk: DeskDep, request: Request, actor: Caller, handoff_id: str, query: Annotated[WaitQuery, Query()]
) -> Json:
    """Return one handoff. With `wait`, reply when the handoff has ended, or after this number of seconds."""
    with request.app.state.streams.place(actor) if query.wait else nullcontext():
        return Json((await desk.handoff_requests.get(handoff_id, actor=actor, wait=query.wait)).snapshot())


@router.post("/handoffs/{handoff_id}/cancel", responses=ONE)
@needs("signal")
async def cancel(desk: DeskDep, actor: Caller, handoff_id: str) -> Json:
    """Cancel a handoff. The task of the handoff is stopped, even if another process runs it."""
    return Json((await desk.handoff_requests.cancel(handoff_id, actor=actor)).snapshot())


@router.post("/handoffs/{handoff_id}/retry", status_code=201, responses=CREATED)
@needs("manage")
async def retry(desk: DeskDep, actor: Caller, handoff_id: str, idempotency_key: IdempotencyKey = None) -> Json:
    """Hand the same work to the same agent again, as a new handoff."""
    handoff = await desk.handoff_requests.retry(handoff_id, actor=actor, idempotency_key=idempotency_key)
    return reply_created("handoffs", handoff.snapshot())

"""Routes of handoffs: hand over, look, cancel, try again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query

from midwatch.api.agent_rights import must_submit, place_for
from midwatch.api.bodies import HandoffBody, HandoffQuery, WaitQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.api.tasks import check_may
from midwatch.base.errors import Conflict, Forbidden, HandoffError, InvalidInput
from midwatch.desk.desk import Desk
from midwatch.domain.handoff import Handoff, HandoffFilter, HandoffTask
from midwatch.domain.handoff_history import HandoffContext
from midwatch.domain.identity import Actor
from midwatch.services.handoff_source import from_task
from midwatch.services.handoffs import HandoffOptions
from midwatch.services.request_checks import check_workdir
from midwatch.wire.handoffs import HandoffInfo, HandoffPage

ONE: dict[int | str, dict[str, Any]] = {200: {"model": HandoffInfo}}
MADE: dict[int | str, dict[str, Any]] = {201: {"model": HandoffInfo}}

router = APIRouter(prefix=PREFIX, tags=["handoffs"])


@router.post("/handoffs", status_code=201, responses=MADE)
async def create(
    desk: DeskDep, who: Who, body: HandoffBody, idempotency_key: Annotated[str | None, Header()] = None
) -> Json:
    """Hand work to an agent, or to the best for its type. With `wait` the reply comes when it has ended, or then."""
    wish = await options_of(desk, who, body, idempotency_key)
    made = await desk.handoffs.handoff(wish)
    if not same(made, wish):
        raise Conflict("this idempotency key was used for another handoff; choose another key.")
    made = await ended(desk, who, made.id, body.wait)
    return Json(made.snapshot(), 201, headers={"location": f"/api/v1/handoffs/{made.id}"})


def same(made: Handoff, wish: HandoffOptions) -> bool:
    """Whether it is what is asked for, as far as it was kept."""
    within = wish.timeout in (None, made.timeout) and wish.max_retries == made.max_retries
    return made.request == wish.task.data() and wish.to in (None, made.to_agent) and within


async def options_of(desk: Desk, who: Actor, body: HandoffBody, key: str | None) -> HandoffOptions:
    """What is asked for, by a person or by the agent of a running task, who speaks for that task alone."""
    source = source_of(who, body.source_task)
    if who.task is not None:
        await must_submit(desk, who.task)
    elif source is not None:
        await check_may(desk, who, source)
    check_workdir(body.workdir)
    work = HandoffTask(**body.task.model_dump()) if body.task else HandoffTask()
    context = HandoffContext.from_data(body.context.model_dump(exclude_unset=True)) if body.context else None
    if who.task is not None and context is not None:
        context = replace(context, parent_handoff=None)  # the service knows what brought the work to it
    workdir = body.workdir
    if source is not None:
        task = await desk.tasks.get(source)
        work, known = await from_task(desk.store, task, work)
        workdir = await place_for(desk, task, workdir) if who.task else workdir or task.workdir
        context = context or known
    if body.to is None and not work.type:
        raise InvalidInput("say whom it is for, or of which type the work is.", field="to")
    return HandoffOptions(
        task=work, to=body.to, from_agent=who.task.agent if who.task else body.from_agent, wait=False,
        context=context or HandoffContext(), timeout=body.timeout, max_retries=body.max_retries, source_task=source,
        nest_history=body.nest_history, workdir=workdir, actor=who.name, once=once_of(who, key),
        awaited=who.task is not None and body.wait > 0,
    )  # fmt: skip


def source_of(who: Actor, said: str | None) -> str | None:
    """The task it comes from; Forbidden when an agent names another than its own."""
    if who.task is None:
        return said
    if said not in (None, who.task.id):
        raise Forbidden("an agent may hand over only from the task it works on.")
    return who.task.id


def once_of(who: Actor, key: str | None) -> str | None:
    """The key, as one of its own for each who asks."""
    return None if key is None else f"{'agent' if who.task else 'actor'}:{who.name}:{key}"


async def ended(desk: Desk, who: Actor, handoff_id: str, wait: float) -> Handoff:
    """The handoff when it has ended, or after `wait` seconds as it is then."""
    if wait > 0:
        with suppress(TimeoutError, HandoffError):
            async with asyncio.timeout(wait):
                await desk.handoffs.wait(handoff_id, who.task.id if who.task else None)
    return await desk.handoffs.get(handoff_id)


@router.get("/handoffs", responses={200: {"model": HandoffPage}})
async def list_handoffs(desk: DeskDep, asked: Annotated[HandoffQuery, Query()]) -> Json:
    """Handoffs, newest first, without their messages. `next` is the `before` of the following page, or null."""
    which = HandoffFilter(
        statuses=tuple(asked.status), agent=asked.agent, root_id=asked.root, before=asked.before, limit=asked.limit
    )
    found = await desk.handoffs.list(which)
    following = found[-1].id if len(found) == asked.limit else None
    return Json({"handoffs": [one.brief() for one in found], "next": following})


@router.get("/handoffs/{handoff_id}", responses=ONE)
async def show(desk: DeskDep, who: Who, handoff_id: str, asked: Annotated[WaitQuery, Query()]) -> Json:
    """One handoff; with `wait` when it has ended, or after so many seconds as it is then."""
    await desk.handoffs.get(handoff_id)
    return Json((await ended(desk, who, handoff_id, asked.wait)).snapshot())


@router.post("/handoffs/{handoff_id}/cancel", responses=ONE)
async def cancel(desk: DeskDep, who: Who, handoff_id: str) -> Json:
    """It is not wanted any more: it ends, and its task is stopped wherever it runs."""
    found = await desk.handoffs.get(handoff_id)
    if who.task is None:
        who.must_manage(found.creator, desk.settings.manage_tasks)
    elif found.source_task != who.task.id:
        raise Forbidden("an agent may cancel only what it has handed over itself.")
    why = f"cancelled by {who.task.agent if who.task else who.name}"
    return Json((await desk.handoffs.cancel(handoff_id, why=why, actor=who.name)).snapshot())


@router.post("/handoffs/{handoff_id}/retry", status_code=201, responses=MADE)
async def retry(
    desk: DeskDep, who: Who, handoff_id: str, idempotency_key: Annotated[str | None, Header()] = None
) -> Json:
    """Hand the same work to the same agent again, as a new handoff."""
    who.must_manage((await desk.handoffs.get(handoff_id)).creator, desk.settings.manage_tasks)
    once = f"retry:{handoff_id}:{once_of(who, idempotency_key)}" if idempotency_key else None
    made = await desk.handoffs.retry(handoff_id, actor=who.name, once=once)
    return Json(made.snapshot(), 201, headers={"location": f"/api/v1/handoffs/{made.id}"})

"""Routes of deliveries: list sent, waiting and failed deliveries, and retry a failed delivery."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import DeliveryQuery
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.wire.deliveries import DeliveryInfo, DeliveryPage

router = make_router("deliveries")


@router.get("/deliveries", responses={200: {"model": DeliveryPage}})
@needs("oversee")
async def list_deliveries(desk: DeskDep, actor: Caller, query: Annotated[DeliveryQuery, Query()]) -> Json:
    """List deliveries, newest first."""
    deliveries = await desk.notifications.list(
        task_id=query.task_id, status=query.status, limit=query.limit, actor=actor
    )
    return Json({"deliveries": [delivery.snapshot() for delivery in deliveries]})


@router.get("/deliveries/{delivery_id}", responses={200: {"model": DeliveryInfo}})
@needs("oversee")
async def show(desk: DeskDep, actor: Caller, delivery_id: str) -> Json:
    """Return one delivery."""
    return Json((await desk.notifications.get(delivery_id, actor=actor)).snapshot())


@router.post("/deliveries/{delivery_id}/retry", responses={200: {"model": DeliveryInfo}})
@needs("operate")
async def retry(desk: DeskDep, actor: Caller, delivery_id: str) -> Json:
    """Try a failed delivery again."""
    return Json((await desk.notifications.retry(delivery_id, actor=actor)).snapshot())

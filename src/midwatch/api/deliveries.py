"""Routes of deliveries: which notices were sent, wait or failed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from midwatch.api.bodies import DeliveryQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.wire.deliveries import DeliveryInfo, DeliveryPage

router = APIRouter(prefix=PREFIX, tags=["deliveries"])


@router.get("/deliveries", responses={200: {"model": DeliveryPage}})
async def list_deliveries(desk: DeskDep, asked: Annotated[DeliveryQuery, Query()]) -> Json:
    """Deliveries, newest first."""
    found = await desk.notifications.list(task_id=asked.task_id, status=asked.status, limit=asked.limit)
    return Json({"deliveries": [delivery.snapshot() for delivery in found]})


@router.get("/deliveries/{delivery_id}", responses={200: {"model": DeliveryInfo}})
async def show(desk: DeskDep, delivery_id: str) -> Json:
    """One delivery."""
    return Json((await desk.notifications.get(delivery_id)).snapshot())


@router.post("/deliveries/{delivery_id}/retry", responses={200: {"model": DeliveryInfo}})
async def retry(desk: DeskDep, who: Who, delivery_id: str) -> Json:
    """Try a failed one again."""
    return Json((await desk.notifications.retry(delivery_id, actor=who.name)).snapshot())

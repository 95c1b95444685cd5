"""Routes of deliveries: which notices were sent, wait or failed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from midwatch.api.bodies import DeliveryQuery
from midwatch.api.desk import Desk
from midwatch.api.reply import Json

router = APIRouter()


@router.get("/deliveries")
async def list_deliveries(desk: Desk, asked: Annotated[DeliveryQuery, Query()]) -> Json:
    """Deliveries, newest first."""
    found = await desk.notifications.list(task_id=asked.task_id, status=asked.status, limit=asked.limit)
    return Json({"deliveries": [delivery.snapshot() for delivery in found]})

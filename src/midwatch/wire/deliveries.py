"""Deliveries as the HTTP interface shows them."""

from __future__ import annotations

from typing_extensions import TypedDict


class DeliveryInfo(TypedDict):
    """A delivery as JSON."""

    id: str
    task_id: str
    channel: str
    notice: str
    text: str
    status: str
    attempts: int
    due_at: str | None
    sent_at: str | None
    error: str | None


class DeliveryPage(TypedDict):
    """Deliveries, newest first."""

    deliveries: list[DeliveryInfo]

"""Deliveries as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from midwatch.domain.channel import Delivery
from midwatch.wire.shapes import shape_of


@shape_of(Delivery, due_at=str | None)
class DeliveryInfo(dict[str, Any]):
    """A delivery as JSON."""


class DeliveryPage(TypedDict):
    """Deliveries, newest first."""

    deliveries: list[DeliveryInfo]

"""Triggers and their firings as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.trigger import Firing, Trigger
from midwatch.wire.shapes import shape_of

URL = "https://desk.example.org/api/v1/hooks/tr_06f2m8yq3kq5r0v9x1w2"
TEXT = Annotated[str, Example("on a delivery to its webhook (github)")]
ADDRESS = Annotated[str | None, Example(URL)]


class WebhookInfo(TypedDict):
    """The address and the secret of a webhook."""

    trigger_id: Annotated[str, Example("tr_06f2m8yq3kq5r0v9x1w2")]
    url: Annotated[str, Example(URL)]
    secret: Annotated[str, Example("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]


@shape_of(
    Trigger,
    text=TEXT,
    url=ADDRESS,
    filtered=int,
    filtered_at=str | None,
    filtered_why=str | None,
    filtered_summary=str | None,
)
class TriggerInfo(dict[str, Any]):
    """A trigger. `filtered` counts deliveries that its filter stopped; the other fields describe the last of them."""


class TriggerPage(TypedDict):
    """The triggers of an automation, in its order."""

    triggers: list[TriggerInfo]


@shape_of(Firing)
class FiringInfo(dict[str, Any]):
    """A firing as JSON."""


@shape_of(Firing, payload=Annotated[str | None, Example('{\n  "ref": "refs/heads/main"\n}')])
class FiringDetail(dict[str, Any]):
    """A firing with its payload."""


class FiringPage(TypedDict):
    """Firings, newest first."""

    firings: list[FiringInfo]


class DeliveredInfo(TypedDict):
    """What a delivery did: its firing is pending, started or skipped, or it was filtered, or it was only a ping."""

    firing_id: Annotated[str | None, Example("f_06f2m8yq3kq5r0v9x1w2")]
    status: Annotated[str, Example("pending")]
    reason: str | None
